"""What it is worth to have a variant loaded: accuracy-weighted goodput, at the price of time.

Of each kind of query the placements that meet its limits are worth their accuracy less what the
device time costs. The price of a class's time is its shadow price: nought while there is enough,
else such that demand at that price just fits (Lagrange; found by bisection). At given prices each
kind is served by the best that is loaded, which makes the value of a set of loaded variants that of
a facility location problem: submodular, so that adding the best first is near the best set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.policies.scaling.demand_value.offer import IntArray, Offer
from modelless.policies.scaling.demand_value.rates import KindRate
from modelless.policies.scopes import in_scope
from modelless.policies.views import FloatArray
from modelless.variants.vocabulary import Placement

_LEVELS = 3  # best, second and third choice of a kind; what these cannot take is not served
_HALVINGS = 30
_CROWDED = 0.05  # of a query's worth, where devices are so crowded that few of its kind are served


class Worth(NamedTuple):
    """What kinds and placements are to each other.

    Attributes:
        rate_per_s: (k,), queries a second of each kind.
        gain: (k, p), worth of a query of the kind if the placement serves it; 0 where it must not.
        time_s: (k, p), device time that takes; inf where it must not.
        patience_s: (k, p), how long a query that finds nothing loaded can wait for a load to begin.
    """

    rate_per_s: FloatArray
    gain: FloatArray
    time_s: FloatArray
    patience_s: FloatArray


def worth_of(
    kinds: Sequence[KindRate],
    offer: Offer,
    slack: float,
    time_per_s: FloatArray,
    least_price: FloatArray,
) -> Worth:
    """See ``Worth``.

    Args:
        kinds: of queries.
        offer: what could serve them.
        slack: a batch may take the latency limit divided by this.
        time_per_s: (d,), device time there is of each class, a second; inf if any can be bought.
        least_price: (d,), what a second of each class's time costs at least.
    """
    shape = (len(kinds), len(offer.placements))
    time_s, patience_s = np.full(shape, np.inf), np.full(shape, -np.inf)
    sizes = np.arange(offer.batch_s.shape[1], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_item_s = offer.batch_s / sizes
    members: dict[str, NDArray[np.bool_]] = {}
    for row, kind in enumerate(kinds):
        scope, limit_s, floor_percent = kind.key
        if scope not in members:
            members[scope] = np.array(
                [in_scope(p.variant_id, scope) for p in offer.placements], dtype=np.bool_
            )
        fits = members[scope] & (offer.accuracy * 100.0 >= floor_percent - 1e-9)
        rows = np.flatnonzero(fits)
        least = min(ceil(kind.items), len(sizes) - 1)
        batch_s = offer.batch_s[rows, least:]
        in_time = batch_s * slack <= limit_s
        quickest = np.where(in_time & np.isfinite(batch_s), per_item_s[rows, least:], np.inf)
        time_s[row, rows] = quickest.min(axis=1, initial=np.inf) * kind.items
        patience_s[row, rows] = limit_s - offer.load_s[rows] - slack * batch_s[:, 0]
    rate_per_s = np.array([kind.rate_per_s for kind in kinds])
    price = least_price.copy()
    if rate_per_s.size:
        price = _price(rate_per_s, time_s, offer, time_per_s, least_price)
    gain = _gain(time_s, offer, price)
    if (price > least_price).any():
        gain = np.maximum(gain, _crowded_gain(time_s, offer, least_price))
    return Worth(rate_per_s, gain, time_s, patience_s)


def _gain(time_s: FloatArray, offer: Offer, price: FloatArray) -> FloatArray:
    known = np.isfinite(time_s)
    paid = np.where(known, time_s, 0.0) * price[offer.class_of]
    return np.where(known, np.maximum(offer.accuracy - paid, 0.0), 0.0)


def _crowded_gain(time_s: FloatArray, offer: Offer, least_price: FloatArray) -> FloatArray:
    """What a query is worth however dear time is: little, but most with the quickest.

    When time is too dear for all of a kind's queries it is not too dear for some of them, and what
    serves those must not look worthless.
    """
    quickest_s = time_s.min(axis=1, keepdims=True, initial=np.inf)
    share = np.divide(quickest_s, time_s, out=np.zeros_like(time_s), where=np.isfinite(time_s))
    gain = _CROWDED * share * _gain(time_s, offer, least_price)
    return np.asarray(gain, dtype=np.float64)


def _price(
    rate_per_s: FloatArray,
    time_s: FloatArray,
    offer: Offer,
    time_per_s: FloatArray,
    least_price: FloatArray,
) -> FloatArray:
    """The lowest price, in equal steps of all crowded classes, at which demand fits the devices."""

    def used(price: FloatArray) -> FloatArray:
        gain = _gain(time_s, offer, price)
        choice = gain.argmax(axis=1)
        rows = np.arange(len(rate_per_s))
        served = gain[rows, choice] > 0.0
        spent = rate_per_s * np.where(served, time_s[rows, choice], 0.0)
        return np.bincount(
            offer.class_of[choice], weights=spent, minlength=len(offer.classes)
        ).astype(np.float64)

    if not offer.placements or (used(least_price) <= time_per_s).all():
        return least_price
    fastest = time_s.min(initial=np.inf)
    if not 0.0 < fastest < np.inf:
        return least_price
    low, high = least_price.copy(), np.full_like(least_price, 1.0 / fastest)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        crowded = used(middle) > time_per_s
        low, high = np.where(crowded, middle, low), np.where(crowded, high, middle)
    return high


class Served(NamedTuple):
    """Who serves what, of a given stock.

    Attributes:
        amount_per_s: (k, levels + 1), queries of the kind served by each choice; last: not served.
        gain: (k, levels + 1), what one is worth.
        by: (k, levels), the placement; -1 for none.
        spent: (p,), time of the placement used, a second.
    """

    amount_per_s: FloatArray
    gain: FloatArray
    by: IntArray
    spent: FloatArray

    @property
    def value_per_s(self) -> float:
        """Accuracy-weighted goodput less the price of the time it takes."""
        return float((self.amount_per_s * self.gain).sum())


def serve(worth: Worth, count: IntArray, utilisation: float) -> Served:
    """Each kind by the best loaded placement that has time left.

    Args:
        count: (p,), instances of each placement.
        utilisation: the share of a worker's time that one instance may use.
    """
    kinds = len(worth.rate_per_s)
    amount, gain = np.zeros((kinds, _LEVELS + 1)), np.zeros((kinds, _LEVELS + 1))
    by = np.full((kinds, _LEVELS), -1, dtype=np.intp)
    spent = np.zeros(len(count))
    left = worth.rate_per_s.copy()
    held = np.flatnonzero(count)
    rows = np.arange(kinds)
    if kinds and len(held):
        gains, times = worth.gain[:, held], worth.time_s[:, held]
        room = count[held] * utilisation
        for level in range(_LEVELS):
            open_gains = np.where(room > 1e-12, gains, 0.0)
            choice = open_gains.argmax(axis=1)
            best = open_gains[rows, choice]
            wants = (best > 0.0) & (left > 0.0)
            if not wants.any():
                break
            takes_s = np.where(wants, times[rows, choice], 0.0) * np.where(wants, left, 0.0)
            load = np.bincount(choice, weights=takes_s, minlength=len(held))
            share = np.minimum(1.0, np.divide(room, load, out=np.ones_like(room), where=load > 0))
            served = np.where(wants, left * share[choice], 0.0)
            amount[:, level], gain[:, level] = served, np.where(wants, best, 0.0)
            by[wants, level] = held[choice[wants]]
            used = np.minimum(load, room)
            room, spent[held] = room - used, spent[held] + used
            left = left - served
    amount[:, _LEVELS] = np.maximum(left, 0.0)
    return Served(amount, gain, by, spent)


def gains_of_one_more(worth: Worth, served: Served, utilisation: float) -> FloatArray:
    """What one more instance of each placement would add, (p,), worth a second."""
    added = np.zeros(worth.gain.shape[1])
    takes_s = np.zeros_like(added)
    times = np.where(np.isfinite(worth.time_s), worth.time_s, 0.0)
    for level in range(_LEVELS + 1):
        better = np.maximum(worth.gain - served.gain[:, level : level + 1], 0.0)
        amount = served.amount_per_s[:, level : level + 1]
        added += (better * amount).sum(axis=0)
        takes_s += np.where(better > 0.0, times * amount, 0.0).sum(axis=0)
    crowded = takes_s > utilisation
    added[crowded] *= utilisation / takes_s[crowded]
    return added


def losses_of_one_less(
    worth: Worth, served: Served, count: IntArray, utilisation: float
) -> FloatArray:
    """What one instance less of each placement would take away, (p,), worth a second."""
    lost = np.zeros(len(count))
    held = np.flatnonzero(count)
    if not len(held) or not len(worth.rate_per_s):
        return lost
    gains = worth.gain[:, held]
    for level in range(_LEVELS):
        rows = np.flatnonzero(served.by[:, level] >= 0)
        mine = served.by[rows, level]
        others = np.where(held[None, :] == mine[:, None], 0.0, gains[rows])
        fall = np.maximum(served.gain[rows, level] - others.max(axis=1), 0.0)
        lost += np.bincount(mine, fall * served.amount_per_s[rows, level], minlength=len(count))
    needed = np.maximum(served.spent - (count - 1) * utilisation, 0.0)
    share = np.divide(needed, served.spent, out=np.ones_like(lost), where=served.spent > 0.0)
    return lost * np.where(count > 1, share, 1.0)


def shares_of(
    kinds: Sequence[KindRate], offer: Offer, served: Served
) -> Mapping[str, Mapping[Placement, float]]:
    """By scope, how its served queries divide over placements."""
    shares: dict[str, dict[Placement, float]] = {}
    for row, kind in enumerate(kinds):
        for level in range(_LEVELS):
            by, amount = int(served.by[row, level]), float(served.amount_per_s[row, level])
            if by >= 0 and amount > 0.0:
                mine = shares.setdefault(kind.key.scope, {})
                mine[offer.placements[by]] = mine.get(offer.placements[by], 0.0) + amount
    for mine in shares.values():
        total = sum(mine.values())
        for placement in mine:
            mine[placement] /= total
    return shares
