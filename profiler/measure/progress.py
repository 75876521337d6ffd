"""What a campaign tells while it runs, and how long it will still take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.timing import Timing
from modelless.variants.vocabulary import Placement


class EventKind(StrEnum):
    """What happened."""

    PLANNED = "planned"
    STARTED = "started"
    MEASURED = "measured"
    SKIPPED = "skipped"
    FAILED = "failed"


class SkipReason(StrEnum):
    """Why a point was not measured."""

    ALREADY_MEASURED = "already-measured"
    LATENCY_CAP = "latency-cap"
    BUDGET_SPENT = "budget-spent"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One step of a campaign.

    Attributes:
        kind: see EventKind. One PLANNED comes first; each point ends MEASURED or SKIPPED, or its
            placement FAILED from there on.
        done, total: points ended so far, and all of them.
        eta_s: seconds the rest will take; None while nothing is known.
        placement, batch: the point; None with PLANNED.
        measurement, timing: what was measured, with MEASURED.
        reason: with SKIPPED.
        message: with FAILED.
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
"""Receives each event as it happens. What it raises ends the campaign."""


def silent(_event: ProgressEvent) -> None:
    """A Progress that shows nothing."""


def point_weight(batch: int) -> float:
    """How much time a point is worth beside its placement's others.

    A run takes longer in proportion to the batch, but a lone query is the common case and must be
    known best: the square root lies between equal time and equal repeats.
    """
    return math.sqrt(batch)


class TimeLeft:
    """Time left from the time taken so far, by weight of points.

    Args:
        weight: of all points that may have to be measured.
        budget_s: what the campaign may take; None for no limit.
    """

    def __init__(self, weight: float, budget_s: float | None) -> None:
        self._weight = weight
        self._measured_weight = 0.0
        self._budget_s = budget_s

    def ended(self, batch: int, *, measured: bool) -> None:
        """A point has ended. One that was not measured took no time and predicts none."""
        weight = point_weight(batch)
        self._weight -= weight
        if measured:
            self._measured_weight += weight

    def eta_s(self, elapsed_s: float) -> float | None:
        """Seconds the rest will take, ``elapsed_s`` after the start."""
        left_s = None if self._budget_s is None else max(0.0, self._budget_s - elapsed_s)
        if self._weight <= 1e-9:
            return 0.0
        if self._measured_weight <= 0.0:
            return left_s
        eta_s = elapsed_s * self._weight / self._measured_weight
        return eta_s if left_s is None else min(eta_s, left_s)
