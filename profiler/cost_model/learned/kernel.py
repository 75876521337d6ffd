"""Which points tell of which: the covariance of what the roofline misses.

It is a sum over levels (what all devices share, those of a kind, ..., one device alone) of sums of
terms (a constant, the roofline's balance, the features, the family, the name, how the item fares
elsewhere). A new device so begins with what its kind has in common, and each of its own
measurements tells apart what is its own. Of a device that was itself measured less is open from the
start (``own_speed``), and the same sum counts for less. This is a coregionalised Gaussian process
with nested random effects: Bonilla, Chai and Williams, "Multi-task Gaussian Process Prediction"
(2007).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.own_speed import LEFT_OPEN
from modelless.profiler.cost_model.learned.points import LEVELS, Points
from modelless.variants.estimates import FloatArray

TERMS = (
    "constant",
    "balance",
    "linear",
    "smooth",
    "local",
    "family",
    "model",
    "name",
    "elsewhere_linear",
    "elsewhere_smooth",
)
_SMOOTH_SCALE2 = 1.0
_LOCAL_SCALE2 = 0.09
_WIDE_SCALE2 = 4.0
_ELSEWHERE_SCALE2 = 0.5
# Of each variance, what is left open where the device was itself measured.
_LEFT_OPEN = np.array(
    [[LEFT_OPEN[level][term != "constant"] for term in TERMS] for level in LEVELS], dtype=np.float64
)
_LEAST_VARIANCE = 1e-4  # of a term: one hundredth in log latency is below anyone's noise


@dataclass(frozen=True, slots=True)
class Kernel:
    """The covariance function.

    Attributes:
        variances: of each term at each level, in squared log latency, shape (7, 10): ``LEVELS`` by
            ``TERMS``; 0 leaves a term out.
        noise_variance: of one measurement.
    """

    variances: FloatArray
    noise_variance: float

    @classmethod
    def of(cls, variances: Mapping[str, Mapping[str, float]], noise_variance: float) -> Kernel:
        """From variances by level and term; those below notice are left out."""
        table = np.array([[variances[level][term] for term in TERMS] for level in LEVELS])
        return cls(np.where(table < _LEAST_VARIANCE, 0.0, table), noise_variance)

    def covariance(self, left: Points, right: Points) -> FloatArray:
        """Between n and m points, shape (n, m)."""
        total = np.empty((len(left), len(right)))
        # Points that agree in all levels form blocks within which each term has one weight.
        right_groups = list(_groups(right))
        for left_levels, left_rows in _groups(left):
            some = left.take(left_rows)
            for right_levels, right_rows in right_groups:
                is_same = left_levels[:-1] == right_levels[:-1]
                rated = 0.5 * (left_levels[-1] + right_levels[-1])
                weights = is_same @ (self.variances * _LEFT_OPEN**rated)
                block = weighted_terms(some, right.take(right_rows), weights)
                total[np.ix_(left_rows, right_rows)] = block
        return total

    def variance(self, points: Points) -> FloatArray:
        """Of each point with itself, shape (n,)."""
        known, open_ = self.variances.sum(axis=0), (self.variances * _LEFT_OPEN).sum(axis=0)
        own = np.ones((len(points), len(TERMS)))
        own[:, TERMS.index("balance")] = (points.shares**2).sum(axis=1)
        own[:, TERMS.index("linear")] = (points.features**2).sum(axis=1)
        own[:, TERMS.index("elsewhere_linear")] = points.elsewhere**2
        own[:, TERMS.index("elsewhere_smooth")] = points.is_known_elsewhere
        return np.asarray(np.where(points.is_rated > 0.0, own @ open_, own @ known))


def weighted_terms(left: Points, right: Points, weights: FloatArray) -> FloatArray:
    """The sum of ``TERMS`` at these weights, shape (n, m).

    Args:
        left, right: n and m points.
        weights: shape (10,); a term of weight 0 costs nothing.
    """
    weight = dict(zip(TERMS, weights.tolist(), strict=True))
    distance2 = _distance2(left.features, right.features)
    total = np.full(distance2.shape, weight["constant"])
    total += (left.shares * weight["balance"]) @ right.shares.T
    total += (left.features * weight["linear"]) @ right.features.T
    total += (left.elsewhere * weight["elsewhere_linear"])[:, None] * right.elsewhere
    if weight["smooth"] or weight["elsewhere_smooth"]:
        smooth = np.exp(distance2 / (-2.0 * _SMOOTH_SCALE2))
        apart = left.elsewhere[:, None] - right.elsewhere
        both_known = left.is_known_elsewhere[:, None] * right.is_known_elsewhere
        alike = both_known * np.exp(apart**2 / (-2.0 * _ELSEWHERE_SCALE2))
        total += smooth * (weight["smooth"] + weight["elsewhere_smooth"] * alike)
    if weight["local"]:
        total += weight["local"] * np.exp(distance2 / (-2.0 * _LOCAL_SCALE2))
    if weight["family"] or weight["model"]:
        same = weight["family"] * (left.family[:, None] == right.family)
        same = same + weight["model"] * (left.model[:, None] == right.model)
        total += same * np.exp(distance2 / (-2.0 * _WIDE_SCALE2))
    if weight["name"]:
        names = np.exp(_distance2(left.name_numbers, right.name_numbers) / -2.0)
        total += weight["name"] * names * (left.skeleton[:, None] == right.skeleton)
    return total


def _groups(points: Points) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """(levels and ``is_rated``, rows) of the points that agree in all of these."""
    keys = np.column_stack([points.levels, points.is_rated.astype(np.intp)])
    combinations, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    for number, levels in enumerate(combinations):
        yield levels, np.flatnonzero(group == number)


def _distance2(left: FloatArray, right: FloatArray) -> FloatArray:
    """Squared distances between rows, shape (n, m)."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None]
    return np.asarray(np.maximum(squares - 2.0 * (left @ right.T), 0.0))
