"""INFaaS autoscaling: replicates or upgrades variants that lack capacity, downgrades others.

The autoscalers of INFaaS (Romero et al., "INFaaS: Automated Model-less Inference Serving", USENIX
ATC 2021). One scales variants by their demand and profiled throughput; the other scales workers by
the utilisation of the least busy one. Constants are the source's unless said otherwise.

Departures. The source scales models on each worker by itself, and its cap of replicas is for one
machine with many cores. Here one decision covers all workers, each of which holds at most one copy,
and the cap is for a variant on a device class. There are no variants of a smaller batch here, so a
downgrade goes to a CPU. Demand is assigned to variants as the selection would assign it, because no
view contains the assignment. Workers are checked with every view, in the source every two seconds;
demand must be low for a number of seconds, not of checks. On CPUs a worker is idle up to 20 %
(ours). Only unwanted instances are evicted, and only when their room is needed.

The source minimises cost. Proteus (Ahmad et al., ASPLOS 2024) compares with a second form, in which
the same rules maximise accuracy; its artefact leaves most of that to numbers. Here it means: demand
goes to the most accurate running variant first, and the most accurate variant that can serve a
demand is started if there is room for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final, Generic, TypeVar

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.model_variants import ModelVariant, model_variants
from modelless.policies.scopes import task_of
from modelless.policies.seams import ScalingPolicy
from modelless.policies.selection.infaas import check_objective
from modelless.policies.views import ClusterView, Demand, Targets
from modelless.variants.vocabulary import Placement

_LOAD_SHARE_PER_S: Final = 0.2  # share of an accelerator's capacity kept per second of loading
_CPU_SHARE: Final = 0.95  # share of a CPU's capacity to use
_UPGRADE_GAIN: Final = 1.5
_NO_ROOM_COST: Final = 1000.0
_BUSY_SHARE: Final = 0.8
_IDLE_SHARE: Final = {"gpu": 0.08}
_IDLE_SHARE_ELSE: Final = 0.2  # (ours)
_MOST_PER_S: Final = 1e9

_Key = TypeVar("_Key", bound=Hashable)


class InfaasScaling(ScalingPolicy):
    """Instances by variant, and workers by device class; the forecast is not used.

    Demand is given to running variants as INFaaS's selection would: the slowest that fits first,
    and the rest beyond its capacity to the next. Demand that nothing running can serve starts the
    variant that is loaded soonest, or the smallest if there is no room; so does each task before
    any query. The last variant of a task stays, and so does the last worker of a class.

    Args:
        accelerator_patience_s: seconds of low demand before an accelerator's variant loses a
            replica or is downgraded.
        cpu_patience_s: the same on CPUs.
        worker_patience_s: the same before a worker is removed; null: the number of workers is left
            alone.
        accelerator_replicas: beyond this many replicas of an accelerator's variant, a further one
            costs a thousand loads, so that an upgrade is preferred; null: only if there is no room
            for one.
        cpu_replicas: the same on CPUs.
        objective: ``cost``, or ``accuracy`` to prefer accurate variants wherever several will do.
    """

    def __init__(
        self,
        accelerator_patience_s: float = 20.0,
        cpu_patience_s: float = 10.0,
        worker_patience_s: float | None = 30.0,
        accelerator_replicas: int | None = 1,
        cpu_replicas: int | None = 2,
        objective: str = "cost",
    ) -> None:
        for name, value in (
            ("accelerator_patience_s", accelerator_patience_s),
            ("cpu_patience_s", cpu_patience_s),
            ("worker_patience_s", worker_patience_s),
        ):
            if value is not None and not 0.0 <= value < inf:
                raise InvalidInputError.of(name, value, "seconds, 0 or more")
        self.accelerator_patience_s = accelerator_patience_s
        self.cpu_patience_s = cpu_patience_s
        for name, cap in (
            ("accelerator_replicas", accelerator_replicas),
            ("cpu_replicas", cpu_replicas),
        ):
            if cap is not None and (type(cap) is not int or cap < 0):
                raise InvalidInputError.of(name, cap, "a whole number, 0 or more, or none")
        self.worker_patience_s = worker_patience_s
        self.accelerator_replicas = accelerator_replicas
        self.cpu_replicas = cpu_replicas
        self.objective = check_objective(objective)
        self._wanted: dict[Placement, int] | None = None
        self._was_asked = False
        self._low_models = _Patience[Placement]()
        self._low_classes = _Patience[str]()

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        accurate_first = self.objective == "accuracy"
        plan = _Plan(
            view, self._wanted, self.accelerator_replicas, self.cpu_replicas, accurate_first
        )
        self._low_models.begin_view(view.now_s)
        demands = _demands(view)
        if not self._was_asked and not demands:
            demands = [
                Demand(task, inf, 0.0, 0.0) for task in sorted({v.task for v in view.variants})
            ]
        self._was_asked = self._was_asked or bool(view.demands or view.arrivals_per_s)
        for demand in demands:
            plan.assign(demand)
        for model in plan.running():
            patience_s = self.accelerator_patience_s if model.is_dear else self.cpu_patience_s
            if plan.is_short(model):
                plan.grow(model)
            is_low = plan.is_low(model)
            if self._low_models.is_over(model.placement, is_low, patience_s):
                plan.shrink(model)
        self._wanted = {placement: n for placement, n in plan.wanted.items() if n > 0}
        ordered = sorted(
            self._wanted, key=lambda p: (-plan.demand[p], p.device_class, p.variant_id)
        )
        instances = {placement: self._wanted[placement] for placement in ordered}
        return Targets(instances, self._workers(view), Reason.DEMAND)

    def _workers(self, view: ClusterView) -> dict[str, int]:
        """Returns one more worker where all are busy, one fewer where one has long been idle."""
        if self.worker_patience_s is None:
            return {}
        shares = defaultdict[str, list[float]](list)
        for worker in view.workers:
            if worker.device_class in view.device_classes:
                shares[worker.device_class].append(worker.busy_share)
        self._low_classes.begin_view(view.now_s)
        wanted = {}
        for name, busy in sorted(shares.items()):
            idle_share = _IDLE_SHARE.get(view.device_classes[name].kind, _IDLE_SHARE_ELSE)
            is_idle = len(busy) > 1 and min(busy) <= idle_share
            if min(busy) > _BUSY_SHARE:
                wanted[name] = len(busy) + 1
            if self._low_classes.is_over(name, is_idle, self.worker_patience_s):
                wanted[name] = len(busy) - 1
        return wanted


@dataclass(slots=True)
class _Plan:
    """One decision in progress.

    Attributes:
        wanted: replicas by placement.
        demand: items a second given to each placement.
        strictest: tightest limits of the demand given to each placement.
    """

    view: ClusterView
    before: Mapping[Placement, int] | None
    accelerator_replicas: int | None
    cpu_replicas: int | None
    accurate_first: bool
    wanted: dict[Placement, int] = field(init=False)
    demand: defaultdict[Placement, float] = field(default_factory=lambda: defaultdict(float))
    strictest: dict[Placement, Demand] = field(default_factory=dict)
    _models: dict[Placement, ModelVariant] = field(init=False)
    _by_scope: dict[str, list[ModelVariant]] = field(init=False)
    _idle_workers: dict[str, float] = field(init=False)
    _free_bytes: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _holders: defaultdict[Placement, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        view = self.view
        present = Counter(w.device_class for w in view.workers)
        self._idle_workers = {name: float(count) for name, count in present.items()}
        self._models, self._by_scope = model_variants(view, sorted(present))
        held = view.count_instances()
        kept = held if self.before is None else self.before
        self.wanted = {
            placement: min(count, held[placement])
            for placement, count in sorted(kept.items(), key=lambda item: _name(item[0]))
            if held[placement] > 0 and placement in self._models
        }
        self._weigh()

    def running(self) -> list[ModelVariant]:
        """Returns the wanted model-variants, by name."""
        names = sorted((p for p, count in self.wanted.items() if count > 0), key=_name)
        return [self._models[placement] for placement in names]

    def assign(self, demand: Demand) -> None:
        """Give the demand to running models, the best first, within their capacity.

        The best is the tightest fit, or the most accurate.

        The rest counts for the first that has room to grow, or starts another if none has.
        """
        able = [model for model in self._by_scope.get(demand.scope, ()) if model.meets(demand)]
        if self.accurate_first and able:
            self._start(demand, [min(able, key=lambda m: self._order(m, demand))])
        running = [model for model in able if self.wanted.get(model.placement, 0) > 0]
        running.sort(key=lambda m: self._order(m, demand))
        left = demand.rate_per_s * demand.items
        for model in running:
            left -= self._give(model, demand, min(left, self._capacity_left(model)))
            if left <= 0.0:
                return
        growing = [model for model in running if self._room(model) > 0]
        if running:
            self._give((growing or running)[0], demand, left)
        if not growing and not self._start(demand, able) and able and not running:
            # No room beside what is wanted. The planner may make some for queries asked in vain.
            smallest = min(able, key=lambda m: (m.memory_bytes, _name(m.placement)))
            self.wanted[smallest.placement] = 1

    def _order(self, model: ModelVariant, demand: Demand) -> tuple[object, ...]:
        """Returns the sort key by which running models are given demand."""
        if self.accurate_first:
            return (-model.accuracy_percent, model.latency_s, _name(model.placement))
        return (model.is_saved(demand), -model.latency_s, _name(model.placement))

    def is_short(self, model: ModelVariant) -> bool:
        """Returns whether its capacity is too small, and one replica fewer would not do."""
        return self._missing(model) > 0.0 and not self.is_low(model)

    def is_low(self, model: ModelVariant) -> bool:
        """Returns whether one replica fewer would do, or a downgrade of the last one."""
        count = self.wanted[model.placement]
        if self.demand[model.placement] <= (count - 1) * model.item_per_s:
            return True
        return count == 1 and self._downgrade(model) is not None

    def grow(self, model: ModelVariant) -> None:
        """Add replicas, or upgrade within the architecture where that costs much less loading."""
        missing = self._missing(model)
        count, room = ceil(missing / model.item_per_s), self._room(model)
        cheap = min(room, max(self._cap(model) - self.wanted[model.placement], 0))
        replicate_s = model.load_s * (min(count, cheap) + _NO_ROOM_COST * max(count - cheap, 0))
        upgrade = self._upgrade(model, missing)
        if upgrade is not None:
            needed = ceil(missing / upgrade.item_per_s)
            if replicate_s > _UPGRADE_GAIN * upgrade.load_s * needed:
                self._add(upgrade, needed)
                return
        self._add(model, min(count, room))

    def shrink(self, model: ModelVariant) -> None:
        """Remove one replica; downgrade the last one on an accelerator to a CPU, if one fits."""
        placement = model.placement
        if self.wanted[placement] == 1:
            substitute = self._downgrade(model)
            if substitute is not None and self.wanted.get(substitute.placement, 0) == 0:
                self._add(substitute, 1)
            elif substitute is None and self._is_last(model):
                return
        self.wanted[placement] -= 1

    def _cap(self, model: ModelVariant) -> float:
        """Returns the replicas beyond which one more counts as expensive."""
        cap = self.accelerator_replicas if model.is_dear else self.cpu_replicas
        return inf if cap is None else cap

    def _missing(self, model: ModelVariant) -> float:
        """Returns the items a second beyond what it should be given; the source's Delta."""
        demand = self.demand[model.placement]
        capacity = self.wanted[model.placement] * model.item_per_s
        if demand <= 0.0:
            return 0.0
        if model.is_dear:
            return demand - capacity + _LOAD_SHARE_PER_S * model.load_s * capacity
        return demand - _CPU_SHARE * capacity

    def _capacity_left(self, model: ModelVariant) -> float:
        """Returns the items a second it may still be given; replicas share their workers' time."""
        capacity = self.wanted.get(model.placement, 0) * model.item_per_s * _CPU_SHARE
        shared = self._idle_workers[model.placement.device_class] * model.item_per_s * _CPU_SHARE
        return max(min(capacity - self.demand[model.placement], shared), 0.0)

    def _give(self, model: ModelVariant, demand: Demand, rate: float) -> float:
        placement = model.placement
        if rate > 0.0:
            self.demand[placement] += rate
            self._idle_workers[placement.device_class] -= rate / (model.item_per_s * _CPU_SHARE)
            known = self.strictest.get(placement, demand)
            self.strictest[placement] = demand._replace(
                latency_s=min(known.latency_s, demand.latency_s),
                min_accuracy_percent=max(known.min_accuracy_percent, demand.min_accuracy_percent),
            )
        return rate

    def _start(self, demand: Demand, able: Sequence[ModelVariant]) -> bool:
        """Want the model that is loaded soonest and can serve; CPUs first if time allows.

        Returns:
            Whether there is room for one.
        """
        startable = [model for model in able if self.wanted.get(model.placement, 0) == 0]
        startable.sort(
            key=lambda m: (
                m.is_saved(demand),
                m.load_s + m.latency_s,
                m.max_batch,
                _name(m.placement),
            )
        )
        for model in startable:
            if self._room(model) > 0:
                self.wanted[model.placement] = 1
                return True
        return False

    def _siblings(self, model: ModelVariant) -> Iterable[ModelVariant]:
        """Yields others of the architecture that meet its demand's limits."""
        limits = self.strictest.get(model.placement)
        for other in self._by_scope.get(model.architecture, ()):
            if other is not model and (limits is None or other.meets(limits)):
                yield other

    def _upgrade(self, model: ModelVariant, missing: float) -> ModelVariant | None:
        """Returns the quickest sibling with room for the replicas that are missing."""
        able = [
            other
            for other in self._siblings(model)
            if other.item_per_s > model.item_per_s
            and self._room(other) >= ceil(missing / other.item_per_s)
        ]
        return min(able, key=lambda m: (m.latency_s, _name(m.placement)), default=None)

    def _downgrade(self, model: ModelVariant) -> ModelVariant | None:
        """Returns the quickest sibling on a CPU that can take over all demand; None on a CPU."""
        if not model.is_dear:
            return None
        demand = self.demand[model.placement]
        able = [
            other
            for other in self._siblings(model)
            if not other.is_dear
            and demand <= self._capacity_left(other) + other.item_per_s * (self._room(other) > 0)
        ]
        return min(able, key=lambda m: (m.latency_s, _name(m.placement)), default=None)

    def _is_last(self, model: ModelVariant) -> bool:
        """Returns whether its task has no other wanted model."""
        task = task_of(model.placement.variant_id)
        return not any(
            count > 0 and placement != model.placement
            for placement, count in self.wanted.items()
            if task_of(placement.variant_id) == task
        )

    def _add(self, model: ModelVariant, count: int) -> None:
        self.wanted[model.placement] = self.wanted.get(model.placement, 0) + count

    def _room(self, model: ModelVariant) -> int:
        """Returns how many more workers could hold it without evicting anything wanted."""
        free_bytes = self._free_bytes[model.placement.device_class]
        fitting = len(free_bytes) - bisect_left(free_bytes, model.memory_bytes)
        crammed = [free < model.memory_bytes for free in self._holders[model.placement]]
        return max(fitting + sum(crammed) - self.wanted.get(model.placement, 0), 0)

    def _weigh(self) -> None:
        """Note each worker's free memory beside what is wanted or cannot leave, and its models."""
        for worker in self.view.workers:
            placements = [Placement(i.variant_id, worker.device_class) for i in worker.instances]
            kept_bytes = sum(
                instance.memory_bytes
                for instance, placement in zip(worker.instances, placements, strict=True)
                if instance.in_use or instance.pinned or placement in self.wanted
            )
            free_bytes = worker.memory_bytes - kept_bytes
            self._free_bytes[worker.device_class].append(free_bytes)
            for placement in placements:
                self._holders[placement].append(free_bytes)
        for column in self._free_bytes.values():
            column.sort()


class _Patience(Generic[_Key]):
    """How long something has been low without a break."""

    def __init__(self) -> None:
        self._now_s = -inf
        self._since_s: dict[_Key, float] = {}
        self._asked: set[_Key] = set()

    def begin_view(self, now_s: float) -> None:
        """Begin a new view; keys that the last one did not ask about start again."""
        if now_s < self._now_s:
            self._since_s.clear()
        self._since_s = {key: s for key, s in self._since_s.items() if key in self._asked}
        self._asked.clear()
        self._now_s = now_s

    def is_over(self, key: _Key, is_low: bool, patience_s: float) -> bool:
        """Returns whether it has been low for so long; if so, it starts again."""
        self._asked.add(key)
        if not is_low:
            self._since_s.pop(key, None)
            return False
        since_s = self._since_s.setdefault(key, self._now_s)
        if not self._now_s - since_s >= patience_s:
            return False
        self._since_s[key] = self._now_s
        return True


def _name(placement: Placement) -> tuple[str, str]:
    return placement.variant_id, placement.device_class


def _demands(view: ClusterView) -> list[Demand]:
    """Returns the demands, strictest first, without limits where only the rate is known."""
    told = {demand.scope for demand in view.demands}
    rates = view.arrivals_per_s.items()
    rest = [Demand(scope, inf, 0.0, rate) for scope, rate in rates if scope not in told]
    return sorted(
        demand._replace(items=demand.items if 1.0 <= demand.items < inf else 1.0)
        for demand in (*view.demands, *rest)
        if 0.0 < demand.rate_per_s <= _MOST_PER_S
    )
