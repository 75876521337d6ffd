"""When a variant that could not be loaded may be tried again: later each time.

Exponential backoff, a variant and worker at a time. The file may be mended, memory may come free:
so it never stops trying, but a variant that cannot work costs one load in five minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S, LONGEST_S = 1.0, 300.0
LOAD_FACTOR, LOAD_S = 20.0, 60.0
"""A load that takes this many times what is predicted, plus this many seconds, does not end."""


@dataclass(slots=True)
class _Failure:
    times: int
    until_s: float


class LoadBackoff:
    """What failed to load on one worker."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}

    def failed(self, variant_id: str, now_s: float) -> float:
        """The variant could not be loaded; seconds until it may be tried again."""
        failure = self._failures.setdefault(variant_id, _Failure(0, now_s))
        pause_s = min(FIRST_S * 2.0**failure.times, LONGEST_S)
        failure.times += 1
        failure.until_s = now_s + pause_s
        return pause_s

    def loaded(self, variant_id: str) -> None:
        """It could be loaded after all."""
        self._failures.pop(variant_id, None)

    def barred(self, now_s: float) -> frozenset[str]:
        """What is not to be tried now."""
        failures = self._failures
        return frozenset(name for name, failure in failures.items() if now_s < failure.until_s)


def never_ends(began_s: float, predicted_s: float, now_s: float) -> bool:
    """Whether a load that began then takes so long that it is stuck.

    Args:
        began_s, now_s: when.
        predicted_s: how long it should take; what is not finite counts as 0.
    """
    expected_s = predicted_s if 0.0 <= predicted_s < float("inf") else 0.0
    return now_s - began_s > LOAD_FACTOR * expected_s + LOAD_S
