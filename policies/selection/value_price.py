"""What device time is worth: the price at which demand just fits the devices.

The best mix of variants for a steady demand is a linear program: maximise served accuracy, subject
to the device time there is. By duality there is a price of device time at which every query,
choosing for itself the variant of most accuracy less price x time, adds up to that mix. The price
is zero while everyone's most accurate variant fits, and rises with demand.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from modelless.policies.selection.value_menu import Menu
from modelless.policies.views import FloatArray, QueryView

Kind = tuple[str, float, float]
"""Scope, minimum accuracy in per cent, latency limit in seconds."""

_Key = TypeVar("_Key", bound=Hashable)
_KEYS_KEPT = 512
_LEAST_SEEN_S = 0.5  # what came in a shorter time is no rate yet


def kind_of(query: QueryView) -> Kind:
    """The query's kind, coarse: clients may name ever new limits, and each kind costs time."""
    latency_s = query.deadline_s - query.arrival_s
    if 0.0 < latency_s < math.inf:
        latency_s = 2.0 ** (math.floor(2.0 * math.log2(latency_s)) / 2.0)
    return query.scope, math.floor(query.min_accuracy_percent / 2.0) * 2.0, latency_s


class Rates(Generic[_Key]):
    """What happens a second, by key: exponentially decayed counts, bounded in number.

    Args:
        time_constant_s: how fast the past is forgotten.
    """

    def __init__(self, time_constant_s: float) -> None:
        self.time_constant_s = time_constant_s
        self._counts: dict[_Key, float] = {}
        self._began_s = math.inf
        self._last_s = -math.inf

    def count(self, key: _Key, amount: float, now_s: float) -> None:
        """So much more of it."""
        self._decay(now_s)
        if key in self._counts or len(self._counts) < _KEYS_KEPT:
            self._counts[key] = self._counts.get(key, 0.0) + amount

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
        if now_s - self._last_s < 0.01 * self.time_constant_s:
            return
        factor = math.exp((self._last_s - now_s) / self.time_constant_s)
        self._last_s = now_s
        self._counts = {k: c * factor for k, c in self._counts.items() if c * factor > 1e-3}


class Devices(NamedTuple):
    """The workers of one class: how many, and what each offers.

    Attributes:
        workers: how many.
        menus: by scope.
    """

    workers: int
    menus: Mapping[str, Menu]


class Price(NamedTuple):
    """What device time is worth.

    Attributes:
        per_s: accuracy points a second of the quickest class is worth.
        speed: of each class, relative to the quickest: a second of it is worth that much of one.
    """

    per_s: float
    speed: Mapping[str, float]


class _Demand(NamedTuple):
    rate_per_s: float
    worth: FloatArray
    item_s: FloatArray


def price_of_time(
    rates: Mapping[Kind, float],
    devices: Mapping[str, Devices],
    target_utilisation: float,
    batching_share: float,
    miss_penalty: float,
) -> Price:
    """The price of device time.

    A kind's time for an item is the least over batches that run for at most ``batching_share`` of
    its latency limit, since a query also waits.

    Args:
        rates: items a second by kind.
        devices: by class.
        target_utilisation: share of the device time that demand may fill.
        batching_share: see above.
        miss_penalty: accuracy points that a query not served costs, besides its own.
    """
    demands: list[_Demand] = []
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in devices}
    for (scope, min_accuracy, latency_s), rate in rates.items():
        offers: dict[str, _Demand] = {}
        for name, device in devices.items():
            menu = device.menus.get(scope)
            if menu is not None:
                item_s = menu.item_within_s(batching_share * latency_s)
                usable = (menu.accuracy_percent >= min_accuracy) & np.isfinite(item_s)
                if usable.any():
                    worth = menu.accuracy_percent[usable] + miss_penalty
                    offers[name] = _Demand(rate, worth, item_s[usable])
        if offers:
            quickest = min(offers.values(), key=lambda offer: float(offer.item_s.min()))
            demands.append(quickest)
            for name, offer in offers.items():
                relative = float(quickest.item_s.min() / offer.item_s.min())
                speeds[name].append((rate, relative))
    speed = {name: _mean(found) for name, found in speeds.items()}
    capacity = target_utilisation * sum(
        d.workers * speed[name] for name, d in devices.items() if speeds[name]
    )
    return Price(_price_per_s(demands, capacity), speed)


def _price_per_s(demands: Sequence[_Demand], capacity: float) -> float:
    """The least price at which the demands use no more than ``capacity`` workers' time."""
    if _used(demands, 0.0) <= capacity:
        return 0.0
    low, high = 0.0, max(float((d.worth / d.item_s).max()) for d in demands)
    for _ in range(24):
        middle = 0.5 * (low + high)
        if _used(demands, middle) > capacity:
            low = middle
        else:
            high = middle
    return high


def _used(demands: Sequence[_Demand], price: float) -> float:
    """Workers kept busy when each demand takes what is worth most to it, or nothing if that is."""
    used = 0.0
    for demand in demands:
        left = demand.worth - price * demand.item_s
        choice = left.argmax()
        if left[choice] > 0.0:
            used += demand.rate_per_s * float(demand.item_s[choice])
    return used


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    weight = sum(w for w, _ in weighted)
    return sum(w * value for w, value in weighted) / weight if weight > 0.0 else 1.0
