"""On demand: a variant is loaded when clients ask for what nothing loaded can serve.

What most model servers do (Clockwork, ModelMesh, serverless platforms): load on a miss, keep until
the room is needed. It is the pair of an eviction policy: this one says what comes, that one what
leaves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

from modelless.policies.reasons import Reason
from modelless.policies.scopes import scopes_of, task_of
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Demand, Targets
from modelless.variants.errors import InvalidInputError
from modelless.variants.vocabulary import Placement


class OnDemand(ScalingPolicy):
    """One instance of the cheapest variant for each kind of query that nothing loaded can serve.

    What clients asked for in vain comes first, then the rest, each by rate. What is loaded is not
    wanted, and so it stays until something else needs its room; then all of it may leave, in the
    eviction policy's order. No replica is wanted, and the number of workers stays as it is.

    A worker loads one variant at a time, but gives the memory away at once. Were everything wanted
    that is missing, instances that serve would make room for others that wait for their turn; so no
    more are wanted than can begin, and the rest waits until it is asked for again.

    Args:
        preload: until the first query comes, want the cheapest variant of every task.
        loads_per_worker: how many loads may be under way, times the number of workers.
    """

    def __init__(self, preload: bool = True, loads_per_worker: float = 1.0) -> None:
        if not (isinstance(loads_per_worker, (int, float)) and loads_per_worker > 0.0):
            raise InvalidInputError.of("loads_per_worker", loads_per_worker, "a number above 0")
        self.preload = preload
        self.loads_per_worker = loads_per_worker
        self._was_asked = False

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        demands = _demands(view)
        self._was_asked = self._was_asked or bool(demands)
        if self.preload and not self._was_asked:
            tasks = {variant.task for variant in view.variants}
            options = _options(view, tasks)
            chosen = [_cheapest(options[task], _ANYTHING) for task in sorted(tasks)]
            return Targets(
                {option.placement: 1 for option in chosen if option is not None},
                {},
                Reason.DEMAND,
            )
        options = _options(view, {task_of(demand.scope) for demand in demands})
        held = Counter(
            Placement(instance.variant_id, worker.device_class)
            for worker in view.workers
            for instance in worker.instances
        )
        wanted: dict[Placement, int] = {}
        most = self.loads_per_worker * len(view.workers) - _under_way(view)
        for demand in demands:
            if len(wanted) >= most:
                break
            mine = options[demand.scope]
            if any(option.placement in held and option.meets(demand) for option in mine):
                continue
            best = _cheapest(mine, demand)
            if best is not None:
                held[best.placement] += 1  # and may serve further kinds, too
                wanted[best.placement] = 1
        return Targets(wanted, {}, Reason.DEMAND, on_demand=True)


class _Option(NamedTuple):
    """A placement that could be loaded; the price is that of a batch of one item."""

    price_usd: float
    placement: Placement
    accuracy_percent: float
    latency_s: float

    def meets(self, demand: Demand) -> bool:
        """Whether it is quick and accurate enough; never if its latency is unknown."""
        return (
            self.latency_s <= demand.latency_s
            and self.latency_s < inf
            and self.accuracy_percent >= demand.min_accuracy_percent
        )


_ANYTHING = Demand("", inf, 0.0, 0.0)


def _demands(view: ClusterView) -> list[Demand]:
    """What is asked for, what is asked for in vain first; within a scope the strictest first."""
    told = {demand.scope for demand in view.demands}
    demands = [demand for demand in view.demands if demand.rate_per_s > 0.0]
    waiting = {scope for scope, count in view.open_queries.items() if count > 0}
    rates = {scope: rate for scope, rate in view.arrivals_per_s.items() if rate > 0.0}
    unmet = {scope for scope, rate in view.unmet_per_s.items() if rate > 0.0}
    untold = (waiting | set(rates) | unmet) - told
    demands += [Demand(scope, inf, 0.0, rates.get(scope, 0.0)) for scope in untold]

    def importance(demand: Demand) -> tuple[bool, float, str, float, float]:
        rate = rates.get(demand.scope, 0.0)
        is_met = demand.scope not in unmet
        return is_met, -rate, demand.scope, -demand.min_accuracy_percent, demand.latency_s

    return sorted(demands, key=importance)


def _under_way(view: ClusterView) -> int:
    """Loads that have not ended, as far as one can see: in use, but never used."""
    return sum(
        instance.in_use and instance.use_count == 0
        for worker in view.workers
        for instance in worker.instances
    )


def _options(view: ClusterView, tasks: Collection[str]) -> Mapping[str, list[_Option]]:
    """What each scope of the tasks could be served with by the workers that are there."""
    classes = sorted({worker.device_class for worker in view.workers} & set(view.device_classes))
    options: defaultdict[str, list[_Option]] = defaultdict(list)
    for variant in view.variants:
        if variant.task not in tasks:
            continue
        for name in classes:
            latency_s = variant.latency_s.get(name)
            if latency_s is not None:
                price_usd = view.device_classes[name].cost_usd(latency_s)
                placement = Placement(variant.variant_id, name)
                option = _Option(price_usd, placement, variant.accuracy_percent, latency_s)
                for scope in scopes_of(variant.variant_id):
                    options[scope].append(option)
    return options


def _cheapest(options: Sequence[_Option], demand: Demand) -> _Option | None:
    """The cheapest that meets the demand; ties by name. None if none does."""
    able = [option for option in options if option.meets(demand)]
    return min(able, key=lambda o: (o.price_usd, o.placement.variant_id), default=None)
