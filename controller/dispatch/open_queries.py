"""Open queries: each is opened once and closed once, with an answer or a refusal, and counted.

Some of them are held: no ready variant can serve them, but a load could still end in time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from modelless.controller.dispatch.counters import DispatchCounters, Kind
from modelless.controller.dispatch.fair_shares import OVERLOAD, Tenants
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import AskForLoad, Complete, DispatchEffect, Refuse
from modelless.controller.dispatch.offline import OfflineBatches, is_offline
from modelless.controller.dispatch.policy_calls import PolicyFailure
from modelless.controller.dispatch.queues import Batch, Queue, QueueKey, WaitingQueries, Worker
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.controller.dispatch.receipts import Receipt, RecentReceipts
from modelless.controller.dispatch.workers import WorkerTable
from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.scopes import base_of
from modelless.policies.views import QueryView, ResidentView


class PendingLoads:
    """The held queries, and the loads that they wait for.

    Args:
        instances: tells which queries can be served, and how soon a load could end.
    """

    def __init__(
        self, waiting: WaitingQueries, instances: ReadyInstances, limits: DispatchLimits
    ) -> None:
        self._waiting = waiting
        self._instances = instances
        self._limits = limits
        self._held: dict[int, tuple[QueryView, float]] = {}  # by id; held until this time
        self._loads: Counter[AskForLoad] = Counter()  # held queries by the load they wait for

    def hold_query(self, query: QueryView, now_s: float) -> bool:
        """Hold the query; return False if no load could end in time, or too many are held."""
        if len(self._held) >= min(self._limits.max_held, max(self._limits.max_queued // 4, 1)):
            return False
        until_s = min(query.deadline_s, now_s + self._limits.max_hold_s)
        if not now_s + self._instances.fastest_load_s(query) <= until_s:
            return False
        self._held[query.query_id] = query, until_s
        self._loads[_load_for(query)] += 1
        self._waiting.hold_query(query)
        return True

    def ask_for_load(self, query: QueryView) -> list[DispatchEffect]:
        """Return the request for the load of a query just held, if it is the first to need it."""
        load = _load_for(query)
        return [load] if self._loads[load] == 1 else []

    def forget_query(self, query_id: int) -> None:
        held = self._held.pop(query_id, None)
        if held is not None:
            load = _load_for(held[0])
            self._loads[load] -= 1
            if not self._loads[load]:
                del self._loads[load]

    @property
    def kinds(self) -> dict[Kind, list[int]]:
        counters = DispatchCounters()
        for query, _ in self._held.values():
            counters.count_arrival(query)
        return counters.kinds

    def find_expired(self, now_s: float) -> list[QueryView]:
        """Return the queries that were held as long as they may be."""
        return [query for query, until_s in self._held.values() if until_s <= now_s]

    def find_misplaced(self) -> list[QueryView]:
        """Return the deferred queries that no worker can serve now, and the held ones that one can.

        A worker can serve a query if it holds a ready variant that is accurate enough.
        """
        unserved = self._select(self._waiting.deferred, served=False)
        return unserved + self._select(self._waiting.held, served=True)

    def _select(self, queues: Mapping[QueueKey, Queue], *, served: bool) -> list[QueryView]:
        is_served = self._instances.is_served_accurately
        return [
            query
            for queue in queues.values()
            for query in queue
            if is_served(query.scope, query.min_accuracy_percent) == served
        ]


def _load_for(query: QueryView) -> AskForLoad:
    return AskForLoad(base_of(query.scope), query.min_accuracy_percent)


Explain = Callable[[Receipt, int], tuple[str, float | None]]
"""Words a refusal: see ``refusal_messages.refusal_message``."""


class OpenQueries:
    """The queries of one dispatcher that wait or run, and the counters.

    Args:
        receipts: takes the receipts of closed queries.
        explain: words refusals.
        max_batch: most items that a query may have, for messages.
        tenants: counts refusals, and tells when another try makes sense.
        workers: publishes the backlog of workers that lose a query.

    Attributes:
        by_id: the receipts of open queries, by the queries' ids.
    """

    def __init__(
        self,
        offline: OfflineBatches,
        receipts: RecentReceipts,
        explain: Explain,
        max_batch: int,
        tenants: Tenants,
        waiting: WaitingQueries,
        pending: PendingLoads,
        workers: WorkerTable,
    ) -> None:
        self.by_id: dict[int, Receipt] = {}
        self._receipts = receipts
        self._offline = offline
        self._explain = explain
        self._max_batch = max_batch
        self._tenants = tenants
        self._waiting = waiting
        self._pending = pending
        self._workers = workers
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

    def remove_query(self, query_id: int) -> None:
        """Take a query from where it waits, if it does."""
        self._pending.forget_query(query_id)
        if self._waiting.place(query_id) is not None:
            worker = self._waiting.remove_query(query_id).worker
            if worker is not None:
                self._workers.publish_backlog(worker)

    def count_unmet(self, query: QueryView) -> None:
        self._counters.count_unmet(query)

    def complete_batch(
        self, batch: Batch, worker: Worker, now_s: float, busy_s: float, price_usd_per_s: float
    ) -> list[DispatchEffect]:
        """Close the queries of a batch that the worker served, but for cancelled ones.

        The batch took ``busy_s`` seconds of the device's time, which has a price.
        """
        effects: list[DispatchEffect] = []
        batch_id, close, keep = batch.batch_id, self.by_id.pop, self._receipts.add
        meters = self._counters.meters
        meters.count_batch(batch.variant_id, worker.device_class, batch.items, busy_s)
        item_usd = busy_s * price_usd_per_s / batch.items
        is_counted_apart = is_offline(batch.queries[0])  # then all are
        for query in batch.queries:
            query_id = query.query_id
            receipt = close(query_id, None)
            if receipt is None:
                cancelled = self._receipts.get(query_id)
                if cancelled is not None:  # what it cost counts all the same
                    cancelled.cost_usd, cancelled.run_s = item_usd * query.items, busy_s
                continue
            asked = receipt.query
            outcome = receipt.outcome = "served-late" if now_s > asked.deadline_s else "served"
            latency_s = receipt.observed_latency_s = now_s - query.arrival_s
            receipt.cost_usd, receipt.run_s = item_usd * query.items, busy_s
            keep(receipt)
            if is_counted_apart:
                meters.count_end(asked.scope, f"offline-{outcome}", asked.tenant)
            else:
                meters.count_latency(query.scope, latency_s, query_id)
                meters.count_end(asked.scope, outcome, asked.tenant)
                self._offline.note_end(asked, asked.deadline_s - now_s, now_s)
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
        meters.count_latency(query.scope, latency_s, query.query_id)
        meters.count_end(query.scope, receipt.outcome, query.tenant)
        meters.count_cache_hit(query.scope)
        return Complete(query.query_id, 0)

    def refuse_query(self, receipt: Receipt, reason: AnyReason, now_s: float) -> Refuse:
        query = receipt.query
        if not is_offline(query):
            self._tenants.count_refusal(reason)
            if reason in OVERLOAD:
                self._offline.note_end(query, 0.0, now_s)
        self.remove_query(query.query_id)
        receipt.reason, receipt.row = reason, None
        receipt.observed_latency_s = now_s - query.arrival_s
        self._counters.meters.count_refusal(query.scope, reason.value)
        message, retry_after_s = self._explain(receipt, self._max_batch)
        self._close(receipt, "refused")
        if reason is Reason.QUEUE_FULL or reason is Reason.DEADLINE_PASSED:
            retry_after_s = self._tenants.half_drain_s(now_s) or retry_after_s
        return Refuse(query.query_id, reason, message, retry_after_s)

    def refuse_queries(
        self, receipts: Iterable[Receipt], reason: AnyReason, now_s: float
    ) -> list[DispatchEffect]:
        return [self.refuse_query(receipt, reason, now_s) for receipt in receipts]

    def refuse_after_failure(self, failure: PolicyFailure, now_s: float) -> list[DispatchEffect]:
        receipts = [self.by_id[query_id] for query_id in failure.query_ids]
        for receipt in receipts:
            receipt.problem = failure.problem
        return self.refuse_queries(receipts, Reason.POLICY_FAILED, now_s)

    def cancel_query(self, receipt: Receipt) -> None:
        """Close a query that nobody asks for any more. If it runs, it runs on."""
        self.remove_query(receipt.query.query_id)
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
        query = receipt.query
        counted_as = f"offline-{outcome}" if is_offline(query) else outcome
        self._counters.meters.count_end(query.scope, counted_as, query.tenant)


_TIME_REASONS = frozenset(
    {
        Reason.TOO_SLOW,
        Reason.QUEUE_TOO_LONG,
        Reason.DEADLINE_PASSED,
        Reason.LIMITS_CONFLICT,
        Reason.NOTHING_READY,
    }
)


def extend_deadline(receipt: Receipt, reason: AnyReason, max_late_s: float) -> QueryView | None:
    """Return the query as it waits from now on; None if it must be refused for this reason.

    A late query goes behind all that can still be in time: served first, it would make the others
    late, too (the domino effect of earliest deadline first: Buttazzo, Hard Real-Time Computing
    Systems, sec. 9.2). Its deadline is extended once, and its other limits stay.

    Args:
        max_late_s: by how much its deadline is extended, seconds.
    """
    query = receipt.query
    waits = receipt.standing or query
    if not query.serve_late or reason not in _TIME_REASONS:
        return None
    if waits.deadline_s > query.deadline_s or query.deadline_s == math.inf:
        return None
    return query._replace(deadline_s=query.deadline_s + max_late_s, demoted=True)


def find_late(queue: Iterable[QueryView], resident: ResidentView, now_s: float) -> list[QueryView]:
    """Return the first queries of a queue, as far as they would be late if they ran now."""
    late = []
    for query in queue:
        if now_s + resident.p50_s[query.items] <= query.deadline_s:
            break
        late.append(query)
    return late
