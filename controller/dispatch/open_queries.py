"""Open queries: each query is opened once and closed once, and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from modelless.controller.dispatch.counters import DispatchCounters
from modelless.controller.dispatch.messages import Complete, DispatchEffect, Refuse
from modelless.controller.dispatch.offline import is_offline
from modelless.controller.dispatch.queues import Batch, Worker
from modelless.controller.dispatch.receipts import Receipt, RecentReceipts
from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.views import QueryView

Explain = Callable[[Receipt, int], tuple[str, float | None]]
"""Words a refusal: see ``nearest_limits.refusal_message``."""


class OpenQueries:
    """The queries of one dispatcher that wait or run, and the counters.

    Args:
        max_batch: most items that a query may have, for messages.

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
        receipt = self.by_id[query.query_id] = Receipt(query)
        if not is_offline(query):
            self._counters.count_arrival(query)
        return receipt

    def receipts_of(self, queries: Iterable[QueryView]) -> list[Receipt]:
        """Return the receipts of those that are open: some were cancelled while they ran."""
        known = self.by_id
        return [known[query.query_id] for query in queries if query.query_id in known]

    def count_unmet(self, query: QueryView) -> None:
        self._counters.count_unmet(query)

    def complete_batch(
        self, batch: Batch, worker: Worker, now_s: float, busy_s: float, price_usd_per_s: float
    ) -> list[DispatchEffect]:
        """Close the queries of a batch that the worker served, but for cancelled ones.

        The batch took ``busy_s`` seconds of the device's time, which has a price.
        """
        effects: list[DispatchEffect] = []
        batch_id, close, meters = batch.batch_id, self.by_id.pop, self._counters.meters
        meters.count_batch(batch.variant_id, worker.device_class, batch.items, busy_s)
        item_usd = busy_s * price_usd_per_s / batch.items
        for query in batch.queries:
            query_id = query.query_id
            receipt = close(query_id, None)
            if receipt is not None:
                latency_s = receipt.observed_latency_s = now_s - query.arrival_s
                receipt.cost_usd = item_usd * query.items
                receipt.run_s = busy_s
                asked = receipt.query
                receipt.outcome = "served-late" if now_s > asked.deadline_s else "served"
                self._receipts.add(receipt)
                if not is_offline(asked):
                    meters.count_latency(query.scope, latency_s)
                meters.count_end(asked.scope, _counted_as(asked, receipt.outcome))
                # This takes half as long as ``Complete(...)``, whose constructor is Python code.
                effects.append(tuple.__new__(Complete, (query_id, batch_id)))
        if effects:
            self._counters.count_used(worker.worker_id, batch.variant_id, len(effects))
        return effects

    def complete_cached(self, query: QueryView, variant_id: str, now_s: float) -> Complete:
        """Return the answer to a query that is in the cache, and count it as served."""
        receipt = Receipt(query, reason=Reason.CACHED, variant_id=variant_id, cost_usd=0.0)
        latency_s = receipt.observed_latency_s = now_s - query.arrival_s
        receipt.outcome = "served-late" if now_s > query.deadline_s else "served"
        self._receipts.add(receipt)
        meters = self._counters.meters
        meters.count_latency(query.scope, latency_s)
        meters.count_end(query.scope, receipt.outcome)
        meters.count_cache_hit(query.scope)
        return Complete(query.query_id, 0)

    def refuse_query(self, receipt: Receipt, reason: AnyReason, now_s: float) -> Refuse:
        query_id = receipt.query.query_id
        receipt.reason, receipt.row = reason, None
        receipt.observed_latency_s = now_s - receipt.query.arrival_s
        self._counters.meters.count_refusal(receipt.query.scope, reason.value)
        message, retry_after_s = self._explain(receipt, self._max_batch)
        self._close(receipt, "refused")
        return Refuse(query_id, reason, message, retry_after_s)

    def cancel_query(self, receipt: Receipt) -> None:
        receipt.reason = Reason.CANCELLED
        self._close(receipt, "cancelled")

    def take_counters(self) -> DispatchCounters:
        """Return the counts since the last call, and count from zero again."""
        taken, self._counters = self._counters, DispatchCounters()
        return taken

    def _close(self, receipt: Receipt, outcome: str) -> None:
        receipt.outcome = outcome
        del self.by_id[receipt.query.query_id]
        self._receipts.add(receipt)
        self._counters.meters.count_end(receipt.query.scope, _counted_as(receipt.query, outcome))


def _counted_as(query: QueryView, outcome: str) -> str:
    """Return the outcome as metrics name it: those of offline queries are counted apart."""
    return f"offline-{outcome}" if is_offline(query) else outcome
