"""Workers for a demand without a solver: from those there are, the best step as long as one helps.

A step is some workers more, fewer, or of another size. What a set of workers serves is found by
giving their time to what earns most in it, which no program has to be solved for; so it may be
somewhat less than they could earn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from modelless.policies.scaling.elastic_terms import Terms
from modelless.policies.views import FloatArray

_MOST_STEPS = 64
_MOST_AT_ONCE = 256


class _Pair(NamedTuple):
    """A kind on a device class: seconds and worth of a query there."""

    kind: int
    number: int
    seconds: float
    usd: float

    @property
    def usd_per_s(self) -> float:
        return self.usd / self.seconds


def greedy_counts(terms: Terms) -> FloatArray | None:
    """Workers by slot; None where none of the plans looked at keeps the pools' bounds."""
    if not terms.slots:
        return np.zeros(0)
    orders = _orders(terms)
    steps = _steps(terms)
    counts = np.array(terms.there)
    best = float(_earned(terms, orders, counts[None, :])[0])
    for _ in range(_MOST_STEPS):
        plans = counts + steps
        plans = plans[(plans >= 0.0).all(axis=1)]
        if not len(plans):
            break
        earned = _earned(terms, orders, plans)
        row = int(earned.argmax())
        if not earned[row] > best + 1e-15:
            break
        best, counts = float(earned[row]), plans[row]
    return counts if not _broken(terms, counts[None, :])[0] else None


def _steps(terms: Terms) -> FloatArray:
    """What may be added to a plan, shape (steps, slots)."""
    one = np.eye(len(terms.slots))
    moves = [sign * row for row in one for sign in (1.0, -1.0)]
    moves += [
        more * one[into] - fewer * one[out]
        for out in range(len(one))
        for into in range(len(one))
        if into != out
        for more, fewer in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0))
    ]
    sizes = [1 << power for power in range(_MOST_AT_ONCE.bit_length())]
    return np.array([size * move for size in sizes for move in moves])


def _orders(terms: Terms) -> tuple[list[_Pair], ...]:
    """Orders to give away the workers' time in: what earns most a second first; the same, but the
    kinds first that fewest classes serve; and what earns most a query first, then the rest."""
    thrifty: dict[tuple[int, int], _Pair] = {}
    lavish: dict[tuple[int, int], _Pair] = {}
    for kind, placed in zip(terms.kinds.tolist(), terms.placed.tolist(), strict=True):
        key = kind, int(terms.offer.class_of[placed])
        seconds = max(float(terms.time_s[kind, placed]), 1e-12)
        pair = _Pair(*key, seconds, float(terms.worth_usd[placed]))
        thrifty[key] = max(thrifty.get(key, pair), pair, key=lambda each: each.usd_per_s)
        lavish[key] = max(lavish.get(key, pair), pair, key=lambda each: each.usd)
    by_worth = sorted(thrifty.values(), key=lambda pair: (-pair.usd_per_s, pair))
    by_query = sorted(lavish.values(), key=lambda pair: (-pair.usd, -pair.usd_per_s, pair))
    classes = Counter(pair.kind for pair in by_worth)
    by_need = sorted(by_worth, key=lambda pair: classes[pair.kind])
    return by_worth, by_need, by_query + by_worth


def _broken(terms: Terms, plans: FloatArray) -> FloatArray:
    """By how many workers and cores the pools' bounds are broken, shape (plans,)."""
    broken = np.zeros(len(plans))
    for number in range(len(terms.pools)):
        mine = terms.pool_of_slot == number
        workers = plans[:, mine].sum(axis=1)
        broken += np.maximum(terms.least[number] - workers, 0.0)
        broken += np.maximum(workers - terms.most[number], 0.0)
        broken += np.maximum(plans[:, mine] @ terms.cores[mine] - terms.most_cores[number], 0.0)
    return broken


def _earned(terms: Terms, orders: Sequence[Sequence[_Pair]], plans: FloatArray) -> FloatArray:
    """US dollars a second, shape (plans,); far less than nothing where bounds are broken."""
    earned = -plans @ terms.rent_usd
    earned -= np.maximum(plans - terms.there, 0.0) @ terms.resize_usd
    for number, there in enumerate(terms.pool_there):
        workers = plans[:, terms.pool_of_slot == number].sum(axis=1)
        earned -= np.maximum(workers - there, 0.0) * terms.start_usd[number]
    earned += np.max([_served_usd(terms, order, plans) for order in orders], axis=0)
    most = float(terms.worth_usd.max(initial=0.0)) * float(np.sum(terms.rate_per_s))
    most += float((plans @ terms.rent_usd).max(initial=0.0))
    result: FloatArray = earned - _broken(terms, plans) * 1e3 * most
    return result


def _served_usd(terms: Terms, order: Sequence[_Pair], plans: FloatArray) -> FloatArray:
    """What answers are worth a second if the workers' time is given away in this order."""
    left = [
        terms.utilisation * (plans[:, terms.class_of_slot == number].sum(axis=1) + elsewhere)
        for number, elsewhere in enumerate(terms.elsewhere)
    ]
    waiting = np.repeat(np.asarray(terms.rate_per_s)[:, None], len(plans), axis=1)
    usd = np.zeros(len(plans))
    for kind, number, seconds, each_usd in order:
        served = np.minimum(waiting[kind], left[number] / seconds)
        waiting[kind] -= served
        left[number] = np.maximum(left[number] - served * seconds, 0.0)
        usd += served * each_usd
    return usd
