"""The books of a dispatcher: which queries are open, what became of the others, and the counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from modelless.controller.dispatch.counters import Meters
from modelless.controller.dispatch.messages import Complete, DispatchEffect, Refuse
from modelless.controller.dispatch.queues import Batch, Worker
from modelless.controller.dispatch.receipts import Receipt, RecentReceipts
from modelless.policies.reasons import Reason
from modelless.policies.scopes import base_of
from modelless.policies.views import Demand, QueryView

_Key = TypeVar("_Key", bound=Hashable)
Kind = tuple[str, float, float]
Explain = Callable[[Receipt, int], tuple[str, float | None]]
"""See ``nearest.refusal_message``."""
_EXACT_KINDS = 512


@dataclass(slots=True)
class DispatchCounters:
    """What happened since the last ``take_counters``: the gateway's report to the control loop.

    Attributes:
        kinds: queries that came in and their items, by scope, latency in seconds and minimum
            accuracy.
        unmet: queries that found nothing ready, by scope.
        used: queries answered, by worker and variant.
        meters: what became of queries and batches.
    """

    kinds: dict[Kind, list[int]] = field(default_factory=dict)
    unmet: dict[str, int] = field(default_factory=dict)
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    meters: Meters = field(default_factory=Meters)

    @property
    def outcomes(self) -> dict[str, int]:
        """Queries that are over, by outcome; see ``Receipt``."""
        outcomes: dict[str, int] = {}
        for (_, outcome), queries in self.meters.ends.items():
            _count(outcomes, outcome, queries)
        return outcomes

    @property
    def served(self) -> dict[str, int]:
        """Queries answered, by variant."""
        served: dict[str, int] = {}
        for (_, variant_id), queries in self.used.items():
            _count(served, variant_id, queries)
        return served

    @property
    def arrivals(self) -> dict[str, int]:
        """Queries that came in, by scope."""
        arrivals: dict[str, int] = {}
        for (scope, _, _), (queries, _) in self.kinds.items():
            _count(arrivals, scope, queries)
        return arrivals


class OpenQueries:
    """Every query is opened once and closed once.

    Args:
        receipts: where closed receipts go.
        max_batch: most items a query may have, for messages.
        explain: words a refusal.
    """

    def __init__(self, receipts: RecentReceipts, max_batch: int, explain: Explain) -> None:
        self.by_id: dict[int, Receipt] = {}
        self._explain = explain
        self._receipts = receipts
        self._max_batch = max_batch
        self._counters = DispatchCounters()

    def open_query(self, query: QueryView) -> Receipt:
        """A query has come in."""
        receipt = self.by_id[query.query_id] = Receipt(query)
        self._count_kind(query)
        return receipt

    def receipts_of(self, queries: Iterable[QueryView]) -> list[Receipt]:
        """The receipts of those that are still open: not of what was cancelled while it ran."""
        known = self.by_id
        return [known[query.query_id] for query in queries if query.query_id in known]

    def count_unmet(self, query: QueryView) -> None:
        """Nothing is ready that could serve the query."""
        _count(self._counters.unmet, base_of(query.scope))

    def complete_batch(
        self, batch: Batch, worker: Worker, now_s: float, busy_s: float
    ) -> list[DispatchEffect]:
        """The batch was served by the worker: its queries in time, late or cancelled on the way."""
        effects: list[DispatchEffect] = []
        batch_id, close, meters = batch.batch_id, self.by_id.pop, self._counters.meters
        meters.count_batch(batch.variant_id, worker.device_class, batch.items, busy_s)
        for query in batch.queries:
            query_id = query.query_id
            receipt = close(query_id, None)
            if receipt is not None:
                latency_s = receipt.observed_latency_s = now_s - query.arrival_s
                asked = receipt.query
                receipt.outcome = "served-late" if now_s > asked.deadline_s else "served"
                self._receipts.add(receipt)
                meters.count_latency(query.scope, latency_s)
                meters.count_end(asked.scope, receipt.outcome)
                # As ``Complete(...)``, whose constructor is a Python function: half as long.
                effects.append(tuple.__new__(Complete, (query_id, batch_id)))
        if effects:
            _count(self._counters.used, (worker.worker_id, batch.variant_id), len(effects))
        return effects

    def refuse_query(self, receipt: Receipt, reason: Reason, now_s: float) -> Refuse:
        """The query will not be served."""
        query_id = receipt.query.query_id
        receipt.reason, receipt.row = reason, None
        receipt.observed_latency_s = now_s - receipt.query.arrival_s
        self._counters.meters.count_refusal(receipt.query.scope, reason.value)
        message, retry_after_s = self._explain(receipt, self._max_batch)
        self._close(receipt, "refused")
        return Refuse(query_id, reason, message, retry_after_s)

    def cancel_query(self, receipt: Receipt) -> None:
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
        kind = _exact_kind(query.scope, latency_s, query.min_accuracy_percent)
        counts = kinds.get(kind)
        if counts is None:
            if len(kinds) >= _EXACT_KINDS:  # clients who name ever new limits: the next stricter
                if latency_s < math.inf:
                    latency_s = 2.0 ** math.floor(math.log2(max(latency_s, 1e-3)))
                kind = (kind[0], latency_s, math.ceil(query.min_accuracy_percent / 5.0) * 5.0)
            counts = kinds.setdefault(kind, [0, 0])
        counts[0] += 1
        counts[1] += query.items

    def _close(self, receipt: Receipt, outcome: str) -> None:
        receipt.outcome = outcome
        del self.by_id[receipt.query.query_id]
        self._receipts.add(receipt)
        self._counters.meters.count_end(receipt.query.scope, outcome)


@lru_cache(maxsize=4096)  # asked for each query that comes; most name the same limits
def _exact_kind(scope: str, latency_s: float, min_accuracy_percent: float) -> Kind:
    """What is planned for is what clients ask for, so that arms of a trial count together."""
    return base_of(scope), round(latency_s, 4), min_accuracy_percent


def missed(outcomes: Mapping[str, int]) -> int:
    """How many of the finished queries were refused or answered late."""
    return outcomes.get("refused", 0) + outcomes.get("served-late", 0)


def demands_of(kinds: Mapping[Kind, Sequence[int]], interval_s: float) -> tuple[Demand, ...]:
    """What was counted in ``DispatchCounters.kinds`` over an interval, as rates, in fixed order."""
    return tuple(
        Demand(scope, latency_s, min_accuracy, queries / interval_s, items / queries)
        for (scope, latency_s, min_accuracy), (queries, items) in sorted(kinds.items())
    )


def _count(counts: dict[_Key, int], key: _Key, more: int = 1) -> None:
    counts[key] = counts.get(key, 0) + more
