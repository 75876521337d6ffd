"""Handing a query to a worker's queue and a batch to the worker, and saying so in the receipts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from modelless.controller.core.limits import DispatchLimits
from modelless.controller.core.receipts import Receipt
from modelless.controller.core.roster import Roster
from modelless.controller.core.waiting import Batch, WaitingRoom, Worker
from modelless.policies.views import ResidentView, Run


def bind_query(
    receipt: Receipt,
    row: int,
    roster: Roster,
    workers: Mapping[str, Worker],
    waiting: WaitingRoom,
    now_s: float,
) -> Worker:
    """Let a query wait for the worker that begins soonest of those of ``row``; returns it.

    Args:
        receipt: the query's, with the candidates that it was chosen from.
        row: the chosen one of them.
        roster: who can serve what.
        workers: by id.
        waiting: where it will wait.
        now_s: when it was chosen.
    """
    query, candidates = receipt.query, receipt.candidates
    assert candidates is not None  # noqa: S101  (it was chosen from them)
    placement = candidates.placements[row]
    worker = workers[roster.soonest(placement, now_s)]
    receipt.row = row
    receipt.variant_id, receipt.device_class = placement.variant_id, placement.device_class
    receipt.worker_id = worker.worker_id
    finish_s = candidates.free_at_s[row] + candidates.estimates.p50_s[row]
    receipt.predicted_latency_s = float(finish_s) - query.arrival_s
    resident = roster.residents(worker.worker_id)[placement.variant_id]
    waiting.bind(query, worker, placement.variant_id, resident.p50_s[query.items])
    return worker


def start_batch(
    batch_id: int,
    worker: Worker,
    run: Run,
    resident: ResidentView,
    waiting: WaitingRoom,
    open_receipts: Mapping[int, Receipt],
    limits: DispatchLimits,
    now_s: float,
) -> Batch:
    """Take the queries of ``run``, which was checked, out of where they wait; the worker runs them.

    Args:
        batch_id: the new batch's.
        worker: idle; runs the batch after this.
        run: what the policy wants.
        resident: the variant on this worker.
        waiting: where the queries wait.
        open_receipts: the queries', by id.
        limits: when a batch hangs, and when it is given up.
        now_s: when it begins.
    """
    take = waiting.take
    queries = tuple([take(query.query_id).query for query in run.queries])
    items = sum([query.items for query in queries])
    p50_s, p99_s = resident.p50_s[items], resident.p99_s[items]
    expected_s = p50_s if p50_s == p50_s else math.inf
    receipts = [open_receipts[query.query_id] for query in queries]
    may_retry = all(receipt.attempts + 1 < limits.max_attempts for receipt in receipts)
    worker.running = batch = Batch(
        batch_id,
        run.variant_id,
        worker.device_class,
        queries,
        items,
        now_s,
        expected_s,
        now_s + limits.suspect_factor * p99_s + limits.suspect_s if may_retry else math.inf,
        now_s + limits.overdue_factor * p99_s + limits.overdue_s,
    )
    worker.busy_until_s = now_s + expected_s
    for query, receipt in zip(queries, receipts, strict=True):
        if receipt.row is None:  # chosen only now
            receipt.predicted_latency_s = worker.busy_until_s - query.arrival_s
            receipt.reason = run.reason
        receipt.start(run.variant_id, worker.device_class, worker.worker_id, items, now_s)
    return batch
