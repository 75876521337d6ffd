"""Writes the control loop's entries into the store, in the background."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from modelless.common.errors import ModellessError
from modelless.controller.control.messages import Entry, EntryKind
from modelless.controller.history.entries import write_entries
from modelless.variants.registry.registry import open_registry

logger = logging.getLogger(__name__)

MOST_PENDING = 10_000
"""Entries kept while the store is away; then the oldest go, and their number is an entry."""


class HistoryNotes:
    """Writes entries into the store's history in the background, one batch at a time.

    While the store is away, entries wait, up to ``most_pending``.

    Args:
        clock: the time, with a zone.
    """

    def __init__(
        self,
        home: Path,
        max_entries: int,
        most_pending: int = MOST_PENDING,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._home = home
        self._max_entries = max_entries
        self._clock = clock
        self._pending: deque[tuple[datetime, Entry]] = deque(maxlen=most_pending)
        self._lost = 0
        self._is_away = False
        self._writing: asyncio.Task[None] | None = None

    def add(self, entries: Iterable[Entry]) -> None:
        """Keep the entries, stamped with the time, and begin to write if no write is under way."""
        now = self._clock()
        for entry in entries:
            if len(self._pending) == self._pending.maxlen:
                self._lost += 1
            self._pending.append((now, entry))
        if self._pending and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def finish(self) -> None:
        """Write what is pending, unless the store is away, and wait until that is done."""
        if self._writing is not None:
            await self._writing
        while self._pending and not self._is_away:  # some may come while others are written
            await self._write()

    async def _write(self) -> None:
        batch, lost = list(self._pending), self._lost
        self._pending.clear()
        self._lost = 0
        if lost:
            told = Entry(EntryKind.ENTRIES_LOST, "history", f"{lost} entries found no room", {})
            batch.insert(0, (batch[0][0], told))
        try:
            await asyncio.to_thread(self._record, batch)
        except ModellessError as error:
            if not self._is_away:
                logger.warning("history waits for the store: %s", error)
            self._is_away = True
            self._put_back(batch[1:] if lost else batch, lost)
        except Exception:  # what cannot be written now never can be: it must not block the rest
            logger.exception("%d entries of the history are dropped", len(batch))
        else:
            self._is_away = False

    def _put_back(self, batch: Sequence[tuple[datetime, Entry]], lost: int) -> None:
        room = (self._pending.maxlen or 0) - len(self._pending)
        kept = batch[max(len(batch) - room, 0) :]
        self._lost += lost + len(batch) - len(kept)
        self._pending.extendleft(reversed(kept))

    def _record(self, batch: Sequence[tuple[datetime, Entry]]) -> None:
        with closing(open_registry(self._home)) as registry:
            write_entries(registry.store, batch, self._max_entries)
