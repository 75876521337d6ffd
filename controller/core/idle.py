"""Idle workers, and which of them have something new in reach: whom to ask a policy about."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from modelless.controller.core.waiting import WaitingRoom, Worker

_NUMBER = attrgetter("number")


class IdleWorkers:
    """Those that run nothing. Of several, those that came last are asked first.

    Args:
        waiting: what there is to give them.
    """

    def __init__(self, waiting: WaitingRoom) -> None:
        self._waiting = waiting
        self._idle: list[Worker] = []  # by number
        self._hungry: dict[str, Worker] = {}  # with something new in reach
        self._is_new_for_all = False
        self._to_ask: list[Worker] = []  # about what is new for all, the last one first
        self._settled: set[str] = set()  # device classes whose workers need not be asked now

    def add(self, worker: Worker) -> None:
        """The worker runs nothing any more."""
        insort(self._idle, worker, key=_NUMBER)

    def remove(self, worker: Worker) -> None:
        """The worker, which was idle, runs something or is lost."""
        del self._idle[bisect_left(self._idle, worker.number, key=_NUMBER)]
        self._hungry.pop(worker.worker_id, None)

    def tell(self, worker: Worker) -> None:
        """Something new is in reach of the worker, if it is idle."""
        self._hungry[worker.worker_id] = worker

    def tell_all(self) -> None:
        """Something new is in reach of everyone."""
        self._is_new_for_all = True

    def settle(self, device_class: str) -> None:
        """What waits for anyone is none for the class's workers: see ``Wait.for_class``."""
        self._settled.add(device_class)
        # All at once: to pass over hundreds one by one takes longer than to ask one of them.
        self._to_ask = [w for w in self._to_ask if w.device_class != device_class or w.queues]

    def reopen(self) -> None:
        """What was settled may be so no more: time has passed, or a policy was asked."""
        self._settled.clear()

    def next_hungry(self) -> Worker | None:
        """Whom to ask next, if anybody; each once about what is new.

        There is nothing to ask about if nothing waits that the worker could be given.
        """
        while self._hungry:
            _, worker = self._hungry.popitem()
            if worker.running is None and (worker.queues or self._offers(worker)):
                return worker
        if self._is_new_for_all:
            self._is_new_for_all = False
            self._to_ask = self._idle.copy()
        while self._to_ask and self._waiting.deferred:
            worker = self._to_ask.pop()
            if worker.running is not None:  # it was given something meanwhile
                continue
            if worker.queues or self._offers(worker):
                return worker
        self._to_ask.clear()
        return None

    def _offers(self, worker: Worker) -> bool:
        """Whether something waits for anyone that the worker may be asked about."""
        return bool(self._waiting.deferred) and worker.device_class not in self._settled
