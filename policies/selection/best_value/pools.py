"""Pools of workers: when one of them is idle next, and the price of their time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from modelless.policies.scopes import in_scope, task_of
from modelless.policies.selection.best_value.menu import Menu, make_menu
from modelless.policies.selection.best_value.price import (
    Claim,
    Kind,
    Offer,
    kind_of,
    offer_of,
    price_of_time,
)
from modelless.policies.views import FloatArray, QueryView, QueueView, WorkerView

_FORGOTTEN_AFTER_S = 10.0
"""A worker that neither ran nor was asked about for so long is gone."""
_CHANCE_OF_LOSS = 0.05
"""No batch is worth this probability of losing a query of a higher priority."""
_SAMPLED = 64  # queries of a queue that stand for all in the price
_KEPT = 1024


class ToCome(NamedTuple):
    """The queries to expect that a batch of some rank may keep waiting.

    Attributes:
        points_per_s: what each kind of them is worth to the batch, shape (k,).
        patience_s: how long each can wait for a worker, shape (k,).
        least_s: the least patience; inf if none are expected.
    """

    points_per_s: FloatArray
    patience_s: FloatArray
    least_s: float

    def lost(self, busy_s: FloatArray) -> FloatArray:
        """Returns the points that are lost of them while no worker is idle for ``busy_s``."""
        blocked_s = np.maximum(busy_s[..., None] - self.patience_s, 0.0)
        lost: FloatArray = blocked_s @ self.points_per_s
        return lost


class Pool:
    """The workers of one device class that hold the same variants.

    Args:
        miss_points: accuracy points that a query not served costs, besides its own.

    Attributes:
        menus: the last menu by scope and size of items.
        shares: of the queries of each kind, those that the pool is to serve.
        until_s: until when each worker is busy; when an idle one was last asked about.
        price: of a second of a worker, points.
        priced_s: when the price was found.
    """

    def __init__(self, miss_points: float) -> None:
        self._miss_points = miss_points
        self.menus: dict[tuple[str, int], Menu] = {}
        self.shares: dict[Kind, float] = {}
        self.until_s: dict[str, float] = {}
        self.price = 0.0
        self.priced_s = -math.inf
        self._made: dict[tuple[int, str], tuple[object, Menu]] = {}
        self._offers: dict[tuple[Kind, int], tuple[Menu, Offer]] = {}
        self._expected: dict[Kind, float] = {}
        self._to_come: dict[int, ToCome] = {}
        self._max_batch = 1

    def menu(self, worker: WorkerView, scope: str, size: int) -> Menu:
        """Returns what a worker of the pool offers for a scope and items of a size."""
        residents = worker.residents  # a new object whenever estimates change
        known = self._made.get((id(residents), scope))
        if known is None or known[0] is not residents:
            if len(self._made) >= _KEPT:
                self._made.clear()
            held = [residents[name] for name in sorted(residents) if in_scope(name, scope)]
            known = residents, make_menu(held, worker.max_batch, worker.lead_s)
            self._made[id(residents), scope] = known
            self.menus[scope, size] = known[1]
        return known[1]

    def next_idle_s(self, without: str, now_s: float) -> float:
        """Returns in how many seconds a worker other than ``without`` is idle; inf if none is."""
        until_s = self.until_s
        own_s, until_s[without] = until_s[without], math.inf
        first_s = min(until_s.values())
        until_s[without] = own_s
        return max(first_s - now_s, 0.0)

    def offer(self, kind: Kind) -> Offer | None:
        """Returns what the pool offers a kind; None if it holds nothing of the scope.

        With w workers and q tasks, a query waits q / w times as long as batches run.
        """
        menu = self.menus.get((kind.scope, kind.size))
        if menu is None:
            return None
        workers = len(self.until_s)
        known = self._offers.get((kind, workers))
        if known is None or known[0] is not menu:
            if len(self._offers) >= _KEPT:
                self._offers.clear()
            tasks = {task_of(scope) for scope, _ in self.menus}
            share = workers / (workers + len(tasks))
            known = menu, offer_of(kind, menu, share, self._miss_points)
            self._offers[kind, workers] = known
        return known[1]

    def find_price(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        rates: Mapping[Kind, float],
        capacity: float,
        now_s: float,
        least_s: float,
        dispersion: float,
    ) -> None:
        """Find the price of the pool's time.

        A query that waits must be served within the time that it has left, at least ``least_s``, so
        it counts as 1 / time left queries a second.

        Args:
            rates: queries a second of all pools together.
            capacity: share of the workers' time that demand may fill.
            dispersion: see ``price_of_time``.
        """
        self.priced_s, self._max_batch = now_s, worker.max_batch
        for queue in queues:
            self.menu(worker, queue.scope, queue.queries[0].size)
        self._to_come.clear()
        self._expected = {kind: rate * self.shares.get(kind, 1.0) for kind, rate in rates.items()}
        due = dict(self._expected)
        for queue in queues:
            sample = _sample(queue)
            every = len(queue.queries) / len(sample)
            for query in sample:
                kind = kind_of(query)
                left_s = max(query.deadline_s - now_s, least_s)
                waiting_per_s = every * self.shares.get(kind, 1.0) / left_s
                due[kind] = due.get(kind, 0.0) + waiting_per_s
        claims = [
            Claim(per_s, self._expected.get(kind, 0.0) * self.shares.get(kind, 1.0), offer)
            for kind, per_s in due.items()
            if (offer := self.offer(kind))
        ]
        self.price = price_of_time(claims, capacity * len(self.until_s), dispersion)

    def to_come(self, of_rank: int) -> ToCome:
        """Returns the queries to expect of the priority of a rank, and of higher ones."""
        if of_rank not in self._to_come:
            weight = self._max_batch / _CHANCE_OF_LOSS
            found = [
                (
                    rate * offer.points * (weight if -2 * kind.priority < of_rank else 1.0),
                    offer.patience_s,
                )
                for kind, rate in self._expected.items()
                if -2 * kind.priority <= of_rank
                and (offer := self.offer(kind))
                and offer.patience_s > 0.0
            ]
            points_per_s, patience_s = np.array(found).reshape(-1, 2).T
            least_s = float(patience_s.min(initial=np.inf))
            self._to_come[of_rank] = ToCome(points_per_s, patience_s, least_s)
        return self._to_come[of_rank]


class Pools:
    """All workers, by pool.

    Args:
        miss_points: see ``Pool``.
    """

    def __init__(self, miss_points: float) -> None:
        self._miss_points = miss_points
        self._pools: dict[tuple[str, frozenset[str]], Pool] = {}
        self._of_worker: dict[str, tuple[object, Pool]] = {}  # and its residents

    def __getstate__(self) -> dict[str, object]:
        # The dispatcher's views do not pickle, and every worker will be met again.
        return Pools(self._miss_points).__dict__

    @property
    def all(self) -> list[Pool]:
        """All pools that have workers."""
        return list(self._pools.values())

    def on_idle(self, worker: WorkerView, now_s: float) -> Pool:
        """Note that a worker is idle; return its pool."""
        name, residents = worker.worker_id, worker.residents
        known = self._of_worker.get(name)
        if known is None or known[0] is not residents:
            key = worker.device_class, frozenset(residents)
            pool = self._pools.setdefault(key, Pool(self._miss_points))
            if known is not None and known[1] is not pool:
                self._leave(name, known[1])
            known = self._of_worker[name] = residents, pool
        known[1].until_s[name] = now_s
        return known[1]

    def idle_elsewhere(
        self, pool: Pool, query: QueryView, now_s: float
    ) -> Iterator[tuple[str, Menu]]:
        """Yield the class and the menu of each other pool that has an idle worker."""
        for (device_class, _), other in self._pools.items():
            menu = other.menus.get((query.scope, query.size))
            if menu is not None and other is not pool and min(other.until_s.values()) <= now_s:
                yield device_class, menu

    def share_out(
        self, rates: Mapping[Kind, float], queues: Sequence[QueueView], now_s: float
    ) -> None:
        """Share the queries of each kind, to come or waiting, out among the pools, in proportion to
        their speed."""
        for name, (_, pool) in list(self._of_worker.items()):
            if now_s - pool.until_s[name] > _FORGOTTEN_AFTER_S:
                del self._of_worker[name]
                self._leave(name, pool)
        for pool in self._pools.values():
            pool.shares = {}
        waiting = [kind_of(query) for queue in queues for query in _sample(queue)]
        for kind in dict.fromkeys([*rates, *waiting]):
            speeds = {
                pool: len(pool.until_s) / offer.least_s
                for pool in self._pools.values()
                if (offer := pool.offer(kind))
            }
            total = sum(speeds.values())
            for pool, speed in speeds.items() if total > 0.0 else ():
                pool.shares[kind] = speed / total

    def _leave(self, name: str, pool: Pool) -> None:
        del pool.until_s[name]
        if not pool.until_s:
            self._pools = {key: each for key, each in self._pools.items() if each is not pool}


def _sample(queue: QueueView) -> Sequence[QueryView]:
    """Returns queries that stand for all of a queue, evenly spaced."""
    every = -(-len(queue.queries) // _SAMPLED)
    return queue.queries[every // 2 :: every]
