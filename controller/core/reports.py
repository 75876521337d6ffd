"""What a dispatcher tells of itself: its queries, batches and counts as they are."""

from __future__ import annotations

from collections import Counter

from modelless.controller.core.books import Books, DispatchCounters
from modelless.controller.core.crew import Crew
from modelless.controller.core.receipts import Receipt, ReceiptBook
from modelless.controller.core.waiting import WaitingRoom
from modelless.policies.scopes import base_of


class DispatchReports:
    """The reading half of a ``Dispatcher``; nothing here changes anything but the counters."""

    receipts: ReceiptBook
    _books: Books
    _crew: Crew
    _waiting: WaitingRoom

    @property
    def queued(self) -> int:
        """Queries waiting."""
        return len(self._waiting)

    @property
    def open_queries(self) -> int:
        """Queries waiting or running."""
        return len(self._books.open)

    def open_by_scope(self) -> dict[str, int]:
        """Queries waiting or running, by scope."""
        return dict(Counter(base_of(receipt.query.scope) for receipt in self._books.open.values()))

    def members(self, batch_id: int) -> tuple[int, ...]:
        """The queries of a running batch, in order; none if it is not running (any more)."""
        return self._crew.members(batch_id)

    def in_use(self, worker_id: str) -> set[str]:
        """Variants of the worker that run or are queued for: these must not be unloaded."""
        return self._crew.in_use(worker_id)

    def patience(self, batch_id: int, now_s: float) -> tuple[float, float]:
        """How long a running batch is expected to take, and may be kept waiting, seconds."""
        return self._crew.patience(batch_id, now_s)

    def receipt(self, query_id: int) -> Receipt | None:
        """The receipt of a query, open or lately closed."""
        return self._books.open.get(query_id) or self.receipts.get(query_id)

    def take_counters(self) -> DispatchCounters:
        """What happened since the last call."""
        return self._books.take_counters()
