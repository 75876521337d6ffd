"""How sure a counted share is."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

from modelless.common.errors import InvalidInputError

Z_95 = 1.959963984540054
"""The standard normal's 97.5 % quantile."""

FINEST_PERCENT = 0.01
"""Half-width of an interval, in points, beyond which nobody has the items to count."""


def wilson(share: float, count: float, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a share seen in ``count`` trials; (0, 1) for none.

    https://doi.org/10.1080/01621459.1927.10502953. ``count`` may be an effective number of
    independent trials, and so need not be whole. ``z`` is the standard normal's quantile: a 95 %
    interval by default.
    """
    if count <= 0:
        return 0.0, 1.0
    square = z * z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = z * sqrt(share * (1 - share) / count + square / (4 * count * count))
    half /= 1 + square / count
    return max(0.0, middle - half), min(1.0, middle + half)


def wilson_percent(right: int, count: int) -> tuple[float, float]:
    """The same in per cent, of ``right`` out of ``count``."""
    low, high = wilson(right / count if count else 0.0, count)
    return 100.0 * low, 100.0 * high


def recommended_sample_size(
    half_width_percent: float, expected_percent: float = 50.0, confidence: float = 0.95
) -> int:
    """The fewest items whose Wilson interval reaches no further than asked, up and down together.

    Args:
        half_width_percent: half of the interval's width, in points.
        expected_percent: the accuracy that is expected; 50 needs most, so it is on the safe side.
        confidence: of the interval.

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
    z = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    share = expected_percent / 100.0

    def half_width(count: int) -> float:
        low, high = wilson(share, count, z)
        return 100.0 * (high - low) / 2.0

    # The width falls with every item.
    fewest, most = 1, 1
    while half_width(most) > half_width_percent:
        fewest, most = most, 2 * most
    while fewest < most:
        middle = (fewest + most) // 2
        if half_width(middle) > half_width_percent:
            fewest = middle + 1
        else:
            most = middle
    return most
