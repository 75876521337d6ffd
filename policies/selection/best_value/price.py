"""The price of device time: what a second of a worker is worth to the demand that it could serve.

The best mix of variants for a demand is a linear program: maximise the value of what is served,
subject to the device time that there is. By duality there is a price of time at which every query,
taking for itself the variant of most value less price x time, adds up to that mix. The price is
zero while all can have their most accurate variant, and rises with demand.

The program is that of a fractional knapsack. For each kind of query, the variants on the upper hull
of (device time, value) are steps, each with more value for more time. Time is given to the steps of
the most points a second first; the first step that it does not suffice for sets the price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from modelless.policies.selection.best_value.menu import Menu
from modelless.policies.views import FloatArray, QueryView

_KINDS_KEPT = 256
_LEAST_SEEN_S = 0.5  # arrivals of a shorter time make no rate
_FORGOTTEN_AFTER = 3.0  # times the time constant
_LIMIT_STEP = math.sqrt(2.0)
_ACCURACY_STEP = 2.0


class Kind(NamedTuple):
    """Queries that ask for about the same.

    Attributes:
        scope, items, priority, size: as in ``QueryView``.
        min_accuracy_percent: rounded down to a multiple of 2.
        limit_s: from arrival to deadline, rounded to a half-integer power of the square root of 2.
    """

    scope: str
    min_accuracy_percent: float
    limit_s: float
    items: int
    priority: int
    size: int = 0


def kind_of(query: QueryView) -> Kind:
    """Returns the kind of a query."""
    limit_s = query.deadline_s - query.arrival_s
    return _rounded(
        query.scope, query.min_accuracy_percent, limit_s, query.items, query.priority, query.size
    )


@lru_cache(maxsize=4096)
def _rounded(
    scope: str, floor_percent: float, limit_s: float, items: int, priority: int, size: int
) -> Kind:
    if 0.0 < limit_s < math.inf:
        # Rounded first: the difference of two times far from 0 is not exact.
        step = math.floor(math.log(round(limit_s, 4) or limit_s, _LIMIT_STEP)) + 0.5
        limit_s = _LIMIT_STEP**step
    floor_percent = floor_percent // _ACCURACY_STEP * _ACCURACY_STEP
    return Kind(scope, floor_percent, limit_s, items, priority, size)


class Rates:
    """Queries a second by kind: exponentially decayed counts, bounded in number.

    A kind that has not come for three time constants is no longer expected. With a decayed count
    alone, queries of a higher priority would be expected for long after the last of them.

    Args:
        memory_s: time constant of the decay.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._counts: dict[Kind, tuple[float, float]] = {}  # at the last arrival, and its time
        self._began_s = math.inf

    def count(self, kind: Kind, now_s: float) -> None:
        """Note an arrival."""
        self._began_s = min(self._began_s, now_s)
        before, at_s = self._counts.get(kind, (0.0, now_s))
        if before or len(self._counts) < _KINDS_KEPT:
            self._counts[kind] = before * self._kept(at_s, now_s) + 1.0, now_s

    def per_s(self, now_s: float) -> Mapping[Kind, float]:
        """Returns the rates."""
        since_s = now_s - _FORGOTTEN_AFTER * self._memory_s
        self._counts = {kind: last for kind, last in self._counts.items() if last[1] >= since_s}
        # A steady stream of one query a second would have counted so many by now.
        seen_s = max(now_s - self._began_s, _LEAST_SEEN_S)
        full = -self._memory_s * math.expm1(-seen_s / self._memory_s)
        return {
            kind: count * self._kept(at_s, now_s) / full
            for kind, (count, at_s) in self._counts.items()
        }

    def _kept(self, at_s: float, now_s: float) -> float:
        return math.exp(min(at_s - now_s, 0.0) / self._memory_s)


class Offer(NamedTuple):
    """The variants of a menu that suit a kind, as steps of the upper hull.

    Attributes:
        step_s: device time that each step adds to a query, shape (v,).
        points_per_s: value that it adds, by its time, descending, shape (v,).
        points: of the most accurate variant.
        least_s: device time of the quickest; inf without any.
        patience_s: how long a query can wait and still be in time, seconds; -inf if it cannot be.
    """

    step_s: FloatArray
    points_per_s: FloatArray
    points: float
    least_s: float
    patience_s: float


def offer_of(kind: Kind, menu: Menu, latency_share: float, miss_points: float) -> Offer:
    """Returns what a menu offers a kind.

    Args:
        kind, menu: which.
        latency_share: share of the latency limit that a batch may take. A query on its own may take
            all of it.
        miss_points: accuracy points that a query not served costs, besides its own.
    """
    rows = menu.accuracy_percent >= kind.min_accuracy_percent
    sure_s, busy_s = menu.sure_s[rows], menu.busy_s[rows]
    item_s = busy_s / np.arange(1.0, menu.most + 1.0)
    within = np.where(sure_s <= latency_share * kind.limit_s, item_s, np.inf)
    alone_s = sure_s[:, 0]
    within[:, 0] = np.where(alone_s <= math.sqrt(_LIMIT_STEP) * kind.limit_s, item_s[:, 0], np.inf)
    query_s = within.min(axis=1, initial=np.inf) * kind.items
    fits = np.isfinite(query_s)
    points = menu.accuracy_percent[rows] + miss_points
    steps, at_s, at = [], 0.0, 0.0
    variants = list(zip(query_s[fits].tolist(), points[fits].tolist(), strict=True))
    while above := [each for each in variants if each[0] > at_s and each[1] > at]:
        steep, to_s, to = max(((to - at) / (to_s - at_s), to_s, to) for to_s, to in above)
        steps.append((to_s - at_s, steep))
        at_s, at = to_s, to
    step_s, points_per_s = np.array(steps).reshape(-1, 2).T
    patience_s = kind.limit_s - float(alone_s[fits].min(initial=np.inf))
    least_s = float(query_s.min(initial=np.inf))
    return Offer(step_s, points_per_s, at, least_s, patience_s)


def price_of_time(demands: Sequence[tuple[float, Offer]], capacity: float) -> float:
    """Returns the price at which demand just fills the device time, points a second.

    Args:
        demands: queries a second, and what they are offered.
        capacity: workers' time there is, seconds a second.
    """
    if not demands:
        return 0.0
    used_s = np.concatenate([rate * offer.step_s for rate, offer in demands])
    points_per_s = np.concatenate([offer.points_per_s for _, offer in demands])
    if not used_s.sum() > capacity:
        return 0.0
    order = np.argsort(-points_per_s)
    first = int(np.cumsum(used_s[order]).searchsorted(capacity, side="right"))
    return float(points_per_s[order[min(first, len(order) - 1)]])
