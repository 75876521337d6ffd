"""The covariance between points of what the roofline misses.

It is a sum over levels (all devices, those of a kind, ..., one device) of sums of terms (a
constant, the roofline's balance, the features, the family, the name, the item's effect on other
devices). A new device therefore starts with what its kind has in common, and its own measurements
show what is particular to it. Where the rates of a device were measured, less is uncertain from the
start, and each variance counts only in part (``_BENCHMARKED_SHARES``). This is a coregionalised
Gaussian process with nested random effects: Bonilla, Chai and Williams, "Multi-task Gaussian
Process Prediction" (2007).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from modelless.profiler.cost_model.unmeasured.features import LEVELS, IntArray, Points
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
"""The terms by their names in prior files; the last two are the terms of the item effect."""
_SMOOTH_SCALE2 = 1.0
_LOCAL_SCALE2 = 0.09
_WIDE_SCALE2 = 4.0
_ITEM_EFFECT_SCALE2 = 0.5
_LEAST_VARIANCE = 1e-4  # of a term; 0.01 in log latency is below the noise of any measurement

_REMAINING: Final[Mapping[str, tuple[float, float]]] = {
    "all": (0.012, 0.01),
    "kind": (0.024, 0.01),
    "source": (0.006, 0.01),
    "precision": (0.05, 0.01),
    "engine": (0.05, 0.01),
    "device": (0.10, 1.0),
    "setting": (1.0, 1.0),
}
"""The shares of the prior's variances that remain where the device's rates were measured.

By level: the share of the constant's variance, and the share of all other terms'. The prior's
variances hold for devices of which at most a vendor's figures are known. With these shares, one
latency in ten is expected to exceed 2.7 times the median before the first measurement; none of 224
did, all of them on one kind of processor.
"""
_BENCHMARKED_SHARES = np.array(
    [[_REMAINING[level][term != "constant"] for term in TERMS] for level in LEVELS],
    dtype=np.float64,
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The covariance function.

    Attributes:
        variances: variance of each term at each level, squared log latency, shape (7, 10):
            ``LEVELS`` by ``TERMS``; 0 leaves a term out.
        noise_variance: noise variance of one measurement, squared log latency.
    """

    variances: FloatArray
    noise_variance: float

    @classmethod
    def of(cls, variances: Mapping[str, Mapping[str, float]], noise_variance: float) -> Kernel:
        """Returns the kernel with these variances by level and term; tiny ones become 0."""
        table = np.array([[variances[level][term] for term in TERMS] for level in LEVELS])
        return cls(np.where(table < _LEAST_VARIANCE, 0.0, table), noise_variance)

    def covariance(self, left: Points, right: Points) -> FloatArray:
        """Returns the covariance between n and m points, shape (n, m)."""
        total = np.empty((len(left), len(right)))
        # Each term has one weight within a block of points that agree in all levels.
        right_groups = list(_groups(right))
        for left_levels, left_rows in _groups(left):
            some = left.select(left_rows)
            for right_levels, right_rows in right_groups:
                is_same = left_levels[:-1] == right_levels[:-1]
                benchmarked = 0.5 * (left_levels[-1] + right_levels[-1])
                weights = is_same @ (self.variances * _BENCHMARKED_SHARES**benchmarked)
                block = weighted_terms(some, right.select(right_rows), weights)
                total[np.ix_(left_rows, right_rows)] = block
        return total

    def variance(self, points: Points) -> FloatArray:
        """Returns the variance of each of n points, shape (n,)."""
        usual = self.variances.sum(axis=0)
        benchmarked = (self.variances * _BENCHMARKED_SHARES).sum(axis=0)
        own = np.ones((len(points), len(TERMS)))
        own[:, TERMS.index("balance")] = (points.shares**2).sum(axis=1)
        own[:, TERMS.index("linear")] = (points.features**2).sum(axis=1)
        own[:, TERMS.index("elsewhere_linear")] = points.item_effect**2
        own[:, TERMS.index("elsewhere_smooth")] = points.has_item_effect
        return np.asarray(np.where(points.is_benchmarked > 0.0, own @ benchmarked, own @ usual))


def weighted_terms(left: Points, right: Points, weights: FloatArray) -> FloatArray:
    """Returns the weighted sum of ``TERMS`` between n and m points, shape (n, m).

    Args:
        left, right: n and m points.
        weights: weight of each term, shape (10,); a term of weight 0 is not computed.
    """
    weight = dict(zip(TERMS, weights.tolist(), strict=True))
    distance2 = _distance2(left.features, right.features)
    total = np.full(distance2.shape, weight["constant"])
    total += (left.shares * weight["balance"]) @ right.shares.T
    total += (left.features * weight["linear"]) @ right.features.T
    total += (left.item_effect * weight["elsewhere_linear"])[:, None] * right.item_effect
    if weight["smooth"] or weight["elsewhere_smooth"]:
        smooth = np.exp(distance2 / (-2.0 * _SMOOTH_SCALE2))
        apart = left.item_effect[:, None] - right.item_effect
        both_known = left.has_item_effect[:, None] * right.has_item_effect
        alike = both_known * np.exp(apart**2 / (-2.0 * _ITEM_EFFECT_SCALE2))
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


def _groups(points: Points) -> Iterator[tuple[IntArray, IntArray]]:
    """Yields the levels and ``is_benchmarked`` of points that agree in them, and their rows."""
    keys = np.column_stack([points.levels, points.is_benchmarked.astype(np.intp)])
    combinations, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    for number, levels in enumerate(combinations):
        yield levels, np.flatnonzero(group == number)


def _distance2(left: FloatArray, right: FloatArray) -> FloatArray:
    """Returns the squared distances between the rows of two arrays, shape (n, m)."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None]
    return np.asarray(np.maximum(squares - 2.0 * (left @ right.T), 0.0))
