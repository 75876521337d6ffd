"""When a variant that could not be loaded may be tried again: later each time.

The back-off is exponential, for each variant on its own. The file may be mended and memory may
come free, so the device never stops trying; a variant that cannot work costs one load in five
minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S, LONGEST_S = 1.0, 300.0
LOAD_FACTOR, LOAD_S = 20.0, 60.0
"""A load is stuck that takes this many times what is predicted, plus this many seconds."""


@dataclass(slots=True)
class _Failure:
    times: int
    until_s: float


class LoadBackoff:
    """The variants that failed to load on one device."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}

    def fail(self, variant_id: str, now_s: float) -> float:
        """Note that a load has failed; returns seconds until the variant may be tried again."""
        failure = self._failures.setdefault(variant_id, _Failure(0, now_s))
        pause_s = min(FIRST_S * 2.0**failure.times, LONGEST_S)
        failure.times += 1
        failure.until_s = now_s + pause_s
        return pause_s

    def succeed(self, variant_id: str) -> None:
        """Note that a load has succeeded: the next failure counts as the first."""
        self._failures.pop(variant_id, None)

    def barred(self, now_s: float) -> frozenset[str]:
        """The variants that are not to be tried now."""
        failures = self._failures
        return frozenset(name for name, failure in failures.items() if now_s < failure.until_s)


def is_load_stuck(began_s: float, predicted_s: float, now_s: float) -> bool:
    """Whether a load has run for so long that it will not end.

    Args:
        began_s, now_s: times in seconds.
        predicted_s: how long it should take; a value that is not finite counts as 0.
    """
    expected_s = predicted_s if 0.0 <= predicted_s < float("inf") else 0.0
    return now_s - began_s > LOAD_FACTOR * expected_s + LOAD_S
