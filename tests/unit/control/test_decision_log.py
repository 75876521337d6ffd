"""The chronicle: each decision told once, and what came of it, with reasons and costs."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

from modelless.controller.control.decision_log import Chronicle, EntryKind
from modelless.controller.device.messages import ChangeKind, ResidencyChange
from modelless.controller.effects import Planned, ResizeWorker, ScalePool
from modelless.policies.plan_quality import PlanQuality, PlanSource
from modelless.policies.reasons import Reason

from .test_planner import A, B, Wants, held, load, planner, unload, view, worker


def change(kind: ChangeKind, variant_id: str, **facts: Any) -> ResidencyChange:
    return ResidencyChange(0.0, "w0", kind, variant_id, facts.pop("reason", Reason.WANTED), **facts)


def test_an_eviction_names_its_reason_for_whom_and_its_cost() -> None:
    told = Chronicle()
    empty = view(worker("w0", 15))
    first = told.tick(empty, [load(A)])
    assert [(e.kind, e.subject, e.reason) for e in first] == [
        (EntryKind.CONTROL_UP, "control", "began"),
        (EntryKind.WORKER_UP, "w0", "reported"),
        (EntryKind.LOAD, A, "wanted"),
    ]
    full = view(worker("w0", 15, held(A, last_used_s=88.0, use_count=7)), unmet={"t": 2.0})
    effects = planner(Wants(B)).tick(full)
    assert effects == [unload(A, B), load(B)]
    took = change(ChangeKind.LOADED, A, seconds=0.5, memory_bytes=10)
    loaded, gone, came = told.tick(full, effects, [took])
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
    told = Chronicle()
    empty = view(worker("w0", 15))
    assert len(told.tick(empty, [load(A)])) == 3
    assert told.tick(empty, [load(A)]) == []
    loading = view(worker("w0", 15, held(A, memory_bytes=0)))
    assert told.tick(loading, []) == []
    assert told.tick(view(worker("w0", 15, held(A))), []) == []
    assert [e.kind for e in told.tick(empty, [load(A)])] == [EntryKind.LOAD]


def test_a_load_says_what_left_for_it_and_an_unload_for_whom() -> None:
    told = Chronicle()
    told.tick(view(worker("w0", 15, held(A))), [])
    left = change(ChangeKind.UNLOADED, A, reason=Reason.ROOM_NEEDED, for_variant_id=B)
    came = change(ChangeKind.LOADED, B, reason=Reason.DEMAND, displaced=(A,))
    gone, loaded = told.tick(view(worker("w0", 15, held(B))), [], [left, came])
    assert (gone.kind, gone.subject, gone.reason) == (EntryKind.UNLOADED, A, "room-needed")
    assert gone.details["for"] == B
    assert (loaded.kind, loaded.subject, loaded.reason) == (EntryKind.LOADED, B, "demand")
    assert loaded.details["displaced"] == [A]


def test_a_failed_load_is_told_once_until_it_fails_otherwise() -> None:
    told = Chronicle()
    empty = view(worker("w0", 15))
    told.tick(empty, [load(A)])
    missing = change(ChangeKind.LOAD_FAILED, A, problem="no such file")
    (failed,) = told.tick(empty, [load(A)], [missing])
    assert (failed.kind, failed.subject, failed.reason) == (
        EntryKind.LOAD_FAILED,
        A,
        "no such file",
    )
    assert told.tick(empty, [load(A)], [missing]) == []
    (again,) = told.tick(empty, [load(A)], [change(ChangeKind.LOAD_FAILED, A, problem="bad hash")])
    assert again.reason == "bad hash"


def test_scaling_is_told_when_its_aim_changes_with_what_was_seen() -> None:
    told = Chronicle()
    busy = view(replace(worker("w0", 15), busy_share=0.9), arrivals={"t": 40.0})
    scale = ScalePool("cpu-1", 3, Reason.DEMAND)
    entry = told.tick(busy, [scale])[-1]
    assert (entry.kind, entry.subject, entry.reason) == (EntryKind.SCALE, "cpu-1", "demand")
    assert entry.details["workers_before"] == 1
    assert entry.details["workers"] == 3
    assert entry.details["busy_share"] == 0.9
    assert entry.details["arrivals_per_s"] == 40.0
    assert told.tick(busy, [scale]) == []
    assert told.tick(busy, [scale._replace(workers=4)])[0].details["workers"] == 4


def test_a_pools_size_is_that_of_its_own_workers() -> None:
    told = Chronicle()
    gateway = replace(worker("g", 15), pool="gateways")
    seen = view(gateway, worker("w0", 15))
    scale = ScalePool("cpu-1", 2, Reason.DEMAND)
    entry = told.tick(seen, [scale])[-1]
    assert (entry.details["workers_before"], entry.details["workers"]) == (1, 2)


def test_a_resize_is_decided_and_comes_true_or_not() -> None:
    told = Chronicle()
    small = worker("w0", 15, held(A))
    resize = ResizeWorker("w0", "cpu-2", Reason.DEMAND)
    decided = told.tick(view(small), [resize])[-1]
    assert (decided.kind, decided.subject, decided.reason) == (EntryKind.RESIZE, "w0", "demand")
    assert (decided.details["size_before"], decided.details["size"]) == ("cpu-1", "cpu-2")
    assert told.tick(view(small), [resize]) == []
    under_way = replace(small, resizing_to="cpu-2")
    assert told.tick(view(under_way), []) == []
    (failed,) = told.tick(view(small), [])
    assert (failed.kind, failed.details["size"]) == (EntryKind.RESIZE_FAILED, "cpu-2")
    told.tick(view(under_way), [resize])
    (resized,) = told.tick(view(replace(small, device_class="cpu-2", pool="cpu-1")), [])
    assert (resized.kind, resized.subject) == (EntryKind.RESIZED, "w0")
    assert resized.details == {"size_before": "cpu-1", "size": "cpu-2"}


def test_workers_that_go_and_policies_that_fail_are_told() -> None:
    told = Chronicle()
    told.tick(view(worker("w0", 15, held(A))), [])
    (gone,) = told.tick(view(), [], [], ["Broken raised ValueError: no"])[:1]
    assert (gone.kind, gone.subject) == (EntryKind.WORKER_GONE, "w0")
    assert (gone.reason, gone.details["held"]) == ("silent for too long", [A])
    assert told.tick(view(), [], [], ["Broken raised ValueError: no"]) == []
    assert told.tick(view(), []) == []
    (problem,) = told.tick(view(), [], [], ["Broken raised ValueError: no"])
    assert (problem.kind, problem.subject) == (EntryKind.POLICY_PROBLEM, "Broken")


def test_who_says_goodbye_was_not_lost() -> None:
    told = Chronicle()
    told.tick(view(worker("w0", 15, held(A)), worker("w1", 15)), [])
    told.left("w0")
    told.left("a gateway without a device")
    left, lost = told.tick(view(), [])
    assert (left.subject, left.reason) == ("w0", "left in good order")
    assert (lost.subject, lost.reason) == ("w1", "silent for too long")
    told.tick(view(worker("w0", 15)), [])
    assert told.tick(view(), [])[0].reason == "silent for too long"


def test_how_good_a_plan_is_is_told_when_it_changes() -> None:
    told = Chronicle()
    seen = view(worker("w0", 15), arrivals={"t": 40.0})
    optimal = Planned(Reason.OPTIMISED, PlanQuality(PlanSource.PROGRAM, 0.0))
    entry = told.tick(seen, [optimal])[-1]
    assert (entry.kind, entry.reason) == (EntryKind.PLAN, "optimised")
    assert entry.details["quality"] == "solved to optimality"
    assert entry.details["gap"] == 0.0
    assert told.tick(seen, [optimal]) == []
    (worse,) = told.tick(seen, [Planned(Reason.FALLBACK, PlanQuality(PlanSource.GREEDY, 0.04))])
    assert worse.details["quality"] == "greedy, within 4 % of the bound"
    (unknown,) = told.tick(seen, [Planned(Reason.FALLBACK, PlanQuality(PlanSource.GREEDY, nan))])
    assert unknown.details["gap"] is None
