"""History in the store: bounded, found by time, kind and task, and patient with the store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from modelless.common.errors import StoreError
from modelless.controller.control.messages import Entry, EntryKind
from modelless.controller.history.entries import Wanted, loaded_at, read_entries, write_entries
from modelless.controller.history.why import entry_text
from modelless.controller.live.control import history_notes
from modelless.controller.live.control.history_notes import HistoryNotes
from modelless.variants.registry.registry import open_registry
from modelless.variants.store import HistoryRow, Store

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def entry(kind: str = "load", subject: str = "t/a/x@1") -> Entry:
    return Entry(kind, subject, "wanted", {"worker": "w0", "device_class": "cpu-1"})


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def subjects(store: Store, wanted: Wanted) -> list[str]:
    return [told.entry.subject for told in read_entries(store, wanted)]


def test_entries_are_found_by_time_kind_and_task(store: Store) -> None:
    told = [
        (at(0), entry(subject="t/a/x@1")),
        (at(1), entry("unload", "t/a/x@1")),
        (at(2), entry(subject="tt/a/x@1")),
        (at(3), entry("scale", "cpu-1")),
    ]
    assert write_entries(store, told, 100) == 4
    assert subjects(store, Wanted()) == ["t/a/x@1", "t/a/x@1", "tt/a/x@1", "cpu-1"]
    assert subjects(store, Wanted(task="t")) == ["t/a/x@1", "t/a/x@1"]
    assert subjects(store, Wanted(task="t/a/x")) == ["t/a/x@1", "t/a/x@1"]
    assert subjects(store, Wanted(kinds=("unload", "scale"))) == ["t/a/x@1", "cpu-1"]
    assert subjects(store, Wanted(since=at(1), until=at(2))) == ["t/a/x@1", "tt/a/x@1"]
    assert subjects(store, Wanted(most=1)) == ["cpu-1"]
    (last,) = read_entries(store, Wanted(after=3))
    assert last.document()["at"] == "2026-03-01T12:00:03+00:00"


def test_only_the_oldest_of_serving_leave(store: Store) -> None:
    with store.transaction() as session:
        session.add(HistoryRow(kind="profile-drift", subject="t", reason="r", details={}))
    for second in range(5):
        write_entries(store, [(at(second), entry(subject=f"t/{second}/x@1"))], 3)
    assert subjects(store, Wanted(kinds=("load",))) == ["t/2/x@1", "t/3/x@1", "t/4/x@1"]
    assert subjects(store, Wanted(kinds=("profile-drift",))) == ["t"]


def test_what_was_loaded_at_any_time(store: Store) -> None:
    def up(worker: str, *holds: str) -> Entry:
        return Entry(EntryKind.WORKER_UP, worker, "reported", {"holds": holds})

    def told(kind: str, variant: str, worker: str = "w0") -> Entry:
        return Entry(kind, variant, "r", {"worker": worker})

    began = Entry(EntryKind.CONTROL_UP, "control", "began", {})
    entries = [
        began,
        up("w0"),
        told("loaded", "a"),
        told("loaded", "b"),
        told("unloaded", "a"),
        up("w1", "c"),
        Entry(EntryKind.WORKER_GONE, "w1", "silent", {}),
        began,  # another run: what was before is no more
        up("w2", "d"),
    ]
    write_entries(store, [(at(second), each) for second, each in enumerate(entries)], 100)
    held = [loaded_at(store, at(second)) for second in (1, 3, 4, 5, 6, 8)]
    assert held == [
        {"w0": []},
        {"w0": ["a", "b"]},
        {"w0": ["b"]},
        {"w0": ["b"], "w1": ["c"]},
        {"w0": ["b"]},
        {"w2": ["d"]},
    ]


def test_an_entry_in_words_says_why_for_whom_and_the_cost() -> None:
    details = {
        "worker": "w0",
        "device_class": "cpu-1",
        "for": "t/b/x@1",
        "memory_bytes": 10 * 2**20,
        "load_s": 0.5,
        "unused_s": 12.0,
        "use_count": 7,
    }
    assert entry_text(Entry(EntryKind.UNLOAD, "t/a/x@1", "room-needed", details)) == (
        "room was needed; for t/b/x@1; frees 10.0 MiB, again in 0.50 s; unused for 12.0 s; "
        "in w0 (cpu-1)"
    )


def test_entries_wait_for_a_store_that_is_away_and_what_found_no_room_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True
    usual = write_entries

    def write(store: Store, entries: list[tuple[datetime, Entry]], most: int) -> int:
        if away:
            raise StoreError("away")
        return usual(store, entries, most)

    monkeypatch.setattr(history_notes, "write_entries", write)

    async def serve() -> None:
        nonlocal away
        notes = HistoryNotes(tmp_path, 100, most_pending=3, clock=lambda: NOON)
        for number in range(5):
            notes.add([entry(subject=f"t/{number}/x@1")])
            await notes.finish()
        away = False
        notes.add([])
        await notes.finish()
        notes.add([])
        await notes.finish()

    asyncio.run(serve())
    with open_registry(tmp_path).store as store:
        told = [(told.entry.kind, told.entry.subject) for told in read_entries(store, Wanted())]
        lost = read_entries(store, Wanted(kinds=("entries-lost",)))
    assert told == [("entries-lost", "history")] + [("load", f"t/{n}/x@1") for n in (2, 3, 4)]
    assert lost[0].entry.reason == "2 entries found no room"


def test_what_came_while_others_were_written_is_written_too(tmp_path: Path) -> None:
    async def serve() -> None:
        notes = HistoryNotes(tmp_path, 100, clock=lambda: NOON)
        notes.add([entry(subject="t/0/x@1")])
        await asyncio.sleep(0)  # the write is under way
        notes.add([entry(subject="t/1/x@1")])
        await notes.finish()

    asyncio.run(serve())
    with open_registry(tmp_path).store as store:
        told = [told.entry.subject for told in read_entries(store, Wanted())]
    assert told == ["t/0/x@1", "t/1/x@1"]


def test_a_plan_s_quality_is_told() -> None:
    details = {"quality": "within 1.3 % of the bound", "arrivals_per_s": 40.0}
    assert entry_text(Entry(EntryKind.PLAN, "all workers", "optimised", details)) == (
        "by the plan's optimum; within 1.3 % of the bound; 40.0 queries/s"
    )
