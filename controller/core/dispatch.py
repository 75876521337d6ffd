"""The way of a query: admit, choose, queue, batch, and account for what came of it.

Holds no tensors, opens nothing, waits for nothing. A driver feeds it events with the time at which
they happened and carries out the effects it returns, in order. Every query that goes in comes out
exactly once, as a Complete or a Refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from modelless.controller.core.asking import PolicyFailure, ask_on_idle, ask_on_query, tell_plan
from modelless.controller.core.books import Books, Explain
from modelless.controller.core.crew import Crew
from modelless.controller.core.effects import DispatchEffect, Execute, Refuse, WakeAt
from modelless.controller.core.holding import HoldingRoom
from modelless.controller.core.idle import IdleWorkers
from modelless.controller.core.lateness import may_be_late
from modelless.controller.core.limits import DispatchLimits
from modelless.controller.core.nearest import refusal_message
from modelless.controller.core.receipts import Receipt, ReceiptBook
from modelless.controller.core.reports import DispatchReports
from modelless.controller.core.roster import Roster, WorkerReport
from modelless.controller.core.tenants import Tenants
from modelless.controller.core.waiting import WaitingRoom, Worker
from modelless.policies.batching.urgency import rank, urgency
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import Bind, Defer, QueryView, Reject, Run, Wait
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

__all__ = ["DispatchLimits", "Dispatcher"]


class Dispatcher(DispatchReports):
    """One gateway's queries and the workers it may use.

    Args:
        roster: who can serve what, and what it is expected to cost.
        selection: the policy that chooses.
        rng: the policy's randomness.
        limits: bounds on queues, batches and retries.
        receipts: where finished receipts go.
        explain: words a refusal, for people.
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
        self._idle = IdleWorkers(self._waiting)
        self._crew = Crew(roster, self._waiting, self._idle, self.limits)

    # -- events -------------------------------------------------------------------------------

    def on_query(self, query: QueryView, now_s: float) -> list[DispatchEffect]:
        """A query has come in. Its id must be new."""
        receipt = self._books.enter(query)
        if not 1 <= query.items <= self.limits.max_batch:
            return [self._refuse(receipt, Reason.BAD_ITEM_COUNT, now_s)]
        self._tenants.on_query(query, now_s)
        if self._tenants.is_beyond_share(query, now_s):
            receipt.standing = query._replace(demoted=True)
        effects: list[DispatchEffect] = []
        if len(self._waiting) >= self.limits.max_queued:
            last = self._waiting.least_urgent()
            if rank(last) <= rank(receipt.standing or query):
                return [self._refuse(receipt, Reason.QUEUE_FULL, now_s)]
            effects += self._refuse_all([last], Reason.QUEUE_FULL, now_s)
        return self._settle(now_s, effects + self._choose(receipt, now_s, late=False))

    def on_batch_done(
        self, batch_id: int, now_s: float, busy_s: float, others_s: float = 0.0
    ) -> list[DispatchEffect]:
        """A batch has run. ``busy_s``: how long the device was busy with it, seconds.

        Unknown ids (a batch given up as overdue, or of a worker that was lost) are ignored.
        ``others_s``: how long other gateways' batches will keep the worker now.
        """
        found = self._crew.running(batch_id)
        if found is None:
            return []
        worker, batch = found
        self._crew.stop(worker, now_s)
        self._tenants.on_done(batch.work_us)
        placement = Placement(batch.variant_id, worker.device_class)
        self.roster.cost_model.observe(placement, batch.items, self.roster.load, busy_s)
        effects = self._books.complete(batch, worker.worker_id, now_s)
        return self._settle(now_s, effects + self._free(worker, now_s, others_s))

    def on_batch_returned(
        self, batch_id: int, now_s: float, others_s: float
    ) -> list[DispatchEffect]:
        """A worker did not take a batch, as other gateways' keep it for ``others_s`` seconds more.

        Its queries are chosen for anew, which does not count as an attempt.
        """
        found = self._crew.running(batch_id)
        if found is None:
            return []
        worker, batch = found
        self._crew.stop(worker, now_s)
        for query in batch.queries:
            if query.query_id in self._books.open:
                self._books.open[query.query_id].give_back()
        effects = self._free(worker, now_s, others_s)
        return self._settle(now_s, effects + self._choose_again(batch.queries, now_s))

    def on_batch_failed(
        self, batch_id: int, now_s: float, *, worker_lost: bool
    ) -> list[DispatchEffect]:
        """A batch could not be run. If its worker is gone, its queries are tried elsewhere once."""
        found = self._crew.running(batch_id)
        if found is None:
            return []
        worker, batch = found
        if worker_lost:
            return self.on_worker_lost(worker.worker_id, now_s)
        self._crew.stop(worker, now_s)
        still_open = [query for query in batch.queries if query.query_id in self._books.open]
        effects = self._refuse_all(still_open, Reason.EXECUTION_FAILED, now_s)
        self._idle.tell(worker)
        return self._settle(now_s, effects)

    def on_worker_report(self, report: WorkerReport, now_s: float) -> list[DispatchEffect]:
        """A worker is there, or holds something else than before."""
        worker = self._crew.meet(report)
        if not self.roster.update(report):
            return []
        homeless = self._crew.without_home(worker, report.variant_ids)
        effects = self._choose_again(homeless + self._held.stranded(), now_s)
        self._idle.tell(worker)
        return self._settle(now_s, effects)

    def on_worker_lost(self, worker_id: str, now_s: float) -> list[DispatchEffect]:
        """A worker died or hangs: what it ran and what was queued for it goes elsewhere."""
        homeless = self._crew.lose(worker_id)
        if homeless is None:
            return []
        effects = self._choose_again([*homeless, *self._held.stranded()], now_s)
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
        effects = self._give_up(self._held.in_vain(now_s), Reason.NOTHING_READY, now_s)
        effects += self._give_up(self._waiting.expired(now_s), Reason.DEADLINE_PASSED, now_s)
        self._demote(now_s)
        for worker in self._crew:
            if worker.running is None:
                self._idle.tell(worker)
            elif worker.running.is_others and now_s >= worker.busy_until_s:
                self._crew.stop(worker, now_s)
                self._idle.tell(worker)
            elif now_s > worker.running.overdue_at_s:
                effects += self.on_worker_lost(worker.worker_id, now_s)
        return self._settle(now_s, effects)

    def refresh(self, load: Load) -> None:
        """Take the cost model's newest estimates; once a second is enough."""
        self.roster.refresh(load)

    def advise(self, shares: Mapping[str, Mapping[Placement, float]]) -> str | None:
        """Pass the plan's shares on to the selection policy; returns its problem, if it has one."""
        return tell_plan(self.selection, shares)

    def shut_down(self, now_s: float) -> list[DispatchEffect]:
        """Refuse whatever is still waiting; running batches still complete."""
        return self._refuse_all(self._waiting.everyone(), Reason.SHUTTING_DOWN, now_s)

    # -- choosing -----------------------------------------------------------------------------

    def _choose(self, receipt: Receipt, now_s: float, *, late: bool) -> list[DispatchEffect]:
        """Ask the policy about a query that waits nowhere: it is queued or refused after this."""
        query = receipt.standing or receipt.query
        if receipt.candidates is not None and query.deadline_s <= now_s:  # it was asked before
            return self._give_up([query], Reason.DEADLINE_PASSED, now_s)
        candidates = self.roster.candidates(query.scope, query.items, now_s, rank(query))
        receipt.candidates, receipt.row, receipt.outcome = candidates, None, "waiting"
        is_served = self.roster.is_accurate_enough(query.scope, query.min_accuracy_percent)
        if not is_served:  # what no load could serve is for the policy to say
            is_held = self._held.hold(query, now_s)
            if is_held or not candidates.placements:
                self._books.count_unmet(query)
            if is_held:
                return []
            if not candidates.placements:
                return self._give_up([query], Reason.NOTHING_READY, now_s)
        choice = ask_on_query(self.selection, query, candidates, self._rng, late=late)
        if isinstance(choice, PolicyFailure):
            return self._refuse_failed(choice, now_s)
        if isinstance(choice, Reject):
            return self._give_up([query], choice.reason, now_s)
        if isinstance(choice, Defer) and not is_served:
            return self._give_up([query], Reason.TOO_INACCURATE, now_s)
        receipt.reason = choice.reason
        if isinstance(choice, Defer):
            self._waiting.defer(query, self.roster.work_us(query))
            self._idle.tell_all()
        else:
            self._bind(receipt, query, choice, now_s)
        return []

    def _bind(self, receipt: Receipt, query: QueryView, choice: Bind, now_s: float) -> None:
        candidates, row = receipt.candidates, int(choice.row)
        assert candidates is not None  # noqa: S101  (set by _choose)
        placement = candidates.placements[row]
        worker = self._crew[self.roster.soonest(placement, now_s, rank(query))]
        receipt.row = row
        receipt.variant_id, receipt.device_class = placement.variant_id, placement.device_class
        receipt.worker_id = worker.worker_id
        finish_s = candidates.free_at_s[row] + candidates.estimates.p50_s[row]
        receipt.predicted_latency_s = float(finish_s) - query.arrival_s
        resident = self.roster.residents(worker.worker_id)[placement.variant_id]
        self._waiting.bind(
            query,
            worker,
            placement.variant_id,
            resident.p50_s[query.items],
            self.roster.work_us(query),
        )
        self._crew.publish(worker)
        if worker.running is None:
            self._idle.tell(worker)

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
                effects += self._give_up(decision.dropped, Reason.DEADLINE_PASSED, now_s)
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
        batch = self._crew.start(worker, run, now_s)
        queries, items = batch.queries, batch.items
        self._tenants.on_start(queries, now_s)
        open_receipts = self._books.open
        for query in queries:
            receipt = open_receipts[query.query_id]
            if receipt.row is None:  # chosen only now
                receipt.predicted_latency_s = worker.busy_until_s - query.arrival_s
                receipt.reason = run.reason
            receipt.start(run.variant_id, worker.device_class, worker.worker_id, items)
        query_ids = tuple([query.query_id for query in queries])
        return Execute(batch.batch_id, worker.worker_id, run.variant_id, query_ids)

    def _free(self, worker: Worker, now_s: float, others_s: float) -> list[DispatchEffect]:
        """The worker, which is idle, can be given something, or after ``others_s`` seconds."""
        if others_s <= self.limits.min_wait_s:
            self._idle.tell(worker)
            return []
        self._crew.take(worker, now_s + others_s)
        return [WakeAt(now_s + others_s)]

    # -- books --------------------------------------------------------------------------------

    def _take(self, query_id: int) -> None:
        """Take the query out of where it waits, if it does."""
        self._held.forget(query_id)
        if self._waiting.place(query_id) is not None:
            worker = self._waiting.take(query_id).worker
            if worker is not None:
                self._crew.publish(worker)

    def _demote(self, now_s: float) -> None:
        """Let tenants' queries that are far beyond their shares stand behind the others."""
        allowed = self._tenants.share(now_s)
        beyond = self._tenants.far_beyond(allowed)
        for place in self._waiting.of_tenants(beyond) if beyond else ():
            if self._tenants.exceeds(place.query.tenant, allowed):
                demoted = self._waiting.demote(place)
                self._books.open[demoted.query_id].standing = demoted
                if place.worker is not None:
                    self._crew.publish(place.worker)

    def _give_up(
        self, queries: Iterable[QueryView], reason: Reason, now_s: float
    ) -> list[DispatchEffect]:
        """These cannot be in time: each is refused, or is to be served late if it says so."""
        effects: list[DispatchEffect] = []
        for query in queries:
            receipt = self._books.open[query.query_id]
            later = may_be_late(receipt, reason, self.limits.max_late_s)
            if later is None:
                effects.append(self._refuse(receipt, reason, now_s))
            else:
                self._take(query.query_id)
                receipt.standing = later
                effects += self._choose(receipt, now_s, late=False)
        return effects

    def _refuse(self, receipt: Receipt, reason: Reason, now_s: float) -> Refuse:
        self._tenants.on_refused(reason)
        self._take(receipt.query.query_id)
        refusal = self._books.refuse(receipt, reason, now_s)
        if reason is Reason.QUEUE_FULL or reason is Reason.DEADLINE_PASSED:
            wait_s = self._tenants.drain_s(now_s)
            return refusal._replace(retry_after_s=wait_s or refusal.retry_after_s)
        return refusal

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
