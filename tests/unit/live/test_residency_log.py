"""What came and what left, with its reason and its cost."""

from __future__ import annotations

from typing import Any

from modelless.controller.control.messages import MemberReport
from modelless.controller.device.changes import ChangeKind
from modelless.controller.live.control.residency_totals import ResidencyTotals
from modelless.controller.live.worker.residency_log import ChangeLog
from modelless.policies.reasons import Reason

A, B, C = "t/a/x@1", "t/b/x@1", "t/c/x@1"


def displacement() -> ChangeLog:
    """A and B leave for C."""
    log = ChangeLog("w")
    for name in (A, B):
        log.leaves(name, Reason.ROOM_NEEDED, C)
        log.left(name, 0.01, 10)
    log.came(C, Reason.DEMAND, 0.5, 20)
    return log


def report(**more: Any) -> MemberReport:
    return MemberReport("w", False, None, changes=displacement().take(), **more)


def test_a_load_says_what_left_for_it_and_what_it_took() -> None:
    one, two, three = displacement().take()
    assert [(c.kind, c.variant_id, c.for_variant_id) for c in (one, two)] == [
        (ChangeKind.UNLOADED, A, C),
        (ChangeKind.UNLOADED, B, C),
    ]
    assert (three.kind, three.reason, three.displaced) == (ChangeKind.LOADED, Reason.DEMAND, (A, B))
    assert (three.seconds, three.memory_bytes) == (0.5, 20)


def test_changes_are_taken_once() -> None:
    log = displacement()
    assert len(log.take()) == 3
    assert log.take() == ()


def test_what_stays_after_all_was_not_displaced() -> None:
    log = ChangeLog("w")
    log.leaves(A, Reason.ROOM_NEEDED, C)
    log.stays(A)
    log.came(C, Reason.WANTED, 0.5, 20)
    (loaded,) = log.take()
    assert loaded.displaced == ()


def test_a_load_that_failed_says_why() -> None:
    log = ChangeLog("w")
    log.failed(C, Reason.WANTED, "no such operator")
    (failed,) = log.take()
    assert (failed.kind, failed.problem) == (ChangeKind.LOAD_FAILED, "no such operator")


def test_the_totals_add_up_and_show_the_latest_first() -> None:
    totals = ResidencyTotals()
    totals.add(report(unmet={"t": 3, "u": 1}))
    totals.add_declined([A])
    totals.add_declined([A, B])
    status = totals.status()
    assert status["cold_queries"] == 4
    assert status["counts"] == {ChangeKind.UNLOADED: 2, ChangeKind.LOADED: 1}
    assert status["loading_s"] == 0.5
    assert status["declined"] == {A: 2, B: 1}
    assert [change["variant_id"] for change in status["recent"]] == [C, B, A]
    assert status["recent"][0]["displaced"] == [A, B]
    assert status["recent"][0]["reason"] == "demand"


def test_the_totals_are_bounded() -> None:
    totals = ResidencyTotals()
    for _ in range(100):
        totals.add(report())
    assert len(totals.status()["recent"]) == 32
    assert totals.status()["counts"][ChangeKind.LOADED] == 100
