"""Additive increase, multiplicative decrease: the batch grows until it takes too long.

Clipper (Crankshaw et al., NSDI 2017, sec. 4.3.1). The largest batch of a model grows by a fixed
amount while batches of that size meet the latency objective, and shrinks by a tenth when one does
not. It needs no profile.

A batching policy does not receive the latency of a batch, so this one infers it: a worker that left
queries waiting is asked again when its batch is done, and the time between is the latency. Where no
query was left waiting, a larger batch could not have been formed, and nothing is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from modelless.common.errors import InvalidInputError
from modelless.policies.priorities import bound_queues
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy
from modelless.policies.views import QueueView, Run, Wait, WorkerView

_Key = tuple[str, str]  # variant and device class


class _RunningBatch(NamedTuple):
    """A batch that runs on a worker that has left queries waiting."""

    key: _Key
    started_s: float
    objective_s: float
    full: bool
    most: int


class AdditiveIncrease(BatchingPolicy):
    """AIMD batch sizes by variant and device class; the most urgent queue first, without waiting.

    Args:
        step: items by which the largest batch grows.
        backoff: factor by which the largest batch shrinks.
        objective_s: seconds that a batch may take; null: the shortest time from arrival to deadline
            of its queries.
    """

    def __init__(
        self, step: float = 1.0, backoff: float = 0.9, objective_s: float | None = None
    ) -> None:
        if not 0.0 < step < float("inf"):
            raise InvalidInputError.of("step", step, "a number above 0")
        if not 0.0 < backoff < 1.0:
            raise InvalidInputError.of("backoff", backoff, "above 0 and below 1")
        if objective_s is not None and not objective_s > 0.0:
            raise InvalidInputError.of("objective_s", objective_s, "seconds, above 0, or none")
        self.step = step
        self.backoff = backoff
        self.objective_s = objective_s
        self._size: dict[_Key, float] = {}
        self._running: dict[str, _RunningBatch] = {}  # by worker

    def next_batch(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float
    ) -> Run | Wait:
        running = self._running.pop(worker.worker_id, None)
        if running is not None:
            self._learn(running, now_s - running.started_s)
        bound = bound_queues(worker, queues)
        if not bound or bound[0].variant_id is None:
            return Wait(Reason.NOTHING_QUEUED)
        queue, variant_id = bound[0], bound[0].variant_id
        key = (variant_id, worker.device_class)
        most = min(worker.max_batch, len(worker.residents[variant_id].p50_s) - 1)
        size = min(most, int(self._size.get(key, 1.0)))
        members, items = [queue.queries[0]], queue.queries[0].items
        for query in queue.queries[1:]:
            if items + query.items > size:
                break
            members.append(query)
            items += query.items
        if sum(len(queue.queries) for queue in queues) > len(members):
            objective_s = self.objective_s
            if objective_s is None:
                objective_s = min(query.deadline_s - query.arrival_s for query in members)
            full = items >= size or len(members) < len(queue.queries)
            self._running[worker.worker_id] = _RunningBatch(key, now_s, objective_s, full, most)
        return Run(variant_id, tuple(members), Reason.EARLIEST_DEADLINE_FIRST)

    def _learn(self, running: _RunningBatch, latency_s: float) -> None:
        size = self._size.get(running.key, 1.0)
        if latency_s > running.objective_s:
            self._size[running.key] = max(1.0, size * self.backoff)
        elif running.full:  # a batch that was not says nothing of the size that is allowed
            self._size[running.key] = max(1.0, min(float(running.most), size + self.step))
