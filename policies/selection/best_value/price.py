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
_GAPS = 100.0
"""Over so many the gaps between arrivals are averaged."""
_MOST_DISPERSION = 25.0
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
"""Of a Gauss-Hermite quadrature: the mean of a function of a standard normal variable."""
_WEIGHTS /= _WEIGHTS.sum()
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

    How unevenly queries come is told by the squared coefficient of variation of the gaps between
    them, which is the index of dispersion of the arrivals of a renewal process: 1 for Poisson.

    Args:
        memory_s: time constant of the decay.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._counts: dict[Kind, tuple[float, float]] = {}  # at the last arrival, and its time
        self._began_s = self._last_s = math.inf
        self._gap_s = self._gap2_s2 = 0.0  # means over the last gaps, and of their squares
        self._weight = 0.0  # of all gaps in these means; below 1 at first

    def count(self, kind: Kind, now_s: float) -> None:
        """Note an arrival."""
        self._began_s = min(self._began_s, now_s)
        gap_s = max(now_s - self._last_s, 0.0)
        if self._last_s < math.inf:
            self._gap_s += (gap_s - self._gap_s) / _GAPS
            self._gap2_s2 += (gap_s * gap_s - self._gap2_s2) / _GAPS
            self._weight += (1.0 - self._weight) / _GAPS
        self._last_s = now_s
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

    @property
    def dispersion(self) -> float:
        """The variance of the number of arrivals over its mean, at least 1."""
        if self._gap_s <= 0.0:
            return 1.0
        squared = self._gap2_s2 * self._weight / self._gap_s**2 - 1.0
        return min(max(squared, 1.0), _MOST_DISPERSION)

    def _kept(self, at_s: float, now_s: float) -> float:
        return math.exp(min(at_s - now_s, 0.0) / self._memory_s)


class Offer(NamedTuple):
    """The variants of a menu that suit a kind, as steps of the upper hull.

    Attributes:
        step_s: device time that each step adds to a query, shape (v,).
        variance_s: what each adds to the square of that time over the latency limit, shape (v,).
        points_per_s: value that it adds, by its time, descending, shape (v,).
        points: of the most accurate variant.
        least_s: device time of the quickest; inf without any.
        patience_s: how long a query can wait and still be in time, seconds; -inf if it cannot be.
    """

    step_s: FloatArray
    variance_s: FloatArray
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
    own = min(kind.items, menu.most) - 1
    within[:, :own] = np.inf
    alone_s = sure_s[:, own]
    may_s = math.sqrt(_LIMIT_STEP) * kind.limit_s
    within[:, own] = np.where(alone_s <= may_s, item_s[:, own], np.inf)
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
    variance_s = np.diff(np.cumsum(step_s) ** 2, prepend=0.0) / kind.limit_s
    patience_s = kind.limit_s - float(alone_s[fits].min(initial=np.inf))
    least_s = float(query_s.min(initial=np.inf))
    return Offer(step_s, variance_s, points_per_s, at, least_s, patience_s)


class Claim(NamedTuple):
    """Demand of one kind for device time.

    Attributes:
        due_per_s: queries a second to serve, with those that wait.
        varying_per_s: queries a second that will come, times the pool's share of them once more:
            what comes beyond the mean is shared out among the pools, as the mean is.
    """

    due_per_s: float
    varying_per_s: float
    offer: Offer


def price_of_time(claims: Sequence[Claim], capacity: float, dispersion: float = 1.0) -> float:
    """Returns the expected price at which demand just fills the device time, points a second.

    Within a latency limit more or fewer queries come than on average: the work that they bring is
    taken as normal. The price of each amount of work is averaged, since a shortage costs far more
    than a surplus of time brings.

    Args:
        claims: all demand.
        capacity: workers' time there is, seconds a second.
        dispersion: of the arrivals: variance of their number over its mean.
    """
    if not claims:
        return 0.0
    points_per_s = np.concatenate([each.offer.points_per_s for each in claims])
    order = np.argsort(-points_per_s)
    used_s = np.concatenate([each.due_per_s * each.offer.step_s for each in claims])
    variance = np.concatenate([each.varying_per_s * each.offer.variance_s for each in claims])
    deviation = np.sqrt(dispersion * np.cumsum(variance[order]))
    work_s = np.cumsum(used_s[order]) + _NODES[:, None] * deviation
    filled = (np.maximum.accumulate(work_s, axis=1) <= capacity).sum(axis=1)
    prices = np.append(points_per_s[order], 0.0)[filled]
    return float(_WEIGHTS @ prices)
