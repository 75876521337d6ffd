"""Dominated variants: another one is quicker and more accurate, and takes no more memory.

Measurements are noisy, so a difference counts only beyond the noise. Then no client loses anything
if the variant is left out, on the device class on which it was measured. A variant that is right
more often on the very same items, and on many of them, counts as more accurate, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from modelless.variants.vocabulary import Accuracy, Provenance

LATENCY_TOLERANCE: Final = 0.05
"""Relative difference of latencies that may be noise: as far as a median is known when profiled."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The accuracy and the cost of a variant on one device class.

    Attributes:
        variant_id: whose it is.
        accuracy: with its interval; without one the figure counts as certain.
        latency_s: p50, p90 and p99 of a batch, by batch size; what can be trusted only.
        memory_bytes: resident growth at the largest batch of these.
    """

    variant_id: str
    accuracy: Accuracy
    latency_s: Mapping[int, tuple[float, float, float]]
    memory_bytes: Mapping[int, int]


IsMoreAccurate = Callable[[Standing, Standing], bool]
"""Whether the first is more accurate than the second beyond chance, or right on the same items."""


def intervals_part(one: Standing, other: Standing) -> bool:
    """Whether one's accuracy lies above the other's with no overlap of their intervals.

    Figures that were measured on two validation sets are not compared.
    """
    mine, theirs = one.accuracy, other.accuracy
    if are_of_two_sets(mine, theirs):
        return False
    low = mine.percent if mine.low_percent is None else mine.low_percent
    high = theirs.percent if theirs.high_percent is None else theirs.high_percent
    return mine.metric == theirs.metric and low > high


def are_of_two_sets(one: Accuracy, other: Accuracy) -> bool:
    """Whether two accuracies were measured, but on different validation sets."""
    measured = one.provenance is other.provenance is Provenance.MEASURED
    return measured and one.set_name != other.set_name


def dominates(
    one: Standing, other: Standing, is_more_accurate: IsMoreAccurate = intervals_part
) -> bool:
    """Whether nobody who can have ``one`` has a reason for ``other``, on the same device class.

    It is more accurate. At every batch that ``other`` was measured at, its median latency is
    shorter beyond the tolerance, and its tail (p90, p99) not longer beyond it. It takes no more
    memory.
    """
    batches = other.latency_s.keys()
    if not batches or not batches <= one.latency_s.keys():
        return False
    for batch in batches:
        mine, theirs = one.latency_s[batch], other.latency_s[batch]
        if mine[0] * (1.0 + LATENCY_TOLERANCE) >= theirs[0]:
            return False
        if any(a > b * (1.0 + LATENCY_TOLERANCE) for a, b in zip(mine, theirs, strict=True)):
            return False
    memory = [max(each.memory_bytes[batch] for batch in batches) for each in (one, other)]
    return memory[0] <= memory[1] and is_more_accurate(one, other)


def find_dominated(
    standings: Sequence[Standing], is_more_accurate: IsMoreAccurate = intervals_part
) -> dict[str, str]:
    """The dominated variants of one task on one device class, and those that dominate them.

    Only what has no lower accuracy by its figure can win, so no two beat each other in a circle.
    Named is the most accurate victor that is itself dominated by none; the most accurate one where
    there is no such.

    Returns:
        Id of the victor by id of the dominated.
    """
    # Of equal accuracies the quicker comes first: a victor is before all that it beats.
    ranked = sorted(
        standings, key=lambda each: (-each.accuracy.percent, _quickest_s(each), each.variant_id)
    )
    beaten: dict[str, str] = {}
    for place, each in enumerate(ranked):
        victors = [one for one in ranked[:place] if dominates(one, each, is_more_accurate)]
        if victors:
            free = [one for one in victors if one.variant_id not in beaten]
            beaten[each.variant_id] = (free or victors)[0].variant_id
    return beaten


def _quickest_s(standing: Standing) -> float:
    """The least median of any batch; infinite where nothing was measured."""
    return min((p50_s for p50_s, _, _ in standing.latency_s.values()), default=math.inf)
