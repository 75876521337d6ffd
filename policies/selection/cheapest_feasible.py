"""Cheapest feasible: takes the cheapest placement that meets the query's limits.

Cost is the price of the device time. This is what model-less serving promises its users since
INFaaS (Romero et al., USENIX ATC 2021), here without that system's caches of past choices and its
thresholds.
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


class CheapestFeasible(SelectionPolicy):
    """Least cost; among equals the more accurate.

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
        row = best(candidates, options, options.cost_usd, -options.accuracy_percent)
        if row is None:
            return Reject(why_infeasible(query, options))
        return Bind(row, Reason.CHEAPEST_FEASIBLE)

    def on_late(self, query: QueryView, candidates: Candidates, rng: np.random.Generator) -> Choice:
        return self.on_arrival(query, candidates, rng)
