"""The planner and memory: measured figures, workers over their budget, loads that are declined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from modelless.controller.control.planned_memory import MeasuredMemory
from modelless.controller.device.messages import LoadInstance, UnloadInstance
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.reasons import Reason
from modelless.policies.views import ClusterView, Instance, Targets

from .test_planner import (
    OTHER,
    A,
    B,
    C,
    D,
    InOrder,
    Wants,
    held,
    load,
    planner,
    unload,
    view,
    worker,
)


class OnDemandFor(Wants):
    """Wants what a test says, as a policy does that loads on demand."""

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        return replace(super().targets(view, forecast_per_s), on_demand=True)


class Declines(LeastRecentlyUsed):
    """LRU that lets nothing in but what a test names."""

    def __init__(self, *admitted: str) -> None:
        self.admitted = admitted
        self.asked: list[tuple[Instance, tuple[Instance, ...]]] = []
        self.seen: list[float] = []

    def observe(self, view: ClusterView) -> None:
        self.seen.append(view.now_s)

    def admits(self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView) -> bool:
        self.asked.append((newcomer, tuple(victims)))
        return newcomer.variant_id in self.admitted


# -- measured, not declared -------------------------------------------------------------------


def test_a_measured_footprint_replaces_the_declared_one() -> None:
    """It is declared to take 10 and took 18: a worker with 15 left has no room for it."""
    full = worker("w0", 100, held(A, memory_bytes=18))
    effects = planner(Wants((A, 2))).tick(view(full, worker("w1", 15)))
    assert effects == []
    copy = LoadInstance("w1", A, Reason.ANOTHER_COPY, 18, "cpu-1")
    assert planner(Wants((A, 2))).tick(view(full, worker("w1", 18))) == [copy]


def test_it_is_remembered_after_it_has_left() -> None:
    decides = planner(Wants(A))
    decides.tick(view(worker("w0", 100, held(A, memory_bytes=18))))
    assert decides.tick(view(worker("w0", 15))) == []
    assert decides.tick(view(worker("w0", 18))) == [load(A, memory_bytes=18)]


def test_what_was_too_large_for_one_worker_does_not_come_back_for_what_it_takes_in_another() -> (
    None
):
    decides = planner(Wants((A, 2)))
    other = worker("w1", 100, held(A, memory_bytes=12))
    over = decides.tick(view(worker("w0", 15, held(A, memory_bytes=18)), other))
    assert over == [UnloadInstance("w0", A, Reason.OVER_BUDGET)]
    for _ in range(3):
        assert decides.tick(view(worker("w0", 15), other)) == []
    copy = LoadInstance("w2", A, Reason.ANOTHER_COPY, 12, "cpu-1")
    assert decides.tick(view(worker("w2", 15), other)) == [copy], (
        "of one that is gone it is not known"
    )


def test_of_several_workers_the_largest_figure_counts_and_what_still_loads_says_nothing() -> None:
    seen = view(
        worker("w0", 100, held(A, memory_bytes=12)),
        worker("w1", 100, held(A, memory_bytes=14, load_s=2.0)),
        worker("w2", 100, held(A, memory_bytes=0, in_use=True)),
    )
    (fact,) = [each for each in MeasuredMemory().apply_to(seen).variants if each.variant_id == A]
    assert fact.memory_bytes == {"cpu-1": 14}
    assert fact.load_s == {"cpu-1": 2.0}


def test_what_a_worker_took_before_it_was_resized_says_nothing_of_its_former_class() -> None:
    measured = MeasuredMemory()
    measured.apply_to(
        view(
            worker("w0", 100, held(A, memory_bytes=18)), worker("w1", 100, held(A, memory_bytes=12))
        )
    )
    resized = replace(worker("w0", 100, held(A, memory_bytes=20)), device_class="cpu-2")
    for _ in range(2):
        seen = measured.apply_to(view(resized, worker("w1", 100, held(A, memory_bytes=12))))
    (fact,) = [each for each in seen.variants if each.variant_id == A]
    assert fact.memory_bytes["cpu-1"] == 12


def test_a_view_that_says_what_was_measured_is_left_as_it_is() -> None:
    seen = view(worker("w0", 100, held(A)))
    assert MeasuredMemory().apply_to(seen) is seen


# -- over budget ------------------------------------------------------------------------------


def test_a_worker_over_its_budget_is_relieved_in_the_policys_order() -> None:
    over = worker("w0", 25, *(held(name) for name in (A, B, C)))
    effects = planner(Wants(), eviction=InOrder(B, A, C)).tick(view(over))
    assert effects == [UnloadInstance("w0", B, Reason.OVER_BUDGET)]


def test_spare_instances_leave_first_and_what_is_in_use_or_pinned_never_does() -> None:
    over = worker(
        "w0", 5, held(A, in_use=True), held(B, pinned=True), held(C), held(D), held(OTHER)
    )
    effects = planner(Wants(C), eviction=InOrder(C, OTHER, D, A, B)).tick(view(over))
    assert [(e.variant_id, e.reason) for e in effects] == [  # type: ignore[union-attr]
        (OTHER, Reason.OVER_BUDGET),
        (D, Reason.OVER_BUDGET),
        (C, Reason.OVER_BUDGET),
    ]


def test_what_is_too_large_for_the_budget_does_not_come_back() -> None:
    decides = planner(Wants(A))
    assert len(decides.tick(view(worker("w0", 10, held(A, memory_bytes=18))))) == 1
    assert decides.tick(view(worker("w0", 10))) == []


# -- loads on demand --------------------------------------------------------------------------


def test_a_load_on_demand_may_be_declined() -> None:
    eviction = Declines()
    decides = planner(OnDemandFor(A), eviction=eviction)
    assert decides.tick(view(worker("w0", 10, held(OTHER)), unmet={"t": 1.0})) == []
    assert decides.declined == [A]
    newcomer, victims = eviction.asked[0]
    assert (newcomer.variant_id, newcomer.memory_bytes, newcomer.load_s) == (A, 10, 0.5)
    assert [victim.variant_id for victim in victims] == [OTHER]


def test_what_is_declined_stands_in_nobodys_way() -> None:
    decides = planner(OnDemandFor(A, B), eviction=Declines(B))
    effects = decides.tick(view(worker("w0", 10, held(OTHER))))
    assert effects == [unload(OTHER, B), load(B)]


def test_what_is_declined_on_one_worker_may_be_let_in_on_another() -> None:
    class DeclinesOn(Declines):
        def admits(self, newcomer: Instance, *_: object) -> bool:
            return newcomer.worker_id == "w1"

    decides = planner(OnDemandFor(A), eviction=DeclinesOn())
    workers = worker("w0", 10, held(OTHER)), worker("w1", 10, held(OTHER))
    assert decides.tick(view(*workers)) == [unload(OTHER, A, "w1"), load(A, "w1")]
    assert decides.declined == []


def test_nobody_is_asked_where_there_is_room_or_where_it_was_planned() -> None:
    eviction = Declines()
    assert planner(OnDemandFor(A), eviction=eviction).tick(view(worker("w0", 10))) == [load(A)]
    planned = planner(Wants(A), eviction=eviction).tick(view(worker("w0", 10, held(OTHER))))
    assert planned == [unload(OTHER, A), load(A)]
    assert eviction.asked == []


def test_a_policy_that_fails_to_say_admits() -> None:
    class Fails(Declines):
        def admits(self, *_: object) -> bool:
            raise ZeroDivisionError

    decides = planner(OnDemandFor(A), eviction=Fails())
    assert decides.tick(view(worker("w0", 10, held(OTHER)))) == [unload(OTHER, A), load(A)]
    assert "raised ZeroDivisionError" in decides.problems[0]


def test_every_view_is_shown_once() -> None:
    eviction = Declines()
    decides = planner(Wants(A), eviction=eviction)
    for second in range(3):
        decides.tick(replace(view(worker("w0", 10)), now_s=float(second)))
    assert eviction.seen == [0.0, 1.0, 2.0]


def test_fifty_cold_queries_cause_one_load() -> None:
    """Asked for in vain, then loading, then there: one order in all."""
    decides = planner(OnDemandFor(A))
    orders = decides.tick(view(worker("w0", 10), unmet={"t": 50.0}))
    assert orders == [LoadInstance("w0", A, Reason.DEMAND, 10, "cpu-1")]
    loading = held(A, memory_bytes=0, in_use=True)
    for _ in range(5):
        assert decides.tick(view(worker("w0", 10, loading), unmet={"t": 50.0})) == []
    assert decides.tick(view(worker("w0", 10, held(A)))) == []
