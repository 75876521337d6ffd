"""Comparing two variants on the same items, which tells them apart long before intervals part."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.common.intervals import Z_95
from modelless.variants.metrics.metric import Metric, standard_error

SIGNIFICANCE = 0.05
"""A difference whose p-value is below counts as one."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How much better one variant is than another, on the same items.

    Attributes:
        percent: points by which the one is better; negative if it is worse.
        low_percent, high_percent: 95 % confidence interval.
        p_value: how probable a difference as large is, were there none; two-sided.
        count: items.
    """

    percent: float
    low_percent: float
    high_percent: float
    p_value: float
    count: int

    @property
    def is_significant(self) -> bool:
        """Whether chance is an unlikely explanation."""
        return self.p_value < SIGNIFICANCE


def compare_paired(metric: Metric, one: NDArray[Any], other: NDArray[Any]) -> PairedDifference:
    """Compare the evidence that ``metric`` found of two variants, row by row the same items.

    Proportions by ``compare_right``, everything else by the difference and its standard error,
    from the paired bootstrap: both variants on the same resampled items.

    Raises:
        InvalidInputError: they are not of as many items.
    """
    if metric.is_proportion:
        return compare_right(one, other)
    count = _check(one, other)

    def difference(rows: NDArray[np.intp]) -> float:
        return metric.percent(one[rows]) - metric.percent(other[rows])

    found = difference(np.arange(count))
    error = standard_error(difference, count)
    # Without any spread, as between a variant and itself, there is nothing to tell apart.
    p_value = 2.0 * NormalDist().cdf(-abs(found) / error) if error > 0.0 else 1.0
    return PairedDifference(found, found - Z_95 * error, found + Z_95 * error, p_value, count)


def compare_right(one: NDArray[Any], other: NDArray[Any]) -> PairedDifference:
    """Compare which items two variants get right: BOOL [items] of each.

    The p-value is McNemar's exact one: of the items on which they differ, each is as often right as
    the other if there is no difference (https://doi.org/10.1007/BF02295996). The interval is the
    adjusted Wald of Bonett and Price (https://doi.org/10.3102/1076998611411915).
    """
    count = _check(one, other)
    only_one = int(np.count_nonzero(one & ~other))
    only_other = int(np.count_nonzero(other & ~one))
    p_value = 1.0
    if only_one + only_other:
        from scipy.stats import binomtest

        p_value = float(binomtest(only_one, only_one + only_other).pvalue)
    mine, theirs = (only_one + 1) / (count + 2), (only_other + 1) / (count + 2)
    half = Z_95 * sqrt((mine + theirs - (mine - theirs) ** 2) / (count + 2))
    found = (only_one - only_other) / count
    return PairedDifference(
        100.0 * found,
        100.0 * max(-1.0, min(mine - theirs - half, found)),
        100.0 * min(1.0, max(mine - theirs + half, found)),
        p_value,
        count,
    )


def _check(one: NDArray[Any], other: NDArray[Any]) -> int:
    if len(one) != len(other) or not len(one):
        raise InvalidInputError.of(
            "items of the two variants", (len(one), len(other)), "as many of each, 1 or more"
        )
    return len(one)
