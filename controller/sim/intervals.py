"""Means and their 95 % confidence intervals, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence

_T95 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)
_Z95 = 1.959964

Interval = dict[str, float | None]
"""``mean``, ``low`` and ``high``; None is unknown."""


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval; no mean of nothing, and no interval from fewer than two values."""
    if not values:
        return {"mean": None, "low": None, "high": None}
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return {"mean": mean, "low": None, "high": None}
    freedom = len(values) - 1
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / freedom)
    half = t95(freedom) * spread / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def t95(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t with so many degrees of freedom.

    Beyond the table by its expansion around the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    first = (z**3 + z) / 4.0
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    third = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0
    return z + first / freedom + second / freedom**2 + third / freedom**3
