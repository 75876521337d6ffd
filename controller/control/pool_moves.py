"""Turns the wanted number of workers of each device class into resizes and pool sizes.

A surplus worker becomes one of a size that is missing, where its pool allows that (in place, while
it serves). Only then are workers started and stopped. Pools shrink last: while another pool still
grows, the workers that are there go on serving (a *surge*), so that no query is lost when work
moves from one kind of worker to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from modelless.controller.control.messages import PlanEffect, ScalePool
from modelless.controller.control.planned_memory import expected_bytes
from modelless.controller.device.messages import ResizeWorker
from modelless.policies.reasons import Reason
from modelless.policies.views import ClusterView, Pool, WorkerState


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Bounds that hold whatever a policy says.

    Attributes:
        min_workers, max_workers: by pool; one that is not named has none.
        forecast_horizon_s: how far ahead demand is asked for.
        sizes: by pool, the device classes that its workers may be resized to.
        max_cores: by pool, the CPU cores that its workers may use together.
        surge_s: the longest that a pool is kept from shrinking because another grows.
    """

    min_workers: Mapping[str, int]
    max_workers: Mapping[str, int]
    forecast_horizon_s: float = 10.0
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_cores: Mapping[str, int] = field(default_factory=dict)
    surge_s: float = 60.0

    @classmethod
    def of(cls, pools: Iterable[Pool]) -> PlanLimits:
        """The bounds of these pools."""
        known = tuple(pools)
        return cls(
            {pool.name: pool.min_workers for pool in known},
            {pool.name: pool.max_workers for pool in known},
            sizes={pool.name: pool.sizes for pool in known},
            max_cores={p.name: p.max_cores for p in known if p.max_cores is not None},
        )


class PoolPlanner:
    """Turns wanted workers by device class into resizes and pool sizes."""

    def __init__(self, limits: PlanLimits) -> None:
        self._limits = limits
        self._grown: set[str] = set()  # pools that grew and are not all ready yet
        self._surge_since_s: float | None = None

    def effects(
        self, view: ClusterView, wanted: Mapping[str, int], reason: Reason
    ) -> list[PlanEffect]:
        """Return the effects that bring the workers to the wanted numbers; other classes stay.

        Args:
            wanted: workers by device class; classes that do not exist are left out.
        """
        present = Counter(worker.size for worker in view.workers)
        missing = {
            name: count - present[name]
            for name, count in wanted.items()
            if name in view.device_classes
        }
        resizes = self._resizes(view, missing, reason)
        sizes = {effect.worker_id: effect.device_class for effect in resizes}
        there = Counter(worker.pool for worker in view.workers)
        counts = self._counts(view, missing, sizes, there)
        return [*resizes, *self._scale(view, counts, there, reason)]

    def _resizes(
        self, view: ClusterView, missing: dict[str, int], reason: Reason
    ) -> list[ResizeWorker]:
        """Workers of a size there are too many of become what is missing, the idlest first."""
        effects = []
        cores = self._cores(view, {})
        for worker in sorted(view.workers, key=lambda w: (w.busy_share, w.worker_id)):
            if worker.resizing_to or missing.get(worker.size, 0) >= 0:
                continue
            for size in self._limits.sizes.get(worker.pool, ()):
                more = view.device_classes[size].threads - _threads(view, worker.size)
                most = self._limits.max_cores.get(worker.pool, inf)
                if missing.get(size, 0) > 0 and (more <= 0 or cores[worker.pool] + more <= most):
                    sizes = {each.variant_id: expected_bytes(each, size) for each in view.variants}
                    effects.append(ResizeWorker(worker.worker_id, size, reason, sizes))
                    missing[worker.size] += 1
                    missing[size] -= 1
                    cores[worker.pool] += more
                    break
        return effects

    def _counts(
        self,
        view: ClusterView,
        missing: Mapping[str, int],
        sizes: Mapping[str, str],
        there: Mapping[str, int],
    ) -> dict[str, int]:
        """Workers by pool, within its bounds; ``sizes`` are those of workers about to change."""
        counts: dict[str, int] = {}
        for name, more in missing.items():
            if more >= 0:
                pool = self._home_of(name, view)
                counts[pool] = counts.get(pool, there[pool]) + more
                continue
            mine = Counter(w.pool for w in view.workers if sizes.get(w.worker_id, w.size) == name)
            for pool in sorted(mine, key=lambda pool: (pool != name, pool)):
                fewer = min(-more, mine[pool])
                counts[pool] = counts.get(pool, there[pool]) - fewer
                more += fewer
        cores = self._cores(view, sizes)
        bounded = {}
        for pool, count in counts.items():
            if pool not in view.device_classes:
                continue
            count = max(count, self._limits.min_workers.get(pool, 0))
            count = min(count, self._limits.max_workers.get(pool, count))
            room = self._limits.max_cores.get(pool, inf) - cores[pool]
            each = max(view.device_classes[pool].threads, 1)
            if count > there[pool] and (count - there[pool]) * each > room:
                count = there[pool] + int(max(room, 0) // each)
            bounded[pool] = count
        return bounded

    def _home_of(self, name: str, view: ClusterView) -> str:
        """The pool that a worker of this size is to be started in."""
        able = [
            pool
            for pool, sizes in self._limits.sizes.items()
            if name in sizes and pool != name and pool in view.device_classes
        ]
        if not able or self._limits.max_workers.get(name, 0) > 0:
            return name
        return able[0]

    def _scale(
        self, view: ClusterView, counts: Mapping[str, int], there: Mapping[str, int], reason: Reason
    ) -> list[PlanEffect]:
        self._grown |= {pool for pool, count in counts.items() if count > there[pool]}
        self._grown = {
            pool
            for pool in self._grown
            if counts.get(pool, 0) > there[pool]
            or not all(_is_ready(w) for w in view.workers if w.pool == pool)
        }
        shrinking = {pool for pool, count in counts.items() if count < there[pool]}
        if not (self._grown - shrinking and shrinking):
            self._surge_since_s = None
        elif self._surge_since_s is None or view.now_s < self._surge_since_s:
            self._surge_since_s = view.now_s
        surges = (
            self._surge_since_s is not None
            and view.now_s - self._surge_since_s < self._limits.surge_s
        )
        return [
            ScalePool(pool, count, reason)
            for pool, count in counts.items()
            if count > there[pool] or (count < there[pool] and not surges)
        ]

    def _cores(self, view: ClusterView, sizes: Mapping[str, str]) -> Counter[str]:
        """CPU cores in use, by pool."""
        cores: Counter[str] = Counter()
        for worker in view.workers:
            cores[worker.pool] += _threads(view, sizes.get(worker.worker_id, worker.size))
        return cores


def _threads(view: ClusterView, name: str) -> int:
    known = view.device_classes.get(name)
    return known.threads if known is not None else 1


def _is_ready(worker: WorkerState) -> bool:
    """Whether it has something loaded."""
    return any(instance.memory_bytes > 0 for instance in worker.instances)
