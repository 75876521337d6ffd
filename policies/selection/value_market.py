"""What a policy that sees workers one by one knows of all: who is there, what time is worth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from modelless.policies.scopes import in_scope
from modelless.policies.selection.value_menu import Menu, make_menu
from modelless.policies.selection.value_price import (
    Devices,
    Kind,
    Price,
    Rates,
    kind_of,
    price_of_time,
)
from modelless.policies.views import QueryView, QueueView, ResidentView, WorkerView

_WORKERS_KEPT = 8192
_FORGET_WORKER_S = 10.0
_MENUS_KEPT = 65_536
_BUSY_MEMORY_S = 1.0
_SURVEY_S = 0.25
_BACKLOG_PRICED = 512


class _Seen(NamedTuple):
    """A worker, when it last fell idle, and until when what it was given is expected to run."""

    device_class: str
    at_s: float
    busy_until_s: float
    variant_ids: frozenset[str]


class Market:
    """Demand, supply and the price of device time.

    Args:
        target_utilisation, batching_share, miss_penalty: see ``value_price.price_of_time``.
        memory_s: how long arrivals are remembered.
        reprice_s: how often the price is found anew.
    """

    def __init__(
        self,
        target_utilisation: float,
        batching_share: float,
        miss_penalty: float,
        memory_s: float,
        reprice_s: float,
    ) -> None:
        self._target_utilisation = target_utilisation
        self._batching_share = batching_share
        self._miss_penalty = miss_penalty
        self._reprice_s = reprice_s
        self._rates = Rates[Kind](memory_s)
        self._busy = Rates[str](_BUSY_MEMORY_S)  # workers at work, by class
        # By scope, the least time for a query: of the workers met, and of all that are ready.
        self._met_least_s: dict[str, float] = {}
        self._ready_least_s: dict[str, float] = {}
        self._scarcity: dict[str, float] = {}
        self._workers: dict[str, _Seen] = {}
        self._menus: dict[tuple[str, str], tuple[Mapping[str, ResidentView], Menu]] = {}
        self._devices: dict[str, Devices] = {}
        self._others_of: dict[tuple[str, str], dict[str, Menu]] = {}
        self._price = Price(0.0, {})
        self._priced_s = self._surveyed_s = self._left_s = -math.inf

    def __getstate__(self) -> dict[str, object]:
        # What the core shows are read-only views, which do not pickle; the menus are kept.
        return {**vars(self), "_menus": {k: (dict(r), m) for k, (r, m) in self._menus.items()}}

    # -- what happens -------------------------------------------------------------------------

    def on_query(self, query: QueryView, now_s: float) -> None:
        """A query has come in."""
        self._rates.count(kind_of(query), query.items, now_s)

    def on_ready(self, scope: str, least_s: float) -> None:
        """The quickest of all that is ready for a scope takes ``least_s`` for a query."""
        self._ready_least_s[scope] = least_s

    def on_idle(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> None:
        """A worker has fallen idle, with these queues before it."""
        if worker.worker_id not in self._workers and len(self._workers) >= _WORKERS_KEPT:
            self._workers.clear()
        self._workers[worker.worker_id] = _Seen(
            worker.device_class, now_s, now_s, frozenset(worker.residents)
        )
        self._forget_absent(now_s)
        if now_s - self._surveyed_s >= _SURVEY_S:
            self._survey(now_s)
        if now_s - self._priced_s >= self._reprice_s:
            self._find_price(queues, now_s)

    def on_run(self, worker: WorkerView, latency_s: float, now_s: float) -> None:
        """The worker, just idle, was given a batch that is expected to take ``latency_s``."""
        seen = self._workers[worker.worker_id]
        self._workers[worker.worker_id] = seen._replace(busy_until_s=now_s + latency_s)
        self._busy.count(worker.device_class, latency_s, now_s)

    def on_left(self, now_s: float) -> None:
        """A worker has left queries for others: who is idle is asked about them now."""
        self._left_s = now_s

    def _forget_absent(self, now_s: float) -> None:
        """Forget who should have been idle when queries were left for others, and did not ask."""
        if now_s <= self._left_s:
            return
        self._workers = {
            name: seen
            for name, seen in self._workers.items()
            if max(seen.at_s, seen.busy_until_s) >= self._left_s
        }
        self._left_s = -math.inf
        self._surveyed_s = -math.inf

    # -- what is known ------------------------------------------------------------------------

    def others(self, worker: WorkerView, scope: str) -> Mapping[str, Menu]:
        """What other device classes than the worker's offer for a scope."""
        return self._others_of.get((worker.device_class, scope), {})

    def free(self, device_class: str, now_s: float, *, without: str = "") -> tuple[int, float]:
        """How many workers of a class there are, and in how many seconds the first falls idle."""
        free_s = [
            seen.busy_until_s
            for worker_id, seen in self._workers.items()
            if seen.device_class == device_class and worker_id != without
        ]
        return len(free_s), max(min(free_s, default=math.inf) - now_s, 0.0)

    def menu(self, worker: WorkerView, scope: str) -> Menu:
        """The worker's menu for a scope, kept until its residents or their estimates change."""
        key = (worker.worker_id, scope)
        known = self._menus.get(key)
        if known is not None and known[0] is worker.residents:
            return known[1]
        served = [r for name, r in worker.residents.items() if in_scope(name, scope)]
        menu = make_menu(served, worker.max_batch)
        if len(self._menus) >= _MENUS_KEPT:
            self._menus.clear()
        self._menus[key] = (worker.residents, menu)
        if scope not in self._met_least_s:
            self._surveyed_s = -math.inf  # so that the next call knows of it
        return menu

    def least_for(self, scope: str) -> float:
        """The least time that any worker, met or not, takes for a query; 0 if unknown."""
        return min(self._met_least_s.get(scope, 0.0), self._ready_least_s.get(scope, math.inf))

    def _survey(self, now_s: float) -> None:
        """Take stock: which workers are there, and what each class offers by scope."""
        self._surveyed_s = now_s
        self._workers = {
            name: seen
            for name, seen in self._workers.items()
            if now_s - max(seen.at_s, seen.busy_until_s) <= _FORGET_WORKER_S
        }
        counts = Counter(seen.device_class for seen in self._workers.values())
        menus: dict[str, dict[str, Menu]] = {name: {} for name in sorted(counts)}
        self._met_least_s = {}
        self._menus = {
            key: (residents, menu)
            for key, (residents, menu) in self._menus.items()
            if key[0] in self._workers
            and self._workers[key[0]].variant_ids.issuperset(menu.variant_ids)
        }
        for (worker_id, scope), (_, menu) in self._menus.items():
            if not menu.variant_ids:
                continue
            of_class = menus[self._workers[worker_id].device_class]
            kept = of_class.get(scope)
            if kept is None or len(menu.variant_ids) > len(kept.variant_ids):
                of_class[scope] = menu
            least_s = float(menu.typical_s[:, 0].min())
            self._met_least_s[scope] = min(least_s, self._met_least_s.get(scope, math.inf))
        self._devices = {name: Devices(counts[name], offered) for name, offered in menus.items()}
        self._others_of = {
            (name, scope): {
                other: menus[other][scope]
                for other in menus
                if other != name and scope in menus[other]
            }
            for name in menus
            for scope in menus[name]
        }

    def _find_price(self, queues: Sequence[QueueView], now_s: float) -> None:
        self._priced_s = now_s
        rates = self._rates.per_s(now_s)
        for queue in queues:
            for query in islice(queue.queries, _BACKLOG_PRICED):
                # What waits must be done within its slack: that is a rate, too.
                kind = kind_of(query)
                slack_s = max(query.deadline_s - now_s, self._reprice_s)
                rates[kind] = rates.get(kind, 0.0) + query.items / slack_s
        self._price = price_of_time(
            rates,
            self._devices,
            self._target_utilisation,
            self._batching_share,
            self._miss_penalty,
        )
        if len(self._devices) > 1:
            busy = self._busy.per_s(now_s)
            self._scarcity = {
                name: _scarcity(busy.get(name, 0.0) / device.workers)
                for name, device in self._devices.items()
            }

    def price_on(self, device_class: str) -> float:
        """What a second of the class is worth: nothing while it has time to spare.

        (Complementary slackness, for which the one price of all classes knows too little.)
        """
        price = self._price.per_s * self._price.speed.get(device_class, 1.0)
        return price * self._scarcity.get(device_class, 1.0)

    def peers(self, worker: WorkerView) -> float:
        """How many workers like this one share its queues, those of other speeds in proportion."""
        speed = self._price.speed
        own = speed.get(worker.device_class, 1.0)
        others = sum(speed.get(seen.device_class, 1.0) for seen in self._workers.values())
        return max(others / own, 1.0)


def _scarcity(utilisation: float) -> float:
    """0 while a class has time to spare, 1 once it has none."""
    return min(max((utilisation - 0.7) / 0.2, 0.0), 1.0)
