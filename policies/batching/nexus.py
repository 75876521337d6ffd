"""Nexus: early drop. It drops the first query of a queue rather than run a small batch for it.

Shen et al., SOSP 2019, sec. 6.3. When queries come faster than small batches can serve them, the
head of a queue has little time left, and a policy that serves it runs small batches and falls
further behind. Early drop slides a window of the planned batch size along the queue, stops at the
first query with enough time for the whole window, and drops all queries before it.

Nexus's global scheduler plans the batch sizes by packing sessions onto devices. Here the planned
size is that scheduler's rule for one session that fills a device: the largest batch of which two in
a row fit the latency limit, since a query may just miss a batch and waits for that to end. Packing
sessions, its prefix batching and its splitting of limits between the models of one query are left
out: which variants are where is up to scaling, and a query here is of one model.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from modelless.policies.priorities import bound_queues, rank
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy
from modelless.policies.views import QueryView, QueueView, ResidentView, Run, Wait, WorkerView

_LOOK_AGAIN_S = 0.1


class Nexus(BatchingPolicy):
    """The most urgent queue first, from where early drop says, in the largest batch in time.

    No query is dropped in favour of a lower priority. While fewer queries wait than a full window
    takes, or if a full window is in time nowhere in the queue, only queries are dropped that would
    be late even alone.
    """

    def next_batch(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float
    ) -> Run | Wait:
        dropped: tuple[QueryView, ...] = ()
        for queue in bound_queues(worker, queues):
            if queue.variant_id is None:
                continue
            resident = worker.residents[queue.variant_id]
            most = min(worker.max_batch, len(resident.p99_s) - 1)
            queries = tuple(queue.queries)
            start = _slide(queries, resident, most, now_s)
            dropped += queries[:start]
            if start < len(queries):
                batch = _fill(queries[start:], resident.p99_s, most, now_s)
                return Run(queue.variant_id, batch, Reason.EARLIEST_DEADLINE_FIRST, dropped)
        if dropped:
            return Wait(Reason.DEADLINE_PASSED, now_s + _LOOK_AGAIN_S, dropped)
        return Wait(Reason.NOTHING_QUEUED)


def _slide(queries: Sequence[QueryView], resident: ResidentView, most: int, now_s: float) -> int:
    """Returns the index at which the batch begins; the length if no query can be in time."""
    ends = list(accumulate(query.items for query in queries))
    for start, head in enumerate(queries):
        window = _planned_items(head, resident, most)
        waiting = ends[-1] - ends[start] + head.items
        if waiting < window or rank(head) > rank(queries[0]):
            break
        if now_s + resident.p99_s[window] <= head.deadline_s:
            return start
    for start, head in enumerate(queries):
        if not now_s + resident.p50_s[head.items] > head.deadline_s:  # or if that is unknown
            return start
    return len(queries)


def _planned_items(head: QueryView, resident: ResidentView, most: int) -> int:
    """Returns the largest batch of which two in a row fit the latency limit.

    It has at least the query's items.
    """
    if not math.isfinite(resident.p99_s[head.items]):
        return head.items
    half_s = (head.deadline_s - head.arrival_s) / 2.0
    return max(head.items, bisect_right(resident.p99_s, half_s, 0, most + 1) - 1)


def _fill(
    queries: Sequence[QueryView], latency_s: Sequence[float], largest: int, now_s: float
) -> tuple[QueryView, ...]:
    """Returns the first query and those behind it that fit the batch and leave all in time."""
    items, earliest_s = queries[0].items, queries[0].deadline_s
    count = 1
    for query in queries[1:]:
        items += query.items
        earliest_s = min(earliest_s, query.deadline_s)
        if items > largest or not now_s + latency_s[items] <= earliest_s:
            break
        count += 1
    return tuple(queries[:count])
