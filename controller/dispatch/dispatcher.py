"""The dispatcher: admits queries, chooses placements, queues, batches, and accounts for each query.

It is a state machine: ``handle`` is the only way to change its state. It holds no tensors, opens
nothing and waits for nothing. A driver passes it events with the time at which they happened, and
carries out the effects that it returns, in order. Every query that arrives comes out once, as a
``Complete`` or a ``Refuse``, unless its client cancels it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from modelless.controller.dispatch.counters import DispatchCounters, Kind
from modelless.controller.dispatch.exploration import Exploration, FirstChoice
from modelless.controller.dispatch.fair_shares import Tenants
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import (
    AccuraciesRevised,
    Advised,
    BatchDone,
    BatchFailed,
    BatchReturned,
    CacheHit,
    CatalogChanged,
    DispatchEffect,
    DispatchEvent,
    Execute,
    LoadChanged,
    PolicyFailed,
    QueryArrived,
    QueryCancelled,
    SelectionChanged,
    ShutDown,
    Tick,
    WakeAt,
    WorkerLost,
    WorkerReport,
    WorkerReported,
)
from modelless.controller.dispatch.offline import OfflineBatches, choose_offline, is_offline
from modelless.controller.dispatch.open_queries import (
    Explain,
    OpenQueries,
    PendingLoads,
    extend_deadline,
    find_late,
)
from modelless.controller.dispatch.policy_calls import (
    PolicyFailure,
    advise_on_plan,
    advise_on_query,
    ask_on_idle,
    ask_on_query,
    tell_plan,
)
from modelless.controller.dispatch.quarantine import Quarantine, Sign
from modelless.controller.dispatch.queues import Batch, WaitingQueries, Worker
from modelless.controller.dispatch.quotes import Quote, QuotedPlacement, Quotes
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.controller.dispatch.receipts import Receipt, RecentReceipts
from modelless.controller.dispatch.refusal_messages import refusal_message
from modelless.controller.dispatch.workers import IdleWorkers, WorkerTable
from modelless.policies.advisory import Advisory
from modelless.policies.priorities import rank, urgency
from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.scopes import base_of, own_of
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import Bind, Choice, Defer, QueryView, Reject, Run
from modelless.variants.vocabulary import Placement


class Dispatcher:
    """The state machine of one gateway's queries and of the workers that it may use.

    Args:
        instances: the ready instances; only the dispatcher changes them.
        exploration: draws the placements of some queries; None: of none.
        advisory: says what another policy would have done; None: nobody does.
    """

    def __init__(
        self,
        instances: ReadyInstances,
        selection: SelectionPolicy,
        rng: np.random.Generator,
        limits: DispatchLimits | None = None,
        receipts: RecentReceipts | None = None,
        explain: Explain = refusal_message,
        exploration: Exploration | None = None,
        advisory: Advisory[SelectionPolicy] | None = None,
    ) -> None:
        self.instances = instances
        self.selection = selection
        self.limits = limits or DispatchLimits()
        self.receipts = receipts if receipts is not None else RecentReceipts()
        self._rng = rng
        self._exploration = exploration
        self._advisory = advisory
        self._is_shut_down = False
        self._tenants = Tenants(self.limits.max_queued)
        self._waiting = WaitingQueries(self._tenants)
        self._pending = PendingLoads(self._waiting, instances, self.limits)
        self._idle = IdleWorkers(self._waiting, instances.groups_by_scope)
        self._workers = WorkerTable(instances, self._waiting, self._idle, self.limits)
        self._offline = OfflineBatches()
        self._open = OpenQueries(
            self._offline,
            self.receipts,
            explain,
            self.limits.max_batch,
            self._tenants,
            self._waiting,
            self._pending,
            self._workers,
        )
        self._quarantine = Quarantine(instances)
        self._quotes = Quotes(instances, self._waiting, self.limits)
        self._handlers: dict[type, Callable[[Any, float], list[DispatchEffect]]] = {
            QueryArrived: self._on_query_arrived,
            CacheHit: self._on_cache_hit,
            QueryCancelled: self._on_query_cancelled,
            BatchDone: self._on_batch_done,
            BatchFailed: self._on_batch_failed,
            BatchReturned: self._on_batch_returned,
            WorkerReported: self._on_worker_reported,
            WorkerLost: self._on_worker_lost,
            LoadChanged: self._on_load_changed,
            Advised: self._on_advised,
            CatalogChanged: self._on_catalog_changed,
            AccuraciesRevised: self._on_accuracies_revised,
            SelectionChanged: self._on_selection_changed,
            Tick: self._on_tick,
            ShutDown: self._on_shut_down,
        }

    def handle(self, event: DispatchEvent, now_s: float) -> list[DispatchEffect]:
        """Change the state by one event, and return what the driver must do, in order.

        Args:
            now_s: when it happened, seconds; never earlier than the event before.
        """
        return self._handlers[type(event)](event, now_s)

    # -- state for reports --------------------------------------------------------------------

    @property
    def quarantined(self) -> Mapping[str, Sign]:
        """The workers in quarantine, by id, with the sign that each is there for."""
        return self._quarantine.signs

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def open_queries(self) -> int:
        return len(self._open.by_id)

    def open_by_scope(self) -> dict[str, int]:
        return dict(Counter(base_of(receipt.query.scope) for receipt in self._open.by_id.values()))

    @property
    def held(self) -> dict[Kind, list[int]]:
        """The queries that wait for a load and their items, by kind."""
        return self._pending.kinds

    def members(self, batch_id: int) -> tuple[int, ...]:
        """Return the queries of a running batch, in order; none if it does not run (any more)."""
        return self._workers.members(batch_id)

    def in_use(self, worker_id: str) -> set[str]:
        """Return the worker's variants that run or have queries queued: they must stay loaded."""
        return self._workers.in_use(worker_id)

    def patience(self, batch_id: int, now_s: float) -> tuple[float, float]:
        """Return how long a running batch should take, and how long it may wait, seconds."""
        return self._workers.patience(batch_id, now_s)

    def quote(self, query: QueryView, now_s: float) -> Quote:
        """Return what the query could expect if it arrived now; changes nothing."""
        return self._quotes.quote(query, now_s)

    def quote_each(self, query: QueryView, now_s: float) -> list[QuotedPlacement]:
        """Return what the query could expect of each placement; changes nothing."""
        return self._quotes.quote_each(query, now_s)

    def receipt(self, query_id: int) -> Receipt | None:
        """Return the receipt of a query that is open or was closed lately; else None."""
        return self._open.by_id.get(query_id) or self.receipts.get(query_id)

    def take_counters(self) -> DispatchCounters:
        """Return the counts since the last call, and count from zero again.

        This is no event: no decision reads the counters, so it changes nothing that a replay needs.
        """
        counters = self._open.take_counters()
        if self._advisory is not None:
            counters.meters.advised = self._advisory.take()
        return counters

    # -- events -------------------------------------------------------------------------------

    def _on_query_arrived(self, event: QueryArrived, now_s: float) -> list[DispatchEffect]:
        query = event.query
        receipt = self._open.open_query(query)
        if not 1 <= query.items <= self.limits.max_batch:
            return [self._open.refuse_query(receipt, Reason.BAD_ITEM_COUNT, now_s)]
        work_us = self.instances.least_work_us(query)
        self._tenants.count_arrival(query, work_us, now_s)
        if self._tenants.shares and self._tenants.is_over_share(query, now_s):
            receipt.standing = query._replace(demoted=True)
        if not is_offline(query):
            self._quotes.note_arrival(receipt, now_s)
        effects: list[DispatchEffect] = []
        if len(self._waiting) >= self.limits.max_queued:
            last = self._waiting.find_least_urgent()
            if rank(last) <= rank(receipt.standing or query):
                return [self._open.refuse_query(receipt, Reason.QUEUE_FULL, now_s)]
            displaced = self._open.receipts_of([last])
            effects += self._open.refuse_queries(displaced, Reason.QUEUE_FULL, now_s)
        effects += self._choose(receipt, now_s, work_us=work_us)
        return self._assign_batches(now_s, effects)

    def _on_cache_hit(self, event: CacheHit, now_s: float) -> list[DispatchEffect]:
        return [self._open.complete_cached(event.query, event.variant_id, now_s)]

    def _on_query_cancelled(self, event: QueryCancelled, _: float) -> list[DispatchEffect]:
        """Drop a queued query. A running query runs on, and its result is dropped."""
        receipt = self._open.by_id.get(event.query_id)
        if receipt is not None:
            self._open.cancel_query(receipt)
        return []

    def _on_batch_done(self, event: BatchDone, now_s: float) -> list[DispatchEffect]:
        found = self._workers.find_batch(event.batch_id)
        if found is None:
            return self._update_worker_again(
                self._quarantine.end_on_return(event.batch_id, now_s), now_s
            )
        worker, batch = found
        self._workers.stop_batch(worker, batch, now_s, event.others_s)
        placement = Placement(batch.variant_id, batch.device_class)
        self.instances.observe_batch(placement, batch.items, batch.size, event.busy_s)
        price_usd_per_s = self.instances.price_usd_per_s(batch.device_class)
        effects = self._open.complete_batch(batch, worker, now_s, event.busy_s, price_usd_per_s)
        effects += self._release_worker(worker, now_s, event.others_s)
        if self._quarantine.check_slow(worker, batch, now_s - event.waited_s):
            return effects + self._update_worker_again(worker.worker_id, now_s)
        return self._assign_batches(now_s, effects)

    def _on_batch_returned(self, event: BatchReturned, now_s: float) -> list[DispatchEffect]:
        """Choose anew for the queries of a batch that its worker did not accept."""
        found = self._workers.find_batch(event.batch_id)
        if found is None:
            return self._update_worker_again(
                self._quarantine.end_on_return(event.batch_id, now_s), now_s
            )
        worker, batch = found
        self._workers.stop_batch(worker, batch, now_s)
        effects = self._release_worker(worker, now_s, event.others_s)
        return self._assign_batches(now_s, effects + self._rechoose_returned(batch, now_s))

    def _on_batch_failed(self, event: BatchFailed, now_s: float) -> list[DispatchEffect]:
        found = self._workers.find_batch(event.batch_id)
        if found is None:
            awaiting = self._quarantine.end_on_return(event.batch_id, now_s)
            if awaiting is not None and event.worker_lost:
                return self._remove_worker(awaiting, now_s)
            return self._update_worker_again(awaiting, now_s)
        worker, batch = found
        if (
            event.worker_lost and batch is worker.next
        ):  # the worker cannot be reached, but still runs a batch
            self._workers.stop_batch(worker, batch, now_s)
            nothing = self._quarantine.report_of(worker.worker_id)._replace(variant_ids=())
            return self._update_worker(nothing, now_s) + self._assign_batches(
                now_s, self._rechoose_returned(batch, now_s)
            )
        if event.worker_lost:
            return self._remove_worker(worker.worker_id, now_s)
        self._workers.stop_batch(worker, batch, now_s)
        receipts = self._open.receipts_of(batch.queries)
        effects = self._open.refuse_queries(receipts, Reason.EXECUTION_FAILED, now_s)
        self._idle.notify_worker(worker)
        return self._assign_batches(now_s, effects)

    def _on_worker_reported(self, event: WorkerReported, now_s: float) -> list[DispatchEffect]:
        self._workers.get_or_add(event.report).lead_s = event.lead_s
        return self._update_worker(event.report, now_s)

    def _on_worker_lost(self, event: WorkerLost, now_s: float) -> list[DispatchEffect]:
        return self._remove_worker(event.worker_id, now_s)

    def _on_tick(self, _: Tick, now_s: float) -> list[DispatchEffect]:
        """Refuse queries that cannot be in time, and give up batches that hang."""
        effects = self._refuse_or_delay(
            self._pending.find_expired(now_s), Reason.NOTHING_READY, now_s
        )
        effects += self._refuse_or_delay(
            self._waiting.find_expired(now_s), Reason.DEADLINE_PASSED, now_s
        )
        self._tenants.find_shares(now_s, self._waiting.work())
        self._workers.demote_over_share(self._open.by_id, now_s)
        self._idle.notify_groups(self._waiting.deferred)
        for worker in self._workers:
            if worker.running is None:
                if worker.queues:
                    self._idle.notify_worker(worker)
            elif worker.running.is_others and now_s >= worker.busy_until_s:
                self._workers.stop_batch(worker, worker.running, now_s)
                self._idle.notify_worker(worker)
            elif now_s > worker.running.overdue_at_s:
                effects += self._remove_worker(worker.worker_id, now_s)
            elif self._quarantine.check_hanging(worker, now_s):
                lost = self._workers.give_up_batches(worker, now_s)  # the batch may still return
                effects += self._update_worker_again(worker.worker_id, now_s)
                effects += self._rechoose(lost, now_s)
        for worker_id in self._quarantine.release_due(now_s):
            effects += self._update_worker_again(worker_id, now_s)
        return self._assign_batches(now_s, effects)

    def _on_load_changed(self, event: LoadChanged, _: float) -> list[DispatchEffect]:
        self.instances.set_starting(event.starting_s)
        self.instances.refresh_estimates(event.load)
        return []

    def _on_advised(self, event: Advised, _: float) -> list[DispatchEffect]:
        if self._advisory is not None:
            advise_on_plan(self._advisory, event.shares)
        problem = tell_plan(self.selection, event.shares)
        return [] if problem is None else [PolicyFailed(problem)]

    def _on_catalog_changed(self, event: CatalogChanged, _: float) -> list[DispatchEffect]:
        self.instances.replace_catalog(event.variants, event.cost_model)
        return []

    def _on_accuracies_revised(self, event: AccuraciesRevised, _: float) -> list[DispatchEffect]:
        self.instances.revise_accuracies(event.percent)
        return []

    def _on_selection_changed(self, event: SelectionChanged, now_s: float) -> list[DispatchEffect]:
        """Choose anew for the queries that wait: the new policy may not wait as the old one did."""
        self.selection, self._exploration = event.selection, event.exploration
        self._advisory = event.advisory
        effects = self._on_advised(Advised(event.shares), now_s)
        effects += self._rechoose(self._waiting.all_queries(), now_s)
        return self._assign_batches(now_s, effects)

    def _on_shut_down(self, _: ShutDown, now_s: float) -> list[DispatchEffect]:
        self._is_shut_down = True
        waiting = self._open.receipts_of(self._waiting.all_queries())
        return self._open.refuse_queries(waiting, Reason.SHUTTING_DOWN, now_s)

    # -- workers ------------------------------------------------------------------------------

    def _update_worker(self, report: WorkerReport, now_s: float) -> list[DispatchEffect]:
        """Update a worker by its report, and choose anew for queries that it cannot serve now."""
        worker = self._workers.get_or_add(report)
        report = self._quarantine.filter_report(report)
        if not self.instances.update_worker(report):
            return []
        self._idle.set_group(worker, self.instances.groups[worker.worker_id])
        displaced = self._workers.find_displaced(worker, report)
        effects = self._rechoose(displaced + self._pending.find_misplaced(), now_s)
        self._idle.notify_worker(worker)
        return self._assign_batches(now_s, effects)

    def _update_worker_again(self, worker_id: str | None, now_s: float) -> list[DispatchEffect]:
        """Update the worker by its last report, because its quarantine began or ended."""
        if worker_id is None:
            return []
        return self._update_worker(self._quarantine.report_of(worker_id), now_s)

    def _remove_worker(self, worker_id: str, now_s: float) -> list[DispatchEffect]:
        """Remove a worker that is gone or hangs; its queries go elsewhere."""
        displaced = self._workers.remove(worker_id)
        if displaced is None:
            return []
        self._quarantine.forget_worker(worker_id)
        effects = self._rechoose([*displaced, *self._pending.find_misplaced()], now_s)
        return self._assign_batches(now_s, effects)

    # -- choosing -----------------------------------------------------------------------------

    def _choose(
        self, receipt: Receipt, now_s: float, *, late: bool = False, work_us: int = 0
    ) -> list[DispatchEffect]:
        """Ask the policy about a query that does not wait; after this, it waits or is refused.

        Args:
            receipt: the query's.
            now_s: the present.
            late: whether it is asked again because the query would be late.
            work_us: the least device time for it, microseconds; 0 if it is not known yet.
        """
        if self._is_shut_down:
            return [self._open.refuse_query(receipt, Reason.SHUTTING_DOWN, now_s)]
        query = receipt.standing or receipt.query
        if receipt.candidates is not None:  # this is not the first choice
            if query.deadline_s <= now_s:
                return self._refuse_or_delay([query], Reason.DEADLINE_PASSED, now_s)
            first = receipt.first_choice
            if first is not None and first.explored and query.scope == first.variant_id:
                receipt.standing = query = query._replace(scope=receipt.query.scope)
        instances, is_online = self.instances, not is_offline(query)
        is_served = instances.is_served_accurately(query.scope, query.min_accuracy_percent)
        if not is_served and not instances.is_served(own_of(query.scope)):
            base = base_of(query.scope)
            if base != query.scope:  # the version of the trial's arm is gone
                receipt.standing = query._replace(scope=base)
                return self._choose(receipt, now_s, late=late)
        candidates = instances.candidates(query.scope, query.items, now_s, rank(query), query.size)
        receipt.candidates, receipt.row, receipt.outcome = candidates, None, "waiting"
        receipt.quantile = self.selection.quantile
        # The policy refuses queries that no load could serve.
        if not is_served and is_online:
            is_held = self._pending.hold_query(query, now_s)
            if is_held or not candidates.placements:
                self._open.count_unmet(query)
            if is_held:
                return self._pending.ask_for_load(query)
            if not candidates.placements:
                return self._refuse_or_delay([query], Reason.NOTHING_READY, now_s)
        if is_online:
            choice = ask_on_query(self.selection, query, candidates, self._rng, late=late)
            if self._advisory is not None:
                advise_on_query(self._advisory, query, candidates, choice, now_s)
            if isinstance(choice, PolicyFailure):
                return self._open.refuse_after_failure(choice, now_s)
            if self._exploration is not None and receipt.first_choice is None:
                query, choice = self._explore(self._exploration, receipt, query, choice, now_s)
        else:
            load_s = instances.fastest_load_s(query)
            choice = choose_offline(query, candidates, load_s, is_served=is_served)
        if isinstance(choice, Reject):
            if choice.reason is Reason.TOO_SLOW:
                instances.cost_model.doubt()
            return self._refuse_or_delay([query], choice.reason, now_s)
        if isinstance(choice, Bind):
            receipt.reason = choice.reason
            self._workers.bind_query(receipt, query, int(choice.row), now_s)
            return []
        if not is_served:
            return self._refuse_or_delay([query], Reason.TOO_INACCURATE, now_s)
        receipt.reason = choice.reason
        work_us = work_us or instances.least_work_us(query)
        key = self._waiting.defer_query(query, work_us)
        self._idle.notify_groups([key])
        return []

    def _explore(
        self,
        exploration: Exploration,
        receipt: Receipt,
        query: QueryView,
        choice: Choice,
        now_s: float,
    ) -> tuple[QueryView, Choice]:
        """Return the query and what is chosen for it, which is drawn for some queries."""
        assert receipt.candidates is not None  # noqa: S101  (the policy chose from them)
        first = receipt.first_choice = exploration.draw(query, receipt.candidates, choice)
        if first.row is None:
            return query, choice
        if isinstance(choice, Bind):
            return query, Bind(first.row, Reason.AT_RANDOM)
        narrow = query._replace(scope=first.variant_id)
        candidates = self.instances.candidates(
            narrow.scope, narrow.items, now_s, rank(narrow), narrow.size
        )
        told = ask_on_query(self.selection, narrow, candidates, self._rng, late=False)
        if not isinstance(told, Defer):  # the policy would not wait for this variant
            own = 1.0 - exploration.share
            receipt.first_choice = FirstChoice(first.candidates, "", "", own)
            return query, choice
        receipt.standing = narrow
        return narrow, Defer(Reason.AT_RANDOM)

    def _rechoose(self, queries: Iterable[QueryView], now_s: float) -> list[DispatchEffect]:
        """Choose anew for queries whose worker or variant is gone, whether they wait or not."""
        receipts = self._open.receipts_of(sorted(queries, key=urgency))
        for receipt in receipts:
            self._open.remove_query(receipt.query.query_id)
        effects: list[DispatchEffect] = []
        for receipt in receipts:
            if receipt.attempts >= self.limits.max_attempts:
                effects.append(self._open.refuse_query(receipt, Reason.WORKER_LOST, now_s))
            else:
                effects += self._choose(receipt, now_s)
        return effects

    # -- assigning batches --------------------------------------------------------------------

    def _assign_batches(self, now_s: float, effects: list[DispatchEffect]) -> list[DispatchEffect]:
        """Give batches to notified idle workers, then to workers that may start early.

        Most events end with this. Returns ``effects`` with the new ones appended.
        """
        early_starts = self._workers.early_starts
        if early_starts.is_empty and not self._idle.is_told:
            return effects
        early = iter(early_starts.find_ready(now_s))
        while worker := self._idle.next_to_ask() or next(filter(self._idle.has_offer, early), None):
            effects += self._assign_batch(worker, now_s)
        if (next_s := early_starts.next_s()) < math.inf and self._waiting:
            effects.append(WakeAt(max(next_s, now_s + self.limits.min_wait_s)))
        return effects

    def _assign_batch(self, worker: Worker, now_s: float) -> list[DispatchEffect]:
        """Give a worker its next batch, if any; queries that are too late are refused before."""
        effects = self._rechoose_late(worker, now_s) if worker.queues else []
        while True:
            most = self.limits.max_batch
            decision = ask_on_idle(
                self.selection, worker, self._waiting, self.instances, self._offline, most, now_s,
                self._rng, self._advisory,
            )  # fmt: skip
            if isinstance(decision, PolicyFailure):  # each failure costs a query, so this ends
                effects += self._open.refuse_after_failure(decision, now_s)
                continue
            if decision is None:
                return effects
            effects += self._refuse_or_delay(decision.dropped, Reason.DEADLINE_PASSED, now_s)
            if isinstance(decision, Run):
                return [*effects, self._start_batch(worker, decision, now_s)]
            if decision.dropped:
                continue  # queries behind them may be in time
            if decision.until_s < math.inf:
                effects.append(WakeAt(max(decision.until_s, now_s + self.limits.min_wait_s)))
            return effects

    def _rechoose_late(self, worker: Worker, now_s: float) -> list[DispatchEffect]:
        """Ask the policy again about bound queries that would miss their deadline if run now."""
        effects: list[DispatchEffect] = []
        for key, queue in list(worker.queues.items()):
            _, size = queue.rank_and_size
            residents = self.instances.residents(worker.worker_id, size)
            late = self._open.receipts_of(find_late(queue, residents[key[1] or ""], now_s))
            late = [receipt for receipt in late if receipt.rebinds < self.limits.max_rebinds]
            for receipt in late:
                self._open.remove_query(receipt.query.query_id)
            for receipt in late:
                receipt.rebinds += 1
                effects += self._choose(receipt, now_s, late=True)
        return effects

    def _start_batch(self, worker: Worker, run: Run, now_s: float) -> Execute:
        batch = self._workers.start_batch(worker, run, self._open.by_id, now_s)
        query_ids = tuple([query.query_id for query in batch.queries])
        return Execute(batch.batch_id, worker.worker_id, run.variant_id, query_ids)

    def _release_worker(
        self, worker: Worker, now_s: float, others_s: float
    ) -> list[DispatchEffect]:
        """Let an idle worker be given a batch, now or once other gateways' batches are done."""
        if worker.running is not None:
            return []
        if others_s <= self.limits.min_wait_s:
            self._idle.notify_worker(worker)
            return []
        self._workers.occupy(worker, now_s, now_s + others_s)
        return [WakeAt(now_s + others_s)]

    def _rechoose_returned(self, batch: Batch, now_s: float) -> list[DispatchEffect]:
        """Choose anew for the queries of a batch that never began; it was no attempt."""
        for receipt in self._open.receipts_of(batch.queries):
            receipt.attempts -= 1
            receipt.outcome = "waiting"
        return self._rechoose(batch.queries, now_s)

    # -- refusing -----------------------------------------------------------------------------

    def _refuse_or_delay(
        self, queries: Iterable[QueryView], reason: AnyReason, now_s: float
    ) -> list[DispatchEffect]:
        """Refuse queries that cannot be in time, or let them be served late if they ask for it."""
        effects: list[DispatchEffect] = []
        for query in queries:
            receipt = self._open.by_id[query.query_id]
            later = extend_deadline(receipt, reason, self.limits.max_late_s)
            if later is None:
                effects.append(self._open.refuse_query(receipt, reason, now_s))
            else:
                self._open.remove_query(query.query_id)
                receipt.standing = later
                effects += self._choose(receipt, now_s)
        return effects
