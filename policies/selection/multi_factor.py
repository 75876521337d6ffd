"""Multi-factor: the placement with the best weighted sum of quality, latency, cost and load.

The ``multi_factor`` selection of the vLLM Semantic Router (vllm-project/semantic-router, "Multi
Factor", 2026). Candidates that break a floor of quality or a ceiling of latency or cost are
excluded. Each factor is scaled from 0 to 1 over those that are left, and the weighted sum of
quality, 1 - latency, 1 - cost and 1 - load decides; by default all weigh the same. Latency is what
was observed at a high percentile, and load the requests in flight, so a queue counts as load only.

Departures. Floor and ceilings are the query's own limits. Load is the wait at the least busy worker
with the placement, because a policy is not told the number of queries in flight. The source chooses
a model and leaves the instance to others; here the placement names the device class as well. Its
lexicographic strategy is left out. Where nothing is left it serves the cheapest; here such a query
could not be in time anywhere, and is refused.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.eligibility import (
    in_time_if_idle,
    list_all_options,
    within_limits,
)
from modelless.policies.selection.feasibility import best, check_quantile, why_infeasible
from modelless.policies.views import Bind, Candidates, Choice, FloatArray, QueryView, Reject


class MultiFactor(SelectionPolicy):
    """Quality, latency, cost and load of each placement in one score; bound on arrival.

    Args:
        quality, latency, cost, load: weights, of which only the ratios count.
        quantile: the latency quantile to compare: p50, p90, p95 or p99. The source's is 95 %.
        batching: how bound queries share batches.
    """

    def __init__(
        self,
        quality: float = 0.25,
        latency: float = 0.25,
        cost: float = 0.25,
        load: float = 0.25,
        quantile: str = "p99",
        batching: BatchingPolicy | None = None,
    ) -> None:
        super().__init__(batching)
        weights = {"quality": quality, "latency": latency, "cost": cost, "load": load}
        for name, weight in weights.items():
            if not 0.0 <= weight < math.inf:
                raise InvalidInputError.of(name, weight, "a number, 0 or more")
        self.quality, self.latency, self.cost, self.load = weights.values()
        self.quantile = check_quantile(quantile)

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        options = list_all_options(query, candidates, self.quantile)
        left = within_limits(query, options) & in_time_if_idle(query, options)
        if not left.any():
            return Reject(why_infeasible(query, options))
        score = (
            self.quality * _scaled(options.accuracy_percent, left)
            - self.latency * _scaled(options.latency_s, left)
            - self.cost * _scaled(options.cost_usd, left)
            - self.load * _scaled(candidates.free_at_s, left)
        )
        row = best(candidates, options._replace(feasible=left), -score, options.cost_usd)
        return Reject(Reason.NOTHING_READY) if row is None else Bind(row, Reason.BEST_VALUE)


def _scaled(values: FloatArray, left: NDArray[np.bool_]) -> FloatArray:
    """Returns the values from 0, the least that is left, to 1, the most; 0 if all are equal."""
    least, most = values[left].min(), values[left].max()
    if not most > least:
        return np.zeros_like(values)
    scaled: FloatArray = (np.where(left, values, least) - least) / (most - least)
    return scaled
