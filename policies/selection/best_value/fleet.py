"""Who is there: the workers that a policy meets one by one, and when the next one falls idle.

Every event costs the same however many workers there are (but for the heap's logarithm).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from modelless.policies.selection.best_value.left import LONGEST_S
from modelless.policies.views import ResidentView, WorkerView

_WORKERS_KEPT = 8192
_FORGET_WORKER_S = 10.0
# Who is idle is asked at once about what others left, unless one like it has left all there is not
# long ago: then it is not asked as long as that stands.
_TAKEN_WITHIN_S = 0.001
_STANDS_S = LONGEST_S + 0.001
_OF_LATE = 0.1  # the weight of the last batch in what they take of late
_GRACE = 2.0  # times as long as expected a batch may run before its worker counts as absent


@dataclass(slots=True, eq=False)
class Met:
    """A worker.

    Attributes:
        worker_id: its id.
        residents: its variants when it was last idle.
        at_s: when that was.
        busy_until_s: until when what it was given keeps it.
        back_s: when that is expected back.
    """

    worker_id: str
    residents: Mapping[str, ResidentView]
    at_s: float
    busy_until_s: float
    back_s: float

    @property
    def absent_at_s(self) -> float:
        """If it has not been idle again by then, something is wrong with it."""
        return self.at_s + _GRACE * (self.back_s - self.at_s)


@dataclass(slots=True)
class _Class:
    """The workers of a device class.

    Attributes:
        idle: those that should be, the longest first.
        left_s: when one of them last left queries for others; those alike were not asked then.
        batch_s: how long their batches take of late.
    """

    met: dict[str, Met] = field(default_factory=dict)
    idle: dict[str, Met] = field(default_factory=dict)
    ends: list[tuple[float, int, Met]] = field(default_factory=list)  # heap; some outdated
    left_s: float = -math.inf
    batch_s: float = math.inf


class Fleet:
    """The workers by device class."""

    def __init__(self) -> None:
        self._classes: dict[str, _Class] = {}
        self._count = 0
        self._runs = 0

    def __getstate__(self) -> dict[str, object]:
        # What the core shows are read-only views, which do not pickle; and all will be met again.
        return {**vars(self), "_classes": {}, "_count": 0}

    def on_idle(self, worker: WorkerView, now_s: float) -> None:
        """A worker is idle."""
        of_class = self._classes.get(worker.device_class)
        if of_class is None:
            of_class = self._classes[worker.device_class] = _Class()
        name = worker.worker_id
        met = of_class.met.get(name)
        if met is None:
            if self._count >= _WORKERS_KEPT:
                of_class = _Class()
                self._classes, self._count = {worker.device_class: of_class}, 0
            self._count += 1
            met = Met(name, worker.residents, now_s, now_s, now_s)
            of_class.met[name] = of_class.idle[name] = met
            return
        of_class.idle.pop(name, None)
        of_class.idle[name] = met
        met.at_s = met.busy_until_s = met.back_s = now_s
        met.residents = worker.residents

    def on_run(self, worker: WorkerView, busy_s: float, latency_s: float, now_s: float) -> None:
        """The worker, just idle, was given a batch.

        Args:
            worker: which.
            busy_s, latency_s: for how long that keeps it, and when it is back, as is expected.
            now_s: the time.
        """
        of_class = self._classes[worker.device_class]
        met = of_class.idle.pop(worker.worker_id)
        met.busy_until_s, met.back_s = now_s + busy_s, now_s + latency_s
        before_s = of_class.batch_s if of_class.batch_s < math.inf else busy_s
        of_class.batch_s = before_s + _OF_LATE * (busy_s - before_s)
        self._runs += 1
        heapq.heappush(of_class.ends, (met.busy_until_s, self._runs, met))

    def on_left(self, device_class: str, since_s: float, now_s: float) -> None:
        """A worker left all there was for other classes, some of it since ``since_s``.

        Who should be idle there, and in so long neither took it nor left it, is absent: forgotten.
        """
        self._classes[device_class].left_s = now_s
        if now_s - since_s > _TAKEN_WITHIN_S:
            for of_class in self._classes.values():
                if of_class.left_s < since_s - _STANDS_S:
                    for met in list(_until(of_class.idle, since_s)):
                        self._forget(of_class, met)

    def free(self, device_class: str, now_s: float, *, without: str = "") -> tuple[int, float]:
        """How many workers of a class there are, and in how many seconds the next is idle."""
        of_class = self._classes.get(device_class)
        if of_class is None:
            return 0, math.inf
        ends, idle = of_class.ends, of_class.idle
        while ends and (ends[0][0] <= now_s or ends[0][0] != ends[0][2].busy_until_s):
            end_s, _, met = heapq.heappop(ends)
            if end_s == met.busy_until_s and of_class.met.get(met.worker_id) is met:
                idle[met.worker_id] = met
        count = len(of_class.met) - (without in of_class.met)
        if len(idle) > (without in idle):
            return count, 0.0
        return count, ends[0][0] - now_s if ends else math.inf

    def batch_s(self, device_class: str) -> float:
        """How long a class's batches take of late; inf if that is not known yet."""
        of_class = self._classes.get(device_class)
        return of_class.batch_s if of_class is not None else math.inf

    def counts(self) -> dict[str, int]:
        """How many workers there are, by class."""
        return {name: len(c.met) for name, c in sorted(self._classes.items()) if c.met}

    def residents(self, device_class: str) -> Iterator[Mapping[str, ResidentView]]:
        """What the workers of a class hold; each once of those that are told to hold the same."""
        seen = {
            id(met.residents): met.residents for met in self._classes[device_class].met.values()
        }
        return iter(seen.values())

    def forget_silent(self, now_s: float) -> None:
        """Forget who has not been heard of for long; this looks at everyone."""
        for of_class in self._classes.values():
            for met in list(of_class.met.values()):
                if now_s - max(met.at_s, met.busy_until_s) > _FORGET_WORKER_S:
                    self._forget(of_class, met)

    def _forget(self, of_class: _Class, met: Met) -> None:
        del of_class.met[met.worker_id]
        of_class.idle.pop(met.worker_id, None)
        self._count -= 1


def _until(idle: Mapping[str, Met], left_s: float) -> Iterator[Met]:
    for met in idle.values():
        if met.absent_at_s >= left_s:
            return
        yield met
