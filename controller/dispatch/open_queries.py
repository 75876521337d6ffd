"""Open queries: each query is opened once and closed once, and counted."""

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
"""Scope, latency in seconds and minimum accuracy in per cent of a query."""
Explain = Callable[[Receipt, int], tuple[str, float | None]]
"""Words a refusal: see ``nearest_limits.refusal_message``."""
_EXACT_KINDS = 512
"""So many kinds are counted as they are; the limits of further ones are rounded."""


@dataclass(slots=True)
class DispatchCounters:
    """Counts since the last ``take_counters``: the gateway's report to the control loop.

    Attributes:
        kinds: queries that arrived and their items, by scope, latency in seconds and minimum
            accuracy.
        unmet: queries that found no ready variant, by scope.
        used: answered queries, by worker and variant.
        meters: finished queries and batches.
    """

    kinds: dict[Kind, list[int]] = field(default_factory=dict)
    unmet: dict[str, int] = field(default_factory=dict)
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    meters: Meters = field(default_factory=Meters)

    @property
    def outcomes(self) -> dict[str, int]:
        """Finished queries by outcome; see ``Receipt``."""
        outcomes: dict[str, int] = {}
        for (_, outcome), queries in self.meters.ends.items():
            _count(outcomes, outcome, queries)
        return outcomes

    @property
    def served(self) -> dict[str, int]:
        """Answered queries by variant."""
        served: dict[str, int] = {}
        for (_, variant_id), queries in self.used.items():
            _count(served, variant_id, queries)
        return served

    @property
    def arrivals(self) -> dict[str, int]:
        """Queries that arrived, by scope."""
        arrivals: dict[str, int] = {}
        for (scope, _, _), (queries, _) in self.kinds.items():
            _count(arrivals, scope, queries)
        return arrivals


class OpenQueries:
    """The queries of one dispatcher that wait or run, and the counters.

    Args:
        receipts: keeps the receipts of closed queries.
        max_batch: most items that a query may have, for messages.
        explain: words a refusal.

    Attributes:
        by_id: the receipts of open queries, by the queries' ids.
    """

    def __init__(self, receipts: RecentReceipts, max_batch: int, explain: Explain) -> None:
        self.by_id: dict[int, Receipt] = {}
        self._explain = explain
        self._receipts = receipts
        self._max_batch = max_batch
        self._counters = DispatchCounters()

    def open_query(self, query: QueryView) -> Receipt:
        """Open a query that arrived."""
        receipt = self.by_id[query.query_id] = Receipt(query)
        self._count_kind(query)
        return receipt

    def receipts_of(self, queries: Iterable[QueryView]) -> list[Receipt]:
        """Return the receipts of those that are open: some were cancelled while they ran."""
        known = self.by_id
        return [known[query.query_id] for query in queries if query.query_id in known]

    def count_unmet(self, query: QueryView) -> None:
        """Count a query that no ready variant can serve."""
        _count(self._counters.unmet, base_of(query.scope))

    def complete_batch(
        self, batch: Batch, worker: Worker, now_s: float, busy_s: float
    ) -> list[DispatchEffect]:
        """Close the queries of a batch that the worker served, but for cancelled ones."""
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
                # This takes half as long as ``Complete(...)``, whose constructor is Python code.
                effects.append(tuple.__new__(Complete, (query_id, batch_id)))
        if effects:
            _count(self._counters.used, (worker.worker_id, batch.variant_id), len(effects))
        return effects

    def refuse_query(self, receipt: Receipt, reason: Reason, now_s: float) -> Refuse:
        """Close a query without an answer."""
        query_id = receipt.query.query_id
        receipt.reason, receipt.row = reason, None
        receipt.observed_latency_s = now_s - receipt.query.arrival_s
        self._counters.meters.count_refusal(receipt.query.scope, reason.value)
        message, retry_after_s = self._explain(receipt, self._max_batch)
        self._close(receipt, "refused")
        return Refuse(query_id, reason, message, retry_after_s)

    def cancel_query(self, receipt: Receipt) -> None:
        """Close a query whose client needs no answer."""
        receipt.reason = Reason.CANCELLED
        self._close(receipt, "cancelled")

    def take_counters(self) -> DispatchCounters:
        """Return the counts since the last call, and count from zero again."""
        taken, self._counters = self._counters, DispatchCounters()
        return taken

    def _count_kind(self, query: QueryView) -> None:
        latency_s = query.deadline_s - query.arrival_s
        kinds = self._counters.kinds
        kind = _exact_kind(query.scope, latency_s, query.min_accuracy_percent)
        counts = kinds.get(kind)
        if counts is None:
            if len(kinds) >= _EXACT_KINDS:  # clients name ever new limits: round to stricter ones
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


@lru_cache(maxsize=4096)  # called for each query; most name the same limits
def _exact_kind(scope: str, latency_s: float, min_accuracy_percent: float) -> Kind:
    """Return the kind of a query. The arms of a trial count together: plans are for scopes."""
    return base_of(scope), round(latency_s, 4), min_accuracy_percent


def missed(outcomes: Mapping[str, int]) -> int:
    """Return how many of the finished queries were refused or answered late."""
    return outcomes.get("refused", 0) + outcomes.get("served-late", 0)


def demands_of(kinds: Mapping[Kind, Sequence[int]], interval_s: float) -> tuple[Demand, ...]:
    """Return ``DispatchCounters.kinds`` of an interval as rates, in a fixed order."""
    return tuple(
        Demand(scope, latency_s, min_accuracy, queries / interval_s, items / queries)
        for (scope, latency_s, min_accuracy), (queries, items) in sorted(kinds.items())
    )


def _count(counts: dict[_Key, int], key: _Key, more: int = 1) -> None:
    counts[key] = counts.get(key, 0) + more
