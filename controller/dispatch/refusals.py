"""Refusals: a query leaves its queue with an error and a reason, or is served late."""

from __future__ import annotations

import math
from collections.abc import Iterable

from modelless.controller.dispatch.fair_shares import Tenants
from modelless.controller.dispatch.messages import DispatchEffect, Refuse
from modelless.controller.dispatch.offline import is_offline
from modelless.controller.dispatch.open_queries import OpenQueries
from modelless.controller.dispatch.pending_loads import PendingLoads
from modelless.controller.dispatch.policy_calls import PolicyFailure
from modelless.controller.dispatch.queues import WaitingQueries
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.dispatch.workers import WorkerTable
from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.views import QueryView, ResidentView


class Refusals:
    """Refuses the queries of one dispatcher.

    Args:
        tenants: counts refusals, and tells when another try makes sense.
        workers: publishes the backlog of workers that lose a query.
    """

    def __init__(
        self,
        open_queries: OpenQueries,
        tenants: Tenants,
        waiting: WaitingQueries,
        pending: PendingLoads,
        workers: WorkerTable,
    ) -> None:
        self._open = open_queries
        self._tenants = tenants
        self._waiting = waiting
        self._pending = pending
        self._workers = workers

    def remove_query(self, query_id: int) -> None:
        self._pending.forget_query(query_id)
        if self._waiting.place(query_id) is not None:
            worker = self._waiting.remove_query(query_id).worker
            if worker is not None:
                self._workers.publish_backlog(worker)

    def refuse_query(self, receipt: Receipt, reason: AnyReason, now_s: float) -> Refuse:
        if not is_offline(receipt.query):
            self._tenants.count_refusal(reason)
        self.remove_query(receipt.query.query_id)
        refusal = self._open.refuse_query(receipt, reason, now_s)
        if reason is Reason.QUEUE_FULL or reason is Reason.DEADLINE_PASSED:
            wait_s = self._tenants.half_drain_s(now_s)
            return refusal._replace(retry_after_s=wait_s or refusal.retry_after_s)
        return refusal

    def refuse_queries(
        self, receipts: Iterable[Receipt], reason: AnyReason, now_s: float
    ) -> list[DispatchEffect]:
        return [self.refuse_query(receipt, reason, now_s) for receipt in receipts]

    def refuse_after_failure(self, failure: PolicyFailure, now_s: float) -> list[DispatchEffect]:
        effects: list[DispatchEffect] = []
        for query_id in failure.query_ids:
            receipt = self._open.by_id[query_id]
            receipt.problem = failure.problem
            effects.append(self.refuse_query(receipt, Reason.POLICY_FAILED, now_s))
        return effects


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
