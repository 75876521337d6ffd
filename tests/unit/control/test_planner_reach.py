"""What a gateway's clients ask for in vain comes to its own device: it reaches no other's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from modelless.controller.device.messages import LoadInstance
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.reasons import Reason
from modelless.policies.views import ClusterView, Instance, Targets, WorkerState

from .test_planner import OTHER, A, B, Wants, facts, held, planner, unload, view, worker


def gateway(
    name: str,
    *instances: Instance,
    unmet: Mapping[str, float] | None = None,
    memory_bytes: int = 25,
) -> WorkerState:
    device = worker(name, memory_bytes, *instances)
    return replace(device, pool="gateways", unmet=unmet or {})


def fetch(variant_id: str) -> LoadInstance:
    return LoadInstance("w1", variant_id, Reason.DEMAND, 10, "cpu-1")


def test_what_another_gateway_holds_is_loaded_where_it_is_asked_for() -> None:
    seen = view(gateway("w0", held(A)), gateway("w1", unmet={"t": 0.0}))
    assert planner(Wants((A, 1))).tick(seen) == [fetch(A)]


def test_where_nobody_asks_a_task_comes_if_there_is_room() -> None:
    copy = LoadInstance("w1", A, Reason.ANOTHER_COPY, 10, "cpu-1")
    assert planner(Wants((A, 1))).tick(view(gateway("w0", held(A)), gateway("w1"))) == [copy]
    full = gateway("w1", held(OTHER), memory_bytes=15)
    assert planner(Wants((A, 1))).tick(view(gateway("w0", held(A)), full)) == []
    served = gateway("w1", held(B))
    assert planner(Wants((A, 1))).tick(view(gateway("w0", held(A)), served)) == []


def test_a_pool_s_worker_is_in_reach() -> None:
    seen = view(worker("p", 15, held(A)), gateway("w0"), gateway("w1", unmet={"t": 0.0}))
    assert planner(Wants((A, 1))).tick(seen) == []


def test_what_is_loading_there_already_is_waited_for() -> None:
    seen = view(
        gateway("w0", held(A), held(B)),
        gateway("w1", held(A, memory_bytes=0), unmet={"t": 0.0}),
    )
    assert planner(Wants((A, 2), (B, 1))).tick(seen) == []


def test_only_what_is_accurate_enough_comes() -> None:
    seen = view(gateway("w0", held(A), held(B)), gateway("w1", unmet={"t": 90.0}))
    assert planner(Wants((A, 1), (B, 1))).tick(seen) == []
    better = tuple(
        replace(each, accuracy_percent=95.0) if each.variant_id == B else each for each in facts()
    )
    assert planner(Wants((A, 1), (B, 1))).tick(replace(seen, variants=better)) == [fetch(B)]


def test_what_nobody_asks_for_leaves_for_it() -> None:
    full = gateway("w1", held(OTHER), unmet={"t": 0.0}, memory_bytes=15)
    effects = planner(Wants((A, 1))).tick(view(gateway("w0", held(A)), full))
    assert effects == [unload(OTHER, A, "w1"), fetch(A)]


def test_the_eviction_policy_cannot_decline_it() -> None:
    """It would count the other gateway's copy, which these clients do not reach."""

    class OnDemand(Wants):
        def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
            return replace(super().targets(view, forecast_per_s), on_demand=True)

    class Declines(LeastRecentlyUsed):
        def admits(
            self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView
        ) -> bool:
            return False

    full = gateway("w1", held(OTHER), unmet={"t": 0.0}, memory_bytes=15)
    effects = planner(OnDemand(), Declines()).tick(view(gateway("w0", held(A)), full))
    assert effects == [unload(OTHER, A, "w1"), fetch(A)]
