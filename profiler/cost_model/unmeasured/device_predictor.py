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

from modelless.profiler.cost_model.unmeasured.features import (
    MOST_LOG,
    NO_RATES,
    IntArray,
    NameCodes,
    Points,
    RatesByDevice,
    encode,
    item_latency_log,
    sort_rows,
)
from modelless.profiler.cost_model.unmeasured.gaussian_process import GaussianProcess
from modelless.profiler.cost_model.unmeasured.item_effects import ItemEffects
from modelless.profiler.cost_model.unmeasured.mixture_of_experts import (
    BAND_OF_MEAN,
    ClosestDeviceExpert,
    Expert,
    MixtureOfExperts,
    ProcessExpert,
    follow,
)
from modelless.profiler.cost_model.unmeasured.prior import Prior
from modelless.profiler.cost_model.unmeasured.proxies import (
    SimilarDevices,
    contrasts_of,
    fill_in,
    find_similar_devices,
    proxies_of,
)
from modelless.profiler.cost_model.unmeasured.snapshot import ANY_KIND
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

MOST_TRAINING_POINTS = 1000
"""The most training points; more are thinned out, because the time grows with their cube."""

MOST_OF_KNOWN_DEVICE = 3000
"""The same where the device is known and its models are new: then no measurement follows."""

_RELATED_SHARE = 0.75  # of the training points, at most, for items that are predicted
_ALONE_SHARE = 0.2  # of the expert "alone" before anything is measured; that of the others is 1
# Of the process, for the width of the band of a device that is like no known one.
_UNLIKE_DEVIATIONS = 2.5
# Half of the narrowest band without any measurement, which spans a factor of ten.
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


class DevicePredictor:
    """Predicts points of one device from measurements of others and a few of its own.

    Args:
        prior: the covariance and the roofline.
        training: measured rows, as a rule of other devices; may be empty.
        wanted: the rows to predict; their latencies are not used.
        rates: see ``encode``.

    Attributes:
        learned: the training rows that are used.
    """

    def __init__(
        self,
        prior: Prior,
        training: Sequence[TableRow],
        wanted: Sequence[TableRow],
        rates: RatesByDevice = NO_RATES,
    ) -> None:
        training = sort_rows(training)
        names = NameCodes()
        wanted_points = encode(wanted, names, prior.roofline, rates)
        batch = np.array([float(row.batch) for row in wanted])
        self._base_log = wanted_points.roofline_log + np.log(batch)
        points = encode(training, names, prior.roofline, rates)
        values = item_latency_log(training) - points.roofline_log
        effects = ItemEffects(points, values)
        devices = np.isin(wanted_points.level("device"), points.level("device"))
        self._is_known_device = bool(devices.size and devices.all())
        most = MOST_OF_KNOWN_DEVICE if self._is_known_device else MOST_TRAINING_POINTS
        kept = _thin_out(points, wanted_points, most)
        self.learned = [training[row] for row in kept]
        # A typical device tells only how items differ, see ``proxies``.
        kept = kept[[training[row].device_kind != ANY_KIND for row in kept]]
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
            self._similar = find_similar_devices(training, wanted, expected_log, rates)
        if self._similar is not None:
            mean = self._transfer.mean + self._similar.level_log
            self._transfer = replace(self._transfer, mean=mean)
        self._items = wanted_points.item

    @cached_property
    def _usual_deviations(self) -> float:
        """The predicted standard deviations within which 90 % of the unmeasured rows lie.

        Families of a known device are left out in turn, or else whole devices. These are few, so
        what they say is shrunk by half to ``BAND_OF_MEAN``.
        """
        points = self._process.points
        groups = points.family if self._is_known_device else points.level("device")
        left_out = [np.flatnonzero(groups == group) for group in np.unique(groups)]
        found = [
            error / np.sqrt(variance)
            for rows in left_out
            if len(rows) < len(groups)
            for error, variance in [self._process.leave_out(rows)]
        ]
        if not found:
            return BAND_OF_MEAN
        deviations = float(np.quantile(np.abs(np.concatenate(found)), 0.9))
        return deviations if self._is_known_device else math.sqrt(deviations * BAND_OF_MEAN)

    def predict(self, shots: IntArray, latency_ms: FloatArray, rows: IntArray) -> Prediction:
        """Returns predictions of some wanted rows, given measurements of others.

        Args:
            shots: the k wanted rows that were measured; k may be 0.
            latency_ms: their measured latencies, shape (k,).
            rows: the n wanted rows to predict.
        """
        _, experts = self._experts(shots, latency_ms)
        by_item = self._by_item(shots)
        each = [np.array([shot]) for shot in range(len(shots))]
        is_known = np.isin(self._items[rows], self._items[shots])
        usual = self._usual_deviations
        if len(shots) and not self._is_known_device:
            usual = max(usual, BAND_OF_MEAN)  # other devices predict too well what few shots say
        centre, width = np.empty((2, len(rows)))
        # What an item's other rows tell shows where single measurements are left out.
        for some, groups in ((~is_known, by_item), (is_known, each)):
            if some.any():
                centre[some], width[some] = self._predict(
                    MixtureOfExperts(experts, groups, usual), rows[some]
                )
        centre = np.clip(centre + self._base_log[rows], -MOST_LOG, MOST_LOG)
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
        transfer, experts = self._experts(shots, latency_ms)
        disagreement = MixtureOfExperts(experts, self._by_item(shots)).disagreement(rows)
        return transfer.covariance(rows) + disagreement, transfer.noise_variance

    def _predict(self, mixture: MixtureOfExperts, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the mean and half of the band's width in log latency, shape (n,) each."""
        mean, variance = mixture.predict(rows)
        width = mixture.band_deviations * np.sqrt(variance)
        if not mixture.is_measured and not self._is_known_device:
            error_log = self._similar.error_log if self._similar is not None else None
            if error_log is None:  # no device tells how far off this one may be
                width = np.maximum(width, _UNLIKE_DEVIATIONS * np.sqrt(variance))
            else:
                width = np.minimum(width, max(error_log, _UNSEEN_WIDTH_LOG))
        return mean, np.minimum(width, MOST_LOG)

    def _experts(
        self, shots: IntArray, latency_ms: FloatArray
    ) -> tuple[ProcessExpert, list[tuple[Expert, float]]]:
        """Returns ``transfer``, and all experts with their shares before any measurement."""
        values = np.log(latency_ms) - self._base_log[shots]
        transfer = ProcessExpert(self._process, self._transfer, shots, values)
        experts: list[tuple[Expert, float]] = [(transfer, 1.0)]
        if len(shots):
            if len(self._proxies):
                experts.append((ClosestDeviceExpert(self._proxies, shots, values), 1.0))
            experts.append(
                (ProcessExpert(self._own_process, self._alone, shots, values), _ALONE_SHARE)
            )
        return transfer, experts

    def _by_item(self, shots: IntArray) -> list[IntArray]:
        items = self._items[shots]
        return [np.flatnonzero(items == item) for item in np.unique(items)]


def _thin_out(points: Points, wanted: Points, most: int) -> IntArray:
    """Returns the training points to keep: of items that are predicted, of the kind, of others."""
    order = np.random.default_rng(0).permutation(len(points))
    is_related = np.isin(points.item[order], wanted.item)
    of_kind = np.isin(points.level("kind")[order], wanted.level("kind"))
    related = order[is_related][: int(_RELATED_SHARE * most)]
    kept = np.concatenate([related, order[~is_related & of_kind], order[~is_related & ~of_kind]])
    return np.sort(kept[:most])
