"""Idle workers, and which of them have something new in reach: whom to ask a policy about.

Workers that are alike (of one ``Outfit``) are kept together, so that what concerns all of them is
decided once, and a query that comes in costs the same however many are idle.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from operator import attrgetter

from modelless.controller.dispatch.queues import Queue, QueueKey, WaitingRoom, Worker
from modelless.controller.dispatch.servers import Servers
from modelless.controller.dispatch.worker_groups import Outfit
from modelless.policies.views import QueryView

_NUMBER = attrgetter("number")


class IdleWorkers:
    """Those that run nothing. Of several, those that came last are asked first.

    Args:
        waiting: what there is to give them.
        servers: by scope, whom its queries can be given to.
    """

    def __init__(self, waiting: WaitingRoom, servers: Servers) -> None:
        self._waiting = waiting
        self._servers = servers
        self._idle: dict[Outfit, list[Worker]] = {}  # by number
        self._hungry: dict[str, Worker] = {}  # with something new in reach
        self._news: dict[QueueKey, None] = {}  # deferred queues with something new
        self._is_newer = False  # than what ``_to_ask`` are asked about
        # Heap of those still to be asked about the news, by their last one, who is asked first.
        self._to_ask: list[tuple[int, Outfit, list[Worker]]] = []
        # By queue, until when the workers of a shelf need not be asked about it; and until when
        # those of an outfit need not be asked about any.
        self._settled: dict[QueueKey, dict[int, float]] = {}
        self._done: dict[Outfit, float] = {}
        self._numbered = servers.renumberings

    def add(self, worker: Worker) -> None:
        """The worker runs nothing any more."""
        alike = self._idle.get(worker.outfit)
        if alike is None:
            self._idle[worker.outfit] = [worker]
        else:
            insort(alike, worker, key=_NUMBER)

    def remove(self, worker: Worker) -> None:
        """The worker, which was idle, runs something or is lost."""
        alike = self._idle[worker.outfit]
        del alike[bisect_left(alike, worker.number, key=_NUMBER)]
        if not alike:
            del self._idle[worker.outfit]
        self._hungry.pop(worker.worker_id, None)

    def dress(self, worker: Worker, outfit: Outfit) -> None:
        """The worker is and holds something else than before."""
        if worker.running is None:
            self.remove(worker)
            worker.outfit = outfit
            self.add(worker)
        else:
            worker.outfit = outfit

    def tell(self, worker: Worker) -> None:
        """Something new is in reach of the worker, if it is idle."""
        self._hungry[worker.worker_id] = worker

    def tell_servers(self, queues: Iterable[QueueKey]) -> None:
        """Something is new about these deferred queues: for everyone who can serve them."""
        if self._idle:  # who becomes idle later is told then
            self._news.update(dict.fromkeys(queues))
            self._is_newer = True

    def tell_joined(self, queue: Queue, query: QueryView) -> None:
        """The query has joined the deferred queue. If it is the first there, that is unsettled."""
        if queue.first is query:
            self._settled.pop(queue.key, None)
            self._done.clear()
        if self._idle:
            self._news[queue.key] = None
            self._is_newer = True

    def settle(self, worker: Worker, until_s: float) -> None:
        """What waits is nothing for this worker nor for those alike: see ``Wait.for_alike``."""
        outfit, servers, settled = worker.outfit, self._servers, self._settled
        self._done[outfit] = until_s
        for key in self._waiting.deferred:
            shelf = servers[key[0]].get(outfit)
            if shelf is not None:
                settled.setdefault(key, {})[shelf] = until_s

    def unsettle(self, now_s: float) -> float:
        """Forget what is settled no more; returns until when the next of it is, inf if nothing."""
        self._done = {o: until_s for o, until_s in self._done.items() if until_s > now_s}
        deferred, next_s = self._waiting.deferred, math.inf
        for key, known in list(self._settled.items()):
            left = {shelf: until_s for shelf, until_s in known.items() if until_s > now_s}
            if left and key in deferred:
                self._settled[key] = left
                next_s = min(next_s, *left.values())
            else:
                del self._settled[key]
        return next_s

    def next_hungry(self, now_s: float) -> Worker | None:
        """Whom to ask next, if anybody; each once about what is new.

        There is nothing to ask about if nothing waits that the worker could be given.
        """
        if self._numbered != self._servers.renumberings:  # shelves have other numbers now
            self._numbered = self._servers.renumberings
            self._settled.clear()
            self._done.clear()
        while self._hungry:
            _, worker = self._hungry.popitem()
            if worker.running is None and self.offers(worker, now_s):
                return worker
        if self._is_newer:
            self._is_newer = False
            self._gather(now_s)
        while self._to_ask:
            _, outfit, alike = heappop(self._to_ask)
            is_open = self._offers(outfit, self._news, now_s)
            if not is_open:  # all at once: hundreds may be alike
                alike = [worker for worker in alike if worker.queues] if self._waiting.bound else []
                if not alike:
                    continue
            worker = alike.pop()
            if alike:
                heappush(self._to_ask, (-alike[-1].number, outfit, alike))
            # (It may have been given something meanwhile.)
            if worker.running is None and (is_open or worker.queues):
                return worker
        self._news.clear()
        return None

    def offers(self, worker: Worker, now_s: float) -> bool:
        """Whether anything waits that the worker may be asked about."""
        return bool(worker.queues) or self._offers(worker.outfit, self._waiting.deferred, now_s)

    def _gather(self, now_s: float) -> None:
        """Line up those who can serve what is new."""
        outfits = set[Outfit]()
        for scope, _, _ in self._news:
            outfits |= self._idle.keys() & self._servers[scope].keys()
        is_any_bound = self._waiting.bound > 0
        self._to_ask = [
            (-alike[-1].number, outfit, alike.copy())
            for outfit in outfits
            if is_any_bound or self._offers(outfit, self._news, now_s)
            for alike in (self._idle[outfit],)
        ]
        heapify(self._to_ask)

    def _offers(self, outfit: Outfit, queues: Iterable[QueueKey], now_s: float) -> bool:
        """Whether any of these queues waits still, and workers like this may be asked about it."""
        if now_s < self._done.get(outfit, now_s):
            return False
        deferred, servers, settled = self._waiting.deferred, self._servers, self._settled
        for key in queues:
            shelf = servers[key[0]].get(outfit)
            if shelf is not None and key in deferred:
                known = settled.get(key)
                if known is None or known.get(shelf, now_s) <= now_s:
                    return True
        return False
