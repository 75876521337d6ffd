"""On demand: loads a variant when a query comes that no loaded variant can serve.

This is what most model servers do (Clockwork, ModelMesh, serverless platforms): load on a miss, and
keep the variant until its room is needed. Combine it with an eviction policy, which decides what to
unload.
"""

from __future__ import annotations

from collections.abc import Mapping

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.demand_options import (
    ANYTHING,
    cheapest,
    count_loading,
    demands_of,
    options_of,
)
from modelless.policies.scopes import task_of
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets
from modelless.variants.vocabulary import Placement


class OnDemand(ScalingPolicy):
    """Loads the cheapest variant for each kind of query that nothing loaded can serve.

    Requests in vain come first, then the rest, each by rate. Loaded variants are not wanted, so
    they stay until something else needs their room; then all of them may be evicted, in the
    eviction policy's order. No replica is wanted, and the number of workers stays as it is.

    A worker loads one variant at a time, but its memory is assigned at once. If everything that is
    missing were wanted, instances that serve would be evicted for others that wait for their turn.
    So no more are wanted than can begin to load; the rest waits until it is requested again.

    Args:
        preload: whether to load the cheapest variant of every task before the first query comes.
        loads_per_worker: most loads under way at a time, per worker.
    """

    def __init__(self, preload: bool = True, loads_per_worker: float = 1.0) -> None:
        if not (isinstance(loads_per_worker, (int, float)) and loads_per_worker > 0.0):
            raise InvalidInputError.of("loads_per_worker", loads_per_worker, "a number above 0")
        self.preload = preload
        self.loads_per_worker = loads_per_worker
        self._was_asked = False

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        demands = demands_of(view)
        self._was_asked = self._was_asked or bool(demands)
        if self.preload and not self._was_asked:
            tasks = {variant.task for variant in view.variants}
            options = options_of(view, tasks)
            chosen = [cheapest(options[task], ANYTHING) for task in sorted(tasks)]
            return Targets(
                {option.placement: 1 for option in chosen if option is not None},
                {},
                Reason.DEMAND,
            )
        options = options_of(view, {task_of(demand.scope) for demand in demands})
        held = view.count_instances()
        wanted: dict[Placement, int] = {}
        most = self.loads_per_worker * len(view.workers) - count_loading(view)
        for demand in demands:
            if len(wanted) >= most:
                break
            mine = options[demand.scope]
            if any(option.placement in held and option.meets(demand) for option in mine):
                continue
            best = cheapest(mine, demand)
            if best is not None:
                held[best.placement] += 1  # and may serve further kinds, too
                wanted[best.placement] = 1
        return Targets(wanted, {}, Reason.DEMAND, on_demand=True)
