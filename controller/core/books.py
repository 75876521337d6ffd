"""The books of a dispatcher: which queries are open, what became of the others, and the counts."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from modelless.controller.core.effects import Complete, Refuse
from modelless.controller.core.nearest import refusal_message
from modelless.controller.core.receipts import Receipt, ReceiptBook
from modelless.policies.reasons import Reason
from modelless.policies.views import Demand, QueryView

_Key = TypeVar("_Key", bound=Hashable)
Kind = tuple[str, float, float]
_EXACT_KINDS = 512


@dataclass(slots=True)
class DispatchCounters:
    """What happened since the last ``take_counters``: the gateway's report to the control loop.

    Attributes:
        arrivals: queries that came in, by scope.
        unmet: queries that found nothing ready, by scope.
        kinds: queries and their items, by scope, latency in seconds and minimum accuracy.
        used: queries answered, by worker and variant.
        outcomes: queries that are over, by outcome; see ``Receipt``.
    """

    arrivals: dict[str, int] = field(default_factory=dict)
    unmet: dict[str, int] = field(default_factory=dict)
    kinds: dict[Kind, list[int]] = field(default_factory=dict)
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)


class Books:
    """Every query is opened once and closed once.

    Args:
        receipts: where closed receipts go.
        max_batch: most items a query may have, for messages.
    """

    def __init__(self, receipts: ReceiptBook, max_batch: int) -> None:
        self.open: dict[int, Receipt] = {}
        self._receipts = receipts
        self._max_batch = max_batch
        self._counters = DispatchCounters()

    def enter(self, query: QueryView) -> Receipt:
        """A query has come in."""
        receipt = self.open[query.query_id] = Receipt(query)
        _count(self._counters.arrivals, query.scope)
        self._count_kind(query)
        return receipt

    def count_unmet(self, query: QueryView) -> None:
        """Nothing is ready that could serve the query."""
        _count(self._counters.unmet, query.scope)

    def complete(self, receipt: Receipt, batch_id: int, now_s: float) -> Complete:
        """The query was served in time or late by what its receipt says."""
        query = receipt.query
        receipt.observed_latency_s = now_s - query.arrival_s
        _count(self._counters.used, (receipt.worker_id, receipt.variant_id))
        self._close(receipt, "served-late" if now_s > query.deadline_s else "served")
        return Complete(query.query_id, batch_id)

    def refuse(self, receipt: Receipt, reason: Reason, now_s: float) -> Refuse:
        """The query will not be served."""
        query_id = receipt.query.query_id
        receipt.reason, receipt.row = reason, None
        receipt.observed_latency_s = now_s - receipt.query.arrival_s
        message, retry_after_s = refusal_message(receipt, self._max_batch)
        self._close(receipt, "refused")
        return Refuse(query_id, reason, message, retry_after_s)

    def cancel(self, receipt: Receipt) -> None:
        """Nobody wants the answer any more."""
        receipt.reason = Reason.CANCELLED
        self._close(receipt, "cancelled")

    def take_counters(self) -> DispatchCounters:
        """What happened since the last call."""
        taken, self._counters = self._counters, DispatchCounters()
        return taken

    def _count_kind(self, query: QueryView) -> None:
        latency_s = query.deadline_s - query.arrival_s
        kinds = self._counters.kinds
        kind = (query.scope, round(latency_s, 4), query.min_accuracy_percent)
        counts = kinds.get(kind)
        if counts is None:
            if len(kinds) >= _EXACT_KINDS:  # clients who name ever new limits: the next stricter
                if latency_s < math.inf:
                    latency_s = 2.0 ** math.floor(math.log2(max(latency_s, 1e-3)))
                kind = (query.scope, latency_s, math.ceil(query.min_accuracy_percent / 5.0) * 5.0)
            counts = kinds.setdefault(kind, [0, 0])
        counts[0] += 1
        counts[1] += query.items

    def _close(self, receipt: Receipt, outcome: str) -> None:
        receipt.outcome = outcome
        del self.open[receipt.query.query_id]
        self._receipts.add(receipt)
        _count(self._counters.outcomes, outcome)


def demands_of(kinds: Mapping[Kind, Sequence[int]], interval_s: float) -> tuple[Demand, ...]:
    """What was counted in ``DispatchCounters.kinds`` over an interval, as rates, in fixed order."""
    return tuple(
        Demand(scope, latency_s, min_accuracy, queries / interval_s, items / queries)
        for (scope, latency_s, min_accuracy), (queries, items) in sorted(kinds.items())
    )


def _count(counts: dict[_Key, int], key: _Key) -> None:
    counts[key] = counts.get(key, 0) + 1
