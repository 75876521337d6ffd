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

from modelless.profiler.cost_model.learned.calibration import (
    MEDIAN_OF_NORMAL,
    Scores,
    family_scores_of,
    scores_of,
)
from modelless.profiler.cost_model.learned.elsewhere import Elsewhere
from modelless.profiler.cost_model.learned.mixture import Mixture
from modelless.profiler.cost_model.learned.points import (
    MOST_LOG,
    Points,
    Vocabulary,
    encode,
    in_order,
    latency_log,
)
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.cost_model.learned.process import Process
from modelless.profiler.cost_model.learned.proxies import contrasts_of, proxies_of
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

MOST_TRAINING_POINTS = 3000
"""More are thinned out: the cost of training grows with their cube."""

# Of the least relative error below the median: half the variance, as bands err to the safe side.
_SHIFT_SHARE, _MOST_SHIFT_LOG = 0.5, 0.5
_RELATED_SHARE = 0.75  # of the training points, at most, for items that are to be predicted


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latencies of the whole batch at n points, milliseconds, shape (n,) each.

    Attributes:
        median_ms: as likely too low as too high.
        low_ms, high_ms: the central 90 % band.
        least_error_ms: whose expected relative error is least. That is below the median, the more
            so the less sure it is: what is predicted too high is off by any multiple, what is
            predicted too low by less than all. Of a log-normal variable it is its median over
            exp(variance) (Gneiting, "Making and Evaluating Point Forecasts", 2011, section 2.3).
    """

    median_ms: FloatArray
    low_ms: FloatArray
    high_ms: FloatArray
    least_error_ms: FloatArray


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
        wanted_points = encode(wanted, vocabulary, prior.roofline)
        batch = np.array([float(row.batch) for row in wanted])
        self._base_log = wanted_points.roofline_log + np.log(batch)
        points = encode(training, vocabulary, prior.roofline)
        values = latency_log(training) - points.roofline_log
        elsewhere = Elsewhere(points, values)
        kept = _thin_out(points, wanted_points, self._rng)
        self._process = Process(prior.kernel, elsewhere.mark(points.take(kept)), values[kept])
        self._belief = self._process.believe(elsewhere.mark(wanted_points))
        self._contrasts = contrasts_of(
            proxies_of(training, wanted), self._belief.mean + wanted_points.roofline_log
        )

    @cached_property
    def _is_known_device(self) -> bool:
        """Whether what is new is the models."""
        known = np.isin(self._belief.points.level("device"), self._process.points.level("device"))
        return bool(known.size and known.all())

    @cached_property
    def _scores(self) -> Scores:
        if self._is_known_device:
            return family_scores_of(self._process)
        return scores_of(self._process, self._rng)

    def predict(self, shots: IntArray, latency_ms: FloatArray, rows: IntArray) -> Prediction:
        """Predict some wanted rows after measuring others.

        Args:
            shots: which of the wanted rows were measured, k of them; may be none.
            latency_ms: what they took, shape (k,).
            rows: which to predict, n of them.
        """
        mixture = self._mixture(shots, latency_ms)
        mean, variance = mixture.predict(rows)
        deviation = np.sqrt(variance)
        error, error_variance = mixture.left_out()
        shot_errors = error / np.sqrt(error_variance)
        centre = np.clip(mean + self._base_log[rows], -MOST_LOG, MOST_LOG)
        width = np.minimum(self._scores.quantile(0.9, shot_errors) * deviation, MOST_LOG)
        shift = np.zeros(len(rows))
        if len(shots) or self._is_known_device:
            # Else the level is unknown, and its guess is best left in the middle.
            scale = self._scores.quantile(0.5, shot_errors) / MEDIAN_OF_NORMAL
            shift = np.minimum(_SHIFT_SHARE * (scale * deviation) ** 2, _MOST_SHIFT_LOG)
        return Prediction(
            np.exp(centre), np.exp(centre - width), np.exp(centre + width), np.exp(centre - shift)
        )

    def unknown(
        self, shots: IntArray, latency_ms: FloatArray, rows: IntArray
    ) -> tuple[FloatArray, float]:
        """What is not known of some wanted rows after measuring others.

        Args:
            shots, latency_ms: as for ``predict``.
            rows: n of them.

        Returns:
            The covariance of their log latencies, shape (n, n), and the noise variance of one
            measurement, which it does not hold.
        """
        return self._mixture(shots, latency_ms).covariance(rows)

    def _mixture(self, shots: IntArray, latency_ms: FloatArray) -> Mixture:
        values = np.log(latency_ms) - self._base_log[shots]
        return Mixture(self._process, self._belief, self._contrasts, shots, values)


def _thin_out(points: Points, wanted: Points, rng: np.random.Generator) -> IntArray:
    """Which training points to keep: first those of items that are to be predicted."""
    if len(points) <= MOST_TRAINING_POINTS:
        return np.arange(len(points))
    related = rng.permutation(np.flatnonzero(np.isin(points.item, wanted.item)))
    related = related[: int(_RELATED_SHARE * MOST_TRAINING_POINTS)]
    others = rng.permutation(np.setdiff1d(np.arange(len(points)), related))
    return np.sort(np.concatenate([related, others[: MOST_TRAINING_POINTS - len(related)]]))
