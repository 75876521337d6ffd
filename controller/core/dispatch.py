"""The way of a query: admit, choose, queue, batch, and account for what came of it.

Holds no tensors, opens nothing, waits for nothing. A driver feeds it events with the time at which
they happened and carries out the effects it returns, in order. Every query that goes in comes out
exactly once, as a Complete or a Refuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from modelless.controller.core.asking import PolicyFailure, ask_on_idle, ask_on_query, tell_plan
from modelless.controller.core.books import Books, DispatchCounters, Explain
from modelless.controller.core.effects import DispatchEffect, Execute, Refuse, WakeAt
from modelless.controller.core.handing import bind_query, start_batch
from modelless.controller.core.holding import HoldingRoom
from modelless.controller.core.idle import IdleWorkers
from modelless.controller.core.limits import DispatchLimits
from modelless.controller.core.nearest import refusal_message
from modelless.controller.core.quarantine import Quarantine
from modelless.controller.core.receipts import Receipt, ReceiptBook
from modelless.controller.core.roster import Roster, WorkerReport
from modelless.controller.core.waiting import Batch, WaitingRoom, Worker
from modelless.policies.batching.urgency import urgency
from modelless.policies.reasons import Reason
from modelless.policies.scopes import base_of
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import Defer, QueryView, Reject, Run, Wait
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

__all__ = ["DispatchLimits", "Dispatcher"]


class Dispatcher:
    """One gateway's queries and the workers it may use.

    Args:
        roster: who can serve what, and what it is expected to cost.
        selection: the policy that chooses.
        rng: the policy's randomness.
        limits: bounds on queues, batches and retries.
        receipts: where finished receipts go.
        explain: words a refusal, for people.

    Attributes:
        quarantine: workers that hang or are slow, and get no batches for now.
    """

    def __init__(
        self,
        roster: Roster,
        selection: SelectionPolicy,
        rng: np.random.Generator,
        limits: DispatchLimits | None = None,
        receipts: ReceiptBook | None = None,
        explain: Explain = refusal_message,
    ) -> None:
        self.roster = roster
        self.selection = selection
        self.limits = limits or DispatchLimits()
        self.receipts = receipts if receipts is not None else ReceiptBook()
        self._rng = rng
        self._workers: dict[str, Worker] = {}
        self._batches: dict[int, Worker] = {}
        self._books = Books(self.receipts, self.limits.max_batch, explain)
        self._waiting = WaitingRoom()
        self._next_batch_id = 0
        self._next_worker = 0
        self._held = HoldingRoom(self._waiting, roster, self.limits)
        self._idle = IdleWorkers(self._waiting)
        self.quarantine = Quarantine(roster)

    # -- events -------------------------------------------------------------------------------

    def on_query(self, query: QueryView, now_s: float) -> list[DispatchEffect]:
        """A query has come in. Its id must be new."""
        receipt = self._books.enter(query)
        if len(self._waiting) >= self.limits.max_queued:
            return [self._refuse(receipt, Reason.QUEUE_FULL, now_s)]
        if not 1 <= query.items <= self.limits.max_batch:
            return [self._refuse(receipt, Reason.BAD_ITEM_COUNT, now_s)]
        return self._settle(now_s, self._choose(receipt, now_s, late=False))

    def on_batch_done(self, batch_id: int, now_s: float, busy_s: float) -> list[DispatchEffect]:
        """A batch has run. ``busy_s``: how long the device was busy with it, seconds.

        Unknown ids (a batch given up, or of a worker that was lost) do no more than show that
        the worker is alive.
        """
        worker = self._batches.pop(batch_id, None)
        if worker is None or worker.running is None:
            return self._see_anew(self.quarantine.returned(batch_id, now_s), now_s)
        batch = self._stop(worker, worker.running, now_s)
        placement = Placement(batch.variant_id, batch.device_class)
        self.roster.cost_model.observe(placement, batch.items, self.roster.load, busy_s)
        effects = self._books.complete(batch, worker, now_s, busy_s)
        if self.quarantine.is_slow(worker, batch, now_s):
            return effects + self._see_anew(worker.worker_id, now_s)
        self._idle.tell(worker)
        return self._settle(now_s, effects)

    def on_batch_failed(
        self, batch_id: int, now_s: float, *, worker_lost: bool
    ) -> list[DispatchEffect]:
        """A batch could not be run. If its worker is gone, its queries are tried elsewhere once."""
        worker = self._batches.get(batch_id)
        if worker is None or worker.running is None:
            awaiting = self.quarantine.returned(batch_id, now_s)
            if awaiting is not None and worker_lost:
                return self.on_worker_lost(awaiting, now_s)
            return self._see_anew(awaiting, now_s)
        if worker_lost:
            return self.on_worker_lost(worker.worker_id, now_s)
        del self._batches[batch_id]
        batch = self._stop(worker, worker.running, now_s)
        still_open = [query for query in batch.queries if query.query_id in self._books.open]
        effects = self._refuse_all(still_open, Reason.EXECUTION_FAILED, now_s)
        self._idle.tell(worker)
        return self._settle(now_s, effects)

    def on_worker_report(self, report: WorkerReport, now_s: float) -> list[DispatchEffect]:
        """A worker is there, or holds something else than before."""
        worker = self._workers.get(report.worker_id)
        if worker is None:
            worker = Worker(report.worker_id, report.device_class, self._next_worker)
            self._next_worker += 1
            self._workers[report.worker_id] = worker
            self._idle.add(worker)
        report = self.quarantine.seen_as(report)
        if not self.roster.update(report):
            return []
        resized = worker.device_class != report.device_class
        worker.device_class = report.device_class
        homeless = [
            query
            for key, queue in worker.queues.items()
            if resized or key[1] not in report.variant_ids
            for query in queue
        ]
        effects = self._choose_again(homeless + self._held.stranded(), now_s)
        self._idle.tell(worker)
        return self._settle(now_s, effects)

    def on_worker_lost(self, worker_id: str, now_s: float) -> list[DispatchEffect]:
        """A worker died or hangs: what it ran and what was queued for it goes elsewhere."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return []
        self.quarantine.forget(worker_id)
        self.roster.remove(worker_id)
        homeless = [query for queue in worker.queues.values() for query in queue]
        if worker.running is not None:
            del self._batches[worker.running.batch_id]
            homeless += worker.running.queries
            worker.running = None
        else:
            self._idle.remove(worker)
        effects = self._choose_again(homeless + self._held.stranded(), now_s)
        return self._settle(now_s, effects)

    def on_cancel(self, query_id: int, now_s: float) -> None:
        """The client went away. A queued query is dropped; a running one is no longer answered."""
        del now_s
        receipt = self._books.open.get(query_id)
        if receipt is None:
            return
        self._take(query_id)
        self._books.cancel(receipt)

    def on_tick(self, now_s: float) -> list[DispatchEffect]:
        """Time has passed: answer queries that cannot be in time, give up on batches that hang."""
        effects = self._refuse_all(self._held.in_vain(now_s), Reason.NOTHING_READY, now_s)
        effects += self._refuse_all(self._waiting.expired(now_s), Reason.DEADLINE_PASSED, now_s)
        for worker in list(self._workers.values()):
            if worker.running is None:
                self._idle.tell(worker)
            elif now_s > worker.running.overdue_at_s:
                effects += self.on_worker_lost(worker.worker_id, now_s)
            elif self.quarantine.hangs(worker, now_s):
                effects += self._take_away(worker, worker.running, now_s)
        for worker_id in self.quarantine.due(now_s):
            effects += self._see_anew(worker_id, now_s)
        return self._settle(now_s, effects)

    def refresh(self, load: Load, starting_s: Mapping[str, float] = MappingProxyType({})) -> None:
        """Take the cost model's newest estimates, and how soon new workers can be there, by device
        class; once a second is enough."""
        self.roster.expect_workers(starting_s)
        self.roster.refresh(load)

    def advise(self, shares: Mapping[str, Mapping[Placement, float]]) -> str | None:
        """Pass the plan's shares on to the selection policy; returns its problem, if it has one."""
        return tell_plan(self.selection, shares)

    def shut_down(self, now_s: float) -> list[DispatchEffect]:
        """Refuse whatever is still waiting; running batches still complete."""
        return self._refuse_all(self._waiting.everyone(), Reason.SHUTTING_DOWN, now_s)

    # -- reports ------------------------------------------------------------------------------

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
        return dict(Counter(base_of(each.query.scope) for each in self._books.open.values()))

    def members(self, batch_id: int) -> tuple[int, ...]:
        """The queries of a running batch, in order; none if it is not running (any more)."""
        worker = self._batches.get(batch_id)
        batch = worker.running if worker is not None else None
        return tuple(query.query_id for query in batch.queries) if batch is not None else ()

    def in_use(self, worker_id: str) -> set[str]:
        """Variants of the worker that run or are queued for: these must not be unloaded."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return set()
        used = {key[1] for key in worker.queues if key[1] is not None}
        return used | ({worker.running.variant_id} if worker.running else set())

    def receipt(self, query_id: int) -> Receipt | None:
        """The receipt of a query, open or lately closed."""
        return self._books.open.get(query_id) or self.receipts.get(query_id)

    def take_counters(self) -> DispatchCounters:
        """What happened since the last call."""
        return self._books.take_counters()

    # -- choosing -----------------------------------------------------------------------------

    def _choose(self, receipt: Receipt, now_s: float, *, late: bool) -> list[DispatchEffect]:
        """Ask the policy about a query that waits nowhere: it is queued or refused after this."""
        query = receipt.query
        if receipt.candidates is not None and query.deadline_s <= now_s:  # it was asked before
            return [self._refuse(receipt, Reason.DEADLINE_PASSED, now_s)]
        candidates = self.roster.candidates(query.scope, query.items, now_s)
        receipt.candidates, receipt.row, receipt.outcome = candidates, None, "waiting"
        if not candidates.placements:
            self._books.count_unmet(query)
            if self._held.hold(query, now_s):
                return []
            return [self._refuse(receipt, Reason.NOTHING_READY, now_s)]
        choice = ask_on_query(self.selection, query, candidates, self._rng, late=late)
        if isinstance(choice, PolicyFailure):
            return self._refuse_failed(choice, now_s)
        if isinstance(choice, Reject):
            return [self._refuse(receipt, choice.reason, now_s)]
        receipt.reason = choice.reason
        if isinstance(choice, Defer):
            self._waiting.defer(query)
            self._idle.tell_all()
        else:
            row, workers = int(choice.row), self._workers
            worker = bind_query(receipt, row, self.roster, workers, self._waiting, now_s)
            self._publish(worker)
            if worker.running is None:
                self._idle.tell(worker)
        return []

    def _choose_again(self, queries: Iterable[QueryView], now_s: float) -> list[DispatchEffect]:
        """Choose anew for queries whose worker or variant is gone; queued or not."""
        known = self._books.open  # without those that were cancelled while they ran
        ids = [query.query_id for query in sorted(queries, key=urgency)]
        receipts = [known[query_id] for query_id in ids if query_id in known]
        for receipt in receipts:
            self._take(receipt.query.query_id)
        effects: list[DispatchEffect] = []
        for receipt in receipts:
            if receipt.attempts >= self.limits.max_attempts:
                effects.append(self._refuse(receipt, Reason.WORKER_LOST, now_s))
            else:
                effects += self._choose(receipt, now_s, late=False)
        return effects

    # -- workers that hang or are slow --------------------------------------------------------

    def _take_away(self, worker: Worker, batch: Batch, now_s: float) -> list[DispatchEffect]:
        """Let what hangs on the worker be served elsewhere; what it has of it still is awaited."""
        del self._batches[batch.batch_id]
        self._stop(worker, batch, now_s)
        effects = self._see_anew(worker.worker_id, now_s)
        return effects + self._choose_again(batch.queries, now_s)

    def _see_anew(self, worker_id: str | None, now_s: float) -> list[DispatchEffect]:
        """See the worker anew, as its quarantine that began or ended says."""
        if worker_id is None:
            return []
        return self.on_worker_report(self.quarantine.report_of(worker_id), now_s)

    # -- feeding workers ----------------------------------------------------------------------

    def _settle(self, now_s: float, effects: list[DispatchEffect]) -> list[DispatchEffect]:
        """Feed every idle worker with something new in reach: the end of each event."""
        while (worker := self._idle.next_hungry()) is not None:
            effects += self._feed(worker, now_s)
        return effects

    def _feed(self, worker: Worker, now_s: float) -> list[DispatchEffect]:
        """Give an idle worker its next batch, turning away what is too late on the way."""
        effects = self._turn_away_late(worker, now_s)
        while True:
            decision = ask_on_idle(
                self.selection,
                worker,
                self._waiting,
                self.roster,
                self.limits.max_batch,
                now_s,
                self._rng,
            )
            if isinstance(decision, PolicyFailure):  # each costs a query, so this ends
                effects += self._refuse_failed(decision, now_s)
                continue
            if decision is not None:
                effects += self._refuse_all(decision.dropped, Reason.DEADLINE_PASSED, now_s)
            if isinstance(decision, Wait) and decision.dropped:
                continue  # there may be good ones behind them
            if isinstance(decision, Run):
                effects.append(self._start(worker, decision, now_s))
            elif decision is not None and decision.until_s < float("inf"):
                effects.append(WakeAt(max(decision.until_s, now_s + self.limits.min_wait_s)))
            return effects

    def _turn_away_late(self, worker: Worker, now_s: float) -> list[DispatchEffect]:
        """Ask the policy again about bound queries that would miss their deadline if run now."""
        effects: list[DispatchEffect] = []
        residents = self.roster.residents(worker.worker_id)
        for key, queue in list(worker.queues.items()):
            resident = residents[key[1] or ""]
            late = []
            for query in queue:
                if now_s + resident.p50_s[query.items] <= query.deadline_s:
                    break
                if self._books.open[query.query_id].rebinds < self.limits.max_rebinds:
                    late.append(query)
            for query in late:
                self._take(query.query_id)
            for query in late:
                receipt = self._books.open[query.query_id]
                receipt.rebinds += 1
                effects += self._choose(receipt, now_s, late=True)
        return effects

    def _start(self, worker: Worker, run: Run, now_s: float) -> Execute:
        """Hand the batch, which was checked, to the worker."""
        resident = self.roster.residents(worker.worker_id)[run.variant_id]
        batch_id = self._next_batch_id
        self._next_batch_id += 1
        batch = start_batch(
            batch_id, worker, run, resident, self._waiting, self._books.open, self.limits, now_s
        )
        self._batches[batch_id] = worker
        self._idle.remove(worker)
        self._publish(worker)
        query_ids = tuple([query.query_id for query in batch.queries])
        return Execute(batch_id, worker.worker_id, run.variant_id, query_ids)

    def _stop(self, worker: Worker, batch: Batch, now_s: float) -> Batch:
        worker.running = None
        self._idle.add(worker)
        worker.busy_until_s = now_s
        self._publish(worker)
        return batch

    # -- books --------------------------------------------------------------------------------

    def _take(self, query_id: int) -> None:
        """Take the query out of where it waits, if it does."""
        self._held.forget(query_id)
        if self._waiting.place(query_id) is not None:
            worker = self._waiting.take(query_id).worker
            if worker is not None:
                self._publish(worker)

    def _publish(self, worker: Worker) -> None:
        self.roster.set_busy(worker.worker_id, worker.busy_until_s, worker.backlog_s)

    def _refuse(self, receipt: Receipt, reason: Reason, now_s: float) -> Refuse:
        self._take(receipt.query.query_id)
        return self._books.refuse(receipt, reason, now_s)

    def _refuse_all(
        self, queries: Iterable[QueryView], reason: Reason, now_s: float
    ) -> list[DispatchEffect]:
        return [self._refuse(self._books.open[query.query_id], reason, now_s) for query in queries]

    def _refuse_failed(self, failure: PolicyFailure, now_s: float) -> list[DispatchEffect]:
        effects: list[DispatchEffect] = []
        for query_id in failure.query_ids:
            receipt = self._books.open[query_id]
            receipt.problem = failure.problem
            effects.append(self._refuse(receipt, Reason.POLICY_FAILED, now_s))
        return effects
