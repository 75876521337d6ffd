"""Loading ahead: when something is due, what it may displace, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from modelless.controller.control.messages import PlanEffect
from modelless.controller.control.planner import Planner
from modelless.controller.device.messages import LoadInstance
from modelless.policies.forecast.last_value import LastValue
from modelless.policies.reasons import Reason
from modelless.policies.views import ClusterView, WorkerState

from .test_planned_memory import OnDemandFor
from .test_planner import OTHER, A, B, D, Wants, held, load, planner, unload, view, worker

WAKES_S = 100.0
"""When ``other`` wakes, 4 queries a second unless a test says otherwise; its load takes 0.5 s."""


class Knows(LastValue):
    """Knows when ``other`` wakes and with how many queries a second; else what it is told."""

    def __init__(self, others: Mapping[str, float] | None = None, per_s: float = 4.0) -> None:
        super().__init__()
        self.others, self.per_s, self._now_s = others or {}, per_s, 0.0

    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        self._now_s = now_s

    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        return self.others

    def awakenings(self, horizon_s: float) -> Mapping[str, float]:
        awake_s = self._now_s + horizon_s - WAKES_S
        return {"other": max(self.per_s * awake_s, 1.0)} if awake_s > 0.0 else {}


def knowing(decides: Planner, forecaster: Knows) -> Planner:
    return Planner(decides.scaling, decides.placement, decides.eviction, forecaster, decides.limits)


def at(now_s: float, *workers: WorkerState) -> ClusterView:
    return replace(view(*workers), now_s=now_s)


def tick_after_a_burst(
    now_s: float, *workers: WorkerState, forecaster: Knows | None = None, wants: Wants | None = None
) -> list[PlanEffect]:
    """Plan at a time, ``other`` having been served 60 s before it wakes again."""
    decides = knowing(planner(wants or OnDemandFor()), forecaster or Knows())
    served = worker("w0", 100, held(OTHER, use_count=5, last_used_s=40.0))
    decides.tick(replace(at(40.0, served), arrivals_per_s={"other": 4.0}))
    return decides.tick(at(now_s, *workers))


AHEAD = LoadInstance("w0", OTHER, Reason.FORECAST, 10, "cpu-1")


def test_what_wakes_is_loaded_a_load_and_a_margin_before() -> None:
    empty = worker("w0", 10)
    assert tick_after_a_burst(90.0, empty) == []
    assert tick_after_a_burst(97.0, empty) == [AHEAD]


def test_two_that_served_a_scope_at_the_same_time_are_no_riddle() -> None:
    decides = knowing(planner(OnDemandFor()), Knows())
    both = [held(name, use_count=5, last_used_s=40.0) for name in (B, A)]
    decides.tick(replace(at(40.0, worker("w0", 100, *both)), arrivals_per_s={"t": 4.0}))
    assert decides.problems == []


def test_what_is_held_or_was_never_served_is_not() -> None:
    assert tick_after_a_burst(99.0, worker("w0", 100, held(OTHER))) == []
    never = knowing(planner(OnDemandFor()), Knows())
    assert never.tick(at(99.0, worker("w0", 10))) == []


def test_what_nobody_expects_leaves_for_it() -> None:
    old = worker("w0", 10, held(A, use_count=9, last_used_s=1.0))
    assert tick_after_a_burst(98.0, old) == [unload(A, for_variant_id=OTHER), AHEAD]


def test_what_is_worth_more_stays() -> None:
    in_use_lately = worker("w0", 10, held(A, use_count=9, last_used_s=98.0))
    assert tick_after_a_burst(98.0, in_use_lately, forecaster=Knows(per_s=1.0)) == []
    expected = worker("w0", 10, held(A))
    assert tick_after_a_burst(98.0, expected, forecaster=Knows({"t": 40.0})) == []


def test_what_others_stand_in_for_may_leave() -> None:
    """The model's only one, but nobody asks for the model: the task has another."""
    pair = worker("w0", 20, held(A), held(B))
    effects = tick_after_a_burst(98.0, pair, forecaster=Knows({"t": 40.0}))
    assert effects[-1] == AHEAD
    assert len(effects) == 2


def test_the_precious_are_passed_over_for_the_worthless() -> None:
    both = worker("w0", 20, held(A, last_used_s=1.0), held(D, last_used_s=98.0))
    effects = tick_after_a_burst(98.0, both, forecaster=Knows({"t/a": 40.0}))
    assert effects == [unload(D, for_variant_id=OTHER), AHEAD]


def test_nothing_in_use_or_pinned_leaves_and_no_loader_is_kept_from_what_is_asked_for() -> None:
    for changes in ({"use_count": 1, "in_use": True}, {"pinned": True}, {"in_use": True}):
        assert tick_after_a_burst(98.0, worker("w0", 10, held(A, **changes))) == []
    assert tick_after_a_burst(98.0, worker("w0", 100, held(A, in_use=True))) == []


def test_what_is_due_stays_unless_more_queries_wait_for_another() -> None:
    due = worker("w0", 10, held(OTHER, use_count=5, last_used_s=40.0))
    assert tick_after_a_burst(99.0, due, wants=OnDemandFor(A)) == []
    decides = knowing(planner(OnDemandFor(A)), Knows())
    asked = replace(at(99.0, due), unmet_per_s={"t": 50.0}, open_queries={"t": 50})
    assert decides.tick(asked)[0] == unload(OTHER, for_variant_id=A)


def test_a_plan_that_says_what_is_held_is_left_alone() -> None:
    assert tick_after_a_burst(98.0, worker("w0", 10), wants=Wants()) == []
    assert tick_after_a_burst(98.0, worker("w0", 10), wants=Wants(A)) == [load(A)]


def test_a_forecaster_that_fails_is_done_without() -> None:
    class Fails(Knows):
        def awakenings(self, horizon_s: float) -> Mapping[str, float]:
            raise RuntimeError("no idea")

    decides = knowing(planner(OnDemandFor(A)), Fails())
    assert decides.tick(at(98.0, worker("w0", 10))) == [load(A)]
    (problem,) = decides.problems
    assert problem.endswith("Fails raised RuntimeError: no idea")
