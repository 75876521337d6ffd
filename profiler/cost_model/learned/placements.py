"""Our own placements at every batch: predicted from those of them that were measured.

What was measured on this machine is what adapts the process; what is left open is how one
placement's latency tells of another's, by the prior, and how noisy measurements are, by evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.calibration import MEDIAN_OF_NORMAL, Scores, scores_of
from modelless.profiler.cost_model.learned.points import Vocabulary, encode
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.cost_model.learned.process import Adapted, Belief, Process
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import Subject
from modelless.variants.estimates import FloatArray
from modelless.variants.vocabulary import Placement

IntArray = NDArray[np.intp]

MOST_MEASURED = 1500
"""Measured points that are learned from; more are thinned out evenly."""

LEAST_OWN = 10
"""Measured points of a device class from which they tell more of it than its rates do."""

Point = tuple[Placement, int]
"""A placement at a batch."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Latencies expected at n points.

    Attributes:
        median_s: shape (n,).
        spread: standard deviation of the log of what a measurement would find, shape (n,), as wide
            as errors on what was measured showed it to be.
        p90_log, p99_log: by how much it would exceed the median in one measurement of 10 and of
            100, in log latency, shape (n,); further than a normal variable's, as errors are.
    """

    median_s: FloatArray
    spread: FloatArray
    p90_log: FloatArray
    p99_log: FloatArray


class PlacementModel:
    """Predicts the points of some placements.

    Args:
        prior: the covariance and the roofline.
        subjects: by placement.
        batches: to predict.
    """

    def __init__(
        self, prior: Prior, subjects: Mapping[Placement, Subject], batches: Sequence[int]
    ) -> None:
        self.points: tuple[Point, ...] = tuple(
            (placement, batch) for placement in subjects for batch in batches
        )
        self._row_of = {point: row for row, point in enumerate(self.points)}
        self._batch = np.array([float(batch) for _, batch in self.points])
        rows = [subjects[placement].row(batch, 1.0) for placement, batch in self.points]
        rates = [subjects[placement].rates for placement, _ in self.points]
        encoded = encode(rows, Vocabulary(), prior.roofline)
        self._process = Process(prior.kernel, encoded.take([]), np.empty(0))
        self._usual = self._process.believe(encoded)
        rated = encode(rows, Vocabulary(), prior.roofline, rates)
        self._rated = {
            p.device_class
            for (p, _), is_so in zip(self.points, rated.is_rated.tolist(), strict=True)
            if is_so
        }
        self._by_rates = self._process.believe(rated) if self._rated else self._usual
        self.scores = scores_of(self._process, np.random.default_rng(0))

    def fit(self, measured: Iterable[Measurement]) -> FittedPlacements:
        """Learn from what was measured; what is of no known point is left aside."""
        latency_s = {
            (row.placement, row.batch): row.p50_s
            for row in measured
            if (row.placement, row.batch) in self._row_of
        }
        known = list(latency_s)
        if len(known) > MOST_MEASURED:
            kept = np.linspace(0, len(known) - 1, MOST_MEASURED).astype(np.intp)
            known = [known[row] for row in kept]
        rows = np.array([self._row_of[point] for point in known], dtype=np.intp)
        values = np.array([math.log(latency_s[point] * 1e3) for point in known])
        of_class = Counter(placement.device_class for placement, _ in known)
        is_new = any(of_class[name] < LEAST_OWN for name in self._rated)
        belief = self._by_rates if is_new else self._usual
        base_log = belief.points.roofline_log + np.log(self._batch)
        adapted = Adapted(self._process, belief.take(rows), values - base_log[rows])
        return FittedPlacements(self.scores, belief, base_log, adapted)

    def rows(self, points: Iterable[Point]) -> IntArray:
        """Their places in ``points``."""
        return np.array([self._row_of[point] for point in points], dtype=np.intp)


class FittedPlacements:
    """A ``PlacementModel`` that has seen measurements."""

    def __init__(
        self, usual: Scores, belief: Belief, base_log: FloatArray, adapted: Adapted
    ) -> None:
        self._belief = belief
        self._base_log = base_log
        self._adapted = adapted
        # Half of the errors lie within the median of a normal variable; those of a tenth to either
        # side make the central 80 %.
        error, variance = adapted.left_out()
        scores = error / np.sqrt(variance)
        within, self._p90, self._p99 = (usual.quantile(share, scores) for share in (0.5, 0.8, 0.98))
        self._scale = within / MEDIAN_OF_NORMAL

    def expect(self, rows: IntArray) -> Expected:
        """What a measurement of these points would find."""
        mean, variance = self._adapted.predict(self._belief.take(rows))
        median_s = np.exp(mean + self._base_log[rows]) / 1e3
        deviation = np.sqrt(variance)
        return Expected(
            median_s, self._scale * deviation, self._p90 * deviation, self._p99 * deviation
        )

    def covariance(self, rows: IntArray) -> FloatArray:
        """Of what is not known of these points, shape (n, n), log latency; noise left out."""
        return self._adapted.covariance(self._belief.take(rows))

    @property
    def noise_variance(self) -> float:
        """Of one measurement."""
        return self._adapted.noise_variance
