"""History in the SQL store: entries written in batches, bounded in number, found by many things."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import delete, or_, select

from modelless.common.errors import InvalidInputError
from modelless.controller.control.messages import Entry, EntryKind
from modelless.variants.registry import promotion, registry
from modelless.variants.store import HistoryRow, Store

SERVING_KINDS: Final = tuple(kind.value for kind in EntryKind)
"""Kinds of entries that serving writes. Of these alone the oldest leave: the code that writes the
others (validations, profiles that drifted) reads them as state."""

NOTED_KINDS: Final = (
    *promotion.KINDS,
    *("accuracy-measured", "accuracy-revised", "profile-drift", "registered", "variant-made"),
    *("settings-changed", "zoo-added"),
    *(registry.REMOVED, registry.RETIRED, registry.REINSTATED),
)
"""Kinds that commands, trials and the cost model write."""

_MOST_READ: Final = 1_000_000


class Told(NamedTuple):
    """An entry of the history.

    Attributes:
        number: ascending in the order of writing.
        at: when, with a time zone.
    """

    number: int
    at: datetime
    entry: Entry

    def document(self) -> dict[str, Any]:
        return {"number": self.number, "at": self.at.isoformat(), **self.entry._asdict()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries are asked for; None does not narrow.

    Attributes:
        since, until: from when to when, both included; with a time zone.
        task: about a variant of this task, or narrower: ``task/model[/variant]``.
    """

    since: datetime | None = None
    until: datetime | None = None
    kinds: tuple[str, ...] = ()
    task: str | None = None
    after: int | None = None
    most: int = 1000


def write_entries(store: Store, entries: Sequence[tuple[datetime, Entry]], max_entries: int) -> int:
    """Append entries, all or none, and drop the oldest of serving; returns how many it wrote."""
    with store.transaction() as session:
        session.add_all(HistoryRow(at=at, **entry._asdict()) for at, entry in entries)
        session.flush()
        serving = HistoryRow.kind.in_(SERVING_KINDS)
        oldest = session.scalar(
            select(HistoryRow.id)
            .where(serving)
            .order_by(HistoryRow.id.desc())
            .offset(max_entries)
            .limit(1)
        )
        if oldest is not None:
            session.execute(delete(HistoryRow).where(serving, HistoryRow.id <= oldest))
    return len(entries)


def check_kinds(store: Store, asked: Collection[str]) -> None:
    """Refuse a kind that nothing writes and the store does not have.

    Raises:
        InvalidInputError: says which kinds there are, and what was probably meant.
        StoreError: the store cannot be read.
    """
    known = [*SERVING_KINDS, *NOTED_KINDS]
    if set(asked) <= set(known):
        return
    with store.session() as session:
        there = set(session.scalars(select(HistoryRow.kind).distinct()))
    known += sorted(there - set(known))
    for kind in asked:
        if kind not in known:
            near = difflib.get_close_matches(kind, known, n=3)
            hint = f"Did you mean {' or '.join(near)}?" if near else ""
            raise InvalidInputError.of("--kind", kind, ", ".join(known), hint)


def loaded_at(store: Store, until: datetime) -> dict[str, list[str]]:
    """Returns the variants loaded at a time, by worker, as far as the history reaches back."""
    began = read_entries(store, Wanted(until=until, kinds=(EntryKind.CONTROL_UP,), most=1))
    since = began[0].at if began else None
    kinds = (
        EntryKind.WORKER_UP, EntryKind.WORKER_GONE, EntryKind.LOADED, EntryKind.UNLOADED
    )  # fmt: skip
    held: dict[str, set[str]] = {}
    for told in read_entries(store, Wanted(since, until, kinds=kinds, most=_MOST_READ)):
        entry = told.entry
        if entry.kind == EntryKind.WORKER_UP:
            held[entry.subject] = set(entry.details["holds"])
        elif entry.kind == EntryKind.WORKER_GONE:
            held.pop(entry.subject, None)
        elif entry.kind == EntryKind.LOADED:
            held.setdefault(entry.details["worker"], set()).add(entry.subject)
        else:
            held.setdefault(entry.details["worker"], set()).discard(entry.subject)
    return {worker: sorted(variants) for worker, variants in sorted(held.items())}


def read_entries(store: Store, wanted: Wanted) -> list[Told]:
    """The newest entries that are wanted, oldest first."""
    query = select(HistoryRow)
    if wanted.since is not None:
        query = query.where(HistoryRow.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(HistoryRow.at <= wanted.until)
    if wanted.kinds:
        query = query.where(HistoryRow.kind.in_(wanted.kinds))
    if wanted.task is not None:
        begins = [HistoryRow.subject.startswith(f"{wanted.task}{mark}", autoescape=True)
                  for mark in "/@"]  # fmt: skip
        query = query.where(or_(HistoryRow.subject == wanted.task, *begins))
    if wanted.after is not None:
        query = query.where(HistoryRow.id > wanted.after)
    query = query.order_by(HistoryRow.at.desc(), HistoryRow.id.desc()).limit(wanted.most)
    with store.session() as session:
        rows = list(session.scalars(query))
    return [
        Told(row.id, row.at, Entry(row.kind, row.subject, row.reason, row.details))
        for row in reversed(rows)
    ]
