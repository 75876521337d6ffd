"""How good the predictions were, by device class, counted as outcomes arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

_WINDOW = 1000
"""The outcomes over which shares are counted; older ones fade exponentially."""
_KEEP = 1.0 - 1.0 / _WINDOW
_ERRORS_KEPT = 500


@dataclass(frozen=True, slots=True)
class Coverage:
    """How recent predictions for one device class held, each made before its outcome was learned.

    Attributes:
        device_class: name of the device class.
        outcomes: number of outcomes so far.
        weight: number of outcomes that the shares represent: those of the last thousand, faded.
        within_p50_percent, within_p90_percent, within_p99_percent: share of outcomes that took at
            most the predicted quantile, per cent; the goals are 50, 90 and 99. None without
            outcomes.
        median_error_percent: median of |predicted p50 / observed - 1| over the last 500 outcomes,
            per cent; None without outcomes.
        ignored: number of implausible outcomes so far (``corrections.ABSURD_RATIO``), which
            count nowhere else. Where they are many, the profile is wrong.
    """

    device_class: str
    outcomes: int
    weight: float
    within_p50_percent: float | None
    within_p90_percent: float | None
    within_p99_percent: float | None
    median_error_percent: float | None
    ignored: int = 0


class CoverageCounter:
    """Counts one device class's outcomes in constant memory."""

    __slots__ = ("_errors", "_weight", "_within", "ignored", "outcomes")

    def __init__(self) -> None:
        self.outcomes = 0
        self.ignored = 0
        self._weight = 0.0
        self._within = [0.0, 0.0, 0.0]
        self._errors: deque[float] = deque(maxlen=_ERRORS_KEPT)

    def count(self, error_log: float, given: tuple[float, float, float], relative: float) -> None:
        """Count one outcome.

        Args:
            error_log: log of observed over expected latency.
            given: logs of the predicted p50, p90 and p99 over the expected latency.
            relative: |predicted p50 / observed - 1|.
        """
        self.outcomes += 1
        self._weight = self._weight * _KEEP + 1.0
        p50, p90, p99 = self._within
        self._within = [
            p50 * _KEEP + (error_log <= given[0]),
            p90 * _KEEP + (error_log <= given[1]),
            p99 * _KEEP + (error_log <= given[2]),
        ]
        self._errors.append(relative)

    def snapshot(self, device_class: str) -> Coverage | None:
        """Returns the coverage so far; None before the first outcome, ignored ones included."""
        if not self.outcomes:
            if not self.ignored:
                return None
            return Coverage(device_class, 0, 0.0, None, None, None, None, self.ignored)
        p50, p90, p99 = (100.0 * within / self._weight for within in self._within)
        error_percent = 100.0 * median(self._errors)
        return Coverage(
            device_class, self.outcomes, self._weight, p50, p90, p99, error_percent, self.ignored
        )


def merge_coverage(snapshots: Iterable[Coverage]) -> tuple[Coverage, ...]:
    """Returns one coverage for each device class, by name, from those of several cost models.

    Shares are weighted by the outcomes they represent, and so are the medians; that is close to the
    median of all outcomes as long as the cost models meet similar loads.
    """
    by_class: dict[str, list[Coverage]] = {}
    for snapshot in snapshots:
        by_class.setdefault(snapshot.device_class, []).append(snapshot)
    return tuple(_merged(name, by_class[name]) for name in sorted(by_class))


def _merged(device_class: str, parts: list[Coverage]) -> Coverage:
    weight = sum(part.weight for part in parts)

    def mean(field: str) -> float | None:
        told = [part for part in parts if part.weight]
        return sum(part.weight * getattr(part, field) for part in told) / weight if told else None

    return Coverage(
        device_class,
        sum(part.outcomes for part in parts),
        weight,
        mean("within_p50_percent"),
        mean("within_p90_percent"),
        mean("within_p99_percent"),
        mean("median_error_percent"),
        sum(part.ignored for part in parts),
    )
