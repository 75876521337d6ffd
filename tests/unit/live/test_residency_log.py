"""The cluster's loads and unloads, with their reasons and costs."""

from __future__ import annotations

from modelless.controller.device.messages import ChangeKind, ResidencyChange
from modelless.controller.live.worker.residency_log import ChangeBook
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


def test_the_book_hands_its_changes_on_once() -> None:
    book = ChangeBook()
    changes = displacement()
    book.enter(changes[:2], {})
    book.enter(changes[2:], {})
    assert book.take() == changes
    assert book.take() == ()


def test_the_book_adds_up_and_tells_the_latest_first() -> None:
    book = ChangeBook()
    book.enter(displacement(), {"t": 3, "u": 1})
    book.decline([A])
    book.decline([A, B])
    status = book.status()
    assert status["cold_queries"] == 4
    assert status["counts"] == {ChangeKind.UNLOADED: 2, ChangeKind.LOADED: 1}
    assert status["loading_s"] == 0.5
    assert status["declined"] == {A: 2, B: 1}
    assert [change["variant_id"] for change in status["recent"]] == [C, B, A]
    assert status["recent"][0]["displaced"] == [A, B]
    assert status["recent"][0]["reason"] == "demand"


def test_the_book_is_bounded() -> None:
    book = ChangeBook()
    for _ in range(100):
        book.enter(displacement(), {})
    assert len(book.status()["recent"]) == 32
    assert book.status()["counts"][ChangeKind.LOADED] == 100
