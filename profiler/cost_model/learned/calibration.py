"""Calibration: scales the predicted bands by how far off past predictions were.

A Gaussian process states its uncertainty under assumptions. Its real errors, in units of the stated
standard deviation, are *scores*. They come from known devices that are predicted as if they were
unknown, and from the device's own measurements, each left out in turn. The former give the shape of
the distribution of scores and their scale on the usual device. The latter correct both for this
device, shrunk because they are few. The band is a quantile of the scores: split conformal
prediction (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005, section 4.1)
with normalised scores and an empirical-Bayes scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modelless.profiler.cost_model.learned.gaussian_process import GaussianProcess
from modelless.variants.estimates import FloatArray

MEDIAN_OF_NORMAL = 0.6745
"""The median distance of a normal variable from its mean, in standard deviations."""

_SHOTS_KEPT = 10  # points of a left-out device that the process keeps
_LEAST_POINTS = 20  # points from which a device is left out
_MOST_POINTS = 300  # scores used of a device
# The scores assumed where no device was left out, each the middle of a twelfth of the distribution.
# The tails are heavier than those of a Student t with four degrees of freedom.
_ASSUMED = np.array([0.10, 0.22, 0.33, 0.46, 0.59, 0.74, 0.91, 1.12, 1.38, 1.77, 2.42, 4.60])
_ASSUMED_WEIGHT = 0.2  # a device has the weight 1
_USUAL_SHOTS = 2.0  # shots that weigh as much as the usual scale
_SCALE_VARIANCE = 1.0  # of the log of one score: the tails are heavy
_SHAPE_SHOTS = 20.0  # shots that weigh as much as the distribution of all other devices
_MOST_SCORE = 8.0  # of usual scores; a higher one counts as this one towards the scale


@dataclass(frozen=True, slots=True)
class ErrorScores:
    """Absolute errors in predicted standard deviations, over their mean on their device.

    Attributes:
        values, weights: shape (n,).
        scale_log: log of the mean on the usual device.
        least_scale_log: lower bound of ``scale_log`` where nothing was measured.
    """

    values: FloatArray
    weights: FloatArray
    scale_log: float
    least_scale_log: float = 0.0

    def quantile(
        self, share: float, shot_errors: FloatArray, shot_weights: FloatArray | None = None
    ) -> float:
        """Returns the predicted standard deviations within which ``share`` of the errors lie.

        Args:
            share: 0 to 1.
            shot_errors: errors of the device's own measurements, each left out in turn, in
                predicted standard deviations, shape (k,).
            shot_weights: how many measurements each counts as, shape (k,); default: 1.
        """
        weights = np.ones(len(shot_errors)) if shot_weights is None else shot_weights
        if not len(shot_errors):
            # Low scores of other devices with a few points do not apply to one without any.
            return self._shape(share, shot_errors, weights) * float(
                np.exp(max(self.scale_log, self.least_scale_log))
            )
        count = weights.sum()
        own = np.abs(shot_errors) / np.exp(self.scale_log)
        own_log = float(np.log(_scale_of(own, weights)))
        scale_log = self.scale_log + own_log * count / (_USUAL_SHOTS + count)
        # An uncertain scale makes the tails heavier.
        scale_log += _SCALE_VARIANCE / (_USUAL_SHOTS + count)
        return self._shape(share, shot_errors, weights) * float(np.exp(scale_log))

    def _shape(self, share: float, shot_errors: FloatArray, shot_weights: FloatArray) -> float:
        """Returns the quantile in multiples of the mean, over other devices and the own shots."""
        own = np.abs(shot_errors)
        if len(own):  # no own score counts as larger than the largest of the others
            own = np.minimum(own / _scale_of(own, shot_weights), self.values.max())
        weight = self.weights.sum() / _SHAPE_SHOTS
        return _weighted_quantile(
            share,
            np.concatenate([self.values, own]),
            np.concatenate([self.weights, weight * shot_weights]),
        )


def score_devices(process: GaussianProcess, rng: np.random.Generator) -> ErrorScores:
    """Returns the scores of the process's own devices, each left out but for a few points."""
    assumed_scale = float(_ASSUMED.mean())
    scales = [assumed_scale]
    values = [_ASSUMED / assumed_scale]
    weights = [np.full(len(_ASSUMED), _ASSUMED_WEIGHT / len(_ASSUMED))]
    devices = process.points.level("device")
    for device in np.unique(devices):
        rows = np.flatnonzero(devices == device)
        if len(rows) < _LEAST_POINTS or len(rows) == len(devices):
            continue
        # All points but the shots are left out, even if not all of them are scored: points that
        # stayed would help to predict those that are.
        score = _scores_at(process, rng.permutation(rows)[_SHOTS_KEPT:])
        _append(score, values, weights, scales)
    device_weights = [_ASSUMED_WEIGHT] + [1.0] * (len(scales) - 1)
    scale_log = float(np.average([float(np.log(s)) for s in scales], weights=device_weights))
    return ErrorScores(np.concatenate(values), np.concatenate(weights), scale_log)


def score_families(process: GaussianProcess) -> ErrorScores:
    """Returns the scores of whole families that are left out, on known devices."""
    values: list[FloatArray] = []
    weights: list[FloatArray] = []
    scales: list[float] = []
    families = process.points.family
    for family in np.unique(families):
        score = _scores_at(process, np.flatnonzero(families == family))
        _append(score, values, weights, scales)
    scale_logs = [float(np.log(scale)) for scale in scales]
    scale_log = float(np.mean(scale_logs))
    # A band holds for families of all scales at once, so their differences belong to the shape.
    pooled = [
        value * np.exp(log - scale_log) for value, log in zip(values, scale_logs, strict=True)
    ]
    return ErrorScores(np.concatenate(pooled), np.concatenate(weights), scale_log, -np.inf)


def _scores_at(
    process: GaussianProcess, rows: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> FloatArray:
    """Returns the scores of rows that are left out together, shape (n,)."""
    error, variance = process.leave_out(rows)
    return np.asarray((np.abs(error) / np.sqrt(variance))[:_MOST_POINTS])


def _append(
    score: FloatArray, values: list[FloatArray], weights: list[FloatArray], scales: list[float]
) -> None:
    """Append the scores of one device or family, which weigh 1 together."""
    scales.append(_scale_of(score, np.ones(len(score))))
    values.append(score / scales[-1])
    weights.append(np.full(len(score), 1.0 / len(score)))


def _weighted_quantile(share: float, values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values)
    sorted_weights = weights[order] / weights.sum()
    # Half of a value's own weight lies below it.
    passed = np.cumsum(sorted_weights) - 0.5 * sorted_weights
    return float(np.interp(share, passed, values[order]))


def _scale_of(scores: FloatArray, weights: FloatArray) -> float:
    """Returns the weighted mean of the scores, each clipped at ``_MOST_SCORE``."""
    return float(np.average(np.minimum(scores, _MOST_SCORE), weights=weights)) + 1e-3
