"""Latency of points that were not measured: trained on some devices, adapted to another.

Training holds for all devices that are to be predicted; adapting takes a device's few measurements
("shots") and costs a solve of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.learning.calibration import Scores, scores_of
from modelless.profiler.learning.elsewhere import Elsewhere
from modelless.profiler.learning.points import (
    MOST_LOG,
    Points,
    Vocabulary,
    encode,
    in_order,
    latency_log,
)
from modelless.profiler.learning.prior import Prior
from modelless.profiler.learning.process import Adapted, Process
from modelless.profiler.learning.proxies import best_proxy, proxies_of
from modelless.profiler.table import TableRow
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

MOST_TRAINING_POINTS = 3000
"""More are thinned out: the cost of training grows with their cube."""

_LEAST_FOR_PROXY = 5  # measurements that a proxy shares
_NORMAL_MEAN = 1.2533  # a normal variable's standard deviation over its mean distance from 0
_LEAST_VARIANCE = 1e-6
_RELATED_SHARE = 0.75  # of the training points, at most, for items that are to be predicted


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latencies of the whole batch at n points, milliseconds, shape (n,) each.

    Attributes:
        median_ms: as likely too low as too high.
        low_ms, high_ms: the central 90 % band.
    """

    median_ms: FloatArray
    low_ms: FloatArray
    high_ms: FloatArray


class Predictor:
    """Predicts points of one device from measurements of others and a few of its own.

    Args:
        prior: the covariance and the roofline.
        training: measured rows, of other devices as a rule; may be empty.
        wanted: rows whose latency is to be predicted; their latencies are not looked at.
        seed: of the thinning out.
    """

    def __init__(
        self,
        prior: Prior,
        training: Sequence[TableRow],
        wanted: Sequence[TableRow],
        seed: int = 0,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        training = in_order(training)
        vocabulary = Vocabulary()
        self._wanted_batch = np.array([float(row.batch) for row in wanted])
        wanted_points = encode(wanted, vocabulary, prior.roofline)
        points = encode(training, vocabulary, prior.roofline)
        values = latency_log(training) - points.roofline_log
        elsewhere = Elsewhere(points, values)
        kept = _thin_out(points, wanted_points, self._rng)
        self._process = Process(prior.kernel, elsewhere.mark(points.take(kept)), values[kept])
        self._belief = self._process.believe(elsewhere.mark(wanted_points))
        self._proxies = proxies_of(training, wanted)

    @cached_property
    def _scores(self) -> Scores:
        return scores_of(self._process, self._rng)

    def predict(self, shots: IntArray, latency_ms: FloatArray, rows: IntArray) -> Prediction:
        """Predict some wanted rows after measuring others.

        Args:
            shots: which of the wanted rows were measured, k of them; may be none.
            latency_ms: what they took, shape (k,).
            rows: which to predict, n of them.
        """
        seen = self._belief.take(shots)
        values = np.log(latency_ms / self._wanted_batch[shots]) - seen.points.roofline_log
        adapted = Adapted(self._process, seen, values)
        belief = self._belief.take(rows)
        mean, variance = adapted.predict(belief)
        error, error_variance = adapted.left_out()
        item_log = mean + belief.points.roofline_log
        seen_log = values + seen.points.roofline_log
        proxy = best_proxy(self._proxies, shots, seen_log)
        if proxy is not None and np.isfinite(proxy.errors).sum() >= _LEAST_FOR_PROXY:
            stack = _Stack.of(error, proxy.errors)
            error = stack.mean(error, proxy.errors)
            item_log = stack.mean(item_log, proxy.log[rows])
            # The proxy's variance is what it is; the usual scale is that of the process.
            scale2 = np.exp(2.0 * self._scores.scale_log)
            error_variance = stack.variance(error_variance, proxy.errors, scale2)
            variance = stack.variance(variance, proxy.log[rows], scale2)
        width = self._scores.quantile(0.9, error / np.sqrt(error_variance)) * np.sqrt(variance)
        centre = item_log + np.log(self._wanted_batch[rows])
        centre = np.clip(centre, -MOST_LOG, MOST_LOG)
        width = np.minimum(width, MOST_LOG)
        return Prediction(np.exp(centre), np.exp(centre - width), np.exp(centre + width))


@dataclass(frozen=True, slots=True)
class _Stack:
    """The process and a proxy, each counting for as much as it was right on the measurements.

    Stacking by inverse variance of the errors of points left out (Wolpert, "Stacked
    Generalization", 1992; Bates and Granger, "The Combination of Forecasts", 1969). Where the
    proxy knows nothing (NaN), the process counts alone.

    Attributes:
        weight: of the process, 0 to 1.
        proxy_variance: of the proxy's errors.
    """

    weight: float
    proxy_variance: float

    @classmethod
    def of(cls, process_errors: FloatArray, proxy_errors: FloatArray) -> _Stack:
        """From the errors of the same measurements."""
        known = proxy_errors[np.isfinite(proxy_errors)]
        # Its factor was fitted to these very points, and it was chosen among others by them.
        spent = len(known) / (len(known) - 2)
        proxy_variance = (_NORMAL_MEAN * float(np.abs(known).mean()) * spent) ** 2 + _LEAST_VARIANCE
        own_variance = (_NORMAL_MEAN * float(np.abs(process_errors).mean())) ** 2 + _LEAST_VARIANCE
        return cls(proxy_variance / (proxy_variance + own_variance), proxy_variance)

    def mean(self, process: FloatArray, proxy: FloatArray) -> FloatArray:
        """Of what the two say."""
        both = self.weight * process + (1.0 - self.weight) * proxy
        return np.where(np.isfinite(proxy), both, process)

    def variance(self, process: FloatArray, proxy: FloatArray, scale2: float) -> FloatArray:
        """Of that mean, in units in which the process's is to be multiplied by ``scale2``."""
        both = self.weight**2 * process + (1.0 - self.weight) ** 2 * self.proxy_variance / scale2
        return np.where(np.isfinite(proxy), both, process)


def _thin_out(points: Points, wanted: Points, rng: np.random.Generator) -> IntArray:
    """Which training points to keep: first those of items that are to be predicted."""
    if len(points) <= MOST_TRAINING_POINTS:
        return np.arange(len(points))
    related = rng.permutation(np.flatnonzero(np.isin(points.item, wanted.item)))
    related = related[: int(_RELATED_SHARE * MOST_TRAINING_POINTS)]
    others = rng.permutation(np.setdiff1d(np.arange(len(points)), related))
    return np.sort(np.concatenate([related, others[: MOST_TRAINING_POINTS - len(related)]]))
