"""A policy beside the one in charge, which only says what it would have done.

Its answers are counted and change nothing. It is asked a bounded number of times a second, with
randomness of its own, and is switched off when it raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from modelless.common.errors import FOREIGN_ERRORS
from modelless.policies.discovery import build_policy
from modelless.policies.seams import ScalingPolicy, SelectionPolicy

MOST_PER_S: Final = 100
"""Calls of the policy within a second; further decisions pass it by."""

MOST_KINDS: Final = 128
"""Pairs of what was done and what it would have done that are counted one by one."""

SWITCHED_OFF: Final = "switched off"
"""Stands for what was done where the policy raised an error; the error stands beside it."""

Advice = Mapping[tuple[str, str], int]
"""How often something was done, and something would have been done, in words."""

_Policy = TypeVar("_Policy", bound=SelectionPolicy | ScalingPolicy)


class Advisory(Generic[_Policy]):
    """Asks one policy beside the one in charge, and counts its advice.

    Args:
        policy: None advises nothing.
    """

    def __init__(self, policy: _Policy | None) -> None:
        self._policy = policy
        self._counts: dict[tuple[str, str], int] = {}
        self._second, self._asked = 0, 0

    def note(self, now_s: float, done: str, ask: Callable[[_Policy], str | None]) -> None:
        """Count what the policy would have done.

        Args:
            done: what was done, in a few words.
            ask: asks the policy; returns its answer in such words, None for one not to be counted.
        """
        if self._policy is None:
            return
        if math.floor(now_s) != self._second:
            self._second, self._asked = math.floor(now_s), 0
        self._asked += 1
        if self._asked > MOST_PER_S:
            return
        try:
            would = ask(self._policy)
        except FOREIGN_ERRORS as error:  # whatever a policy raises, the one in charge goes on
            self._policy = None
            done, would = SWITCHED_OFF, f"raised {type(error).__name__}: {error!s:.200}"
        if would is not None:
            add_advice(self._counts, {(done, would): 1})

    def take(self) -> Advice:
        """The counts since the last call."""
        counts, self._counts = self._counts, {}
        return counts


def build_advisory(
    seam: type[_Policy], specification: str | Mapping[str, Any] | None
) -> Advisory[_Policy] | None:
    """What settings say is beside the policy in charge; raises as ``build_policy`` does."""
    return None if specification is None else Advisory(build_policy(seam, specification))


def add_advice(counts: dict[tuple[str, str], int], more: Advice) -> None:
    """Add to counts; pairs beyond ``MOST_KINDS`` are counted together."""
    for pair, count in more.items():
        key = pair if pair in counts or len(counts) < MOST_KINDS else ("other", "other things")
        counts[key] = counts.get(key, 0) + count


def shown_advice(seam: str, counts: Advice) -> dict[str, Any]:
    """The counts as plain data, the most frequent first."""
    return {
        "seam": seam,
        "asked": sum(counts.values()),
        "agreed": sum(count for (done, would), count in counts.items() if done == would),
        "advice": [
            {"done": done, "would": would, "count": count}
            for (done, would), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ],
    }
