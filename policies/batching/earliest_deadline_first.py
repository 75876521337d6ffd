"""Earliest deadline first, work-conserving.

The queue with the most urgent head goes first (Liu and Layland, JACM 1973, for one machine). A
batch takes waiting queries while its first query stays in time and a larger batch is more
efficient. It never waits for a batch to fill.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelless.common.errors import InvalidInputError
from modelless.policies.priorities import urgency
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy
from modelless.policies.views import QueueView, Run, Wait, WorkerView


class EarliestDeadlineFirst(BatchingPolicy):
    """EDF over queues, then a batch from the front of the chosen one.

    Args:
        min_gain: a batch takes one more query only if that makes an item cheaper by this share, or
            if it costs nothing; 0: whenever it does not hurt.
    """

    def __init__(self, min_gain: float = 0.0) -> None:
        if not 0.0 <= min_gain < 1.0:
            raise InvalidInputError.of("min_gain", min_gain, "0 up to, not including, 1")
        self.min_gain = min_gain

    def next_batch(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float
    ) -> Run | Wait:
        chosen: QueueView | None = None
        for queue in queues:
            if queue.variant_id in worker.residents and queue.queries:
                head = queue.queries[0]
                if chosen is None or urgency(head) < urgency(chosen.queries[0]):
                    chosen = queue
        if chosen is None or chosen.variant_id is None:
            return Wait(Reason.NOTHING_QUEUED)
        resident = worker.residents[chosen.variant_id]
        typical_s, latency_s = resident.p50_s, resident.p99_s
        most = min(worker.max_batch, len(latency_s) - 1)
        head = chosen.queries[0]
        members, items = [head], head.items
        earliest_s = head.deadline_s
        for query in chosen.queries[1:]:
            total = items + query.items
            if total > most:
                break
            earliest_s = min(earliest_s, query.deadline_s)
            if not now_s + latency_s[total] <= earliest_s:  # also true if the latency is unknown
                break
            if not typical_s[total] / total <= (1.0 - self.min_gain) * typical_s[items] / items:
                break
            members.append(query)
            items = total
        return Run(chosen.variant_id, tuple(members), Reason.EARLIEST_DEADLINE_FIRST)
