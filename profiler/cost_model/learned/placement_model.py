"""Predictions of this machine's placements at every batch, from those that were measured.

The Gaussian process is conditioned on what was measured on this machine. The prior says how one
placement's latency depends on another's; the evidence decides how noisy measurements are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.calibration import (
    MEDIAN_OF_NORMAL,
    ErrorScores,
    score_devices,
)
from modelless.profiler.cost_model.learned.features import NameCodes, encode
from modelless.profiler.cost_model.learned.gaussian_process import (
    ConditionedProcess,
    GaussianProcess,
    Posterior,
)
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.cost_model.measured_model import PlacementFigures
from modelless.profiler.measure.table import PlacementFacts
from modelless.variants.estimates import FloatArray
from modelless.variants.vocabulary import Placement

IntArray = NDArray[np.intp]

MOST_MEASURED = 1500
"""The most measured points to learn from; more are thinned out evenly."""

LEAST_OWN = 10
"""The measured points of a device class from which they are used in place of its rates."""

Point = tuple[Placement, int]
"""A placement at a batch size."""


@dataclass(frozen=True, slots=True)
class ExpectedLatency:
    """Latencies expected at n points.

    Attributes:
        median_s: shape (n,).
        spread: standard deviation of the log of a measurement, scaled by the errors on what was
            measured, shape (n,).
        p90_log, p99_log: how far one measurement in 10 and one in 100 exceed the median, in log
            latency, shape (n,). The tails are heavier than normal, as those of the errors are.
    """

    median_s: FloatArray
    spread: FloatArray
    p90_log: FloatArray
    p99_log: FloatArray


class PlacementModel:
    """Predicts the points of some placements.

    Args:
        prior: the covariance and the roofline.
        placements: what is known of each placement.
        batches: batch sizes to predict.
    """

    def __init__(
        self, prior: Prior, placements: Mapping[Placement, PlacementFacts], batches: Sequence[int]
    ) -> None:
        self.points: tuple[Point, ...] = tuple(
            (placement, batch) for placement in placements for batch in batches
        )
        self._row_of = {point: row for row, point in enumerate(self.points)}
        self._batch = np.array([float(batch) for _, batch in self.points])
        rows = [placements[placement].row(batch, 1.0) for placement, batch in self.points]
        rates = [placements[placement].rates for placement, _ in self.points]
        encoded = encode(rows, NameCodes(), prior.roofline)
        self._process = GaussianProcess(prior.kernel, encoded.select([]), np.empty(0))
        self._by_constants = self._process.posterior_at(encoded)
        benchmarked = encode(rows, NameCodes(), prior.roofline, rates)
        self._benchmarked = {
            placement.device_class
            for (placement, _), is_so in zip(
                self.points, benchmarked.is_benchmarked.tolist(), strict=True
            )
            if is_so
        }
        self._by_rates = (
            self._process.posterior_at(benchmarked) if self._benchmarked else self._by_constants
        )
        self.scores = score_devices(self._process, np.random.default_rng(0))

    def fit(self, measured: Iterable[PlacementFigures]) -> FittedPlacements:
        """Returns the model conditioned on the measurements; those of other points are ignored."""
        latency_s = {
            (row.placement, row.batch): row.p50_s
            for row in measured
            if (row.placement, row.batch) in self._row_of
        }
        known = list(latency_s)
        if len(known) > MOST_MEASURED:
            kept = np.linspace(0, len(known) - 1, MOST_MEASURED).astype(np.intp)
            known = [known[row] for row in kept]
        rows = self.rows(known)
        values = np.array([math.log(latency_s[point] * 1e3) for point in known])
        of_class = Counter(placement.device_class for placement, _ in known)
        is_new = any(of_class[name] < LEAST_OWN for name in self._benchmarked)
        posterior = self._by_rates if is_new else self._by_constants
        base_log = posterior.points.roofline_log + np.log(self._batch)
        conditioned = ConditionedProcess(
            self._process, posterior.select(rows), values - base_log[rows]
        )
        return FittedPlacements(
            self.scores, posterior, base_log, conditioned, frozenset(self._benchmarked)
        )

    def rows(self, points: Iterable[Point]) -> IntArray:
        """Returns the indices of these points in ``points``."""
        return np.array([self._row_of[point] for point in points], dtype=np.intp)


class FittedPlacements:
    """A ``PlacementModel`` that is conditioned on measurements."""

    def __init__(
        self,
        scores: ErrorScores,
        posterior: Posterior,
        base_log: FloatArray,
        conditioned: ConditionedProcess,
        benchmarked: frozenset[str],
    ) -> None:
        self._benchmarked = benchmarked
        self._posterior = posterior
        self._base_log = base_log
        self._conditioned = conditioned
        # Half of the errors lie within the median distance; the central 80 % leave a tenth on
        # either side, the central 98 % a hundredth.
        error, variance = conditioned.leave_one_out()
        shot_errors = error / np.sqrt(variance)
        within, self._p90, self._p99 = (
            scores.quantile(share, shot_errors) for share in (0.5, 0.8, 0.98)
        )
        self._scale = within / MEDIAN_OF_NORMAL

    def predict(self, rows: IntArray) -> ExpectedLatency:
        """Returns the latencies that measurements of these points would find."""
        mean, variance = self._conditioned.predict(self._posterior.select(rows))
        median_s = np.exp(mean + self._base_log[rows]) / 1e3
        deviation = np.sqrt(variance)
        return ExpectedLatency(
            median_s, self._scale * deviation, self._p90 * deviation, self._p99 * deviation
        )

    def is_benchmarked(self, device_class: str) -> bool:
        """Returns whether the rates of a device class are known."""
        return device_class in self._benchmarked

    def covariance(self, rows: IntArray) -> FloatArray:
        """Returns the covariance of the log latency at n points, without noise, shape (n, n)."""
        return self._conditioned.covariance(self._posterior.select(rows))

    @property
    def noise_variance(self) -> float:
        """The noise variance of one measurement, squared log latency."""
        return self._conditioned.noise_variance
