"""What device time is worth: the price at which demand just fits the devices.

The best mix of variants for a steady demand is a linear program: maximise served accuracy, subject
to the device time there is. By duality there is a price of device time at which every query,
choosing for itself the variant of most accuracy less price x time, adds up to that mix. The price
is zero while everyone's most accurate variant fits, and rises with demand.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from modelless.policies.selection.best_value.menu import Menu, Within
from modelless.policies.views import QueryView

Kind = tuple[str, float, float]
"""Scope, minimum accuracy in per cent, latency limit in seconds."""

IntArray = NDArray[np.intp]
_Key = TypeVar("_Key", bound=Hashable)
_KEYS_KEPT = 512
_KINDS_KEPT = 4096
_LEAST_PRICE, _PRECISION = 1.0, 1.002  # accuracy points a second; at most so many times too high
ROUNDED_BY = math.sqrt(2.0)
"""A kind's latency limit is less than so many times as long, before it is rounded down."""
_LEAST_SEEN_S = 0.5  # what came in a shorter time is no rate yet


def kind_of(query: QueryView) -> Kind:
    """The query's kind, coarse: clients may name ever new limits, and each kind costs time."""
    return _kind(query.scope, query.min_accuracy_percent, query.deadline_s - query.arrival_s)


@lru_cache(maxsize=_KINDS_KEPT)  # asked for each query that comes; most name the same limits
def _kind(scope: str, min_accuracy_percent: float, latency_s: float) -> Kind:
    if 0.0 < latency_s < math.inf:
        # Rounded first: of two times far from 0 the difference is not exact.
        latency_s = 2.0 ** (math.floor(2.0 * math.log2(round(latency_s, 4) or latency_s)) / 2.0)
    return scope, math.floor(min_accuracy_percent / 2.0) * 2.0, latency_s


class Rates(Generic[_Key]):
    """What happens a second, by key: exponentially decayed counts, bounded in number.

    Args:
        time_constant_s: how fast the past is forgotten.
    """

    def __init__(self, time_constant_s: float) -> None:
        self.time_constant_s = time_constant_s
        self._step_s = 0.01 * time_constant_s
        self._counts: dict[_Key, float] = {}
        self._began_s = math.inf
        self._last_s = -math.inf

    def count(self, key: _Key, amount: float, now_s: float) -> None:
        """So much more of it."""
        if not now_s - self._last_s < self._step_s:  # else there is nothing to decay yet
            self._decay(now_s)
        counts = self._counts
        known = counts.get(key)
        if known is not None:
            counts[key] = known + amount
        elif len(counts) < _KEYS_KEPT:
            counts[key] = float(amount)

    def per_s(self, now_s: float) -> dict[_Key, float]:
        """The rates now."""
        self._decay(now_s)
        seen_s = max(now_s - self._began_s, min(_LEAST_SEEN_S, self.time_constant_s))
        # What an unchanging stream of one a second would have counted by now.
        full = self.time_constant_s * -math.expm1(-seen_s / self.time_constant_s)
        if full <= 0.0:
            return {}
        return {key: count / full for key, count in self._counts.items()}

    def _decay(self, now_s: float) -> None:
        if self._began_s == math.inf:
            self._began_s = self._last_s = now_s
        if now_s - self._last_s < self._step_s:
            return
        factor = math.exp((self._last_s - now_s) / self.time_constant_s)
        self._last_s = now_s
        self._counts = {k: c * factor for k, c in self._counts.items() if c * factor > 1e-3}


class Devices(NamedTuple):
    """The workers of one class: how many, and what each offers.

    Attributes:
        workers: how many.
        menus: by scope, each of one variant or more.
    """

    workers: int
    menus: Mapping[str, Menu]


class Short(NamedTuple):
    """For whom there is not time, and what time there is.

    Attributes:
        item_s: device time an item of each kind takes at the price; the least, if none is worth it.
        is_worth_it: the kinds that are not served whole; whether they are worth the price, just.
        spare: workers' time that the others leave.
        capacity: workers' time in all.
    """

    item_s: Mapping[Kind, float]
    is_worth_it: Mapping[Kind, bool]
    spare: float
    capacity: float


class Price(NamedTuple):
    """What device time is worth.

    Attributes:
        per_s: accuracy points a second of the quickest class is worth.
        speed: of each class that can serve what is asked for, relative to the quickest: a second of
            it is worth that much of one.
        slower_share: of those who are indifferent between two variants at this price (or between
            one and none), the share for whom there is time to take the slower one. 1 if there is
            time for all: at the price from which on it was looked for.
        short: None if there is time for everyone.
    """

    per_s: float
    speed: Mapping[str, float]
    slower_share: float
    short: Short | None


class _Demand(NamedTuple):
    kind: Kind
    rate_per_s: float
    offer: Within


def latency_share(
    rates: Mapping[Kind, float], devices: Mapping[str, Devices], batching_share: float
) -> float:
    """How much of a latency limit a batch may run, if queries wait for it, too.

    With ``w`` workers and ``q`` queues, one worker falls idle every ``w``-th of a batch's time, and
    each queue's turn comes every ``q``-th time: a query waits ``q / w`` times as long as batches
    run.

    Args:
        rates, devices, batching_share: see ``price_of_time``.
    """
    workers = sum(device.workers for device in devices.values())
    queues = len({scope for scope, _, _ in rates})
    return batching_share * workers / max(workers + queues, 1)


def price_of_time(
    rates: Mapping[Kind, float],
    devices: Mapping[str, Devices],
    target_utilisation: float,
    batching_share: float,
    miss_penalty: float,
    least_per_s: float = 0.0,
) -> Price:
    """The price of device time, all classes taken together.

    A kind's time for an item is the least over batches that leave time to wait.

    Args:
        rates: items a second by kind.
        devices: by class.
        target_utilisation: share of the device time that demand may fill.
        batching_share: share of a latency limit that waiting and running may take together.
        miss_penalty: accuracy points that a query not served costs, besides its own.
        least_per_s: a price from which on it is looked for.
    """
    share = latency_share(rates, devices, batching_share)
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in devices}
    demands = _demands(rates, devices, share, speeds)
    speed = {name: _mean(found) for name, found in speeds.items() if found}
    capacity = target_utilisation * sum(
        device.workers * speed.get(name, 0.0) for name, device in devices.items()
    )
    per_s, slower_share, short = _price_per_s(demands, miss_penalty, capacity, least_per_s)
    return Price(per_s, speed, slower_share, short)


def offers_of(kind: Kind, devices: Mapping[str, Devices], share: float) -> dict[str, Within]:
    """What each class offers a kind in batches that leave time to wait.

    Where no class leaves any, batches may take the whole limit: queries that can only just be in
    time take device time, too.

    Args:
        kind: what is asked for.
        devices: by class.
        share: see ``latency_share``.

    Returns:
        By class; without those that cannot serve it in time.
    """
    scope, min_accuracy, latency_s = kind
    menus = {name: each.menus[scope] for name, each in devices.items() if scope in each.menus}
    reach = {name: menu.reach(min_accuracy) for name, menu in menus.items()}
    quickest_s = min(
        [menu.latency_s(reach[name]) for name, menu in menus.items()], default=math.inf
    )
    most_s = share * latency_s
    if most_s < quickest_s <= ROUNDED_BY * latency_s:
        most_s = max(quickest_s, latency_s)
    offers = {name: menu.within(most_s, reach[name]) for name, menu in menus.items()}
    return {name: offer for name, offer in offers.items() if offer.least_s < math.inf}


def _demands(
    rates: Mapping[Kind, float],
    devices: Mapping[str, Devices],
    share: float,
    speeds: Mapping[str, list[tuple[float, float]]],
) -> list[_Demand]:
    """What each kind could take, on the class that is quickest for it.

    ``speeds`` takes up each class's speed for the kind, relative to that, and the kind's rate.
    """
    demands = []
    for kind, rate in rates.items():
        offers = offers_of(kind, devices, share)
        if offers:
            quickest = min(offers.values(), key=_least_s)
            demands.append(_Demand(kind, rate, quickest))
            for name, offer in offers.items():
                speeds[name].append((rate, quickest.least_s / offer.least_s))
    return demands


def _price_per_s(
    demands: Sequence[_Demand], miss_penalty: float, capacity: float, least: float
) -> tuple[float, float, Short | None]:
    """The least price from ``least`` at which the demands use at most ``capacity`` workers' time.

    Each demand takes what is worth most to it, or nothing if nothing is worth its price. Where a
    little less brings one back, the price is that, and not everyone of it is served.
    """
    if sum([demand.rate_per_s * demand.offer.first_s for demand in demands]) <= capacity:
        return least, 1.0, None  # even without a price
    shape = (len(demands), max(len(demand.offer.item_s) for demand in demands) + 1)
    worth, item_s = np.full(shape, -np.inf), np.zeros(shape)
    worth[:, -1] = 0.0  # nothing
    for row, (_, _, offer) in enumerate(demands):
        count = len(offer.item_s)
        known = offer.item_s < math.inf
        worth[row, :count] = np.where(known, offer.accuracy_percent + miss_penalty, -np.inf)
        item_s[row, :count] = np.where(known, offer.item_s, 0.0)
    busy = item_s * np.array([demand.rate_per_s for demand in demands])[:, None]
    every, nothing = np.arange(len(demands)), shape[1] - 1

    def taken(price: float) -> IntArray:
        best: IntArray = (worth - price * item_s).argmax(axis=1)
        return best

    def used(price: float) -> float:
        return float(busy[every, taken(price)].sum())

    if used(least) <= capacity:
        return least, 1.0, None
    served = worth > 0.0
    if not served.any():
        return least, 1.0, None  # nothing is worth anything
    low = max(least, _LEAST_PRICE)
    if used(low) <= capacity:
        return low, 1.0, None
    high = _PRECISION * float((worth[served] / item_s[served]).max())  # nobody takes anything
    while high > low * _PRECISION:
        middle = math.sqrt(low * high)
        if used(middle) > capacity:
            low = middle
        else:
            high = middle
    out = taken(high) == nothing
    least_used = used(high)
    most_used = used(low)  # more than the capacity
    slower_share = max(capacity - least_used, 0.0) / (most_used - least_used)
    if not out.any():
        return high, slower_share, None
    choice = taken(low)
    served_s = np.where(
        choice == nothing, [d.offer.least_s for d in demands], item_s[every, choice]
    )
    kinds = [demand.kind for demand in demands]
    short = Short(
        dict(zip(kinds, served_s.tolist(), strict=True)),
        {kinds[row]: bool(choice[row] != nothing) for row in np.flatnonzero(out)},
        max(capacity - least_used, 0.0),
        capacity,
    )
    return low, slower_share, short


def _least_s(offer: Within) -> float:
    return offer.least_s


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    weight = sum(w for w, _ in weighted)
    return sum(w * value for w, value in weighted) / weight if weight > 0.0 else 1.0
