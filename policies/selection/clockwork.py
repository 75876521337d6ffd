"""Clockwork: starts a batch only if it ends in time, and binds as late as possible.

Gujarati et al., OSDI 2020, sec. 4 and 5. All workers share one queue. A worker runs one batch at a
time, so its latency can be predicted. Every possible batch has a latest start: its earliest
deadline less its predicted (here p99) latency. The batch with the earliest latest start goes first,
in the largest size whose latest start has not passed. A query that cannot start in time anywhere is
dropped at once.

Clockwork's clients name the model; here a fixed rule names it for each worker, among the loaded
variants. The other half of Clockwork, which loads models by unmet demand and evicts the least
recently used, belongs to other seams (scaling ``unserved-demand``, eviction ``lru``).

Departures. The source predicts by the slowest of its last measurements, here the cost model does.
Its controller hands out actions some milliseconds ahead, with a window to start in; here a worker
is asked when it falls idle. Its loads are scheduled among the batches, here once a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.priorities import rank
from modelless.policies.reasons import Reason
from modelless.policies.selection.late_binding import (
    LateBinding,
    Prefix,
    in_time,
    prefixes,
    run_or_wait,
)
from modelless.policies.views import QueryView, QueueView, ResidentView, Run, Wait, WorkerView


class Clockwork(LateBinding):
    """Start-by deadlines, the largest batch, one variant by rule.

    Args:
        variant: ``fastest`` or ``most-accurate`` of the variants that meet a query's limits on an
            idle worker.
    """

    def __init__(self, variant: str = "fastest") -> None:
        super().__init__()
        if variant not in ("fastest", "most-accurate"):
            raise InvalidInputError.of("variant", variant, "fastest or most-accurate")
        self.variant = variant

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        heads, lost = self.heads(worker, queues, now_s)
        chosen: tuple[ResidentView, Prefix] | None = None
        for head in heads:
            if chosen is not None and rank(head.query) > rank(chosen[1].members[0]):
                break
            (resident,) = head.residents
            largest = in_time(prefixes(head, resident, worker.max_batch), now_s)[-1]
            if chosen is None or largest.latest_start_s < chosen[1].latest_start_s:
                chosen = (resident, largest)
        return run_or_wait(chosen, Reason.LATE_BINDING, lost, now_s)

    def variants_for(
        self, query: QueryView, residents: Sequence[ResidentView]
    ) -> Sequence[ResidentView]:
        """Returns the one variant that the rule chooses, as if the system were idle."""
        limit_s = query.deadline_s - query.arrival_s

        def key(resident: ResidentView) -> tuple[float, float, str]:
            latency_s = resident.p99_s[query.items]
            if self.variant == "fastest":
                return (latency_s, -resident.accuracy_percent, resident.variant_id)
            return (-resident.accuracy_percent, latency_s, resident.variant_id)

        quick_enough = [r for r in residents if r.p99_s[query.items] <= limit_s]
        return [min(quick_enough, key=key)] if quick_enough else []
