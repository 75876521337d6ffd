"""The way of a query: admit, choose, queue, batch, and account for what came of it.

Holds no tensors, opens nothing, waits for nothing. A driver feeds it events with the time at which
they happened and carries out the effects it returns, in order. Every query that goes in comes out
exactly once, as a Complete or a Refuse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from modelless.controller.dispatch.idle_workers import IdleWorkers
from modelless.controller.dispatch.instances import Roster
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import (
    Advised,
    BatchDone,
    BatchFailed,
    BatchReturned,
    CatalogChanged,
    DispatchEffect,
    DispatchEvent,
    Execute,
    LoadChanged,
    PolicyFailed,
    QueryArrived,
    QueryCancelled,
    ShutDown,
    Tick,
    WakeAt,
    WorkerLost,
    WorkerReport,
    WorkerReported,
)
from modelless.controller.dispatch.nearest_limits import refusal_message
from modelless.controller.dispatch.online_learner import Lessons
from modelless.controller.dispatch.open_queries import Books, DispatchCounters, Explain
from modelless.controller.dispatch.pending_loads import HoldingRoom
from modelless.controller.dispatch.policy_calls import (
    PolicyFailure,
    ask_on_idle,
    ask_on_query,
    tell_plan,
)
from modelless.controller.dispatch.quarantine import Quarantine
from modelless.controller.dispatch.queues import Batch, WaitingRoom, Worker
from modelless.controller.dispatch.receipts import Receipt, ReceiptBook
from modelless.controller.dispatch.refusals import Refusals
from modelless.controller.dispatch.tenants import Tenants
from modelless.controller.dispatch.workers import Crew
from modelless.policies.batching.urgency import rank, urgency
from modelless.policies.reasons import Reason
from modelless.policies.scopes import base_of, own_of
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import Defer, QueryView, Reject, ResidentView, Run

# Queries that cannot be in time: which they are, and what becomes of those that may be late.

_FOR_WANT_OF_TIME = frozenset(
    {
        Reason.TOO_SLOW,
        Reason.QUEUE_TOO_LONG,
        Reason.DEADLINE_PASSED,
        Reason.LIMITS_CONFLICT,
        Reason.NOTHING_READY,
    }
)


def may_be_late(receipt: Receipt, reason: Reason, max_late_s: float) -> QueryView | None:
    """The query as it waits from now on; None if it is to be refused for this reason.

    What is late goes behind all that can still be in time: served first, it would make the others
    late, too (the domino effect of earliest deadline first: Buttazzo, Hard Real-Time Computing
    Systems, sec. 9.2). Its deadline is put off once; the other limits stand.
    """
    query = receipt.query
    waits = receipt.standing or query
    if not query.serve_late or reason not in _FOR_WANT_OF_TIME:
        return None
    if waits.deadline_s > query.deadline_s or query.deadline_s == math.inf:
        return None
    return query._replace(deadline_s=query.deadline_s + max_late_s, demoted=True)


def late_in(queue: Iterable[QueryView], resident: ResidentView, now_s: float) -> list[QueryView]:
    """The first queries of a queue, the most urgent first, that would be late if run now."""
    late = []
    for query in queue:
        if now_s + resident.p50_s[query.items] <= query.deadline_s:
            break
        late.append(query)
    return late


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
        self._books = Books(self.receipts, self.limits.max_batch, explain)
        self._tenants = Tenants(self.limits.max_queued)
        self._waiting = WaitingRoom(self._tenants)
        self._held = HoldingRoom(self._waiting, roster, self.limits)
        self._idle = IdleWorkers(self._waiting, roster.servers)
        self._crew = Crew(roster, self._waiting, self._idle, self.limits)
        self._refusals = Refusals(self._books, self._tenants, self._waiting, self._held, self._crew)
        self.quarantine = Quarantine(roster)
        self._lessons = Lessons(roster)
        self._handlers: dict[type, Callable[[Any, float], list[DispatchEffect]]] = {
            QueryArrived: self._on_query_arrived,
            QueryCancelled: self._on_query_cancelled,
            BatchDone: self._on_batch_done,
            BatchFailed: self._on_batch_failed,
            BatchReturned: self._on_batch_returned,
            WorkerReported: self._on_worker_reported,
            WorkerLost: self._on_worker_lost,
            LoadChanged: self._on_load_changed,
            Advised: self._on_advised,
            CatalogChanged: self._on_catalog_changed,
            Tick: self._on_tick,
            ShutDown: self._on_shut_down,
        }

    def handle(self, event: DispatchEvent, now_s: float) -> list[DispatchEffect]:
        """Change the state by one event, and return what the driver must do, in order.

        Args:
            event: what happened.
            now_s: when it happened, seconds; never earlier than the event before.
        """
        return self._handlers[type(event)](event, now_s)

    # -- state for reports --------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """The number of queries that wait."""
        return len(self._waiting)

    @property
    def open_queries(self) -> int:
        """The number of queries that wait or run."""
        return len(self._books.open)

    def open_by_scope(self) -> dict[str, int]:
        """Return the number of queries that wait or run, by scope."""
        return dict(Counter(base_of(receipt.query.scope) for receipt in self._books.open.values()))

    def members(self, batch_id: int) -> tuple[int, ...]:
        """Return the queries of a running batch, in order; none if it does not run (any more)."""
        return self._crew.members(batch_id)

    def in_use(self, worker_id: str) -> set[str]:
        """Return the worker's variants that run or have queries queued: they must stay loaded."""
        return self._crew.in_use(worker_id)

    def patience(self, batch_id: int, now_s: float) -> tuple[float, float]:
        """Return how long a running batch should take, and how long it may wait, seconds."""
        return self._crew.patience(batch_id, now_s)

    def receipt(self, query_id: int) -> Receipt | None:
        """Return the receipt of a query that is open or was closed lately; else None."""
        return self._books.open.get(query_id) or self.receipts.get(query_id)

    def take_counters(self) -> DispatchCounters:
        """Return the counts since the last call, and count from zero again.

        This is no event: no decision reads the counters, so it changes nothing that a replay needs.
        """
        return self._books.take_counters()

    # -- events -------------------------------------------------------------------------------

    def _on_query_arrived(self, event: QueryArrived, now_s: float) -> list[DispatchEffect]:
        query = event.query
        receipt = self._books.enter(query)
        if not 1 <= query.items <= self.limits.max_batch:
            return [self._refusals.refuse(receipt, Reason.BAD_ITEM_COUNT, now_s)]
        self._tenants.on_query(query, now_s)
        if self._tenants.is_beyond_share(query, now_s):
            receipt.standing = query._replace(demoted=True)
        effects: list[DispatchEffect] = []
        if len(self._waiting) >= self.limits.max_queued:
            last = self._waiting.least_urgent()
            if rank(last) <= rank(receipt.standing or query):
                return [self._refusals.refuse(receipt, Reason.QUEUE_FULL, now_s)]
            displaced = self._books.open_of([last])
            effects += self._refusals.refuse_all(displaced, Reason.QUEUE_FULL, now_s)
        return self._settle(now_s, effects + self._choose(receipt, now_s, late=False))

    def _on_query_cancelled(self, event: QueryCancelled, _: float) -> list[DispatchEffect]:
        """Drop a queued query; a running one runs on, and its answer is dropped."""
        receipt = self._books.open.get(event.query_id)
        if receipt is not None:
            self._refusals.take_out(event.query_id)
            self._books.cancel(receipt)
        return []

    def _on_batch_done(self, event: BatchDone, now_s: float) -> list[DispatchEffect]:
        found = self._crew.running(event.batch_id)
        if found is None:
            return self._see_anew(self.quarantine.returned(event.batch_id, now_s), now_s)
        worker, batch = found
        self._crew.stop(worker, batch, now_s, event.others_s)
        self._tenants.on_done(batch.work_us)
        self._lessons.learn(batch, event.busy_s)
        effects = self._books.complete(batch, worker, now_s, event.busy_s)
        effects += self._free(worker, now_s, event.others_s)
        if self.quarantine.is_slow(worker, batch, now_s - event.waited_s):
            return effects + self._see_anew(worker.worker_id, now_s)
        return self._settle(now_s, effects)

    def _on_batch_returned(self, event: BatchReturned, now_s: float) -> list[DispatchEffect]:
        """Choose anew for the queries of a batch that its worker did not accept."""
        found = self._crew.running(event.batch_id)
        if found is None:
            return self._see_anew(self.quarantine.returned(event.batch_id, now_s), now_s)
        worker, batch = found
        self._crew.stop(worker, batch, now_s)
        effects = self._free(worker, now_s, event.others_s)
        return self._settle(now_s, effects + self._take_back(batch, now_s))

    def _on_batch_failed(self, event: BatchFailed, now_s: float) -> list[DispatchEffect]:
        found = self._crew.running(event.batch_id)
        if found is None:
            awaiting = self.quarantine.returned(event.batch_id, now_s)
            if awaiting is not None and event.worker_lost:
                return self._lose(awaiting, now_s)
            return self._see_anew(awaiting, now_s)
        worker, batch = found
        if event.worker_lost and batch is worker.next:  # it cannot be reached, but still runs one
            self._crew.stop(worker, batch, now_s)
            nothing = self.quarantine.report_of(worker.worker_id)._replace(variant_ids=())
            return self._see(nothing, now_s) + self._settle(now_s, self._take_back(batch, now_s))
        if event.worker_lost:
            return self._lose(worker.worker_id, now_s)
        self._crew.stop(worker, batch, now_s)
        receipts = self._books.open_of(batch.queries)
        effects = self._refusals.refuse_all(receipts, Reason.EXECUTION_FAILED, now_s)
        self._idle.tell(worker)
        return self._settle(now_s, effects)

    def _on_worker_reported(self, event: WorkerReported, now_s: float) -> list[DispatchEffect]:
        self._crew.meet(event.report).lead_s = event.lead_s
        return self._see(event.report, now_s)

    def _on_worker_lost(self, event: WorkerLost, now_s: float) -> list[DispatchEffect]:
        return self._lose(event.worker_id, now_s)

    def _on_tick(self, _: Tick, now_s: float) -> list[DispatchEffect]:
        """Refuse queries that cannot be in time, and give up batches that hang."""
        effects = self._give_up(self._held.in_vain(now_s), Reason.NOTHING_READY, now_s)
        effects += self._give_up(self._waiting.expired(now_s), Reason.DEADLINE_PASSED, now_s)
        self._crew.demote_beyond(self._tenants.share(now_s), self._books.open)
        again_s = self._idle.unsettle(now_s)
        if again_s < math.inf:  # drivers remember the next time only
            effects.append(WakeAt(again_s))
        self._idle.tell_servers(self._waiting.deferred)
        for worker in self._crew:
            if worker.running is None:
                if worker.queues:
                    self._idle.tell(worker)
            elif worker.running.is_others and now_s >= worker.busy_until_s:
                self._crew.stop(worker, worker.running, now_s)
                self._idle.tell(worker)
            elif now_s > worker.running.overdue_at_s:
                effects += self._lose(worker.worker_id, now_s)
            elif self.quarantine.hangs(worker, now_s):
                lost = self._crew.give_up(worker, now_s)  # its return is awaited still
                effects += self._see_anew(worker.worker_id, now_s)
                effects += self._choose_again(lost, now_s)
        for worker_id in self.quarantine.due(now_s):
            effects += self._see_anew(worker_id, now_s)
        return self._settle(now_s, effects)

    def _on_load_changed(self, event: LoadChanged, _: float) -> list[DispatchEffect]:
        self.roster.expect_workers(event.starting_s)
        self.roster.refresh(event.load)
        return []

    def _on_advised(self, event: Advised, _: float) -> list[DispatchEffect]:
        problem = tell_plan(self.selection, event.shares)
        return [] if problem is None else [PolicyFailed(problem)]

    def _on_catalog_changed(self, event: CatalogChanged, _: float) -> list[DispatchEffect]:
        self.roster.renew(event.variants, event.cost_model)
        return []

    def _on_shut_down(self, _: ShutDown, now_s: float) -> list[DispatchEffect]:
        waiting = self._books.open_of(self._waiting.everyone())
        return self._refusals.refuse_all(waiting, Reason.SHUTTING_DOWN, now_s)

    # -- workers ------------------------------------------------------------------------------

    def _see(self, report: WorkerReport, now_s: float) -> list[DispatchEffect]:
        """Take in what a worker holds now, and choose anew for what it cannot serve any more."""
        worker = self._crew.meet(report)
        report = self.quarantine.seen_as(report)
        if not self.roster.update(report):
            return []
        self._idle.dress(worker, self.roster.outfits[worker.worker_id])
        homeless = self._crew.without_home(worker, report)
        effects = self._choose_again(homeless + self._held.stranded(), now_s)
        self._idle.tell(worker)
        return self._settle(now_s, effects)

    def _see_anew(self, worker_id: str | None, now_s: float) -> list[DispatchEffect]:
        """Take in the worker's last report again, because its quarantine began or ended."""
        if worker_id is None:
            return []
        return self._see(self.quarantine.report_of(worker_id), now_s)

    def _lose(self, worker_id: str, now_s: float) -> list[DispatchEffect]:
        """Forget a worker that is gone or hangs; its queries go elsewhere."""
        homeless = self._crew.lose(worker_id)
        if homeless is None:
            return []
        self.quarantine.forget(worker_id)
        effects = self._choose_again([*homeless, *self._held.stranded()], now_s)
        return self._settle(now_s, effects)

    # -- choosing -----------------------------------------------------------------------------

    def _choose(self, receipt: Receipt, now_s: float, *, late: bool) -> list[DispatchEffect]:
        """Ask the policy about a query that waits nowhere: it is queued or refused after this."""
        query = receipt.standing or receipt.query
        if receipt.candidates is not None and query.deadline_s <= now_s:  # it was asked before
            return self._give_up([query], Reason.DEADLINE_PASSED, now_s)
        is_served = self.roster.is_accurate_enough(query.scope, query.min_accuracy_percent)
        if not is_served and not self.roster.is_served(own_of(query.scope)):
            base = base_of(query.scope)
            if base != query.scope:  # an arm whose version is gone: what the client asked for
                receipt.standing = query._replace(scope=base)
                return self._choose(receipt, now_s, late=late)
        candidates = self.roster.candidates(query.scope, query.items, now_s, rank(query))
        receipt.candidates, receipt.row, receipt.outcome = candidates, None, "waiting"
        if not is_served:  # what no load could serve is for the policy to say
            is_held = self._held.hold(query, now_s)
            if is_held or not candidates.placements:
                self._books.count_unmet(query)
            if is_held:
                return self._held.ask_for_load(query)
            if not candidates.placements:
                return self._give_up([query], Reason.NOTHING_READY, now_s)
        choice = ask_on_query(self.selection, query, candidates, self._rng, late=late)
        if isinstance(choice, PolicyFailure):
            return self._refusals.refuse_failed(choice, now_s)
        if isinstance(choice, Reject):
            self.roster.doubt(query.scope, choice.reason, now_s)
            return self._give_up([query], choice.reason, now_s)
        if isinstance(choice, Defer) and not is_served:
            return self._give_up([query], Reason.TOO_INACCURATE, now_s)
        receipt.reason = choice.reason
        if isinstance(choice, Defer):
            queue = self._waiting.defer(query, self.roster.work_us(query))
            self._idle.tell_joined(queue, query)
        else:
            self._crew.bind(receipt, query, int(choice.row), now_s)
        return []

    def _choose_again(self, queries: Iterable[QueryView], now_s: float) -> list[DispatchEffect]:
        """Choose anew for queries whose worker or variant is gone; queued or not."""
        receipts = self._books.open_of(sorted(queries, key=urgency))
        for receipt in receipts:
            self._refusals.take_out(receipt.query.query_id)
        effects: list[DispatchEffect] = []
        for receipt in receipts:
            if receipt.attempts >= self.limits.max_attempts:
                effects.append(self._refusals.refuse(receipt, Reason.WORKER_LOST, now_s))
            else:
                effects += self._choose(receipt, now_s, late=False)
        return effects

    # -- feeding workers ----------------------------------------------------------------------

    def _settle(self, now_s: float, effects: list[DispatchEffect]) -> list[DispatchEffect]:
        """Feed every idle worker with something new in reach, and with what is left those that are
        idle a hop from now: the end of each event."""
        openings = self._crew.openings
        early = (each for each in openings.at(now_s) if self._idle.offers(each, now_s))
        while (worker := self._idle.next_hungry(now_s) or next(early, None)) is not None:
            effects += self._feed(worker, now_s)
        if openings.next_s < math.inf and self._waiting:
            effects.append(WakeAt(max(openings.next_s, now_s + self.limits.min_wait_s)))
        return effects

    def _feed(self, worker: Worker, now_s: float) -> list[DispatchEffect]:
        """Give a worker its next batch, turning away what is too late on the way."""
        effects = self._turn_away_late(worker, now_s) if worker.queues else []
        while True:
            most = self.limits.max_batch
            decision = ask_on_idle(
                self.selection, worker, self._waiting, self.roster, most, now_s, self._rng
            )
            if isinstance(decision, PolicyFailure):  # each costs a query, so this ends
                effects += self._refusals.refuse_failed(decision, now_s)
                continue
            if decision is None:
                return effects
            effects += self._give_up(decision.dropped, Reason.DEADLINE_PASSED, now_s)
            if isinstance(decision, Run):
                return [*effects, self._start(worker, decision, now_s)]
            if decision.dropped:
                continue  # there may be good ones behind them
            if decision.until_s < math.inf:
                if decision.for_alike:
                    self._idle.settle(worker, decision.until_s)
                effects.append(WakeAt(max(decision.until_s, now_s + self.limits.min_wait_s)))
            return effects

    def _turn_away_late(self, worker: Worker, now_s: float) -> list[DispatchEffect]:
        """Ask the policy again about bound queries that would miss their deadline if run now."""
        effects: list[DispatchEffect] = []
        residents = self.roster.residents(worker.worker_id)
        for key, queue in list(worker.queues.items()):
            late = self._books.open_of(late_in(queue, residents[key[1] or ""], now_s))
            late = [receipt for receipt in late if receipt.rebinds < self.limits.max_rebinds]
            for receipt in late:
                self._refusals.take_out(receipt.query.query_id)
            for receipt in late:
                receipt.rebinds += 1
                effects += self._choose(receipt, now_s, late=True)
        return effects

    def _start(self, worker: Worker, run: Run, now_s: float) -> Execute:
        """Hand the batch, which was checked, to the worker."""
        batch = self._crew.start(worker, run, self._books.open, now_s)
        self._tenants.on_start(batch.queries, now_s)
        query_ids = tuple([query.query_id for query in batch.queries])
        return Execute(batch.batch_id, worker.worker_id, run.variant_id, query_ids)

    def _free(self, worker: Worker, now_s: float, others_s: float) -> list[DispatchEffect]:
        """The worker, if it is idle, can be given something, or after ``others_s`` seconds."""
        if worker.running is not None:
            return []
        if others_s <= self.limits.min_wait_s:
            self._idle.tell(worker)
            return []
        self._crew.take(worker, now_s, now_s + others_s)
        return [WakeAt(now_s + others_s)]

    def _take_back(self, batch: Batch, now_s: float) -> list[DispatchEffect]:
        """The batch was never begun: its queries are chosen for anew, and it was no attempt."""
        for receipt in self._books.open_of(batch.queries):
            receipt.give_back()
        return self._choose_again(batch.queries, now_s)

    # -- books --------------------------------------------------------------------------------

    def _give_up(
        self, queries: Iterable[QueryView], reason: Reason, now_s: float
    ) -> list[DispatchEffect]:
        """These cannot be in time: each is refused, or is to be served late if it says so."""
        effects: list[DispatchEffect] = []
        for query in queries:
            receipt = self._books.open[query.query_id]
            later = may_be_late(receipt, reason, self.limits.max_late_s)
            if later is None:
                effects.append(self._refusals.refuse(receipt, reason, now_s))
            else:
                self._refusals.take_out(query.query_id)
                receipt.standing = later
                effects += self._choose(receipt, now_s, late=False)
        return effects
