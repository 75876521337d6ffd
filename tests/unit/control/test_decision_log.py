"""The decision log: each decision and its outcome once, with reasons and costs."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

from modelless.controller.control.decision_log import DecisionLog
from modelless.controller.control.messages import EntryKind, Planned, ScalePool
from modelless.controller.device.messages import ChangeKind, ResidencyChange, ResizeWorker
from modelless.policies.plan_quality import PlanQuality, PlanSource
from modelless.policies.reasons import Reason

from .test_planner import A, B, Wants, held, load, planner, unload, view, worker


def change(kind: ChangeKind, variant_id: str, **facts: Any) -> ResidencyChange:
    return ResidencyChange(0.0, "w0", kind, variant_id, facts.pop("reason", Reason.WANTED), **facts)


def test_an_eviction_names_its_reason_for_whom_and_its_cost() -> None:
    log = DecisionLog()
    empty = view(worker("w0", 15))
    first = log.entries(empty, [load(A)])
    assert [(e.kind, e.subject, e.reason) for e in first] == [
        (EntryKind.CONTROL_UP, "control", "began"),
        (EntryKind.WORKER_UP, "w0", "reported"),
        (EntryKind.LOAD, A, "wanted"),
    ]
    full = view(worker("w0", 15, held(A, last_used_s=88.0, use_count=7)), unmet={"t": 2.0})
    effects = planner(Wants(B)).tick(full)
    assert effects == [unload(A, B), load(B)]
    took = change(ChangeKind.LOADED, A, seconds=0.5, memory_bytes=10)
    loaded, gone, came = log.entries(full, effects, [took])
    assert (loaded.kind, loaded.subject, loaded.reason) == (EntryKind.LOADED, A, "wanted")
    assert loaded.details["load_s"] == 0.5
    assert loaded.details["memory_bytes"] == 10
    assert (gone.kind, gone.subject, gone.reason) == (EntryKind.UNLOAD, A, "room-needed")
    assert gone.details == {
        "worker": "w0",
        "device_class": "cpu-1",
        "for": B,
        "memory_bytes": 10,
        "load_s": 0.5,
        "unused_s": 12.0,
        "use_count": 7,
    }
    assert (came.kind, came.subject) == (EntryKind.LOAD, B)
    assert came.details["displaced"] == [A]
    assert came.details["unmet_per_s"] == 2.0


def test_a_decision_repeated_until_it_comes_true_is_one_entry() -> None:
    log = DecisionLog()
    empty = view(worker("w0", 15))
    assert len(log.entries(empty, [load(A)])) == 3
    assert log.entries(empty, [load(A)]) == []
    loading = view(worker("w0", 15, held(A, memory_bytes=0)))
    assert log.entries(loading, []) == []
    assert log.entries(view(worker("w0", 15, held(A))), []) == []
    assert [e.kind for e in log.entries(empty, [load(A)])] == [EntryKind.LOAD]


def test_a_load_says_what_left_for_it_and_an_unload_for_whom() -> None:
    log = DecisionLog()
    log.entries(view(worker("w0", 15, held(A))), [])
    left = change(ChangeKind.UNLOADED, A, reason=Reason.ROOM_NEEDED, for_variant_id=B)
    came = change(ChangeKind.LOADED, B, reason=Reason.DEMAND, displaced=(A,))
    gone, loaded = log.entries(view(worker("w0", 15, held(B))), [], [left, came])
    assert (gone.kind, gone.subject, gone.reason) == (EntryKind.UNLOADED, A, "room-needed")
    assert gone.details["for"] == B
    assert (loaded.kind, loaded.subject, loaded.reason) == (EntryKind.LOADED, B, "demand")
    assert loaded.details["displaced"] == [A]


def test_a_failed_load_is_log_once_until_it_fails_otherwise() -> None:
    log = DecisionLog()
    empty = view(worker("w0", 15))
    log.entries(empty, [load(A)])
    missing = change(ChangeKind.LOAD_FAILED, A, problem="no such file")
    (failed,) = log.entries(empty, [load(A)], [missing])
    assert (failed.kind, failed.subject, failed.reason) == (
        EntryKind.LOAD_FAILED,
        A,
        "no such file",
    )
    assert log.entries(empty, [load(A)], [missing]) == []
    (again,) = log.entries(
        empty, [load(A)], [change(ChangeKind.LOAD_FAILED, A, problem="bad hash")]
    )
    assert again.reason == "bad hash"


def test_scaling_is_log_when_its_aim_changes_with_what_was_seen() -> None:
    log = DecisionLog()
    busy = view(replace(worker("w0", 15), busy_share=0.9), arrivals={"t": 40.0})
    scale = ScalePool("cpu-1", 3, Reason.DEMAND)
    entry = log.entries(busy, [scale])[-1]
    assert (entry.kind, entry.subject, entry.reason) == (EntryKind.SCALE, "cpu-1", "demand")
    assert entry.details["workers_before"] == 1
    assert entry.details["workers"] == 3
    assert entry.details["busy_share"] == 0.9
    assert entry.details["arrivals_per_s"] == 40.0
    assert log.entries(busy, [scale]) == []
    assert log.entries(busy, [scale._replace(workers=4)])[0].details["workers"] == 4


def test_a_pools_size_is_that_of_its_own_workers() -> None:
    log = DecisionLog()
    gateway = replace(worker("g", 15), pool="gateways")
    seen = view(gateway, worker("w0", 15))
    scale = ScalePool("cpu-1", 2, Reason.DEMAND)
    entry = log.entries(seen, [scale])[-1]
    assert (entry.details["workers_before"], entry.details["workers"]) == (1, 2)


def test_a_resize_is_decided_and_comes_true_or_not() -> None:
    log = DecisionLog()
    small = worker("w0", 15, held(A))
    resize = ResizeWorker("w0", "cpu-2", Reason.DEMAND)
    decided = log.entries(view(small), [resize])[-1]
    assert (decided.kind, decided.subject, decided.reason) == (EntryKind.RESIZE, "w0", "demand")
    assert (decided.details["size_before"], decided.details["size"]) == ("cpu-1", "cpu-2")
    assert log.entries(view(small), [resize]) == []
    under_way = replace(small, resizing_to="cpu-2")
    assert log.entries(view(under_way), []) == []
    (failed,) = log.entries(view(small), [])
    assert (failed.kind, failed.details["size"]) == (EntryKind.RESIZE_FAILED, "cpu-2")
    log.entries(view(under_way), [resize])
    (resized,) = log.entries(view(replace(small, device_class="cpu-2", pool="cpu-1")), [])
    assert (resized.kind, resized.subject) == (EntryKind.RESIZED, "w0")
    assert resized.details == {"size_before": "cpu-1", "size": "cpu-2"}


def test_workers_that_go_and_policies_that_fail_are_log() -> None:
    log = DecisionLog()
    log.entries(view(worker("w0", 15, held(A))), [])
    (gone,) = log.entries(view(), [], [], ["Broken raised ValueError: no"])[:1]
    assert (gone.kind, gone.subject) == (EntryKind.WORKER_GONE, "w0")
    assert (gone.reason, gone.details["held"]) == ("silent for too long", [A])
    assert log.entries(view(), [], [], ["Broken raised ValueError: no"]) == []
    assert log.entries(view(), []) == []
    (problem,) = log.entries(view(), [], [], ["Broken raised ValueError: no"])
    assert (problem.kind, problem.subject) == (EntryKind.POLICY_PROBLEM, "Broken")


def test_who_says_goodbye_was_not_lost() -> None:
    log = DecisionLog()
    log.entries(view(worker("w0", 15, held(A)), worker("w1", 15)), [])
    log.note_goodbye("w0")
    log.note_goodbye("a gateway without a device")
    left, lost = log.entries(view(), [])
    assert (left.subject, left.reason) == ("w0", "left in good order")
    assert (lost.subject, lost.reason) == ("w1", "silent for too long")
    log.entries(view(worker("w0", 15)), [])
    assert log.entries(view(), [])[0].reason == "silent for too long"


def test_a_quarantine_is_log_when_it_begins_and_when_it_ends() -> None:
    log = DecisionLog()
    (began,) = log.quarantine_entries({("w0", "g1"): "slow"})
    assert began == (EntryKind.QUARANTINED, "w0", "slow", {"gateway": "g1"})
    (also,) = log.quarantine_entries({("w0", "g1"): "slower", ("w0", "g2"): "slow"})
    assert also.details == {"gateway": "g2"}
    (ended,) = log.quarantine_entries({("w0", "g2"): "slow"})
    assert ended == (EntryKind.QUARANTINE_ENDED, "w0", "slower", {"gateway": "g1"})


def test_how_good_a_plan_is_is_log_when_it_changes() -> None:
    log = DecisionLog()
    seen = view(worker("w0", 15), arrivals={"t": 40.0})
    optimal = Planned(Reason.OPTIMISED, PlanQuality(PlanSource.PROGRAM, 0.0))
    entry = log.entries(seen, [optimal])[-1]
    assert (entry.kind, entry.reason) == (EntryKind.PLAN, "optimised")
    assert entry.details["quality"] == "solved to optimality"
    assert entry.details["gap"] == 0.0
    assert log.entries(seen, [optimal]) == []
    (worse,) = log.entries(seen, [Planned(Reason.FALLBACK, PlanQuality(PlanSource.GREEDY, 0.04))])
    assert worse.details["quality"] == "greedy, within 4 % of the bound"
    (unknown,) = log.entries(seen, [Planned(Reason.FALLBACK, PlanQuality(PlanSource.GREEDY, nan))])
    assert unknown.details["gap"] is None
