"""Chooses what to measure next: the points that reduce the errors of all points most per second.

This is greedy Bayesian experimental design by the expected absolute error of the predicted log
latencies (Chaloner and Verdinelli, "Bayesian Experimental Design: A Review", 1995, section 2). For
a normal variable that error is proportional to the standard deviation, so it has a closed form and
does not depend on the outcome of the measurement. A-optimal design, by the squared error, would
choose measurements for the few least known points, the extremes, where models are least reliable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from modelless.profiler.cost_model.learned.fleet_model import FleetModel
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.measure.campaign import PointsToMeasure
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import PlacementFacts, TableRow
from modelless.profiler.measure.timing import MeasurementEffort
from modelless.variants.estimates import FloatArray
from modelless.variants.vocabulary import Placement

LEAST_MEASURED = 10
"""The measured points from which the expected error is used to stop."""

_TYPICAL_LOAD_S = 0.3
_MOST_POINTS = 600  # considered in one choice, whose time grows with their square


class ErrorReduction:
    """The reduction of the errors of n points that a measurement of each of them would bring.

    Args:
        covariance: covariance of the points' log latency without noise, shape (n, n).
        noise_variance: noise variance of one measurement; no point is predicted better than that.
    """

    def __init__(self, covariance: FloatArray, noise_variance: float) -> None:
        self._covariance = covariance.copy()
        self._noise_variance = noise_variance

    def by_point(self) -> FloatArray:
        """Returns the sum of standard deviations that each measurement removes, shape (n,)."""
        variance = np.diag(self._covariance) + self._noise_variance
        removed = self._covariance**2 / variance  # column by column: by measuring that point
        left = np.maximum(variance[:, None] - removed, self._noise_variance)
        return np.asarray((np.sqrt(variance)[:, None] - np.sqrt(left)).sum(axis=0))

    def condition_on(self, row: int) -> None:
        """Update the covariance as if that point had been measured."""
        column = self._covariance[:, row].copy()
        self._covariance -= np.outer(column, column) / (column[row] + self._noise_variance)


class BayesianDesign:
    """A ``MeasurementStrategy`` that stops when the rest is predicted well enough.

    Args:
        prior: the covariance and the roofline.
        placements: every placement that may be measured.
        batches: every batch size.
        target_error: median relative error of the unmeasured points at which to stop, e.g. 0.05;
            None to go on for as long as something is left.
        effort: how long a point is measured, which determines its cost.
        knowledge: measured rows of other devices.
    """

    def __init__(
        self,
        prior: Prior,
        placements: Mapping[Placement, PlacementFacts],
        batches: Sequence[int],
        target_error: float | None = None,
        effort: MeasurementEffort | None = None,
        knowledge: Sequence[TableRow] = (),
    ) -> None:
        self._model = FleetModel(prior, placements, batches, knowledge)
        self._target_error = target_error
        self._effort = effort or MeasurementEffort()

    def choose(
        self, left: Mapping[Placement, Sequence[int]], known: Sequence[Measurement]
    ) -> PointsToMeasure | None:
        """Returns the placement and the batch sizes to measure next; None if enough is known."""
        fitted = self._model.fit(known)
        points = [
            (placement, batch) for placement in _sample_evenly(left) for batch in left[placement]
        ]
        rows = self._model.rows(points)
        expected = fitted.predict(rows)
        expected_error = float(np.median(expected.error_log))
        is_enough = self._target_error is not None and expected_error <= self._target_error
        if is_enough and len(known) >= LEAST_MEASURED:
            return None
        loads_s = [row.load_s for row in known]
        load_s = float(np.median(loads_s)) if loads_s else _TYPICAL_LOAD_S
        cost_s = self._measuring_s(expected.median_s)
        reduction = ErrorReduction(*fitted.covariance(rows))
        first = int(np.argmax(reduction.by_point() / (cost_s + load_s)))
        placement = points[first][0]
        others = [row for row, point in enumerate(points) if point[0] != placement]
        batches = [points[first][1]]
        reduction.condition_on(first)
        same = [row for row, point in enumerate(points) if point[0] == placement and row != first]
        while same:  # the placement is loaded already: its other batch sizes cost no loading
            now = reduction.by_point()
            rival = float(np.max(now[others] / (cost_s[others] + load_s), initial=0.0))
            best = max(same, key=lambda row: now[row] / cost_s[row])
            if now[best] / cost_s[best] < rival:
                break
            same.remove(best)
            reduction.condition_on(best)
            batches.append(points[best][1])
        return PointsToMeasure(placement, tuple(sorted(batches)))

    def _measuring_s(self, median_s: FloatArray) -> FloatArray:
        effort = self._effort
        most_s = np.minimum(effort.max_time_s, effort.tail_repeats * median_s)
        return np.maximum(most_s, effort.min_repeats * median_s)


def _sample_evenly(left: Mapping[Placement, Sequence[int]]) -> list[Placement]:
    """Returns an even sample of the placements, with about ``_MOST_POINTS`` points."""
    placements = list(left)
    points = sum(len(batches) for batches in left.values())
    count = max(1, len(placements) * _MOST_POINTS // max(points, _MOST_POINTS))
    rows = np.linspace(0, len(placements) - 1, count).astype(int)
    return [placements[row] for row in rows]
