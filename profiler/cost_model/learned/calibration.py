"""Bands as wide as they have to be: how far off predictions were, against what they said.

A Gaussian process says how sure it is, under assumptions. How far off it really is, in units of
what it said, is seen where a device that is known is predicted as if it were not, and on the few
measurements of the device itself when each is left out in turn. The former tell the shape of those
scores and what their scale is on the usual device; the latter correct both for this one, shrunk,
for they are few. The band is the quantile of the scores: split conformal prediction
(Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005, section 4.1) with
normalised scores and an empirical-Bayes scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modelless.profiler.cost_model.learned.process import Process
from modelless.variants.estimates import FloatArray

MEDIAN_OF_NORMAL = 0.6745
"""The median distance from the mean of a normal variable, in standard deviations."""

_SHOTS_KEPT = 10  # of a device that is left out to see how far off its other points are
_LEAST_POINTS = 20  # of a device, for that
_MOST_POINTS = 300  # of a device, looked at
# What scores are supposed to be where no device was left out, each at the middle of a twelfth of
# their distribution. Tails are heavier than a Student t's with four degrees of freedom.
_SUPPOSED = np.array([0.10, 0.22, 0.33, 0.46, 0.59, 0.74, 0.91, 1.12, 1.38, 1.77, 2.42, 4.60])
_SUPPOSED_WEIGHT = 0.2  # against a device's 1
_USUAL_WORTH = 2.0  # shots that the usual scale is worth
_SCALE_VARIANCE = 1.0  # of the log of one score: they are heavy-tailed
_SHAPE_WORTH = 20.0  # shots that the distribution of all others is worth
_MOST_SCORE = 8.0  # of usual ones: more counts as this much towards the scale


@dataclass(frozen=True, slots=True)
class Scores:
    """Absolute errors in predicted standard deviations, over their mean on their device.

    Attributes:
        values, weights: shape (n,).
        scale_log: log of that mean on the usual device.
        least_scale_log: what it is at least where nothing was measured.
    """

    values: FloatArray
    weights: FloatArray
    scale_log: float
    least_scale_log: float = 0.0

    def quantile(self, share: float, shot_errors: FloatArray) -> float:
        """The predicted standard deviations within which ``share`` of a device's errors lie.

        Args:
            share: 0 to 1.
            shot_errors: of the device's own measurements, each left out in turn, in predicted
                standard deviations, shape (k,).
        """
        count = len(shot_errors)
        if not count:
            # How well a few points do for other devices says nothing where there are none.
            return self._shape(share, shot_errors) * float(
                np.exp(max(self.scale_log, self.least_scale_log))
            )
        own_log = float(np.log(_scale_of(np.abs(shot_errors) / np.exp(self.scale_log))))
        scale_log = self.scale_log + own_log * count / (_USUAL_WORTH + count)
        # A scale that is not well known makes the tails heavier.
        scale_log += _SCALE_VARIANCE / (_USUAL_WORTH + count)
        return self._shape(share, shot_errors) * float(np.exp(scale_log))

    def _shape(self, share: float, shot_errors: FloatArray) -> float:
        """The same in multiples of the mean, of other devices and of the device's own shots."""
        own = np.abs(shot_errors)
        if len(own):  # none counts as farther off than any of the others
            own = np.minimum(own / _scale_of(own), self.values.max())
        weight = self.weights.sum() / _SHAPE_WORTH
        return _weighted_quantile(
            share,
            np.concatenate([self.values, own]),
            np.concatenate([self.weights, np.full(len(own), weight)]),
        )


def scores_of(process: Process, rng: np.random.Generator) -> Scores:
    """How far off the process is on its own devices, each left out but for a few points."""
    supposed_scale = float(_SUPPOSED.mean())
    values = [_SUPPOSED / supposed_scale]
    weights = [np.full(len(_SUPPOSED), _SUPPOSED_WEIGHT / len(_SUPPOSED))]
    scale_logs = [float(np.log(supposed_scale))]
    devices = process.points.level("device")
    for device in np.unique(devices):
        rows = np.flatnonzero(devices == device)
        if len(rows) < _LEAST_POINTS or len(rows) == len(devices):
            continue
        # All but the shots are left out, though not all are looked at: those that stayed would help
        # those that are.
        error, variance = process.left_out(rng.permutation(rows)[_SHOTS_KEPT:])
        score = (np.abs(error) / np.sqrt(variance))[:_MOST_POINTS]
        scale = _scale_of(score)
        values.append(score / scale)
        weights.append(np.full(len(score), 1.0 / len(score)))
        scale_logs.append(float(np.log(scale)))
    return Scores(
        np.concatenate(values),
        np.concatenate(weights),
        float(np.average(scale_logs, weights=[_SUPPOSED_WEIGHT] + [1.0] * (len(scale_logs) - 1))),
    )


def family_scores_of(process: Process) -> Scores:
    """How far off the process is on families left out whole, their devices being known."""
    values, weights, scale_logs = [], [], []
    families = process.points.family
    for family in np.unique(families):
        error, variance = process.left_out(np.flatnonzero(families == family))
        score = (np.abs(error) / np.sqrt(variance))[:_MOST_POINTS]
        scale = _scale_of(score)
        values.append(score / scale)
        weights.append(np.full(len(score), 1.0 / len(score)))
        scale_logs.append(float(np.log(scale)))
    scale_log = float(np.mean(scale_logs))
    # Bands hold for the families of all scales at once: their differences belong to the shape.
    pooled = [
        value * np.exp(log - scale_log) for value, log in zip(values, scale_logs, strict=True)
    ]
    return Scores(np.concatenate(pooled), np.concatenate(weights), scale_log, -np.inf)


def _weighted_quantile(share: float, values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values)
    sorted_weights = weights[order] / weights.sum()
    # At a value half of its own weight has passed.
    passed = np.cumsum(sorted_weights) - 0.5 * sorted_weights
    return float(np.interp(share, passed, values[order]))


def _scale_of(scores: FloatArray) -> float:
    """Their mean, the farthest counted as less far."""
    return float(np.minimum(scores, _MOST_SCORE).mean()) + 1e-3
