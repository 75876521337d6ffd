"""Confidence intervals of shares, and the sample that an interval needs."""

from __future__ import annotations

from math import ceil, sqrt
from statistics import NormalDist
from typing import Final

from modelless.common.errors import InvalidInputError

Z_95: Final = NormalDist().inv_cdf(0.975)
"""The standard normal's 97.5 % quantile."""

FINEST_PERCENT: Final = 0.01
"""The smallest half-width that may be asked for, in points; it needs 96 million items."""


def wilson_percent(right: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, per cent: ``right`` out of ``count``; 0 to 100 of none.

    https://doi.org/10.1080/01621459.1927.10502953
    """
    if not count:
        return 0.0, 100.0
    share, z_squared = right / count, Z_95**2
    middle = share + z_squared / (2.0 * count)
    half = Z_95 * sqrt(share * (1.0 - share) / count + z_squared / (4.0 * count**2))
    ends = [100.0 * (middle + each) / (1.0 + z_squared / count) for each in (-half, half)]
    return (0.0 if right <= 0.0 else ends[0]), (100.0 if right >= count else ends[1])


def recommended_sample_size(
    half_width_percent: float, expected_percent: float = 50.0, confidence: float = 0.95
) -> int:
    """The fewest items whose Wilson interval is no wider than asked.

    Solves the interval's formula for the number of items, which is a quadratic equation.

    Args:
        half_width_percent: half of the interval's width, in points.
        expected_percent: the accuracy that is expected; 50 needs most items.

    Raises:
        InvalidInputError: a value out of range.
    """
    if not FINEST_PERCENT <= half_width_percent < 50.0:
        raise InvalidInputError.of(
            "half_width_percent", half_width_percent, f"{FINEST_PERCENT} to 50, in points"
        )
    if not 0.0 <= expected_percent <= 100.0:
        raise InvalidInputError.of("expected_percent", expected_percent, "0 to 100")
    if not 0.0 < confidence < 1.0:
        raise InvalidInputError.of("confidence", confidence, "more than 0, less than 1")
    z_squared = NormalDist().inv_cdf((1.0 + confidence) / 2.0) ** 2
    width_squared = (half_width_percent / 100.0) ** 2
    share = expected_percent / 100.0
    half_b = z_squared * (width_squared - share * (1.0 - share) / 2.0)
    c = z_squared**2 * (width_squared - 0.25)
    return max(1, ceil((sqrt(half_b**2 - width_squared * c) - half_b) / width_squared))
