"""The workers that the policy has met, and when the next one of them falls idle."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from modelless.policies.scopes import in_scope
from modelless.policies.selection.best_value.menu import Menu, make_menu
from modelless.policies.selection.best_value.price import NO_PRICE, Higher, Prices
from modelless.policies.views import WorkerView

_FORGOTTEN_AFTER_S = 10.0
"""A worker that neither ran nor was asked about for so long is gone."""
_MEAN_OVER = 10
"""Batches over which the time of a batch is averaged."""
_KEPT = 1024
"""Menus and sets of variants that are remembered."""


@dataclass(slots=True, eq=False)
class _Met:
    """A worker; ``busy_until_s`` is the time of its last question if it is idle."""

    worker_id: str
    pool: Pool
    busy_until_s: float


@dataclass(slots=True, eq=False)
class Pool:
    """The workers of one device class that hold the same variants.

    Attributes:
        menus: the last menu by scope and size of items, of those for which menus were asked.
        prices: of a second of a worker.
        priced_s: when the prices were found.
        higher: by rank, the queries to expect of its priority and of those above it.
    """

    menus: dict[tuple[str, int], Menu] = field(default_factory=dict)
    prices: Prices = NO_PRICE
    priced_s: float = -math.inf
    higher: dict[int, Higher] = field(default_factory=dict)
    _variants: frozenset[str] = frozenset()
    _made: dict[tuple[int, str], tuple[object, Menu]] = field(default_factory=dict)
    _met: dict[str, _Met] = field(default_factory=dict)
    _idle: set[str] = field(default_factory=set)
    _ends: list[tuple[float, int, _Met]] = field(default_factory=list)  # a heap, some outdated

    @property
    def count(self) -> int:
        """Number of workers."""
        return len(self._met)

    def serves(self, scope: str) -> bool:
        """Returns whether it holds a variant of the scope."""
        return any(in_scope(name, scope) for name in self._variants)

    def menu(self, worker: WorkerView, scope: str, size: int) -> Menu:
        """Returns what a worker of the pool offers for a scope and items of a size."""
        residents = worker.residents  # a new object whenever estimates change
        known = self._made.get((id(residents), scope))
        if known is None or known[0] is not residents:
            if len(self._made) >= _KEPT:
                self._made.clear()
            held = [residents[name] for name in sorted(self._variants) if in_scope(name, scope)]
            known = residents, make_menu(held, worker.max_batch, worker.lead_s)
            self._made[id(residents), scope] = known
            self.menus[scope, size] = known[1]
        return known[1]

    def next_idle_s(self, without: str, now_s: float) -> float:
        """Returns in how many seconds a worker other than ``without`` is idle; inf if none is."""
        if len(self._idle) > (without in self._idle):
            return 0.0
        ends = self._ends
        while ends and not self._runs_until(*ends[0]):
            heapq.heappop(ends)
        return max(ends[0][0] - now_s, 0.0) if ends else math.inf

    def _runs_until(self, end_s: float, _: int, met: _Met) -> bool:
        name = met.worker_id
        return end_s == met.busy_until_s and name not in self._idle and self._met.get(name) is met


class Fleet:
    """The workers, by pool."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, frozenset[str]], Pool] = {}
        self._met: dict[str, _Met] = {}
        self._serving: dict[str, list[Pool]] = {}
        self._names: dict[int, tuple[object, frozenset[str]]] = {}
        self._batch_s = 0.0
        self._runs = 0

    def __getstate__(self) -> dict[str, object]:
        # The dispatcher's views do not pickle, and every worker will be met again.
        return Fleet().__dict__

    @property
    def pools(self) -> list[Pool]:
        """All pools that have workers."""
        return list(self._pools.values())

    def on_idle(self, worker: WorkerView, now_s: float) -> Pool:
        """Note that a worker is idle; return its pool."""
        pool = self._pool_of(worker)
        met = self._met.get(worker.worker_id)
        if met is None:
            met = self._met[worker.worker_id] = _Met(worker.worker_id, pool, now_s)
        elif met.pool is not pool:
            self._leave(met)
            met.pool = pool
        met.busy_until_s = now_s
        pool._met[met.worker_id] = met
        pool._idle.add(met.worker_id)
        return pool

    def on_run(self, worker_id: str, busy_s: float, now_s: float) -> None:
        """Note that an idle worker was given a batch that occupies it for ``busy_s`` seconds."""
        met = self._met[worker_id]
        met.busy_until_s = now_s + busy_s
        met.pool._idle.discard(worker_id)
        self._runs += 1
        heapq.heappush(met.pool._ends, (met.busy_until_s, self._runs, met))
        mean_s = self._batch_s if self._runs > 1 else busy_s
        self._batch_s = mean_s + (busy_s - mean_s) / _MEAN_OVER

    def next_idle_s(self, scope: str, without: str, now_s: float) -> float:
        """Returns in how many seconds a worker can serve the scope: another, or this one again."""
        serving = self._serving_pools(scope)
        return min([self._batch_s, *[pool.next_idle_s(without, now_s) for pool in serving]])

    def _serving_pools(self, scope: str) -> list[Pool]:
        serving = self._serving.get(scope)
        if serving is None:
            serving = [pool for pool in self._pools.values() if pool.serves(scope)]
            self._serving[scope] = serving
        return serving

    def forget_gone(self, now_s: float) -> None:
        """Forget the workers that were not heard of for long."""
        for met in list(self._met.values()):
            if now_s - met.busy_until_s > _FORGOTTEN_AFTER_S:
                del self._met[met.worker_id]
                self._leave(met)

    def _pool_of(self, worker: WorkerView) -> Pool:
        residents = worker.residents
        known = self._names.get(id(residents))
        if known is None or known[0] is not residents:
            if len(self._names) >= _KEPT:
                self._names.clear()
            known = self._names[id(residents)] = residents, frozenset(residents)
        pool = self._pools.get((worker.device_class, known[1]))
        if pool is None:
            pool = self._pools[worker.device_class, known[1]] = Pool(_variants=known[1])
            self._serving.clear()
        return pool

    def _leave(self, met: _Met) -> None:
        pool = met.pool
        pool._met.pop(met.worker_id, None)
        pool._idle.discard(met.worker_id)
        if not pool.count:
            self._pools = {key: each for key, each in self._pools.items() if each is not pool}
            self._serving.clear()
