"""The way of a query: admit, choose, queue, batch, and account for what came of it.

Holds no tensors, opens nothing, waits for nothing. A driver feeds it events with the time at which
they happened and carries out the effects it returns, in order. Every query that goes in comes out
exactly once, as a Complete or a Refuse.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from modelless.controller.core.effects import Complete, DispatchEffect, Execute, Refuse, WakeAt
from modelless.controller.core.nearest import refusal_message
from modelless.controller.core.receipts import Receipt, ReceiptBook
from modelless.controller.core.roster import Roster, WorkerReport
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import Bind, Defer, QueryView, QueueView, Reject, Run, WorkerView
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

QueueKey = tuple[str, str | None, Hashable]


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Bounds that hold whatever a policy says.

    Attributes:
        max_queued: queries waiting in all; more are refused.
        max_batch: items in one batch.
        max_attempts: times a query is handed to a worker: 2 is one retry elsewhere.
        max_rebinds: times a late query is chosen for anew; after that it runs or expires.
        overdue_factor, overdue_s: a batch that runs longer than ``overdue_factor`` x its p99 plus
            ``overdue_s`` seconds is given up, and its worker with it.
    """

    max_queued: int = 2048
    max_batch: int = 8
    max_attempts: int = 2
    max_rebinds: int = 3
    overdue_factor: float = 20.0
    overdue_s: float = 5.0


@dataclass(slots=True)
class _Batch:
    batch_id: int
    variant_id: str
    queries: tuple[QueryView, ...]
    items: int
    started_s: float
    overdue_at_s: float


@dataclass(slots=True)
class _Worker:
    worker_id: str
    device_class: str
    running: _Batch | None = None
    busy_until_s: float = 0.0
    backlog_s: float = 0.0
    queues: dict[QueueKey, list[QueryView]] = field(default_factory=dict)


@dataclass(slots=True)
class DispatchCounters:
    """What happened since the last ``take_counters``: the gateway's report to the control loop."""

    arrivals: dict[str, int] = field(default_factory=dict)
    unmet: dict[str, int] = field(default_factory=dict)
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)


def urgency(query: QueryView) -> tuple[int, float, int]:
    """The order in queues: priority, then deadline, then arrival."""
    return (-query.priority, query.deadline_s, query.query_id)


class Dispatcher:
    """One gateway's queries and the workers it may use.

    Args:
        roster: who can serve what, and what it is expected to cost.
        selection: the policy that chooses.
        rng: the policy's randomness.
        limits: bounds on queues, batches and retries.
        receipts: where finished receipts go.
    """

    def __init__(
        self,
        roster: Roster,
        selection: SelectionPolicy,
        rng: np.random.Generator,
        limits: DispatchLimits | None = None,
        receipts: ReceiptBook | None = None,
    ) -> None:
        self.roster = roster
        self.selection = selection
        self.limits = limits or DispatchLimits()
        self.receipts = receipts if receipts is not None else ReceiptBook()
        self._rng = rng
        self._workers: dict[str, _Worker] = {}
        self._batches: dict[int, _Worker] = {}
        self._open: dict[int, Receipt] = {}
        self._deferred: dict[QueueKey, list[QueryView]] = {}
        self._queued = 0
        self._next_batch_id = 0
        self._hungry: dict[str, _Worker] = {}  # idle, with something new in reach
        self._counters = DispatchCounters()

    # -- events -------------------------------------------------------------------------------

    def on_query(self, query: QueryView, now_s: float) -> list[DispatchEffect]:
        """A query has come in. Its id must be new."""
        self._open[query.query_id] = receipt = Receipt(query)
        _count(self._counters.arrivals, query.scope)
        if self._queued >= self.limits.max_queued:
            return [self._refuse(receipt, Reason.QUEUE_FULL, now_s)]
        if query.items > self.limits.max_batch:
            return [self._refuse(receipt, Reason.NOTHING_READY, now_s)]
        return self._choose(receipt, now_s, late=False) + self._settle(now_s)

    def on_batch_done(self, batch_id: int, now_s: float, busy_s: float) -> list[DispatchEffect]:
        """A batch has run. ``busy_s``: how long the device was busy with it, seconds.

        Unknown ids (a batch given up as overdue, or of a worker that was lost) are ignored.
        """
        worker = self._batches.pop(batch_id, None)
        if worker is None or worker.running is None:
            return []
        batch, worker.running = worker.running, None
        worker.busy_until_s = now_s
        placement = Placement(batch.variant_id, worker.device_class)
        self.roster.cost_model.observe(placement, batch.items, Load(), busy_s)
        _count(self._counters.used, (worker.worker_id, batch.variant_id))
        effects: list[DispatchEffect] = []
        for query in batch.queries:
            receipt = self._open.get(query.query_id)
            if receipt is None:  # cancelled while it ran
                continue
            receipt.observed_latency_s = now_s - query.arrival_s
            late = now_s > query.deadline_s
            self._close(receipt, "served-late" if late else "served")
            effects.append(Complete(query.query_id, batch_id))
        return effects + self._settle(now_s, worker)

    def on_batch_failed(
        self, batch_id: int, now_s: float, *, worker_lost: bool
    ) -> list[DispatchEffect]:
        """A batch could not be run. If its worker is gone, its queries are tried elsewhere, once."""
        worker = self._batches.pop(batch_id, None)
        if worker is None or worker.running is None:
            return []
        if worker_lost:
            self._batches[batch_id] = worker
            return self.on_worker_lost(worker.worker_id, now_s)
        batch, worker.running = worker.running, None
        worker.busy_until_s = now_s
        effects: list[DispatchEffect] = [
            self._refuse(self._open[query.query_id], Reason.EXECUTION_FAILED, now_s)
            for query in batch.queries
            if query.query_id in self._open
        ]
        return effects + self._settle(now_s, worker)

    def on_worker_report(self, report: WorkerReport, now_s: float) -> list[DispatchEffect]:
        """A worker is there, or holds something else than before."""
        worker = self._workers.get(report.worker_id)
        if worker is None:
            worker = _Worker(report.worker_id, report.device_class)
            self._workers[report.worker_id] = worker
        if not self.roster.update(report):
            return []
        effects: list[DispatchEffect] = []
        for key in [key for key in worker.queues if key[1] not in report.variant_ids]:
            effects += self._choose_again(worker, key, now_s)
        return effects + self._settle(now_s, worker)

    def on_worker_lost(self, worker_id: str, now_s: float) -> list[DispatchEffect]:
        """A worker died or hangs: what it ran and what was queued for it goes elsewhere."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return []
        self.roster.remove(worker_id)
        orphans: list[QueryView] = []
        if worker.running is not None:
            self._batches.pop(worker.running.batch_id, None)
            orphans += worker.running.queries
        waiting = [query for queue in worker.queues.values() for query in queue]
        self._queued -= len(waiting)
        effects: list[DispatchEffect] = []
        for query in sorted(orphans + waiting, key=urgency):
            receipt = self._open.get(query.query_id)
            if receipt is None:
                continue
            if receipt.attempts >= self.limits.max_attempts:
                effects.append(self._refuse(receipt, Reason.WORKER_LOST, now_s))
            else:
                effects += self._choose(receipt, now_s, late=False)
        return effects + self._settle(now_s)

    def on_cancel(self, query_id: int, now_s: float) -> None:
        """The client went away. A queued query is dropped; a running one is no longer answered."""
        receipt = self._open.get(query_id)
        if receipt is None:
            return
        receipt.reason = Reason.CANCELLED
        self._close(receipt, "cancelled")
        for queues, worker in self._all_queues():
            for key, queue in list(queues.items()):
                if receipt.query in queue:
                    self._take_out(worker, queues, key, (receipt.query,))
                    if worker is not None:
                        self._publish_free_at(worker, now_s)
                    return

    def on_tick(self, now_s: float) -> list[DispatchEffect]:
        """Time has passed: answer queries that cannot be in time, give up on batches that hang."""
        effects: list[DispatchEffect] = []
        for queues, worker in list(self._all_queues()):
            for key in list(queues):
                expired = tuple(q for q in queues.get(key, ()) if q.deadline_s <= now_s)
                if expired:
                    self._take_out(worker, queues, key, expired)
                    effects += [
                        self._refuse(self._open[q.query_id], Reason.DEADLINE_PASSED, now_s)
                        for q in expired
                    ]
        for worker in list(self._workers.values()):
            if worker.running is not None and now_s > worker.running.overdue_at_s:
                effects += self.on_worker_lost(worker.worker_id, now_s)
            elif worker.running is None:
                self._hungry[worker.worker_id] = worker
        return effects + self._settle(now_s)

    def refresh(self, load: Load) -> None:
        """Take the cost model's newest estimates; once a second is enough."""
        self.roster.refresh(load)

    def shut_down(self, now_s: float) -> list[DispatchEffect]:
        """Refuse whatever is still waiting; running batches still complete."""
        effects: list[DispatchEffect] = []
        for queues, worker in list(self._all_queues()):
            for key in list(queues):
                members = tuple(queues[key])
                self._take_out(worker, queues, key, members)
                effects += [
                    self._refuse(self._open[q.query_id], Reason.SHUTTING_DOWN, now_s)
                    for q in members
                ]
        return effects

    # -- reports ------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Queries waiting."""
        return self._queued

    @property
    def open_queries(self) -> int:
        """Queries waiting or running."""
        return len(self._open)

    def members(self, batch_id: int) -> tuple[int, ...]:
        """The queries of a running batch, in order; none if it is not running (any more)."""
        worker = self._batches.get(batch_id)
        if worker is None or worker.running is None:
            return ()
        return tuple(query.query_id for query in worker.running.queries)

    def in_use(self, worker_id: str) -> set[str]:
        """Variants of the worker that run or are queued for: these must not be unloaded."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return set()
        used = {key[1] for key in worker.queues if key[1] is not None}
        return used | ({worker.running.variant_id} if worker.running else set())

    def receipt(self, query_id: int) -> Receipt | None:
        """The receipt of a query, open or lately closed."""
        return self._open.get(query_id) or self.receipts.get(query_id)

    def take_counters(self) -> DispatchCounters:
        """What happened since the last call."""
        taken, self._counters = self._counters, DispatchCounters()
        return taken

    # -- choosing -----------------------------------------------------------------------------

    def _choose(self, receipt: Receipt, now_s: float, *, late: bool) -> list[DispatchEffect]:
        query = receipt.query
        candidates = self.roster.candidates(query.scope, query.items, now_s)
        receipt.candidates = candidates
        if not candidates.placements:
            _count(self._counters.unmet, query.scope)
            return [self._refuse(receipt, Reason.NOTHING_READY, now_s)]
        ask = self.selection.on_late if late else self.selection.on_arrival
        choice = ask(query, candidates, self._rng)
        if isinstance(choice, Reject):
            return [self._refuse(receipt, choice.reason, now_s)]
        receipt.reason = choice.reason
        if isinstance(choice, Defer):
            return self._defer(query)
        return self._bind(receipt, choice, now_s)

    def _bind(self, receipt: Receipt, choice: Bind, now_s: float) -> list[DispatchEffect]:
        query, candidates = receipt.query, receipt.candidates
        assert candidates is not None  # noqa: S101  (set by _choose)
        placement = candidates.placements[choice.row]
        worker = self._least_busy(placement, now_s)
        receipt.row = choice.row
        receipt.variant_id, receipt.device_class = placement.variant_id, placement.device_class
        receipt.worker_id = worker.worker_id
        finish_s = candidates.free_at_s[choice.row] + candidates.estimates.p50_s[choice.row]
        receipt.predicted_latency_s = float(finish_s) - query.arrival_s
        key: QueueKey = (query.scope, placement.variant_id, query.batch_key)
        insort(worker.queues.setdefault(key, []), query, key=urgency)
        worker.backlog_s += self._service_s(worker, placement.variant_id, query.items)
        self._queued += 1
        if worker.running is None:
            self._hungry[worker.worker_id] = worker
        self._publish_free_at(worker, now_s)
        return []

    def _defer(self, query: QueryView) -> list[DispatchEffect]:
        key: QueueKey = (query.scope, None, query.batch_key)
        insort(self._deferred.setdefault(key, []), query, key=urgency)
        self._queued += 1
        idle = {name: w for name, w in self._workers.items() if w.running is None}
        self._hungry.update(idle)
        return []

    def _choose_again(self, worker: _Worker, key: QueueKey, now_s: float) -> list[DispatchEffect]:
        members = tuple(worker.queues[key])
        self._take_out(worker, worker.queues, key, members)
        effects: list[DispatchEffect] = []
        for query in members:
            effects += self._choose(self._open[query.query_id], now_s, late=False)
        return effects

    def _least_busy(self, placement: Placement, now_s: float) -> _Worker:
        holders = [self._workers[name] for name in self.roster.holders(placement)]
        return min(holders, key=lambda w: (self._free_at(w, now_s), w.worker_id))

    # -- feeding workers ----------------------------------------------------------------------

    def _settle(self, now_s: float, *idle: _Worker) -> list[DispatchEffect]:
        """Feed every idle worker with something new in reach: the end of each event."""
        effects: list[DispatchEffect] = []
        for worker in idle:
            self._hungry[worker.worker_id] = worker
        while self._hungry:
            _, worker = self._hungry.popitem()
            if worker.running is None and self._workers.get(worker.worker_id) is worker:
                effects += self._feed(worker, now_s)
        return effects

    def _feed(self, worker: _Worker, now_s: float) -> list[DispatchEffect]:
        """Give an idle worker its next batch, turning away what is too late on the way."""
        effects = self._turn_away_late(worker, now_s)
        queues = self._queues_for(worker)
        if queues:
            view = WorkerView(
                worker.worker_id,
                worker.device_class,
                self.roster.residents(worker.worker_id),
                self.limits.max_batch,
            )
            decision = self.selection.on_idle(view, queues, now_s, self._rng)
            if isinstance(decision, Run):
                effects.append(self._start(worker, decision, now_s))
            elif decision.until_s < float("inf"):
                effects.append(WakeAt(decision.until_s))
        self._publish_free_at(worker, now_s)
        return effects

    def _turn_away_late(self, worker: _Worker, now_s: float) -> list[DispatchEffect]:
        """Ask the policy again about bound queries that would miss their deadline if run now."""
        effects: list[DispatchEffect] = []
        residents = self.roster.residents(worker.worker_id)
        for key in list(worker.queues):
            resident = residents[key[1] or ""]
            late = []
            for query in worker.queues[key]:
                if now_s + resident.p50_s[query.items] <= query.deadline_s:
                    break
                late.append(query)
            late = [q for q in late if self._open[q.query_id].rebinds < self.limits.max_rebinds]
            if not late:
                continue
            self._take_out(worker, worker.queues, key, late)
            self._publish_free_at(worker, now_s)
            for query in late:
                receipt = self._open[query.query_id]
                receipt.rebinds += 1
                effects += self._choose(receipt, now_s, late=True)
        return effects

    def _queues_for(self, worker: _Worker) -> list[QueueView]:
        queues = [QueueView(k[0], k[1], k[2], q) for k, q in worker.queues.items()]
        for key, queue in self._deferred.items():
            if self.roster.serves(worker.worker_id, key[0]):
                queues.append(QueueView(key[0], None, key[2], queue))
        return queues

    def _start(self, worker: _Worker, run: Run, now_s: float) -> Execute:
        resident = self.roster.residents(worker.worker_id).get(run.variant_id)
        items = sum(query.items for query in run.queries)
        if resident is None or not run.queries or not 0 < items <= self.limits.max_batch:
            raise PolicyError(
                f"{type(self.selection).__name__}.on_idle gave {items} items for "
                f"{run.variant_id!r} on {worker.worker_id!r}; allowed: 1 to "
                f"{self.limits.max_batch} items of a variant that is resident there"
            )
        for query in run.queries:
            self._take_out_query(worker, query, run.variant_id)
        batch = _Batch(
            self._next_batch_id,
            run.variant_id,
            run.queries,
            items,
            now_s,
            now_s + self.limits.overdue_factor * resident.p99_s[items] + self.limits.overdue_s,
        )
        self._next_batch_id += 1
        worker.running = batch
        worker.busy_until_s = now_s + self._service_s(worker, run.variant_id, items)
        self._batches[batch.batch_id] = worker
        for query in run.queries:
            receipt = self._open[query.query_id]
            receipt.attempts += 1
            receipt.outcome = "running"
            receipt.batch_items = items
            if not receipt.variant_id or receipt.row is None:
                receipt.predicted_latency_s = worker.busy_until_s - query.arrival_s
                receipt.reason = run.reason
            receipt.variant_id, receipt.device_class = run.variant_id, worker.device_class
            receipt.worker_id = worker.worker_id
        return Execute(
            batch.batch_id,
            worker.worker_id,
            run.variant_id,
            tuple(query.query_id for query in run.queries),
        )

    # -- books --------------------------------------------------------------------------------

    def _take_out_query(self, worker: _Worker, query: QueryView, variant_id: str) -> None:
        bound: QueueKey = (query.scope, variant_id, query.batch_key)
        deferred: QueueKey = (query.scope, None, query.batch_key)
        if query in worker.queues.get(bound, ()):
            self._take_out(worker, worker.queues, bound, (query,))
        elif query in self._deferred.get(deferred, ()):
            self._take_out(None, self._deferred, deferred, (query,))
        else:
            raise PolicyError(
                f"{type(self.selection).__name__}.on_idle named query {query.query_id}, which is "
                f"not queued for {variant_id!r} on {worker.worker_id!r}"
            )

    def _take_out(
        self,
        worker: _Worker | None,
        queues: dict[QueueKey, list[QueryView]],
        key: QueueKey,
        members: Sequence[QueryView],
    ) -> None:
        queue = queues[key]
        if len(members) == len(queue):
            del queues[key]
        else:
            gone = {query.query_id for query in members}
            queue[:] = [query for query in queue if query.query_id not in gone]
        self._queued -= len(members)
        if worker is not None and key[1] is not None:
            for query in members:
                worker.backlog_s -= self._service_s(worker, key[1], query.items)
            if not worker.queues:
                worker.backlog_s = 0.0

    def _all_queues(
        self,
    ) -> Iterable[tuple[dict[QueueKey, list[QueryView]], _Worker | None]]:
        yield from ((worker.queues, worker) for worker in self._workers.values())
        yield self._deferred, None

    def _service_s(self, worker: _Worker, variant_id: str, items: int) -> float:
        resident = self.roster.residents(worker.worker_id).get(variant_id)
        return resident.p50_s[items] if resident is not None else 0.0

    def _free_at(self, worker: _Worker, now_s: float) -> float:
        start_s = worker.busy_until_s if worker.running is not None else now_s
        return max(start_s, now_s) + max(worker.backlog_s, 0.0)

    def _publish_free_at(self, worker: _Worker, now_s: float) -> None:
        if self._workers.get(worker.worker_id) is worker:
            self.roster.set_free_at(worker.worker_id, self._free_at(worker, now_s))

    def _refuse(self, receipt: Receipt, reason: Reason, now_s: float) -> Refuse:
        receipt.reason = reason
        receipt.row = None
        receipt.observed_latency_s = now_s - receipt.query.arrival_s
        message, retry_after_s = refusal_message(receipt, self.limits.max_batch)
        self._close(receipt, "refused")
        return Refuse(receipt.query.query_id, reason, message, retry_after_s)

    def _close(self, receipt: Receipt, outcome: str) -> None:
        receipt.outcome = outcome
        del self._open[receipt.query.query_id]
        self.receipts.add(receipt)
        _count(self._counters.outcomes, outcome)


class PolicyError(RuntimeError):
    """A policy returned what no policy may: a bug in the policy, named."""


def _count(counts: dict[str, int] | dict[tuple[str, str], int], key: object) -> None:
    counts[key] = counts.get(key, 0) + 1  # type: ignore[index,call-overload]
