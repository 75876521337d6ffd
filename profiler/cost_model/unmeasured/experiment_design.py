"""Chooses what to measure next: the points that reduce the errors of all points most per second.

Within a budget, the errors of a point weigh as much as the decisions that they spoil: would another
variant be chosen if its latency were known? This is the value of information (Howard, "Information
Value Theory", 1966), by simulation. Until a target error, all points weigh the same.

This is greedy Bayesian experimental design by the expected absolute error of the predicted log
latencies (Chaloner and Verdinelli, "Bayesian Experimental Design: A Review", 1995, section 2). For
a normal variable that error is proportional to the standard deviation, so it has a closed form and
does not depend on the outcome of the measurement. A-optimal design, by the squared error, would
choose measurements for the few least known points, the extremes, where models are least reliable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from modelless.profiler.cost_model.unmeasured.machine_predictor import (
    ExpectedLatency,
    MachinePredictor,
    Point,
)
from modelless.profiler.cost_model.unmeasured.prior import Prior
from modelless.profiler.measure.campaign import PointsToMeasure
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import PlacementFacts, TableRow
from modelless.profiler.measure.timing import MeasurementEffort
from modelless.variants.estimates import FloatArray
from modelless.variants.vocabulary import Placement

LEAST_MEASURED = 10
"""The measured points from which the expected error is used to stop."""

_LEAST_FOR_DECISIONS = 5  # measured points, before which every error counts alike
_TYPICAL_LOAD_S = 0.3
_MOST_POINTS = 600  # considered in one choice, whose time grows with their square
_SAMPLES, _DEADLINES = 64, 16  # of the latencies, and of a decision
_DEADLINE_RANGE = 1.25  # of the slowest and the quickest median
_LEAST_WEIGHT = 0.05  # of the mean, for a point that spoils no decision


class ErrorReduction:
    """The reduction of the errors of n points that a measurement of each of them would bring.

    Args:
        covariance: covariance of the points' log latency without noise, shape (n, n).
        noise_variance: noise variance of one measurement; no point is predicted better than that.
        weights: weight of the error of each point, shape (n,); 1 by default.
    """

    def __init__(
        self, covariance: FloatArray, noise_variance: float, weights: FloatArray | None = None
    ) -> None:
        self._covariance = covariance.copy()
        self._noise_variance = noise_variance
        self._weights = np.ones(len(covariance)) if weights is None else weights

    def by_point(self) -> FloatArray:
        """Returns the weighted sum of standard deviations that each measurement removes, (n,)."""
        variance = np.diag(self._covariance) + self._noise_variance
        removed = self._covariance**2 / variance  # column by column: by measuring that point
        left = np.maximum(variance[:, None] - removed, self._noise_variance)
        return np.asarray(self._weights @ (np.sqrt(variance)[:, None] - np.sqrt(left)))

    def condition_on(self, row: int) -> None:
        """Update the covariance as if that point had been measured."""
        column = self._covariance[:, row].copy()
        self._covariance -= np.outer(column, column) / (column[row] + self._noise_variance)


def decision_losses(
    latency_s: FloatArray, supposed_s: FloatArray, accuracy_percent: FloatArray
) -> FloatArray:
    """Returns the accuracy that decisions are expected to lose by errors of each latency.

    A decision takes the most accurate of n variants whose latency is supposed to be within the
    deadline; an answer that is late is worth nothing. The loss against the best choice is that of
    the variant that was taken and is late, or else of the better one that was passed over.

    Args:
        latency_s: latencies as they may be, seconds, shape (samples, n).
        supposed_s: latencies that decisions go by, seconds, shape (n,).
        accuracy_percent: shape (n,).

    Returns:
        Mean loss of a decision over samples and deadlines, per cent, shape (n,).
    """
    order = np.argsort(-accuracy_percent, kind="stable")
    latency_s, value = latency_s[:, order], np.append(accuracy_percent[order], 0.0)
    usual_s = np.median(latency_s, axis=0)
    deadlines_s = np.geomspace(
        usual_s.min() / _DEADLINE_RANGE, usual_s.max() * _DEADLINE_RANGE, _DEADLINES
    )
    losses = np.zeros(len(value))
    for deadline_s in deadlines_s:
        is_in_time = np.column_stack([latency_s <= deadline_s, np.ones(len(latency_s), bool)])
        best = is_in_time.argmax(axis=1)
        taken = int(np.append(supposed_s[order] <= deadline_s, True).argmax())
        is_late = ~is_in_time[:, taken]
        loss = value[best] - np.where(is_late, 0.0, value[taken])
        np.add.at(losses, np.where(is_late, taken, best), loss)
    found = np.empty(len(order))
    found[order] = losses[:-1] / (len(latency_s) * _DEADLINES)
    return found


class BayesianDesign:
    """A ``MeasurementStrategy`` that stops when the rest is predicted well enough.

    Args:
        prior: the covariance and the roofline.
        placements: every placement that may be measured.
        batches: every batch size.
        target_error: median relative error of the unmeasured points at which to stop, e.g. 0.05;
            None to go on for as long as something is left, by the loss of decisions.
        knowledge: measured rows of other devices.
    """

    def __init__(
        self,
        prior: Prior,
        placements: Mapping[Placement, PlacementFacts],
        batches: Sequence[int],
        target_error: float | None = None,
        knowledge: Sequence[TableRow] = (),
    ) -> None:
        self._model = MachinePredictor(prior, placements, batches, knowledge)
        self._placements = placements
        self._target_error = target_error

    def choose(
        self, left: Mapping[Placement, Sequence[int]], known: Sequence[Measurement]
    ) -> PointsToMeasure | None:
        """Returns the placement and the batch sizes to measure next; None if enough is known."""
        fitted = self._model.fit(known)
        own = [row for row in known if row.placement in self._placements]
        points = [
            (placement, batch) for placement in _sample_evenly(left) for batch in left[placement]
        ]
        rows = self._model.rows(points)
        expected = fitted.predict(rows)
        expected_error = float(np.median(expected.error_log))
        is_enough = self._target_error is not None and expected_error <= self._target_error
        if is_enough and len(own) >= LEAST_MEASURED:
            return None
        loads_s = [row.load_s for row in known]
        load_s = float(np.median(loads_s)) if loads_s else _TYPICAL_LOAD_S
        cost_s = _measuring_s(expected.median_s)
        covariance, noise_variance = fitted.covariance(rows)
        weights = None
        if self._target_error is None and len(own) >= _LEAST_FOR_DECISIONS:
            weights = self._decision_weights(points, expected, covariance, noise_variance, own)
        reduction = ErrorReduction(covariance, noise_variance, weights)
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

    def _decision_weights(
        self,
        points: Sequence[Point],
        expected: ExpectedLatency,
        covariance: FloatArray,
        noise_variance: float,
        own: Sequence[Measurement],
    ) -> FloatArray:
        """Returns the loss of decisions by standard deviation of each unmeasured point's error.

        A decision is among a task's variants on one device class, at one batch size.
        """
        variance = np.diag(covariance) + noise_variance
        noisy = covariance + (1e-6 + noise_variance) * np.eye(len(points))
        draws = np.random.default_rng(0).standard_normal((_SAMPLES, len(points)))
        samples_s = expected.median_s * np.exp(draws @ np.linalg.cholesky(noisy).T)
        supposed_s = expected.median_s * np.exp(expected.p90_log)
        groups: dict[tuple[str, str, int], list[int]] = {}
        for row, (placement, batch) in enumerate(points):
            groups.setdefault(self._group(placement, batch), []).append(row)
        measured: dict[tuple[str, str, int], list[Measurement]] = {}
        for one in own:
            measured.setdefault(self._group(one.placement, one.batch), []).append(one)
        losses = np.zeros(len(points))
        for group, rows in groups.items():
            others = measured.get(group, [])
            accuracy = [
                self._placements[placement].variant.accuracy.percent
                for placement in (*(points[row][0] for row in rows), *(m.placement for m in others))
            ]
            own_s = np.array([one.p50_s for one in others])
            found = decision_losses(
                np.column_stack([samples_s[:, rows], np.tile(own_s, (_SAMPLES, 1))]),
                np.append(supposed_s[rows], own_s),
                np.array(accuracy),
            )
            losses[rows] = found[: len(rows)]
        weights = losses / np.sqrt(variance)
        return weights + _LEAST_WEIGHT * float(weights.mean()) if weights.any() else weights + 1.0

    def _group(self, placement: Placement, batch: int) -> tuple[str, str, int]:
        return self._placements[placement].variant.task, placement.device_class, batch


def _measuring_s(median_s: FloatArray) -> FloatArray:
    """Returns how long points are measured, by their medians; that is their cost."""
    effort = MeasurementEffort()
    most_s = np.minimum(effort.max_time_s, effort.tail_repeats * median_s)
    return np.maximum(most_s, effort.min_repeats * median_s)


def _sample_evenly(left: Mapping[Placement, Sequence[int]]) -> list[Placement]:
    """Returns an even sample of the placements, with about ``_MOST_POINTS`` points."""
    placements = list(left)
    points = sum(len(batches) for batches in left.values())
    count = max(1, len(placements) * _MOST_POINTS // max(points, _MOST_POINTS))
    rows = np.linspace(0, len(placements) - 1, count).astype(int)
    return [placements[row] for row in rows]
