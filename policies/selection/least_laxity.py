"""Least laxity: the query with the least time to spare first, as accurately as the backlog allows.

Least laxity first (Mok, MIT dissertation, 1983) is the order: the laxity of a query is the time
left to its deadline less the latency of the quickest variant for it. The rest is one rule. For each
variant take the largest batch whose queries are all in time. In rounds of such batches the workers
of the class need some time for all that waits in the queue. Of the variants with which that is
within the time left to the first query, the most accurate runs; if there is none, that of the
highest throughput. Nothing is forecast, priced or held back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from modelless.policies.priorities import rank
from modelless.policies.reasons import Reason
from modelless.policies.selection.late_binding import (
    Head,
    LateBinding,
    Prefix,
    in_time,
    prefixes,
    run_or_wait,
)
from modelless.policies.views import QueueView, ResidentView, Run, Wait, WorkerView


class LeastLaxity(LateBinding):
    """Least laxity first; the most accurate variant that drains the backlog in time."""

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        heads, lost = self.heads(worker, queues, now_s)
        if not heads:
            return run_or_wait(None, Reason.BEST_FIT, lost, now_s)
        head = min(heads, key=lambda head: (rank(head.query), _laxity_s(head, now_s)))
        slack_s = head.query.deadline_s - now_s
        backlog = sum(query.items for query in head.queries)
        workers = worker.worker_counts.get(worker.device_class, 1)

        def key(pair: tuple[ResidentView, Prefix]) -> tuple[bool, float, float, str]:
            resident, batch = pair
            rounds = math.ceil(backlog / (batch.items * workers))
            drains = rounds * batch.latency_s <= slack_s
            per_item_s = batch.latency_s / batch.items
            first = -resident.accuracy_percent if drains else per_item_s
            return (not drains, first, per_item_s, resident.variant_id)

        largest = [
            (resident, in_time(prefixes(head, resident, worker.max_batch), now_s)[-1])
            for resident in head.residents
        ]
        return run_or_wait(min(largest, key=key), Reason.BEST_FIT, lost, now_s)


def _laxity_s(head: Head, now_s: float) -> float:
    """Returns the time left to the deadline less that of the quickest variant, seconds."""
    quickest_s = min(resident.p99_s[head.query.items] for resident in head.residents)
    return head.query.deadline_s - now_s - quickest_s
