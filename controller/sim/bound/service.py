"""What serving a query can cost and yield at best: the terms of the clairvoyant bound.

A placement's latency is random, and no policy sees a draw before the batch has run, so what counts
is the mean device time of a batch and the chance that it ends in time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from modelless.controller.sim.latencies import WIDEST_Z, Z90, Spread

_ROUNDING_S = 1e-9
"""Times that differ by less count as equal, in the bound's favour."""


class Offer(NamedTuple):
    """One way to serve a query: a variant on a device class, in a batch of a certain size.

    Attributes:
        cost_s: the query's share of the batch's mean device time, seconds.
    """

    cost_s: float
    worth: float


class BatchFacts(NamedTuple):
    """A batch of one size of one placement.

    Attributes:
        mean_s: device time in expectation, undisturbed, seconds.
    """

    items: int
    accuracy_percent: float
    mean_s: float
    spread: Spread


class PlacedVariant(NamedTuple):
    """A variant on a device class that has room for it.

    Attributes:
        load_s: seconds, at the usual speed.
        batches: of 1, 2, ... items.
    """

    variant_id: str
    memory_bytes: int
    load_s: float
    batches: tuple[BatchFacts, ...]


def normal_below(z: float) -> float:
    """The standard normal distribution function."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def chance_within(spread: Spread, limit_s: float) -> float:
    """The probability that a draw is at most ``limit_s``."""
    limit_s += _ROUNDING_S
    if limit_s < spread.least_s:
        return 0.0
    if limit_s >= spread.most_s:
        return 1.0
    # least <= limit < most: the slope of the part that the limit falls into is not 0.
    if limit_s < spread.p90_s:
        z = math.log(limit_s / spread.p50_s) / spread.lower
    elif spread.upper > 0.0:
        z = Z90 + math.log(limit_s / spread.p90_s) / spread.upper
    else:
        return 1.0
    return normal_below(z)


def mean_s(spread: Spread) -> float:
    """The mean of a draw, seconds."""
    ends = normal_below(-WIDEST_Z)  # the mass beyond, which is cut to either end
    return (
        ends * (spread.least_s + spread.most_s)
        + _partial_mean(spread.p50_s, spread.lower, -WIDEST_Z, Z90)
        + _partial_mean(spread.p90_s * math.exp(-spread.upper * Z90), spread.upper, Z90, WIDEST_Z)
    )


def most_residual_s(spread: Spread) -> float:
    """No less than the mean time a batch still takes, whenever it is looked at, seconds."""
    worst_s = mean_s(spread)
    steps = 64
    grid = [-WIDEST_Z + 2.0 * WIDEST_Z * step / steps for step in range(steps + 1)]
    ends = normal_below(-WIDEST_Z)
    beyond_s, mass = ends * spread.most_s, ends
    for low, high in zip(reversed(grid[:-1]), reversed(grid[1:]), strict=True):
        # Between two steps: E[X | X > high] - low, at least the truth, as both terms err upwards.
        worst_s = max(worst_s, beyond_s / mass - spread.at(low))
        share = normal_below(high) - normal_below(low)
        beyond_s += share * spread.at(high)
        mass += share
    return worst_s


def best_offers(offers: Iterable[Offer]) -> list[Offer]:
    """The offers that some price of device time makes the best: the upper concave envelope.

    Whatever lies below it is no better than a mixture of two that lie on it, or of one and nothing.
    """
    hull = [Offer(0.0, 0.0)]
    for offer in sorted(offers, key=lambda each: (each.cost_s, -each.worth)):
        if offer.worth <= hull[-1].worth:
            continue
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], offer):
            hull.pop()
        hull.append(offer)
    return hull[1:]


def offers_within(
    batches: Sequence[BatchFacts], items: int, limit_s: float, *, retried: bool, weighted: bool
) -> list[Offer]:
    """The best ways to serve a query that has ``limit_s`` left when its batch starts.

    Args:
        limit_s: seconds.
        retried: a query may be run more than once: offers are per query in time, not per attempt.
        weighted: by accuracy; otherwise an answer in time is worth 1.
    """
    offers = []
    for batch in batches:
        if batch.items < items:
            continue
        chance = chance_within(batch.spread, limit_s)
        if chance <= 0.0:
            continue
        cost_s = batch.mean_s * items / batch.items
        worth = batch.accuracy_percent / 100.0 if weighted else 1.0
        offers.append(Offer(cost_s / chance, worth) if retried else Offer(cost_s, worth * chance))
    return best_offers(offers)


def least_kept_s(
    batches: Sequence[BatchFacts], items: int, limit_s: float, both_ways_s: float
) -> float:
    """A query's share, at least, of its batch's mean device time and way there and back, seconds.

    Args:
        both_ways_s: seconds.
    """
    return min(
        (
            (batch.mean_s + both_ways_s) * items / batch.items
            for batch in batches
            if batch.items >= items and chance_within(batch.spread, limit_s) > 0.0
        ),
        default=0.0,
    )


def _partial_mean(base_s: float, slope: float, low: float, high: float) -> float:
    """The integral of ``base_s * exp(slope * z)`` over the normal density from low to high."""
    return (
        base_s
        * math.exp(0.5 * slope * slope)
        * (normal_below(high - slope) - normal_below(low - slope))
    )


def _turns_up(one: Offer, other: Offer, third: Offer) -> bool:
    return (other.worth - one.worth) * (third.cost_s - one.cost_s) <= (third.worth - one.worth) * (
        other.cost_s - one.cost_s
    )
