"""A hop early: which busy workers may be given their next batch already, and from when on.

A worker in another process would idle while the answer of its batch travels here and the next batch
travels there. So it is given the next one when the one that runs is expected back within its
*lead*, which is the price of the hop: that batch arrives as the device falls idle, and nothing is
decided sooner than that takes. Not later than the batch is expected either: when one that is late
will be back nobody knows, and what waits may find a better place.

Only a worker that no other gateway uses just now has openings: others' batches keep a device from
idling as well, and the place beside the batch that runs is theirs then.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from modelless.controller.core.waiting import Worker


class Openings:
    """The workers that run a batch of ours and could take another beside it."""

    def __init__(self) -> None:
        self._coming: list[tuple[float, int, Worker]] = []  # heap: from when on, and beside what
        self._open: dict[int, Worker] = {}  # by the batch that they run

    def expect(self, worker: Worker) -> None:
        """The worker begins the batch that it runs."""
        running = worker.running
        if worker.lead_s > 0.0 and running is not None and running.ends_s < math.inf:
            heappush(self._coming, (running.ends_s - worker.lead_s, running.batch_id, worker))

    def at(self, now_s: float) -> list[Worker]:
        """Who may be given the next batch now."""
        coming = self._coming
        while coming and coming[0][0] <= now_s:
            _, batch_id, worker = heappop(coming)
            self._open[batch_id] = worker
        if self._open:
            self._open = {
                batch_id: worker
                for batch_id, worker in self._open.items()
                if _is_beside(worker, batch_id, now_s)
            }
        return list(self._open.values())

    @property
    def next_s(self) -> float:
        """When the next opening comes; inf if none does."""
        coming = self._coming
        while coming and not _is_beside(coming[0][2], coming[0][1]):
            heappop(coming)
        return coming[0][0] if coming else math.inf


def _is_beside(worker: Worker, batch_id: int, now_s: float = -math.inf) -> bool:
    """Whether the worker runs this batch and could take another beside it."""
    running = worker.running
    return (
        running is not None
        and running.batch_id == batch_id
        and now_s <= running.ends_s
        and worker.next is None
        and worker.is_ours
    )
