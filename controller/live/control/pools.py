"""What the control loop knows of its pools: bounds, what was asked of them, how soon they come."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from math import inf

from modelless.controller.config import Settings
from modelless.controller.control.pool_moves import PlanLimits
from modelless.controller.effects import PlanEffect, ScalePool
from modelless.policies.views import Pool

GATEWAYS = "gateways"
"""The name of the pool of devices that gateways own."""

FIRST_START_S = 6.0
"""What starting a worker takes before it was measured: Ray's part is 4 s on an idle machine."""

LEARNT = 0.5
"""Weight of the newest start against those before."""

AGAIN_S = 15.0
"""When to ask for the same number again: it may never have arrived."""


class PoolBook:
    """The pools of a running cluster.

    Args:
        settings: as given to ``modelless up``.
    """

    def __init__(self, settings: Settings) -> None:
        pools = [
            Pool(
                pool.device_class,
                _sizes(pool.device_class, pool.sizes),
                pool.min_workers,
                pool.max_workers,
                pool.max_cores,
                FIRST_START_S,
            )
            for pool in settings.pools
        ]
        own = settings.gateways
        if own.device_class is not None:
            pools.append(Pool(GATEWAYS, _sizes(own.device_class, own.sizes), 0, 0))
        self._pools = {pool.name: pool for pool in pools}
        self._asked = {pool.device_class: (pool.workers, -inf) for pool in settings.pools}
        self._wanted = {pool.device_class: pool.workers for pool in settings.pools}
        self._growing_s: dict[str, float] = {}  # since when, by pool

    @property
    def pools(self) -> tuple[Pool, ...]:
        """As policies see them."""
        return tuple(self._pools.values())

    def limits(self, device_classes: Iterable[str]) -> PlanLimits:
        """The planner's bounds: no worker can be started of a class that has no pool."""
        limits = PlanLimits.of(self.pools)
        none = dict.fromkeys(device_classes, 0)
        return replace(limits, max_workers={**none, **limits.max_workers})

    def on_plan(self, effects: Iterable[PlanEffect], present: Mapping[str, int]) -> None:
        """What a plan wants, made when everybody was known: where it says nothing, what is there.

        Args:
            effects: the plan's.
            present: workers by pool.
        """
        scaled = {e.device_class: e.workers for e in effects if isinstance(e, ScalePool)}
        for pool in self._wanted:
            there = present.get(pool, 0)
            self._wanted[pool] = scaled.get(pool, there)
            if self._wanted[pool] <= there:  # what was to come is not waited for any more
                self._growing_s.pop(pool, None)

    def ask(self, effect: ScalePool, present: int, now_s: float) -> bool:
        """Whether to ask Serve for this number: not what was just asked for."""
        if effect.device_class not in self._asked:
            return False
        if effect.workers > present:
            self._growing_s.setdefault(effect.device_class, now_s)
        count, asked_s = self._asked[effect.device_class]
        if count == effect.workers and now_s - asked_s < AGAIN_S:
            return False
        self._asked[effect.device_class] = effect.workers, now_s
        return True

    def on_worker(self, pool: str, now_s: float) -> None:
        """A worker of the pool has come; how long it took is learnt if it was asked for."""
        since_s = self._growing_s.pop(pool, None)
        known = self._pools.get(pool)
        if since_s is not None and known is not None:
            start_s = known.start_s + LEARNT * (now_s - since_s - known.start_s)
            self._pools[pool] = replace(known, start_s=start_s)

    def is_at_rest(self, scaled: Container[str]) -> bool:
        """Whether scaling wants no worker of any pool, and would start one if it were asked to."""
        return bool(self.starting_s(scaled)) and not any(self._wanted.values())

    def status(self) -> list[dict[str, object]]:
        """The pools that can be scaled, as plain data."""
        return [
            {
                "pool": name,
                "sizes": list(self._pools[name].sizes),
                "asked": count,
                "min_workers": self._pools[name].min_workers,
                "max_workers": self._pools[name].max_workers,
                "start_s": round(self._pools[name].start_s, 2),
            }
            for name, (count, _) in self._asked.items()
        ]

    def starting_s(self, scaled: Container[str]) -> dict[str, float]:
        """How soon a worker can be there, of the classes that scaling starts workers of."""
        return {
            pool.name: pool.start_s
            for pool in self._pools.values()
            if pool.name in scaled and pool.name != GATEWAYS and pool.max_workers > 0
        }


def _sizes(first: str, others: tuple[str, ...]) -> tuple[str, ...]:
    return (first, *(size for size in others if size != first))
