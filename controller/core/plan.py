"""The way of a decision: what should be loaded where, and how many workers there should be.

Asks the policies what they want, and holds what no policy may break: memory, one copy a worker,
nothing in use is ever unloaded, bounds on the number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from modelless.controller.core.effects import (
    LoadInstance,
    PlanEffect,
    ScalePool,
    UnloadInstance,
)
from modelless.policies.reasons import Reason
from modelless.policies.seams import EvictionPolicy, Forecaster, PlacementPolicy, ScalingPolicy
from modelless.policies.views import (
    ClusterView,
    Instance,
    Targets,
    VariantFacts,
    WorkerState,
)


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Bounds that hold whatever a policy says.

    Attributes:
        min_workers, max_workers: by device class; a class that is not named stays as it is.
        forecast_horizon_s: how far ahead demand is asked for.
    """

    min_workers: Mapping[str, int]
    max_workers: Mapping[str, int]
    forecast_horizon_s: float = 10.0


class Planner:
    """One control loop's decisions.

    Args:
        scaling, placement, eviction, forecaster: the policies.
        limits: bounds on the number of workers.
    """

    def __init__(
        self,
        scaling: ScalingPolicy,
        placement: PlacementPolicy,
        eviction: EvictionPolicy,
        forecaster: Forecaster,
        limits: PlanLimits,
    ) -> None:
        self.scaling = scaling
        self.placement = placement
        self.eviction = eviction
        self.forecaster = forecaster
        self.limits = limits

    def tick(self, view: ClusterView) -> list[PlanEffect]:
        """Decide on one view. Effects are to be carried out in order, each worker's one by one."""
        self.forecaster.observe(view.now_s, view.arrivals_per_s)
        forecast_per_s = self.forecaster.forecast(self.limits.forecast_horizon_s)
        targets = self.scaling.targets(view, forecast_per_s)
        return self._scale(view, targets) + self._place(view, targets)

    def _scale(self, view: ClusterView, targets: Targets) -> list[PlanEffect]:
        effects: list[PlanEffect] = []
        for name, wanted in targets.workers.items():
            low = self.limits.min_workers.get(name, 0)
            count = min(max(wanted, low), self.limits.max_workers.get(name, wanted))
            present = sum(worker.device_class == name for worker in view.workers)
            if name in view.device_classes and count != present:
                effects.append(ScalePool(name, count, targets.reason))
        return effects

    def _place(self, view: ClusterView, targets: Targets) -> list[PlanEffect]:
        facts = {variant.variant_id: variant for variant in view.variants}
        workers = {worker.worker_id: worker for worker in view.workers}
        effects: list[PlanEffect] = []
        full: set[str] = set()  # later, less important instances do not overtake one without room
        for placement, count in targets.instances.items():
            variant = facts.get(placement.variant_id)
            if variant is None or placement.device_class not in variant.memory_bytes:
                continue
            of_class = [w for w in workers.values() if w.device_class == placement.device_class]
            without = [w for w in of_class if not _holds(w, placement.variant_id)]
            missing = count - (len(of_class) - len(without))
            if missing <= 0:
                continue
            needed = int(variant.memory_bytes[placement.device_class])
            for worker in self.placement.rank(placement.variant_id, needed, without)[:missing]:
                if worker.worker_id in full:
                    continue
                moved = self._make_room(workers[worker.worker_id], variant, needed, targets, view)
                if moved is None:
                    full.add(worker.worker_id)
                    continue
                changed, evictions = moved
                effects += evictions
                load_s = variant.load_s.get(placement.device_class, 0.0)
                arriving = Instance(
                    worker.worker_id, variant.variant_id, needed, load_s, view.now_s, 0, in_use=True
                )
                workers[worker.worker_id] = replace(
                    changed, instances=(*changed.instances, arriving)
                )
                effects.append(LoadInstance(worker.worker_id, variant.variant_id, Reason.WANTED))
        return effects

    def _make_room(
        self,
        worker: WorkerState,
        variant: VariantFacts,
        needed_bytes: int,
        targets: Targets,
        view: ClusterView,
    ) -> tuple[WorkerState, list[PlanEffect]] | None:
        """The worker after evictions that make room, and the evictions; None if room cannot be made.

        Only instances that nobody wants leave, unless clients ask in vain for what is to be
        loaded: then any idle one may.
        """
        if worker.free_bytes >= needed_bytes:
            return worker, []
        asked_in_vain = any(
            rate > 0.0 and f"{variant.variant_id}/".startswith((f"{scope}/", f"{scope}@"))
            for scope, rate in view.unmet_per_s.items()
        )
        wanted = {p.variant_id for p in targets.instances if p.device_class == worker.device_class}
        movable = [
            instance
            for instance in worker.instances
            if not (instance.in_use or instance.pinned)
            and (asked_in_vain or instance.variant_id not in wanted)
        ]
        evictions: list[PlanEffect] = []
        for victim in self.eviction.rank(tuple(movable), view):
            evictions.append(
                UnloadInstance(
                    worker.worker_id, victim.variant_id, Reason.ROOM_NEEDED, variant.variant_id
                )
            )
            worker = replace(
                worker, instances=tuple(i for i in worker.instances if i is not victim)
            )
            if worker.free_bytes >= needed_bytes:
                return worker, evictions
        return None


def _holds(worker: WorkerState, variant_id: str) -> bool:
    return any(instance.variant_id == variant_id for instance in worker.instances)
