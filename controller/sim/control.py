"""The control loop of a simulated cluster: reports in, the planner asked, effects carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from modelless.controller.control.planner import Planner
from modelless.controller.effects import (
    LoadInstance,
    PlanEffect,
    Planned,
    ResizeWorker,
    ScalePool,
    UnloadInstance,
)
from modelless.controller.sim.cluster import SimulatedCluster
from modelless.controller.sim.recorder import Recorder
from modelless.controller.sim.worlds.profiles import Fleet
from modelless.policies.views import ClusterView, Demand
from modelless.variants.vocabulary import Placement


class ControlLoop:
    """Once a second: see the module.

    Args:
        planner: the core.
        fleet: what could be loaded.
        cluster: the workers.
        recorder: the books.
        in_use: variants of a worker that run or are queued for.
        advise: tells the selection policy the plan's shares; returns its problem, if it has one.
    """

    def __init__(
        self,
        planner: Planner,
        fleet: Fleet,
        cluster: SimulatedCluster,
        recorder: Recorder,
        in_use: Callable[[str], set[str]],
        advise: Callable[[Mapping[str, Mapping[Placement, float]]], str | None],
    ) -> None:
        self._planner = planner
        self._fleet = fleet
        self._cluster = cluster
        self._recorder = recorder
        self._in_use = in_use
        self._advise = advise

    @property
    def starting_s(self) -> dict[str, float]:
        """How soon a worker can be there, of the classes that scaling starts workers of."""
        return {
            pool.name: pool.start_s
            for pool in self._cluster.pools
            if pool.max_workers > 0 and pool.name in self._planner.scaled
        }

    def tick(
        self,
        now_s: float,
        arrivals_per_s: Mapping[str, float],
        unmet_per_s: Mapping[str, float],
        demands: tuple[Demand, ...] = (),
        open_queries: Mapping[str, int] | None = None,
        missed_per_s: float = 0.0,
        *,
        at_once: bool = False,
    ) -> None:
        """Decide and carry out; ``at_once``: what is to be loaded was loaded before."""
        view = ClusterView(
            now_s,
            self._fleet.device_classes,
            tuple(
                worker.state(self._in_use(worker.worker_id), now_s)
                for worker in self._cluster.workers.values()
                if worker.is_reachable and not worker.is_leaving
            ),
            self._fleet.facts,
            arrivals_per_s,
            unmet_per_s,
            demands,
            open_queries or {},
            self._cluster.pools,
            missed_per_s,
        )
        effects = self._planner.tick(view)
        for problem in self._planner.problems:
            self._recorder.summary.complain(problem)
            self._recorder.control(now_s, "policy-problem", reason=problem)
        orders: dict[str, list[PlanEffect]] = {}
        for effect in effects:
            if isinstance(effect, (LoadInstance, UnloadInstance, ResizeWorker)):
                orders.setdefault(effect.worker_id, []).append(effect)
            elif isinstance(effect, ScalePool):
                self._scale(effect, now_s)
            elif isinstance(effect, Planned):
                self._recorder.plan(now_s, effect.quality)
            else:
                failed = self._advise({scope: dict(shares) for scope, shares in effect.shares})
                if failed is not None:
                    self._recorder.summary.complain(failed)
        for worker_id, ordered in orders.items():
            self._cluster.order(worker_id, ordered, self._in_use(worker_id), at_once=at_once)

    def _scale(self, effect: ScalePool, now_s: float) -> None:
        self._recorder.control(
            now_s,
            "scale",
            device=effect.device_class,
            count=effect.workers,
            reason=effect.reason.value,
        )
        self._cluster.scale(effect.device_class, effect.workers)
