"""Idle workers, and which of them have something new in reach: whom to ask a policy about.

Workers that are alike (of one ``Outfit``) are kept together, so that what concerns all of them is
decided once, and a query that comes in costs the same however many are idle.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from operator import attrgetter

from modelless.controller.core.outfits import Outfit, Shelves
from modelless.controller.core.waiting import QueueKey, WaitingRoom, Worker

_NUMBER = attrgetter("number")


class IdleWorkers:
    """Those that run nothing. Of several, those that came last are asked first.

    Args:
        waiting: what there is to give them.
        servers: by scope, whom its queries can be given to.
    """

    def __init__(self, waiting: WaitingRoom, servers: Mapping[str, Shelves]) -> None:
        self._waiting = waiting
        self._servers = servers
        self._idle: dict[Outfit, list[Worker]] = {}  # by number
        self._hungry: dict[str, Worker] = {}  # with something new in reach
        self._news: dict[QueueKey, None] = {}  # deferred queues with something new
        self._is_newer = False  # than what ``_to_ask`` are asked about
        # Heap of those still to be asked about the news, by their last one, who is asked first.
        self._to_ask: list[tuple[int, Outfit, list[Worker]]] = []
        self._settled: set[tuple[str, int]] = set()  # scope and shelf: not to be asked about now
        self._done: set[Outfit] = set()  # for whom all that waits is settled

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

    def settle(self, worker: Worker) -> None:
        """What waits is nothing for this worker nor for those alike: see ``Wait.for_alike``."""
        outfit, servers = worker.outfit, self._servers
        self._done.add(outfit)
        if len(self._idle) == 1:  # nobody else is idle
            return
        # Whoever is asked next is asked about the news, unless somebody is to be asked about all.
        for scope, _, _ in self._waiting.deferred if self._hungry else self._news:
            shelf = servers[scope].get(outfit)
            if shelf is not None:
                self._settled.add((scope, shelf))

    def reopen(self) -> None:
        """What was settled may be so no more: time has passed, or a policy was asked."""
        self._settled.clear()
        self._done.clear()

    def next_hungry(self) -> Worker | None:
        """Whom to ask next, if anybody; each once about what is new.

        There is nothing to ask about if nothing waits that the worker could be given.
        """
        while self._hungry:
            _, worker = self._hungry.popitem()
            if worker.running is None and self.offers(worker):
                return worker
        if self._is_newer:
            self._is_newer = False
            self._gather()
        while self._to_ask:
            _, outfit, alike = heappop(self._to_ask)
            is_open = self._offers(outfit, self._news)
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

    def offers(self, worker: Worker) -> bool:
        """Whether anything waits that the worker may be asked about."""
        return bool(worker.queues) or self._offers(worker.outfit, self._waiting.deferred)

    def _gather(self) -> None:
        """Line up those who can serve what is new."""
        outfits = set[Outfit]()
        for scope, _, _ in self._news:
            outfits |= self._idle.keys() & self._servers[scope].keys()
        self._to_ask = [
            (-alike[-1].number, outfit, alike.copy())
            for outfit in outfits
            for alike in (self._idle[outfit],)
        ]
        heapify(self._to_ask)

    def _offers(self, outfit: Outfit, queues: Iterable[QueueKey]) -> bool:
        """Whether any of these queues waits still, and workers like this may be asked about it."""
        if outfit in self._done:
            return False
        deferred, servers, settled = self._waiting.deferred, self._servers, self._settled
        for key in queues:
            scope = key[0]
            shelf = servers[scope].get(outfit)
            if shelf is not None and key in deferred and (scope, shelf) not in settled:
                return True
        return False
