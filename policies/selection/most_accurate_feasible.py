"""Most accurate feasible: takes the most accurate placement that is in time, queue included.

As queues grow, fewer placements are feasible, and the choice steps down to quicker variants. This
is the idea of Model-Switching (Zhang et al., HotCloud 2020), per query.
"""

from __future__ import annotations

import numpy as np

from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.feasibility import (
    best,
    check_quantile,
    list_options,
    why_infeasible,
)
from modelless.policies.views import Bind, Candidates, Choice, QueryView, Reject


class MostAccurateFeasible(SelectionPolicy):
    """Highest accuracy; among equals the soonest finished.

    Args:
        quantile: the latency quantile that must fit before the deadline: p50, p90, p95 or p99.
        batching: how bound queries share batches.
    """

    def __init__(self, quantile: str = "p99", batching: BatchingPolicy | None = None) -> None:
        super().__init__(batching)
        self.quantile = check_quantile(quantile)

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        options = list_options(query, candidates, self.quantile)
        row = best(candidates, options, -options.accuracy_percent, options.finish_s)
        if row is None:
            return Reject(why_infeasible(query, options))
        return Bind(row, Reason.MOST_ACCURATE_FEASIBLE)

    def on_late(self, query: QueryView, candidates: Candidates, rng: np.random.Generator) -> Choice:
        return self.on_arrival(query, candidates, rng)
