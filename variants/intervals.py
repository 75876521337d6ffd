"""How sure a counted share is."""

from __future__ import annotations

from math import sqrt

Z_95 = 1.959963984540054
"""The standard normal's 97.5 % quantile."""


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share seen in ``count`` trials; (0, 1) for none.

    https://doi.org/10.1080/01621459.1927.10502953. ``count`` may be an effective number of
    independent trials, and so need not be whole.
    """
    if count <= 0:
        return 0.0, 1.0
    square = Z_95 * Z_95
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = Z_95 * sqrt(share * (1 - share) / count + square / (4 * count * count))
    half /= 1 + square / count
    return max(0.0, middle - half), min(1.0, middle + half)


def wilson_percent(right: int, count: int) -> tuple[float, float]:
    """The same in per cent, of ``right`` out of ``count``."""
    low, high = wilson(right / count if count else 0.0, count)
    return 100.0 * low, 100.0 * high
