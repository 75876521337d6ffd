"""Latency of points that were not measured: trained on some devices, conditioned on another.

Training holds for every device that is predicted. Conditioning uses the device's few measurements
("shots") and takes one solve of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.calibration import (
    MEDIAN_OF_NORMAL,
    ErrorScores,
    score_devices,
    score_families,
)
from modelless.profiler.cost_model.learned.features import (
    MOST_LOG,
    NameCodes,
    Points,
    encode,
    item_latency_log,
    sort_rows,
)
from modelless.profiler.cost_model.learned.gaussian_process import GaussianProcess
from modelless.profiler.cost_model.learned.item_effects import ItemEffects
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.cost_model.learned.proxies import ProxyMixture, contrasts_of, proxies_of
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

MOST_TRAINING_POINTS = 3000
"""The most training points; more are thinned out, because the time grows with their cube."""

# The prediction of least relative error lies below the median by half the variance: a whole
# variance would follow from a log-normal error, but the bands err to the wide side.
_SHIFT_SHARE, _MOST_SHIFT_LOG = 0.5, 0.5
_RELATED_SHARE = 0.75  # of the training points, at most, for items that are predicted


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latencies of the whole batch at n points, milliseconds, shape (n,) each.

    Attributes:
        median_ms: the median.
        low_ms, high_ms: the central 90 % band.
        least_error_ms: the prediction whose expected relative error is least. It lies below the
            median, the further the less certain it is: a prediction that is too high is off by any
            multiple, one that is too low by less than 100 %. For a log-normal variable it is the
            median over exp(variance) (Gneiting, "Making and Evaluating Point Forecasts", 2011,
            section 2.3).
    """

    median_ms: FloatArray
    low_ms: FloatArray
    high_ms: FloatArray
    least_error_ms: FloatArray


class Predictor:
    """Predicts points of one device from measurements of others and a few of its own.

    Args:
        prior: the covariance and the roofline.
        training: measured rows, as a rule of other devices; may be empty.
        wanted: the rows to predict; their latencies are not used.
        seed: seed of the draw that thins out training points.
    """

    def __init__(
        self,
        prior: Prior,
        training: Sequence[TableRow],
        wanted: Sequence[TableRow],
        seed: int = 0,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        training = sort_rows(training)
        names = NameCodes()
        wanted_points = encode(wanted, names, prior.roofline)
        batch = np.array([float(row.batch) for row in wanted])
        self._base_log = wanted_points.roofline_log + np.log(batch)
        points = encode(training, names, prior.roofline)
        values = item_latency_log(training) - points.roofline_log
        effects = ItemEffects(points, values)
        kept = _thin_out(points, wanted_points, self._rng)
        self._process = GaussianProcess(
            prior.kernel, effects.add_to(points.select(kept)), values[kept]
        )
        self._posterior = self._process.posterior_at(effects.add_to(wanted_points))
        self._contrasts = contrasts_of(
            proxies_of(training, wanted), self._posterior.mean + wanted_points.roofline_log
        )

    @cached_property
    def _is_known_device(self) -> bool:
        """Whether training contains the device, so that only the models are new."""
        devices = self._posterior.points.level("device")
        known = np.isin(devices, self._process.points.level("device"))
        return bool(known.size and known.all())

    @cached_property
    def _scores(self) -> ErrorScores:
        if self._is_known_device:
            return score_families(self._process)
        return score_devices(self._process, self._rng)

    def predict(self, shots: IntArray, latency_ms: FloatArray, rows: IntArray) -> Prediction:
        """Returns predictions of some wanted rows, given measurements of others.

        Args:
            shots: the k wanted rows that were measured; k may be 0.
            latency_ms: their measured latencies, shape (k,).
            rows: the n wanted rows to predict.
        """
        mixture = self._condition(shots, latency_ms)
        mean, variance = mixture.predict(rows)
        deviation = np.sqrt(variance)
        error, error_variance = mixture.leave_one_out()
        shot_errors = error / np.sqrt(error_variance)
        centre = np.clip(mean + self._base_log[rows], -MOST_LOG, MOST_LOG)
        width = np.minimum(self._scores.quantile(0.9, shot_errors) * deviation, MOST_LOG)
        shift = np.zeros(len(rows))
        if len(shots) or self._is_known_device:
            # Without them the level is unknown, and the median is the best guess of it.
            scale = self._scores.quantile(0.5, shot_errors) / MEDIAN_OF_NORMAL
            shift = np.minimum(_SHIFT_SHARE * (scale * deviation) ** 2, _MOST_SHIFT_LOG)
        return Prediction(
            np.exp(centre), np.exp(centre - width), np.exp(centre + width), np.exp(centre - shift)
        )

    def covariance(
        self, shots: IntArray, latency_ms: FloatArray, rows: IntArray
    ) -> tuple[FloatArray, float]:
        """Returns how uncertain some wanted rows are, given measurements of others.

        Args:
            shots, latency_ms: as for ``predict``.
            rows: n wanted rows.

        Returns:
            The covariance of their log latencies without noise, shape (n, n), and the noise
            variance of one measurement.
        """
        return self._condition(shots, latency_ms).covariance(rows)

    def _condition(self, shots: IntArray, latency_ms: FloatArray) -> ProxyMixture:
        values = np.log(latency_ms) - self._base_log[shots]
        return ProxyMixture(self._process, self._posterior, self._contrasts, shots, values)


def _thin_out(points: Points, wanted: Points, rng: np.random.Generator) -> IntArray:
    """Returns the training points to keep; those of items that are predicted come first."""
    if len(points) <= MOST_TRAINING_POINTS:
        return np.arange(len(points))
    related = rng.permutation(np.flatnonzero(np.isin(points.item, wanted.item)))
    related = related[: int(_RELATED_SHARE * MOST_TRAINING_POINTS)]
    others = rng.permutation(np.setdiff1d(np.arange(len(points)), related))
    return np.sort(np.concatenate([related, others[: MOST_TRAINING_POINTS - len(related)]]))
