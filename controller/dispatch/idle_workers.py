"""Idle workers, and which of them have something new in reach: whom to ask a policy about.

Workers that are alike (of one ``WorkerGroup``) are kept together, so that what concerns all of them is
decided once, and a query that comes in costs the same however many are idle.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from operator import attrgetter

from modelless.controller.dispatch.queues import Queue, QueueKey, WaitingQueries, Worker
from modelless.controller.dispatch.worker_groups import GroupsByScope, WorkerGroup
from modelless.policies.views import QueryView

_NUMBER = attrgetter("number")


class IdleWorkers:
    """Those that run nothing. Of several, those that came last are asked first.

    Args:
        waiting: what there is to give them.
        groups_by_scope: by scope, whom its queries can be given to.
    """

    def __init__(self, waiting: WaitingQueries, groups_by_scope: GroupsByScope) -> None:
        self._waiting = waiting
        self._groups_by_scope = groups_by_scope
        self._idle: dict[WorkerGroup, list[Worker]] = {}  # by number
        self._notified: dict[str, Worker] = {}  # with something new in reach
        self._changed: dict[QueueKey, None] = {}  # deferred queues with something new
        self._has_changed = False  # than what ``_to_ask`` are asked about
        # Heap of those still to be asked about the news, by their last one, who is asked first.
        self._to_ask: list[tuple[int, WorkerGroup, list[Worker]]] = []
        # By queue, until when the workers of a equivalence need not be asked about it; and until when
        # those of an group need not be asked about any.
        self._paused: dict[QueueKey, dict[int, float]] = {}
        self._paused_groups: dict[WorkerGroup, float] = {}
        self._renumber_count = groups_by_scope.renumber_count

    def add(self, worker: Worker) -> None:
        """The worker runs nothing any more."""
        alike = self._idle.get(worker.group)
        if alike is None:
            self._idle[worker.group] = [worker]
        else:
            insort(alike, worker, key=_NUMBER)

    def remove(self, worker: Worker) -> None:
        """The worker, which was idle, runs something or is lost."""
        alike = self._idle[worker.group]
        del alike[bisect_left(alike, worker.number, key=_NUMBER)]
        if not alike:
            del self._idle[worker.group]
        self._notified.pop(worker.worker_id, None)

    def set_group(self, worker: Worker, group: WorkerGroup) -> None:
        """The worker is and holds something else than before."""
        if worker.running is None:
            self.remove(worker)
            worker.group = group
            self.add(worker)
        else:
            worker.group = group

    def notify_worker(self, worker: Worker) -> None:
        """Something new is in reach of the worker, if it is idle."""
        self._notified[worker.worker_id] = worker

    def notify_groups(self, queues: Iterable[QueueKey]) -> None:
        """Something is new about these deferred queues: for everyone who can serve them."""
        if self._idle:  # who becomes idle later is told then
            self._changed.update(dict.fromkeys(queues))
            self._has_changed = True

    def notify_of_query(self, queue: Queue, query: QueryView) -> None:
        """The query has joined the deferred queue. If it is the first there, that is unsettled."""
        if queue.first is query:
            self._paused.pop(queue.key, None)
            self._paused_groups.clear()
        if self._idle:
            self._changed[queue.key] = None
            self._has_changed = True

    def pause_group(self, worker: Worker, until_s: float) -> None:
        """What waits is nothing for this worker nor for those alike: see ``Wait.for_alike``."""
        group, groups_by_scope, paused = worker.group, self._groups_by_scope, self._paused
        self._paused_groups[group] = until_s
        for key in self._waiting.deferred:
            equivalence = groups_by_scope[key[0]].get(group)
            if equivalence is not None:
                paused.setdefault(key, {})[equivalence] = until_s

    def resume_paused(self, now_s: float) -> float:
        """Forget what is paused no more; returns until when the next of it is, inf if nothing."""
        self._paused_groups = {
            o: until_s for o, until_s in self._paused_groups.items() if until_s > now_s
        }
        deferred, next_s = self._waiting.deferred, math.inf
        for key, known in list(self._paused.items()):
            left = {
                equivalence: until_s for equivalence, until_s in known.items() if until_s > now_s
            }
            if left and key in deferred:
                self._paused[key] = left
                next_s = min(next_s, *left.values())
            else:
                del self._paused[key]
        return next_s

    def next_to_ask(self, now_s: float) -> Worker | None:
        """Whom to ask next, if anybody; each once about what is new.

        There is nothing to ask about if nothing waits that the worker could be given.
        """
        if (
            self._renumber_count != self._groups_by_scope.renumber_count
        ):  # serving have other numbers now
            self._renumber_count = self._groups_by_scope.renumber_count
            self._paused.clear()
            self._paused_groups.clear()
        while self._notified:
            _, worker = self._notified.popitem()
            if worker.running is None and self.has_offer(worker, now_s):
                return worker
        if self._has_changed:
            self._has_changed = False
            self._collect_groups(now_s)
        while self._to_ask:
            _, group, alike = heappop(self._to_ask)
            is_open = self._has_offer(group, self._changed, now_s)
            if not is_open:  # all at once: hundreds may be alike
                alike = [worker for worker in alike if worker.queues] if self._waiting.bound else []
                if not alike:
                    continue
            worker = alike.pop()
            if alike:
                heappush(self._to_ask, (-alike[-1].number, group, alike))
            # (It may have been given something meanwhile.)
            if worker.running is None and (is_open or worker.queues):
                return worker
        self._changed.clear()
        return None

    def has_offer(self, worker: Worker, now_s: float) -> bool:
        """Whether anything waits that the worker may be asked about."""
        return bool(worker.queues) or self._has_offer(worker.group, self._waiting.deferred, now_s)

    def _collect_groups(self, now_s: float) -> None:
        """Line up those who can serve what is new."""
        groups = set[WorkerGroup]()
        for scope, _, _ in self._changed:
            groups |= self._idle.keys() & self._groups_by_scope[scope].keys()
        is_any_bound = self._waiting.bound > 0
        self._to_ask = [
            (-alike[-1].number, group, alike.copy())
            for group in groups
            if is_any_bound or self._has_offer(group, self._changed, now_s)
            for alike in (self._idle[group],)
        ]
        heapify(self._to_ask)

    def _has_offer(self, group: WorkerGroup, queues: Iterable[QueueKey], now_s: float) -> bool:
        """Whether any of these queues waits still, and workers like this may be asked about it."""
        if now_s < self._paused_groups.get(group, now_s):
            return False
        deferred, groups_by_scope, paused = (
            self._waiting.deferred,
            self._groups_by_scope,
            self._paused,
        )
        for key in queues:
            equivalence = groups_by_scope[key[0]].get(group)
            if equivalence is not None and key in deferred:
                known = paused.get(key)
                if known is None or known.get(equivalence, now_s) <= now_s:
                    return True
        return False
