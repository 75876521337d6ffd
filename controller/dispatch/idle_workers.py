"""Idle workers, and which of them the selection policy is to be asked about next.

Workers of one ``WorkerGroup`` are kept together. A decision that concerns all of them is made once,
so an arriving query costs the same however many workers are idle.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from operator import attrgetter

from modelless.controller.dispatch.queues import QueueKey, WaitingQueries, Worker
from modelless.controller.dispatch.worker_groups import GroupsByScope, WorkerGroup

_NUMBER = attrgetter("number")


class IdleWorkers:
    """The workers that run nothing. The policy is asked about the newest workers first.

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
