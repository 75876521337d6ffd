"""Latency of points that were not measured: trained on some devices, conditioned on another.

Training holds for every device that is predicted. Conditioning uses the device's few measurements
("shots") and takes one solve of their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.calibration import (
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
from modelless.profiler.cost_model.learned.gaussian_process import (
    ConditionedProcess,
    GaussianProcess,
    Posterior,
)
from modelless.profiler.cost_model.learned.item_effects import ItemEffects
from modelless.profiler.cost_model.learned.mixture import (
    ClosestDevice,
    Member,
    Mixture,
    Process,
    follow,
)
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.cost_model.learned.proxies import (
    SimilarDevices,
    contrasts_of,
    fill_in,
    find_similar_devices,
    proxies_of,
)
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

MOST_TRAINING_POINTS = 3000
"""The most training points; more are thinned out, because the time grows with their cube."""

_RELATED_SHARE = 0.75  # of the training points, at most, for items that are predicted
_ALONE_SHARE = 0.2  # of the member "alone" before anything is measured; that of the others is 1
# The members were weighted by the same errors that tell how far off the mixture is, which makes
# these too small. The factors give bands that hold on half of the devices of five public tables.
_WIDENING, _WIDENING_OF_FEW = 1.12, 0.9
# Without any measurement, a band spans at most a factor of ten where the known devices of the kind
# differ by no more than that. If they differ more, they are no measure of a further one.
_UNSEEN_WIDTH_LOG = 0.5 * math.log(10.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latencies of the whole batch at n points, milliseconds, shape (n,) each.

    Attributes:
        median_ms: the median.
        low_ms, high_ms: the central 90 % band.
    """

    median_ms: FloatArray
    low_ms: FloatArray
    high_ms: FloatArray


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
        pooled = self._process.posterior_at(effects.add_to(wanted_points))
        proxies = proxies_of(training, wanted)
        expected_log = pooled.mean + wanted_points.roofline_log
        contrasts = contrasts_of(proxies, expected_log)
        self._transfer = follow(pooled, contrasts)
        self._own_process = GaussianProcess(prior.kernel, points.select([]), np.empty(0))
        self._alone = self._own_process.posterior_at(wanted_points)
        self._proxies = fill_in(contrasts) + pooled.mean
        self._similar: SimilarDevices | None = None
        if not self._is_known_device:
            expected_log = self._transfer.mean + wanted_points.roofline_log
            self._similar = find_similar_devices(training, wanted, expected_log)
        if self._similar is not None:
            mean = self._transfer.mean + self._similar.level_log
            self._transfer = replace(self._transfer, mean=mean)
        self._items = wanted_points.item

    @cached_property
    def _is_known_device(self) -> bool:
        """Whether training contains the device, so that only the models are new."""
        devices = self._alone.points.level("device")
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
        mixture = self._mix(shots, latency_ms)
        mean, variance = mixture.predict(rows)
        deviation = np.sqrt(variance)
        error, error_variance = mixture.leave_one_out()
        shot_errors = error / np.sqrt(error_variance)
        centre = np.clip(mean + self._base_log[rows], -MOST_LOG, MOST_LOG)
        width = np.minimum(self._scores.quantile(0.9, shot_errors) * deviation, MOST_LOG)
        if len(shots):
            width *= _WIDENING + _WIDENING_OF_FEW / len(shots)
        elif self._similar is not None and self._similar.error_log <= _UNSEEN_WIDTH_LOG:
            width = np.minimum(width, _UNSEEN_WIDTH_LOG)
        return Prediction(np.exp(centre), np.exp(centre - width), np.exp(centre + width))

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
        transfer = self._condition(self._process, self._transfer, shots, latency_ms)
        covariance = transfer.covariance(self._transfer.select(rows))
        disagreement = self._mix(shots, latency_ms).disagreement(rows)
        return covariance + disagreement, transfer.noise_variance

    def _mix(self, shots: IntArray, latency_ms: FloatArray) -> Mixture:
        values = np.log(latency_ms) - self._base_log[shots]
        transfer = self._condition(self._process, self._transfer, shots, latency_ms)
        members: list[tuple[Member, float]] = [(Process(transfer, self._transfer), 1.0)]
        if len(shots):
            if len(self._proxies):
                members.append((ClosestDevice(self._proxies, shots, values), 1.0))
            alone = self._condition(self._own_process, self._alone, shots, latency_ms)
            members.append((Process(alone, self._alone), _ALONE_SHARE))
        items = self._items[shots]
        return Mixture(members, [np.flatnonzero(items == item) for item in np.unique(items)])

    def _condition(
        self,
        process: GaussianProcess,
        posterior: Posterior,
        shots: IntArray,
        latency_ms: FloatArray,
    ) -> ConditionedProcess:
        values = np.log(latency_ms) - self._base_log[shots]
        return ConditionedProcess(process, posterior.select(shots), values)


def _thin_out(points: Points, wanted: Points, rng: np.random.Generator) -> IntArray:
    """Returns the training points to keep; those of items that are predicted come first."""
    if len(points) <= MOST_TRAINING_POINTS:
        return np.arange(len(points))
    related = rng.permutation(np.flatnonzero(np.isin(points.item, wanted.item)))
    related = related[: int(_RELATED_SHARE * MOST_TRAINING_POINTS)]
    others = rng.permutation(np.setdiff1d(np.arange(len(points)), related))
    return np.sort(np.concatenate([related, others[: MOST_TRAINING_POINTS - len(related)]]))
