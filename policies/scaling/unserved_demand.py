"""Unserved demand: adds replicas of the model with the most work that devices cannot do.

Clockwork chooses in this way what to load (Gujarati et al., OSDI 2020, sec. 5.3). The work that
clients ask of each model is divided among the devices that hold it. An overloaded device serves
each model in proportion. The model with the most work left over gets one more replica. The eviction
policy chooses what to unload for it (in Clockwork: the least recently used).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import inf

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.demand_options import (
    cheapest,
    count_loading,
    demands_of,
    options_of,
)
from modelless.policies.scaling.on_demand import OnDemand
from modelless.policies.scopes import task_of
from modelless.policies.views import ClusterView, Targets
from modelless.variants.vocabulary import Placement

_ROUNDS = 8
"""How often the work is divided again by the devices' load; it settles within a few rounds."""
_LEAST = 1e-3
"""The share of one device below which work that is left over is a rounding error."""


class UnservedDemand(OnDemand):
    """Loads what nothing loaded can serve, as ``on-demand`` does; then what lacks device time.

    Clockwork's clients name the model. Here each kind of query asks for the cheapest variant that
    meets its limits, one item at a time, whatever else could serve it.

    Args:
        utilisation: share of a device's time that work may fill; work beyond it is left over.
        preload, loads_per_worker: as in ``on-demand``.
    """

    def __init__(
        self, utilisation: float = 0.8, preload: bool = True, loads_per_worker: float = 1.0
    ) -> None:
        super().__init__(preload, loads_per_worker)
        if not (isinstance(utilisation, (int, float)) and 0.0 < utilisation <= 1.0):
            raise InvalidInputError.of("utilisation", utilisation, "a number above 0, at most 1")
        self.utilisation = utilisation

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        first = super().targets(view, forecast_per_s)
        room = int(self.loads_per_worker * len(view.workers)) - count_loading(view)
        wanted = dict(first.instances)
        work = self._work(view)
        if not work:
            return first
        holders: dict[Placement, list[str]] = {placement: [] for placement in work}
        workers_of = Counter(worker.device_class for worker in view.workers)
        for worker in view.workers:
            for instance in worker.instances:
                placement = Placement(instance.variant_id, worker.device_class)
                if placement in holders:
                    holders[placement].append(worker.worker_id)
        left = left_over(work, holders, self.utilisation)
        for placement in sorted(left, key=lambda p: (-left[p], p.variant_id, p.device_class)):
            replicas = len(holders[placement])
            if len(wanted) >= room or left[placement] <= _LEAST:
                break
            if replicas < workers_of[placement.device_class]:
                wanted.setdefault(placement, replicas + 1)
        return Targets(wanted, {}, Reason.DEMAND, on_demand=True)

    def _work(self, view: ClusterView) -> dict[Placement, float]:
        """Returns the device seconds a second that clients ask of each placement."""
        demands = demands_of(view)
        options = options_of(view, {task_of(demand.scope) for demand in demands})
        work: defaultdict[Placement, float] = defaultdict(float)
        for demand in demands:
            best = cheapest(options[demand.scope], demand)
            if best is not None and best.latency_s < inf:
                work[best.placement] += demand.rate_per_s * best.latency_s
        return dict(work)


def left_over(
    work: Mapping[Placement, float], holders: Mapping[Placement, Sequence[str]], capacity: float
) -> dict[Placement, float]:
    """Returns the work of each placement that the devices with it have no time for.

    Args:
        work: device seconds a second asked of each placement.
        holders: devices that hold it.
        capacity: device seconds a second that each device has in all.
    """
    parts = {
        placement: dict.fromkeys(holders[placement], asked / max(len(holders[placement]), 1))
        for placement, asked in work.items()
    }
    loads = _loads(parts)
    for _ in range(_ROUNDS):
        for placement, mine in parts.items():
            spare = {name: mine[name] / max(loads[name], 1e-12) for name in mine}
            total = sum(spare.values())
            for name in mine:
                mine[name] = work[placement] * spare[name] / total if total else 0.0
        loads = _loads(parts)
    return {
        placement: asked
        - sum(
            part * min(1.0, capacity / max(loads[n], 1e-12)) for n, part in parts[placement].items()
        )
        for placement, asked in work.items()
    }


def _loads(parts: Mapping[Placement, Mapping[str, float]]) -> Mapping[str, float]:
    loads: Counter[str] = Counter()
    for mine in parts.values():
        loads.update(mine)  # a Counter adds floats as well
    return loads
