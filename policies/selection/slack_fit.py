"""SlackFit: chooses variant and batch by the time left to the most urgent query.

SuperServe (Khare et al., NSDI 2025; arXiv 2312.16733). The latencies of all pairs of variant and
batch size are sorted into buckets of equal width. When a worker falls idle, the policy takes the
bucket closest below the slack of the most urgent query, and of its pairs the one with the largest
batch, then the most accurate. Under little load there is much slack, so answers are accurate; a
burst leaves little slack, so latencies are small. The policy is reactive and forecasts nothing.

SuperServe switches between subnetworks of one network that is always in memory; here the variants
to choose from are those that are loaded. It runs what is late as fast as it can; here a query that
nothing could serve in time any more is dropped, because late answers count for nothing. Its slack
is compared with predicted p99, where the source profiles a latency that hardly varies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from modelless.common.errors import InvalidInputError
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


class SlackFit(LateBinding):
    """Of the slowest bucket that fits the slack, the largest batch, then the most accurate.

    Only batches that can be formed from what waits are considered, so that a query alone gets
    the most accurate variant that its slack allows.

    Args:
        buckets: number of buckets, from the quickest variant's latency alone to the slowest's with
            a full batch.
    """

    def __init__(self, buckets: int = 8) -> None:
        super().__init__()
        if buckets < 1:
            raise InvalidInputError.of("buckets", buckets, "1 or more")
        self.buckets = buckets

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        heads, lost = self.heads(worker, queues, now_s)
        chosen = self._fit(heads[0], worker, now_s) if heads else None
        return run_or_wait(chosen, Reason.BEST_FIT, lost, now_s)

    def _fit(self, head: Head, worker: WorkerView, now_s: float) -> tuple[ResidentView, Prefix]:
        most = worker.max_batch
        low_s = min(resident.p99_s[1] for resident in head.residents)
        slowest_s = [resident.p99_s[-1] for resident in head.residents]
        high_s = max((s for s in slowest_s if math.isfinite(s)), default=low_s)
        width_s = (high_s - low_s) / self.buckets

        def key(pair: tuple[ResidentView, Prefix]) -> tuple[int, int, float, float, str]:
            resident, batch = pair
            latency_s = resident.p99_s[batch.items]
            bucket = int((latency_s - low_s) / width_s) if width_s > 0.0 else 0
            accuracy = resident.accuracy_percent
            return (-bucket, -batch.items, -accuracy, latency_s, resident.variant_id)

        fitting = (
            (resident, batch)
            for resident in head.residents
            for batch in in_time(prefixes(head, resident, most), now_s)
        )
        return min(fitting, key=key)
