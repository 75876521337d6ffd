"""The workers and what they run: one batch at a time each, from its start to its end.

A worker of a pool is shared with other gateways. While it has their batches before it, it runs
nothing of ours and is not asked: it is *taken*, until when they are expected to be done.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from modelless.controller.core.idle import IdleWorkers
from modelless.controller.core.limits import DispatchLimits
from modelless.controller.core.roster import Roster, WorkerReport
from modelless.controller.core.waiting import Batch, WaitingRoom, Worker
from modelless.policies.views import QueryView, Run


class Crew:
    """The workers of one dispatcher.

    Args:
        roster: is told how long each is busy.
        waiting: whence batches are taken.
        idle: is told who is idle.
        limits: when a batch is overdue.
    """

    def __init__(
        self, roster: Roster, waiting: WaitingRoom, idle: IdleWorkers, limits: DispatchLimits
    ) -> None:
        self._roster = roster
        self._waiting = waiting
        self._idle = idle
        self._limits = limits
        self._workers: dict[str, Worker] = {}
        self._batches: dict[int, Worker] = {}
        self._next_batch_id = 0
        self._next_worker = 0

    def __getitem__(self, worker_id: str) -> Worker:
        return self._workers[worker_id]

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def get(self, worker_id: str) -> Worker | None:
        """The worker, if it is there."""
        return self._workers.get(worker_id)

    def meet(self, report: WorkerReport) -> Worker:
        """The worker that reports, who may be new."""
        worker = self._workers.get(report.worker_id)
        if worker is None:
            worker = Worker(report.worker_id, report.device_class, self._next_worker)
            self._next_worker += 1
            self._workers[report.worker_id] = worker
            self._idle.add(worker)
        return worker

    def lose(self, worker_id: str) -> tuple[QueryView, ...] | None:
        """Forget the worker; returns what it ran and what waited for it, None if it is unknown."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return None
        self._roster.remove(worker_id)
        homeless = [query for queue in worker.queues.values() for query in queue]
        if worker.running is not None:
            self._batches.pop(worker.running.batch_id, None)
            homeless += worker.running.queries
            worker.running = None
        else:
            self._idle.remove(worker)
        return tuple(homeless)

    # -- batches ------------------------------------------------------------------------------

    def running(self, batch_id: int) -> tuple[Worker, Batch] | None:
        """The batch and who runs it; None if it does not run (any more)."""
        worker = self._batches.get(batch_id)
        if worker is None or worker.running is None:
            return None
        return worker, worker.running

    def start(self, worker: Worker, run: Run, now_s: float) -> Batch:
        """Hand the batch, which was checked, to the worker, which is idle."""
        take = self._waiting.take
        places = [take(query.query_id) for query in run.queries]
        queries = tuple([place.query for place in places])
        items = sum([query.items for query in queries])
        resident = self._roster.residents(worker.worker_id)[run.variant_id]
        worker.running = batch = Batch(
            self._next_batch_id,
            run.variant_id,
            queries,
            items,
            now_s + self._limits.overdue_factor * resident.p99_s[items] + self._limits.overdue_s,
            sum([place.work_us for place in places]),
        )
        self._next_batch_id += 1
        self._batches[batch.batch_id] = worker
        self._idle.remove(worker)
        expected_s = resident.p50_s[items]
        worker.busy_until_s = now_s + (expected_s if expected_s == expected_s else math.inf)
        self.publish(worker)
        return batch

    def stop(self, worker: Worker, now_s: float) -> None:
        """The worker runs its batch no more."""
        assert worker.running is not None  # noqa: S101  (callers have it in hand)
        self._batches.pop(worker.running.batch_id, None)
        worker.running = None
        self._idle.add(worker)
        worker.busy_until_s = now_s
        self.publish(worker)

    def take(self, worker: Worker, until_s: float) -> None:
        """Others' batches keep the worker, which is idle, until then."""
        worker.running = Batch(-1, "", (), 0, until_s + self._limits.overdue_s)
        self._idle.remove(worker)
        worker.busy_until_s = until_s
        self.publish(worker)

    def publish(self, worker: Worker) -> None:
        """Tell the roster what the worker has to do."""
        self._roster.set_busy(worker.worker_id, worker.busy_until_s, worker.backlog_s)

    # -- reports ------------------------------------------------------------------------------

    def members(self, batch_id: int) -> tuple[int, ...]:
        """The queries of a running batch, in order; none if it is not running (any more)."""
        found = self.running(batch_id)
        return tuple([query.query_id for query in found[1].queries]) if found else ()

    def patience(self, batch_id: int, now_s: float) -> tuple[float, float]:
        """How long a running batch is expected to take, and may be kept waiting, seconds.

        So long that, at the median, all its queries are in time; at least 0.
        """
        found = self.running(batch_id)
        if found is None:
            return 0.0, 0.0
        worker, batch = found
        due_s = min([query.deadline_s for query in batch.queries])
        return worker.busy_until_s - now_s, max(due_s - worker.busy_until_s, 0.0)

    def in_use(self, worker_id: str) -> set[str]:
        """Variants of the worker that run or are queued for: these must not be unloaded."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return set()
        used = {key[1] for key in worker.queues if key[1] is not None}
        is_ours = worker.running is not None and not worker.running.is_others
        return used | ({worker.running.variant_id} if worker.running and is_ours else set())

    def without_home(self, worker: Worker, variant_ids: Collection[str]) -> list[QueryView]:
        """What waits for variants that the worker, which holds these, has no more."""
        return [
            query
            for key, queue in worker.queues.items()
            if key[1] not in variant_ids
            for query in queue
        ]
