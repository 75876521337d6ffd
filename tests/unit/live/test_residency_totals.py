"""The sums and the latest of loads and unloads, for the status."""

from __future__ import annotations

from typing import Any

from modelless.controller.control.messages import MemberReport
from modelless.controller.device.messages import ChangeKind, ResidencyChange
from modelless.controller.live.control.totals import ResidencyTotals
from modelless.policies.reasons import Reason

A, B, C = "t/a/x@1", "t/b/x@1", "t/c/x@1"


def displacement() -> tuple[ResidencyChange, ...]:
    """A and B leave for C."""
    room = Reason.ROOM_NEEDED
    return (
        ResidencyChange(0.0, "w", ChangeKind.UNLOADED, A, room, for_variant_id=C),
        ResidencyChange(0.1, "w", ChangeKind.UNLOADED, B, room, for_variant_id=C),
        ResidencyChange(0.6, "w", ChangeKind.LOADED, C, Reason.DEMAND, "", (A, B), seconds=0.5),
    )


def report(**more: Any) -> MemberReport:
    return MemberReport("w", False, None, changes=displacement(), **more)


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
