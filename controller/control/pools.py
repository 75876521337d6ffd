"""The control machine's account of its pools: bounds, requested sizes and start times."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from math import inf

from modelless.controller.control.messages import PlanEffect, ScalePool
from modelless.policies.views import Pool

GATEWAYS = "gateways"
"""The name of the pool of devices that gateways own."""


class PoolTracker:
    """The pools of a cluster.

    Args:
        pools: with the time that starting a worker takes, before it was measured.
        workers: at the beginning, by name, of the pools that may be scaled.
        again_s: a request for the same number is repeated after this, as it may have been lost.
        start_weight: of the newest measured start against those before; 0: starts are known.
    """

    def __init__(
        self, pools: Iterable[Pool], workers: Mapping[str, int], again_s: float, start_weight: float
    ) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._again_s = again_s
        self._start_weight = start_weight
        self._requested = {name: (count, -inf) for name, count in workers.items()}
        self._wanted = dict(workers)
        self._growing_s: dict[str, float] = {}  # since when, by pool

    @property
    def pools(self) -> tuple[Pool, ...]:
        return tuple(self._pools.values())

    def note_plan(self, effects: Iterable[PlanEffect], present: Mapping[str, int]) -> None:
        """Remember the sizes that a plan wants; where it names none, those that are there.

        Args:
            effects: the plan's, made when every member was known.
        """
        scaled = {e.device_class: e.workers for e in effects if isinstance(e, ScalePool)}
        for pool in self._wanted:
            there = present.get(pool, 0)
            self._wanted[pool] = scaled.get(pool, there)
            if self._wanted[pool] <= there:  # no worker is on its way any more
                self._growing_s.pop(pool, None)

    def request(self, effect: ScalePool, present: int, now_s: float) -> bool:
        """Whether to carry the effect out: not if the same number was requested just now."""
        if effect.device_class not in self._requested:
            return False
        if effect.workers > present:
            self._growing_s.setdefault(effect.device_class, now_s)
        count, requested_s = self._requested[effect.device_class]
        if count == effect.workers and now_s - requested_s < self._again_s:
            return False
        self._requested[effect.device_class] = effect.workers, now_s
        return True

    def note_worker(self, pool: str, now_s: float) -> None:
        """A worker of the pool came: learn how long its start took, if it was requested."""
        since_s = self._growing_s.pop(pool, None)
        known = self._pools.get(pool)
        if since_s is not None and known is not None:
            start_s = known.start_s + self._start_weight * (now_s - since_s - known.start_s)
            self._pools[pool] = replace(known, start_s=start_s)

    def is_at_rest(self, scaled: Container[str]) -> bool:
        """Whether no worker of any pool is wanted now, but scaling would start one on demand."""
        return bool(self.starting_s(scaled)) and not any(self._wanted.values())

    def status(self) -> list[dict[str, object]]:
        return [
            {
                "pool": name,
                "sizes": list(self._pools[name].sizes),
                "asked": count,
                "min_workers": self._pools[name].min_workers,
                "max_workers": self._pools[name].max_workers,
                "start_s": round(self._pools[name].start_s, 2),
            }
            for name, (count, _) in self._requested.items()
        ]

    def starting_s(self, scaled: Container[str]) -> dict[str, float]:
        """How soon a worker can be there, by device class, where scaling starts workers."""
        return {
            pool.name: pool.start_s
            for pool in self._pools.values()
            if pool.name in scaled and pool.max_workers > 0
        }
