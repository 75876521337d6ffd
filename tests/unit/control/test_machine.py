"""The control machine: events in, effects out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from modelless.controller.control.machine import DEFAULT_TIMES, Control
from modelless.controller.control.messages import (
    CallMember,
    ControlEffect,
    FactsChanged,
    ForgetMember,
    KeepEvidence,
    MemberLeft,
    MemberReport,
    MemberReported,
    NoteHistory,
    PinsChanged,
    PromoteVersion,
    Replica,
    ReviseAccuracies,
    RollBackVersion,
    ScalePool,
    Tick,
    VersionsChanged,
    WakeAt,
)
from modelless.controller.control.pool_moves import PlanLimits
from modelless.controller.control.pools import GATEWAYS
from modelless.controller.control.preload import Preloading
from modelless.controller.control.served_versions import Service
from modelless.controller.device.messages import LoadInstance, ResizeWorker, UnloadInstance
from modelless.controller.dispatch.trials import ArmCounts, FeedbackCounts, TrialCounts
from modelless.policies.reasons import Reason
from modelless.policies.scaling.unserved_demand import UnservedDemand
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Instance, Pool, Targets, WorkerState
from modelless.variants.registry.versions import Line, Trial, TrialRules
from tests.unit.dispatch.world import CPU

from .test_planner import A, B, Wants, facts, planner

SETTLED_S = 100.0
EPOCH_S = 1e9
NAME = A.partition("@")[0]
TRIAL = Trial(NAME, 2, 1, 0.2, 7, EPOCH_S, TrialRules(accuracy_tolerance=0.02))
ON_TRIAL = Service("b", {NAME: Line(NAME, 1, trial=TRIAL)})


def control(scaling: ScalingPolicy | None = None, most: int = 3) -> Control:
    """A machine that began at 0 s, with a pool of up to ``most`` workers."""
    pool = Pool("cpu-1", ("cpu-1",), 0, most, None, 6.0)
    planned = planner(scaling or Wants(), limits=PlanLimits.of([pool]))
    machine = Control(planned, [pool], {"cpu-1": 1}, 0.0)
    machine.handle(FactsChanged(facts({f"{NAME}@2": 10.0}), {"cpu-1": CPU}), 0.0)
    return machine


def worker(name: str, *held: str, memory_bytes: int = 100, **more: Any) -> MemberReported:
    instances = tuple(Instance(name, each, 10, 0.5, 0.0, 0) for each in held)
    state = WorkerState(name, "cpu-1", memory_bytes, instances)
    return MemberReported(MemberReport(name, False, state, pool="cpu-1", **more))


def gateway(**more: Any) -> MemberReported:
    return MemberReported(MemberReport("g", True, None, **more))


def tick(machine: Control, now_s: float, *reports: MemberReported) -> list[ControlEffect]:
    """The effects of a tick after the reports; without what goes into the history."""
    for report in reports:
        machine.handle(report, now_s)
    effects = machine.handle(Tick(), now_s)
    return [each for each in effects if not isinstance(each, NoteHistory)]


def loads(effects: Iterable[ControlEffect]) -> list[tuple[str, str, Reason]]:
    return [tuple(each)[:3] for each in effects if isinstance(each, LoadInstance)]


class TestTicks:
    def test_a_new_member_and_a_second_that_has_passed_are_decided_on_at_once(self) -> None:
        machine = control()
        assert machine.handle(gateway(), 1.0) == [WakeAt(1.0)]
        tick(machine, 1.0)
        assert machine.handle(gateway(), 1.9) == []
        assert machine.handle(gateway(), 2.0) == [WakeAt(2.0)]

    def test_an_urgent_report_is_decided_on_as_soon_as_the_last_tick_allows(self) -> None:
        machine = control()
        tick(machine, 1.0, gateway())
        early_s = 1.0 + DEFAULT_TIMES.early_tick_s
        assert machine.handle(gateway(is_urgent=True), 1.01) == [WakeAt(early_s)]
        assert machine.handle(gateway(is_urgent=True), 1.5) == [WakeAt(1.5)]

    def test_a_query_that_waits_is_loaded_for(self) -> None:
        machine = control(UnservedDemand())
        counted = {"arrivals": {A: 1}, "unmet": {A: 1}, "kinds": {(A, 10.0, 0.0): (1, 1)}}
        waiting = gateway(interval_s=0.05, queued=1, is_urgent=True, **counted)
        effects = tick(machine, 1.0, worker("w"), waiting)
        assert loads(effects) == [("w", A, Reason.DEMAND)]

    def test_a_query_that_waits_is_loaded_for_though_the_report_of_its_arrival_was_lost(
        self,
    ) -> None:
        machine = control(UnservedDemand())
        waiting = gateway(interval_s=1.0, queued=1, held={(A, 10.0, 0.0): (1, 1)})
        assert loads(tick(machine, 1.0, worker("w"), waiting)) == [("w", A, Reason.DEMAND)]
        assert loads(tick(machine, 2.0, worker("w"), waiting)) == [("w", A, Reason.DEMAND)]
        assert loads(tick(machine, 3.0, worker("w", A), worker("v"), waiting)) == []

    def test_of_the_demand_policies_see_how_much_came_before_and_waits(self) -> None:
        class Looks(Wants):
            def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
                views.append(view)
                return super().targets(view, forecast_per_s)

        views: list[ClusterView] = []
        machine = control(Looks())
        came = {"kinds": {(A, 10.0, 0.0): (1, 1)}, "arrivals": {A: 1}}
        waits = {"interval_s": 1.0, "queued": 1, "held": {(A, 10.0, 0.0): (2, 2)}}
        for now_s, more in ((1.0, came), (2.0, {})):
            tick(machine, now_s, worker("w"), gateway(**waits, **more))
        seen = [[(d.rate_per_s, d.waiting_per_s) for d in view.demands] for view in views]
        assert seen[-2:] == [[(2.0, 1.0)], [(2.0, 2.0)]]

    def test_what_only_another_gateway_holds_is_loaded_for_a_query_that_waits(self) -> None:
        def with_device(name: str, *held: str, **more: Any) -> MemberReported:
            instances = tuple(Instance(name, each, 10, 0.5, 0.0, 0) for each in held)
            state = WorkerState(name, "cpu-1", 100, instances)
            return MemberReported(MemberReport(name, True, state, pool=GATEWAYS, **more))

        machine = control(UnservedDemand())
        waiting = with_device("g", interval_s=1.0, queued=1, held={(A, 10.0, 0.0): (1, 1)})
        effects = tick(machine, 1.0, with_device("h", A), waiting)
        assert [each[:2] for each in loads(effects)] == [("g", A)]
        began = with_device("g", A, interval_s=1.0, queued=1, held={(A, 10.0, 0.0): (1, 1)})
        assert loads(tick(machine, 2.0, with_device("h", A), began)) == []

    def test_what_is_pinned_gives_no_room_until_it_is_unpinned(self) -> None:
        machine = control(Wants(B))
        full = worker("w", A, memory_bytes=15)
        assert machine.handle(PinsChanged(("t/a",)), 1.0) == []
        tick(machine, 6.0, full)
        assert loads(tick(machine, 7.0, full)) == []
        machine.handle(PinsChanged(()), 7.5)
        assert loads(tick(machine, 8.0, full)) == [("w", B, Reason.WANTED)]

    def test_what_is_pinned_is_loaded(self) -> None:
        machine = control(Preloading(Wants(), []))
        machine.handle(PinsChanged((A,)), 1.0)
        assert [each[:2] for each in loads(tick(machine, 2.0, worker("w")))] == [("w", A)]

    def test_a_waiting_gateway_is_called_when_a_worker_holds_something_else(self) -> None:
        machine = control()
        tick(machine, 1.0, worker("w"), gateway(queued=1))
        assert machine.handle(worker("w", A), 1.1) == [CallMember("g")]
        assert machine.handle(worker("w", A), 1.2) == []
        machine.handle(gateway(), 1.3)
        assert machine.handle(worker("w"), 1.4) == []


class TestMembers:
    def test_a_silent_member_is_forgotten(self) -> None:
        machine = control()
        tick(machine, 1.0, worker("v"), worker("w"))
        for second in range(2, 7):
            assert ForgetMember("v") not in tick(machine, float(second), worker("w"))
        assert ForgetMember("v") in tick(machine, 7.0, worker("w"))
        assert [report.member_id for report in machine.reports] == ["w"]

    def test_nobody_is_forgotten_right_after_nobody_was_heard(self) -> None:
        machine = control()
        tick(machine, 1.0, worker("v"), worker("w"))
        assert tick(machine, 60.0, worker("w")) == []  # the machine stood still
        assert tick(machine, 61.0, worker("w")) == []
        assert tick(machine, 62.5, worker("w")) == [ForgetMember("v")]

    def test_a_member_that_left_is_in_no_directory_and_not_lost(self) -> None:
        machine = control()
        tick(machine, 1.0, worker("v"), worker("w", A))
        machine.handle(MemberLeft(MemberReport("v", False, None)), 1.5)
        assert [each.worker_id for each in machine.directory] == ["w"]
        (note,) = [each for each in machine.handle(Tick(), 2.0) if isinstance(each, NoteHistory)]
        assert [(e.kind, e.subject, e.reason) for e in note.entries] == [
            ("worker-gone", "v", "left in good order")
        ]

    def test_a_starting_replica_loads_what_its_predecessor_serves(self) -> None:
        machine = control()
        old = worker("a", A, replica=Replica("1", "first", 1.0))
        new = Replica("2", "second", 2.0, is_starting=True)
        effects = tick(machine, SETTLED_S, old, worker("x", replica=new))
        assert loads(effects) == [("x", A, Reason.SUCCESSION)]
        assert machine.succession("x") == ("a", (A,))
        machine.handle(worker("x", A, replica=new), SETTLED_S)
        assert machine.succession("x") == ("a", ())
        assert machine.succession("a") == ("", ())


class TestScaling:
    def test_a_pool_is_scaled_once_and_again_after_a_while(self) -> None:
        machine = control(Wants(workers={"cpu-1": 2}))
        assert tick(machine, SETTLED_S, worker("w")) == [ScalePool("cpu-1", 2, Reason.FIXED_SIZE)]
        assert not machine.is_at_rest
        assert tick(machine, SETTLED_S + 1.0, worker("w")) == []
        again_s = SETTLED_S + DEFAULT_TIMES.cooldown_s
        assert tick(machine, again_s, worker("w")) == [ScalePool("cpu-1", 2, Reason.FIXED_SIZE)]

    def test_a_machine_that_began_just_now_decides_nothing_that_it_may_regret(self) -> None:
        def decided(now_s: float) -> list[ControlEffect]:
            machine = control(Wants(A, workers={"cpu-1": 0}))
            return tick(machine, now_s, worker("w", B, memory_bytes=15))

        assert decided(DEFAULT_TIMES.settle_s - 0.1) == []
        assert decided(DEFAULT_TIMES.settle_s) == [
            ScalePool("cpu-1", 0, Reason.FIXED_SIZE),
            UnloadInstance("w", B, Reason.ROOM_NEEDED, A),
            LoadInstance("w", A, Reason.WANTED, 10, "cpu-1"),
        ]

    def test_a_resize_names_the_size_of_what_may_be_ready_when_it_arrives(self) -> None:
        machine = control(Wants(workers={"cpu-1": 1, "cpu-2": 0}))
        classes = {name: replace(CPU, name=name) for name in ("cpu-1", "cpu-2")}
        known = facts({f"{NAME}@2": 20.0})
        machine.handle(FactsChanged(known, classes), 0.0)
        large = MemberReport("w", False, WorkerState("w", "cpu-2", 100, ()), pool="cpu-1")
        effects = tick(machine, SETTLED_S, MemberReported(large))
        (resize,) = [each for each in effects if isinstance(each, ResizeWorker)]
        assert resize.memory_bytes == {
            each.variant_id: each.memory_bytes["cpu-1"] for each in known
        }

    def test_a_load_into_free_memory_does_not_wait(self) -> None:
        assert loads(tick(control(Wants(A)), 0.0, worker("w"))) == [("w", A, Reason.WANTED)]

    def test_nothing_is_unloaded_or_scaled_while_replicas_are_replaced(self) -> None:
        machine = control(Wants(workers={"cpu-1": 0}))
        old, new = Replica("1", "first", 1.0), Replica("2", "second", 2.0)
        both = worker("a", replica=old), worker("x", replica=new)
        assert tick(machine, SETTLED_S, *both) == []
        alone = worker("a", replica=new)
        assert tick(machine, SETTLED_S + 1.0, alone, both[1]) == [
            ScalePool("cpu-1", 0, Reason.FIXED_SIZE)
        ]


def counts(wrong: int) -> TrialCounts:
    of_each: dict[str, Any] = {"latencies": {40: 20_000}, "answered": 20_000, "labelled": 20_000}
    tried, standing = (ArmCounts(20_000, **of_each, wrong=each) for each in (wrong, 2000))
    return TrialCounts(TRIAL.number, tried, standing)


def on_trial() -> Control:
    machine = control()
    machine.handle(VersionsChanged(ON_TRIAL, {}, EPOCH_S), 0.0)
    return machine


class TestTrials:
    @pytest.mark.parametrize(("wrong", "end"), [(3600, RollBackVersion), (2000, PromoteVersion)])
    def test_a_trial_ends_by_its_evidence(self, wrong: int, end: type) -> None:
        machine = on_trial()
        for _ in range(2):  # the first report sets what counts as slow
            machine.handle(gateway(trials=(counts(wrong),)), 0.5)
        (ended,) = [each for each in tick(machine, 1.0) if not isinstance(each, KeepEvidence)]
        assert type(ended) is end
        assert ended.trial == TRIAL
        assert ended.figures["queries"] == {"tried": 40_000, "standing": 40_000}
        assert tick(machine, 2.0) == [ended], "until the store has it"
        machine.handle(VersionsChanged(Service("c", {NAME: Line(NAME, 2, (1,))}), {}, EPOCH_S), 2.5)
        assert tick(machine, 9.0, worker("w", f"{NAME}@2")) == []
        assert machine.trials_status(9.0) == []

    def test_a_version_that_cannot_be_loaded_is_rolled_back(self) -> None:
        machine = on_trial()
        broken = worker("w", failed_loads={f"{NAME}@2": "its graph is broken"})
        ended = [each for each in tick(machine, 1.0, broken) if isinstance(each, RollBackVersion)]
        assert [each.reason for each in ended] == ["it could not be loaded: its graph is broken"]

    def test_a_trial_that_takes_too_long_is_rolled_back(self) -> None:
        machine = on_trial()
        late_s = TRIAL.rules.max_s
        assert not [e for e in tick(machine, late_s - 1.0) if isinstance(e, RollBackVersion)]
        assert [e for e in tick(machine, late_s) if isinstance(e, RollBackVersion)]

    def test_a_machine_that_starts_anew_goes_on_with_the_evidence(self) -> None:
        machine = on_trial()
        machine.handle(gateway(trials=(counts(2000),)), 0.5)
        (kept,) = [each for each in tick(machine, 1.0) if isinstance(each, KeepEvidence)]
        assert kept not in tick(machine, 2.0)
        second = control()
        told = {TRIAL.number: kept.evidence}
        second.handle(VersionsChanged(ON_TRIAL, told, EPOCH_S), 0.0)
        (status,) = second.trials_status(0.0)
        assert status["queries"] == {"tried": 20_000, "standing": 20_000}

    def test_counts_of_a_trial_that_is_over_are_dropped(self) -> None:
        machine = on_trial()
        machine.handle(VersionsChanged(Service("c", {NAME: Line(NAME, 1)}), {}, EPOCH_S), 0.5)
        assert tick(machine, 1.0, gateway(trials=(counts(20_000),))) == []

    def test_the_version_on_trial_is_loaded_where_its_variant_is(self) -> None:
        machine = on_trial()
        effects = tick(machine, SETTLED_S, worker("v", B), worker("w", A))
        assert loads(effects) == [("w", f"{NAME}@2", Reason.ON_TRIAL)]

    def test_a_version_that_was_taken_back_is_unloaded(self) -> None:
        machine = control()
        machine.handle(VersionsChanged(Service("c", {NAME: Line(NAME, 1)}), {}, EPOCH_S), 0.0)
        effects = tick(machine, SETTLED_S, worker("w", A, f"{NAME}@2"))
        assert effects == [UnloadInstance("w", f"{NAME}@2", Reason.WITHDRAWN)]


def test_the_same_events_have_the_same_effects() -> None:
    def effects() -> list[list[ControlEffect]]:
        machine = control(Wants(A, B, workers={"cpu-1": 2}))
        events = [
            VersionsChanged(ON_TRIAL, {}, EPOCH_S),
            worker("v", A),
            gateway(queued=1, trials=(counts(3600),)),
            Tick(),
            worker("w"),
            MemberLeft(MemberReport("v", False, None)),
            Tick(),
        ]
        return [machine.handle(event, SETTLED_S + n) for n, event in enumerate(events)]

    assert effects() == effects()
    assert any(effects())


class TestFeedback:
    def test_a_variant_that_feedback_demotes_is_planned_for_with_what_it_counts_for(self) -> None:
        machine = control()
        told = replace_accuracies({A: 95.0})
        machine.handle(told, 0.0)
        wrong = (FeedbackCounts(A, "", 50.0, 50.0),)
        machine.handle(gateway(feedback=wrong), 0.5)
        effects = machine.handle(Tick(), 1.0)
        (revised,) = [each for each in effects if isinstance(each, ReviseAccuracies)]
        assert revised.percent == {A: machine.feedback.demoted[A]}
        (entry,) = [
            entry
            for each in effects if isinstance(each, NoteHistory)
            for entry in each.entries if entry.kind == "accuracy-demoted"
        ]  # fmt: skip
        assert entry.subject == A
        planned = {each.variant_id: each.accuracy_percent for each in machine._current}
        assert planned[A] == revised.percent[A] < 50.0
        assert not [e for e in tick(machine, 2.0) if isinstance(e, ReviseAccuracies)]

        later = control()  # takes up what is kept, and tells the gateways at once
        kept = told._replace(feedback=machine.feedback.documents())
        assert later.handle(kept, 0.0) == [revised]
        assert later.handle(told._replace(stated_low_percent={}), 1.0) == [ReviseAccuracies({})]


def replace_accuracies(stated_low_percent: dict[str, float]) -> FactsChanged:
    known = facts({f"{NAME}@2": 10.0})
    return FactsChanged(known, {"cpu-1": CPU}, stated_low_percent=stated_low_percent)
