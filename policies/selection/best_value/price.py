"""The price of device time: what a second of a worker is worth to the demand that it could serve.

The best mix of variants for a demand is a linear program: maximise the value of what is served,
subject to the device time that there is. By duality there is a price of time at which every query,
taking for itself the variant of most value less price x time, adds up to that mix. The price is
zero while all can have their most accurate variant, and rises with demand.

Demand is what arrives, and what waits: a query that waits must be served within the time that it
has left, so it counts as 1 / time left queries a second. A query that can wait for some time pays
less: what waits now, and has less time left, is spread over all of that time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from modelless.policies.selection.best_value.menu import Menu
from modelless.policies.views import FloatArray, QueryView

_KINDS_KEPT = 256
_LEAST_SEEN_S = 0.5  # arrivals of a shorter time make no rate
_FORGOTTEN_AFTER = 3.0  # times the time constant
_LIMIT_STEP = math.sqrt(2.0)
_ACCURACY_STEP = 2.0
_HALVINGS = 20
_BALANCING_STEPS = 30


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
    exact = Kind(
        query.scope, query.min_accuracy_percent, limit_s, query.items, query.priority, query.size
    )
    return _rounded(exact)


@lru_cache(maxsize=4096)
def _rounded(kind: Kind) -> Kind:
    limit_s = kind.limit_s
    if 0.0 < limit_s < math.inf:
        # Rounded first: the difference of two times far from 0 is not exact.
        step = math.floor(math.log(round(limit_s, 4) or limit_s, _LIMIT_STEP)) + 0.5
        limit_s = _LIMIT_STEP**step
    accuracy_percent = kind.min_accuracy_percent // _ACCURACY_STEP * _ACCURACY_STEP
    return kind._replace(min_accuracy_percent=accuracy_percent, limit_s=limit_s)


class Rates:
    """Queries a second by kind: exponentially decayed counts, bounded in number.

    A kind that has not come for three time constants is no longer expected. With a decayed count
    alone, queries of a higher priority would be expected for long after the last of them.

    Args:
        memory_s: time constant of the decay.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._counts: dict[Kind, float] = {}
        self._seen_s: dict[Kind, float] = {}  # when each kind came last
        self._began_s = math.inf
        self._decayed_s = math.inf

    def count(self, kind: Kind, now_s: float) -> None:
        """Note an arrival."""
        self._decay(now_s)
        if kind in self._counts or len(self._counts) < _KINDS_KEPT:
            self._counts[kind] = self._counts.get(kind, 0.0) + 1.0
            self._seen_s[kind] = now_s

    def per_s(self, now_s: float) -> Mapping[Kind, float]:
        """Returns the rates."""
        self._decay(now_s)
        seen_s = max(now_s - self._began_s, _LEAST_SEEN_S)
        # A steady stream of one query a second would have counted so many by now.
        full = -self._memory_s * math.expm1(-seen_s / self._memory_s)
        return {kind: count / full for kind, count in self._counts.items()}

    def _decay(self, now_s: float) -> None:
        if self._began_s == math.inf:
            self._began_s = self._decayed_s = now_s
        elif now_s - self._decayed_s > 0.01 * self._memory_s:
            factor = math.exp((self._decayed_s - now_s) / self._memory_s)
            since_s = now_s - _FORGOTTEN_AFTER * self._memory_s
            self._seen_s = {k: seen_s for k, seen_s in self._seen_s.items() if seen_s >= since_s}
            self._counts = {kind: self._counts[kind] * factor for kind in self._seen_s}
            self._decayed_s = now_s


class Offer(NamedTuple):
    """The variants of a menu that suit a kind.

    Attributes:
        accuracy_percent: shape (v,), descending.
        query_s: least device time of a query, shape (v,).
        patience_s: how long a query can wait and still be in time, seconds; -inf if it cannot be.
    """

    accuracy_percent: FloatArray
    query_s: FloatArray
    patience_s: float


def offer_of(kind: Kind, menu: Menu, latency_share: float) -> Offer:
    """Returns what a menu offers a kind.

    Args:
        kind, menu: which.
        latency_share: share of the latency limit that a batch may take. A query on its own may take
            all of it.
    """
    rows = menu.accuracy_percent >= kind.min_accuracy_percent
    sure_s, busy_s = menu.sure_s[rows], menu.busy_s[rows]
    per_item_s = busy_s / np.arange(1.0, menu.most + 1.0)
    within = np.where(sure_s <= latency_share * kind.limit_s, per_item_s, np.inf)
    alone_s = sure_s[:, 0]
    within[:, 0] = np.where(alone_s <= math.sqrt(_LIMIT_STEP) * kind.limit_s, busy_s[:, 0], np.inf)
    item_s = within.min(axis=1, initial=np.inf)
    fits = np.isfinite(item_s)
    patience_s = kind.limit_s - float(alone_s[fits].min(initial=np.inf))
    return Offer(menu.accuracy_percent[rows][fits], item_s[fits] * kind.items, patience_s)


class Prices(NamedTuple):
    """The price of device time that a query pays, by how long it can wait.

    Attributes:
        slack_s: times that queries can wait, ascending, shape (h,); the first price is that of now.
        points_per_s: the prices from each of them to the next, descending, shape (h,).
    """

    slack_s: FloatArray
    points_per_s: FloatArray

    @property
    def now(self) -> float:
        """The price of time now, points a second."""
        return float(self.points_per_s[0])

    def within(self, slack_s: FloatArray) -> FloatArray:
        """Returns the prices for queries that can wait so long."""
        places = self.slack_s.searchsorted(slack_s, side="right") - 1
        found: FloatArray = self.points_per_s[places.clip(0)]
        return found


NO_PRICE = Prices(np.zeros(1), np.zeros(1))


def prices_of_time(
    demands: Sequence[tuple[FloatArray, Offer]], miss_points: float, capacity: float
) -> FloatArray:
    """Returns the highest prices at which demand still fills the device time, points a second.

    Args:
        demands: queries a second in each of h cases, shape (h,), and what they are offered; at
            least one.
        miss_points: accuracy points that a query not served costs, besides its own.
        capacity: workers' time there is, seconds a second.
    """
    rates = np.array([each for each, _ in demands], dtype=float).T
    none = np.zeros(len(rates))
    width = max(len(offer.accuracy_percent) for _, offer in demands) + 1
    points = np.full((len(demands), width), -np.inf)
    query_s = np.zeros((len(demands), width))
    points[:, -1] = 0.0  # not to be served
    for row, (_, offer) in enumerate(demands):
        count = len(offer.query_s)
        points[row, :count] = offer.accuracy_percent + miss_points
        query_s[row, :count] = offer.query_s
    rows = np.arange(len(demands))

    def is_filled(prices: FloatArray) -> npt.NDArray[np.bool_]:
        taken = (points - prices[:, None, None] * query_s).argmax(axis=2)
        filled: npt.NDArray[np.bool_] = (rates * query_s[rows, taken]).sum(axis=1) > capacity
        return filled

    is_scarce = is_filled(none)
    if not is_scarce.any():
        return none
    worth = points[query_s > 0.0] / query_s[query_s > 0.0]
    low, high = none, np.full(len(none), math.log2(float(worth.max()) + 2.0))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        filled = is_filled(2.0**middle)
        low, high = np.where(filled, middle, low), np.where(filled, high, middle)
    return np.where(is_scarce, 2.0**low, 0.0)


def share_out(work_s: FloatArray, workers: FloatArray) -> FloatArray:
    """Returns the share of each kind that each pool serves if all pools are equally busy.

    Args:
        work_s: device time a second that a pool would need for all of a kind, shape (k, p); inf
            where it cannot serve it.
        workers: in each pool, shape (p,).

    Pools get shares by their speed; then those that are busier than others get less, step by step.
    """
    can = np.isfinite(work_s)
    speed = np.divide(workers, work_s, out=np.zeros_like(work_s), where=can & (work_s > 0.0))
    factors = np.ones(len(workers))
    shares = np.zeros_like(speed)
    for _ in range(_BALANCING_STEPS):
        weight = speed * factors
        total = weight.sum(axis=1, keepdims=True)
        shares = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0.0)
        used = (shares * np.where(can, work_s, 0.0)).sum(axis=0)
        busy = np.maximum(used / workers, 1e-9)
        factors *= np.sqrt(np.maximum(used.sum() / workers.sum(), 1e-9) / busy)
    return shares


class Higher(NamedTuple):
    """The queries to expect that a batch of some rank may keep waiting.

    Attributes:
        points_per_s: what each kind of them is worth to the batch, shape (k,).
        patience_s: how long each can wait for a worker, shape (k,).
    """

    points_per_s: FloatArray
    patience_s: FloatArray

    def lost(self, busy_s: FloatArray) -> FloatArray:
        """Returns the points that are lost of them while no worker is idle for ``busy_s``."""
        known_s = np.where(np.isfinite(busy_s), busy_s, 0.0)
        blocked_s = np.maximum(known_s[..., None] - self.patience_s, 0.0)
        lost: FloatArray = blocked_s @ self.points_per_s
        return lost
