"""The progress of a campaign, and the time that it still needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.timing import Timing
from modelless.variants.vocabulary import Placement


class EventKind(StrEnum):
    """The kind of a progress event."""

    PLANNED = "planned"
    NOISY = "noisy"
    STARTED = "started"
    MEASURED = "measured"
    SKIPPED = "skipped"
    FAILED = "failed"


class SkipReason(StrEnum):
    """The reason for which a point was not measured."""

    ALREADY_MEASURED = "already-measured"
    LATENCY_CAP = "latency-cap"
    BUDGET_SPENT = "budget-spent"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One step of a campaign.

    Attributes:
        kind: PLANNED comes first, once, and NOISY may follow. Each point ends as MEASURED or
            SKIPPED; a placement that FAILED has no later points.
        done, total: number of ended points and of all points.
        eta_s: expected time for the rest, seconds; None while it is unknown.
        placement, batch: the point; None for PLANNED and NOISY.
        measurement, timing: the result, for MEASURED.
        reason: the reason, for SKIPPED.
        message: the error, for FAILED; what disturbs, for NOISY.
    """

    kind: EventKind
    done: int
    total: int
    eta_s: float | None
    placement: Placement | None = None
    batch: int | None = None
    measurement: Measurement | None = None
    timing: Timing | None = None
    reason: SkipReason | None = None
    message: str = ""


Progress = Callable[[ProgressEvent], None]
"""Receives each event as it happens; an exception from it ends the campaign."""


def silent(_event: ProgressEvent) -> None:
    """A ``Progress`` that shows nothing."""


def point_weight(batch: int) -> float:
    """Returns the weight of a point's share of the time, relative to its placement's other points.

    A run takes longer in proportion to the batch size, but a single query is the common case and
    must be known best. The square root lies between equal time and equal repeats.
    """
    return math.sqrt(batch)


class TimeLeft:
    """Estimates the time left from the time taken so far, by the weights of points.

    Args:
        weight: sum of the weights of all points that may be measured.
        budget_s: time limit of the campaign, seconds; None for none.
    """

    def __init__(self, weight: float, budget_s: float | None) -> None:
        self._weight = weight
        self._measured_weight = 0.0
        self._budget_s = budget_s

    def end_point(self, batch: int, *, measured: bool) -> None:
        """Note that a point has ended; one that was not measured took no time."""
        weight = point_weight(batch)
        self._weight -= weight
        if measured:
            self._measured_weight += weight

    def eta_s(self, elapsed_s: float) -> float | None:
        """Returns the expected seconds for the rest after ``elapsed_s``; None while unknown."""
        left_s = None if self._budget_s is None else max(0.0, self._budget_s - elapsed_s)
        if self._weight <= 1e-9:
            return 0.0
        if self._measured_weight <= 0.0:
            return left_s
        eta_s = elapsed_s * self._weight / self._measured_weight
        return eta_s if left_s is None else min(eta_s, left_s)
