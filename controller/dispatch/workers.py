"""The workers of one dispatcher, the queries bound to them and the batches that they run.

A worker runs one batch at a time. The policy is asked about those that are idle (``IdleWorkers``).
A worker in another process may also be given the next batch early (``EarlyStarts``). Gateways share
the workers of a pool: while a worker has other gateways' batches to run first, it is *occupied*
until they are expected to be done, gets no batch of ours, and the policy is not asked about it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from operator import attrgetter

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.dispatch.queues import Batch, QueueKey, WaitingQueries, Worker
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.dispatch.worker_groups import GroupsByScope, WorkerGroup
from modelless.policies.priorities import rank
from modelless.policies.views import QueryView, Run

_NUMBER = attrgetter("number")


class IdleWorkers:
    """The workers that run nothing, and which the policy is to be asked about next.

    The newest comes first. Workers of one ``WorkerGroup`` are kept together. A decision that
    concerns all of them is made once, so an arriving query costs the same however many are idle.

    Args:
        waiting: the queries that workers can be given.
        groups_by_scope: the groups that can serve a scope's queries.
    """

    def __init__(self, waiting: WaitingQueries, groups_by_scope: GroupsByScope) -> None:
        self._waiting = waiting
        self._groups_by_scope = groups_by_scope
        self._idle: dict[WorkerGroup, list[Worker]] = {}  # each list ascends by number
        self._notified: dict[str, Worker] = {}
        self._changed: dict[QueueKey, None] = {}  # deferred queues that changed
        self._has_changed = False  # since ``_to_ask`` was made
        # A heap of the idle workers to ask about ``_changed``, by the negative number of the last
        # worker of each list, which is asked first.
        self._to_ask: list[tuple[int, WorkerGroup, list[Worker]]] = []

    def add(self, worker: Worker) -> None:
        workers = self._idle.get(worker.group)
        if workers is None:
            self._idle[worker.group] = [worker]
        else:
            insort(workers, worker, key=_NUMBER)

    def remove(self, worker: Worker) -> None:
        """Remove a worker, which must be here, because it runs something or is lost."""
        workers = self._idle[worker.group]
        del workers[bisect_left(workers, worker.number, key=_NUMBER)]
        if not workers:
            del self._idle[worker.group]
        self._notified.pop(worker.worker_id, None)

    def set_group(self, worker: Worker, group: WorkerGroup) -> None:
        if worker.running is None:
            self.remove(worker)
            worker.group = group
            self.add(worker)
        else:
            worker.group = group

    def notify_worker(self, worker: Worker) -> None:
        """Let the policy be asked about the worker, if it is idle and has queries in reach."""
        self._notified[worker.worker_id] = worker

    def notify_groups(self, queues: Iterable[QueueKey]) -> None:
        """Let the policy be asked about all idle workers that can serve these deferred queues."""
        if self._idle:  # workers that become idle later are notified then
            self._changed.update(dict.fromkeys(queues))
            self._has_changed = True

    @property
    def is_told(self) -> bool:
        """Whether anything was notified since ``next_to_ask`` returned None."""
        return bool(self._notified or self._changed)

    def next_to_ask(self) -> Worker | None:
        """Return the next idle worker to ask the policy about; None if there is none.

        Each worker comes once for one change, and only if queries wait that it could be given.
        """
        while self._notified:
            _, worker = self._notified.popitem()
            if worker.running is None and self.has_offer(worker):
                return worker
        if self._has_changed:
            self._has_changed = False
            self._collect_groups()
        while self._to_ask:
            _, group, workers = heappop(self._to_ask)
            is_offered = self._has_offer(group, self._changed)
            if not is_offered:  # all at once: a group may have hundreds of workers
                bound = self._waiting.bound
                workers = [worker for worker in workers if worker.queues] if bound else []
                if not workers:
                    continue
            worker = workers.pop()
            if workers:
                heappush(self._to_ask, (-workers[-1].number, group, workers))
            # (The worker may have been given something meanwhile.)
            if worker.running is None and (is_offered or worker.queues):
                return worker
        self._changed.clear()
        return None

    def has_offer(self, worker: Worker) -> bool:
        """Whether queries wait that the worker may be asked about."""
        return bool(worker.queues) or self._has_offer(worker.group, self._waiting.deferred)

    def _collect_groups(self) -> None:
        """Fill ``_to_ask`` with the idle workers that can serve the changed queues."""
        groups = set[WorkerGroup]()
        for scope, _, _ in self._changed:
            groups |= self._idle.keys() & self._groups_by_scope[scope]
        is_any_bound = self._waiting.bound > 0
        self._to_ask = [
            (-workers[-1].number, group, workers.copy())
            for group in groups
            if is_any_bound or self._has_offer(group, self._changed)
            for workers in (self._idle[group],)
        ]
        heapify(self._to_ask)

    def _has_offer(self, group: WorkerGroup, queues: Iterable[QueueKey]) -> bool:
        """Whether any of these queues still waits and the group can serve it."""
        deferred, groups_by_scope = self._waiting.deferred, self._groups_by_scope
        return any(key in deferred and group in groups_by_scope[key[0]] for key in queues)


class EarlyStarts:
    """The busy workers that may be given their next batch already.

    A worker in another process would idle while the result of its batch travels here and the next
    batch travels there. So the worker is given its next batch when the running one is expected back
    within its *lead*, the time of that hop: the next batch arrives as the device falls idle, and
    nothing is decided sooner than that requires. A worker whose batch is late gets no early batch:
    nobody knows when it will be back, and the queries may find a better place.

    Only a worker that no other gateway uses at present may start early. Other gateways' batches
    keep a device from idling as well, and the place of the next batch is theirs then.
    """

    def __init__(self) -> None:
        self._upcoming: list[
            tuple[float, int, Worker]
        ] = []  # heap: from when, and beside which batch
        self._open: dict[int, Worker] = {}  # by the running batch

    @property
    def is_empty(self) -> bool:
        return not self._upcoming and not self._open

    def add(self, worker: Worker) -> None:
        running = worker.running
        if worker.lead_s > 0.0 and running is not None and running.ends_s < math.inf:
            heappush(self._upcoming, (running.ends_s - worker.lead_s, running.batch_id, worker))

    def find_ready(self, now_s: float) -> list[Worker]:
        """Return the workers that may be given their next batch now."""
        upcoming = self._upcoming
        while upcoming and upcoming[0][0] <= now_s:
            _, batch_id, worker = heappop(upcoming)
            self._open[batch_id] = worker
        if not self._open:
            return []
        self._open = {
            batch_id: worker
            for batch_id, worker in self._open.items()
            if _is_beside(worker, batch_id, now_s)
        }
        return list(self._open.values())

    def next_s(self) -> float:
        """When the next worker may be given a batch early, seconds; inf if none will."""
        upcoming = self._upcoming
        while upcoming and not _is_beside(upcoming[0][2], upcoming[0][1]):
            heappop(upcoming)
        return upcoming[0][0] if upcoming else math.inf


def _is_beside(worker: Worker, batch_id: int, now_s: float = -math.inf) -> bool:
    """Whether the worker runs this batch and accepts another one beside it."""
    running = worker.running
    return (
        running is not None
        and running.batch_id == batch_id
        and now_s <= running.ends_s
        and worker.next is None
        and worker.is_ours
    )


class WorkerTable:
    """The workers of one dispatcher.

    Args:
        instances: is told how long each worker is busy.
        waiting: the queries that are bound to workers and run in batches.
        limits: tell when a batch hangs, and when it is given up.

    Attributes:
        early_starts: the busy workers that may be given their next batch already.
    """

    def __init__(
        self,
        instances: ReadyInstances,
        waiting: WaitingQueries,
        idle: IdleWorkers,
        limits: DispatchLimits,
    ) -> None:
        self._instances = instances
        self._waiting = waiting
        self._idle = idle
        self._limits = limits
        self.early_starts = EarlyStarts()
        self._workers: dict[str, Worker] = {}
        self._batches: dict[int, Worker] = {}
        self._next_batch_id = 0
        self._next_worker = 0

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def get_or_add(self, report: WorkerReport) -> Worker:
        worker = self._workers.get(report.worker_id)
        if worker is None:
            worker = Worker(report.worker_id, report.device_class, self._next_worker)
            self._next_worker += 1
            self._workers[report.worker_id] = worker
            self._idle.add(worker)
        return worker

    def remove(self, worker_id: str) -> tuple[QueryView, ...] | None:
        """Remove the worker; return the queries that it ran or that were bound to it, else None."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return None
        self._instances.remove_worker(worker_id)
        displaced = [query for queue in worker.queues.values() for query in queue]
        if worker.running is None:
            self._idle.remove(worker)
        return (*displaced, *self._clear_batches(worker))

    def find_displaced(self, worker: Worker, report: WorkerReport) -> list[QueryView]:
        """Note a worker's report; return the queries bound to it that must be bound anew.

        These are the queries for variants that it does not hold any more, and all of them if its
        device class changed.
        """
        is_resized = worker.device_class != report.device_class
        worker.device_class = report.device_class
        return [
            query
            for key, queue in worker.queues.items()
            if is_resized or key[1] not in report.variant_ids
            for query in queue
        ]

    def bind_query(self, receipt: Receipt, query: QueryView, row: int, now_s: float) -> None:
        """Let a query wait for the worker that begins soonest of those with the placement of a row.

        Args:
            receipt: the query's, with the candidates of the choice.
        """
        candidates = receipt.candidates
        assert candidates is not None  # noqa: S101  (it was chosen from them)
        placement = candidates.placements[row]
        worker = self._workers[self._instances.find_soonest_worker(placement, now_s, rank(query))]
        receipt.row = row
        receipt.variant_id, receipt.device_class = placement.variant_id, placement.device_class
        receipt.worker_id = worker.worker_id
        finish_s = candidates.free_at_s[row] + candidates.estimates.p50_s[row]
        receipt.predicted_latency_s = float(finish_s) - query.arrival_s
        residents = self._instances.residents(worker.worker_id, query.size)
        resident = residents[placement.variant_id]
        service_s, work_us = resident.p50_s[query.items], self._instances.least_work_us(query)
        self._waiting.bind_query(query, worker, placement.variant_id, service_s, work_us)
        self.publish_backlog(worker)
        if worker.running is None:
            self._idle.notify_worker(worker)

    def demote_over_share(self, receipts: Mapping[int, Receipt], now_s: float) -> None:
        for query, worker in self._waiting.demote_over_share(now_s):
            receipts[query.query_id].standing = query
            if worker is not None:
                self.publish_backlog(worker)

    # -- batches ------------------------------------------------------------------------------

    def find_batch(self, batch_id: int) -> tuple[Worker, Batch] | None:
        worker = self._batches.get(batch_id)
        if worker is None:
            return None
        return next((worker, batch) for batch in worker.batches if batch.batch_id == batch_id)

    def start_batch(
        self, worker: Worker, run: Run, receipts: Mapping[int, Receipt], now_s: float
    ) -> Batch:
        """Hand a checked batch to the worker, which is idle or may start early; return the batch.

        Args:
            receipts: the receipts of the open queries, by id.
        """
        limits = self._limits
        queries = self._waiting.start_queries(run.queries, now_s)
        items = sum([query.items for query in queries])
        size = queries[0].size  # all are alike
        resident = self._instances.residents(worker.worker_id, size)[run.variant_id]
        p50_s, p99_s = resident.p50_s[items], resident.p99_s[items]
        expected_s = p50_s if p50_s == p50_s else math.inf
        own = [receipts[query.query_id] for query in queries]
        may_retry = max([receipt.attempts for receipt in own]) + 1 < limits.max_attempts
        batch = Batch(
            self._next_batch_id,
            run.variant_id,
            worker.device_class,
            queries,
            items,
            now_s,
            expected_s,
            now_s + limits.suspect_factor * p99_s + limits.suspect_s if may_retry else math.inf,
            now_s + limits.overdue_factor * p99_s + limits.overdue_s,
            size=size,
        )
        self._next_batch_id += 1
        self._batches[batch.batch_id] = worker
        if worker.running is None:
            worker.running = batch
            self._idle.remove(worker)
            self.early_starts.add(worker)
        else:
            worker.next = batch
        worker.busy_until_s = batch.ends_s
        self.publish_backlog(worker)
        for query, receipt in zip(queries, own, strict=True):
            if receipt.row is None:  # chosen just now, with the batch
                receipt.predicted_latency_s = worker.busy_until_s - query.arrival_s
                receipt.reason = run.reason
            receipt.attempts += 1
            receipt.outcome, receipt.started_s, receipt.batch_items = "running", now_s, items
            receipt.variant_id, receipt.device_class = run.variant_id, worker.device_class
            receipt.worker_id = worker.worker_id
        return batch

    def stop_batch(
        self, worker: Worker, batch: Batch, now_s: float, others_s: float = math.inf
    ) -> None:
        """Take a batch from the worker, which then runs its next batch, if any.

        Args:
            worker, batch: the worker, and the batch that it has.
            others_s: for how long other gateways' batches occupy the worker, seconds; inf if it
                did not say.
        """
        self._batches.pop(batch.batch_id, None)
        if batch is worker.next:
            worker.next = None
            worker.is_ours = worker.is_ours and others_s < math.inf
            worker.busy_until_s = worker.running.ends_s if worker.running is not None else now_s
        else:
            self._run_next(worker, now_s, others_s)
        self.publish_backlog(worker)

    def _run_next(self, worker: Worker, now_s: float, others_s: float) -> None:
        """Let the worker, whose running batch is back, run its next batch, if any."""
        own_s = self._limits.min_wait_s
        worker.running, worker.next = worker.next, None
        if worker.running is None:
            self._idle.add(worker)
            worker.busy_until_s = now_s
        else:
            # As if handed over just in time to be there when the one before was done.
            worker.running.delay(max(now_s - worker.lead_s - worker.running.started_s, 0.0))
            worker.busy_until_s = worker.running.ends_s
            own_s = max(own_s, worker.running.expected_s - worker.lead_s)
            self.early_starts.add(worker)
        worker.is_ours = others_s <= own_s

    def give_up_batches(self, worker: Worker, now_s: float) -> list[QueryView]:
        """Count a hanging worker as idle; return the queries of its batches."""
        lost = self._clear_batches(worker)
        self._idle.add(worker)
        worker.busy_until_s = now_s
        self.publish_backlog(worker)
        return lost

    def _clear_batches(self, worker: Worker) -> list[QueryView]:
        """Take all batches from the worker; return their queries."""
        batches = worker.batches
        for batch in batches:
            self._batches.pop(batch.batch_id, None)
        worker.running = worker.next = None
        worker.is_ours = False
        return [query for batch in batches for query in batch.queries]

    def occupy(self, worker: Worker, now_s: float, until_s: float) -> None:
        """Count an idle worker as busy with other gateways' batches until ``until_s``.

        Such batches never count as hanging.
        """
        worker.running = Batch(
            -1,
            "",
            worker.device_class,
            (),
            0,
            now_s,
            until_s - now_s,
            suspect_at_s=math.inf,
            overdue_at_s=math.inf,
        )
        self._idle.remove(worker)
        worker.busy_until_s = until_s
        self.publish_backlog(worker)

    def publish_backlog(self, worker: Worker) -> None:
        """Tell ``instances`` how long the worker is busy."""
        self._instances.set_backlog(worker.worker_id, worker.busy_until_s, worker.backlog_s)

    # -- reports ------------------------------------------------------------------------------

    def members(self, batch_id: int) -> tuple[int, ...]:
        """Return the queries of a running batch, in order; none if it does not run (any more)."""
        found = self.find_batch(batch_id)
        return tuple([query.query_id for query in found[1].queries]) if found else ()

    def patience(self, batch_id: int, now_s: float) -> tuple[float, float]:
        """Return how long a running batch should take, and how long it may wait, seconds.

        The batch may wait as long as all its queries are in time at the median, and at most half as
        long as would make it look hanging; the other half is for others' batches that take longer
        than was expected. It may wait at least 0 s, and at least a hop if it was handed over early.
        """
        found = self.find_batch(batch_id)
        if found is None:
            return 0.0, 0.0
        worker, batch = found
        due_s = min([query.deadline_s for query in batch.queries])
        ends_s = batch.ends_s
        unsuspected_s = (min(batch.suspect_at_s, batch.overdue_at_s) - ends_s) / 2.0
        least_s = worker.lead_s if batch is worker.next else 0.0
        return ends_s - now_s, max(min(due_s - ends_s, unsuspected_s), least_s)

    def in_use(self, worker_id: str) -> set[str]:
        """Return the worker's variants that run or have queries queued: they must stay loaded."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return set()
        used = {key[1] for key in worker.queues if key[1] is not None}
        return used | {batch.variant_id for batch in worker.batches if not batch.is_others}
