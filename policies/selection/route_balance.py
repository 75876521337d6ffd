"""RouteBalance: the placement with the best weighted sum of quality, latency and cost.

RouteBalance (arXiv 2606.17949, 2026; code: github.com/AKafakA/route-balance) fuses the choice of a
model with that of an instance. Filters keep what meets a request's limits, and what is left is
ranked by w_q q + w_l (1 - t / max t) + w_c (1 - c / max c): q is the predicted quality from 0 to 1,
t the predicted latency with the queue, c the cost, and the maxima are over what is left. The
balanced preset weighs all three equally. Of equals the instance with the shortest queue wins.

Departures. The source predicts quality and output length for each prompt; here a variant's accuracy
is the same for all queries, and so is the time an item takes. It assigns small batches of requests,
the longest first, and tracks the load of each assignment; here queries are assigned one by one as
they arrive, and the dispatcher tracks the load. Its filters estimate a probability; here the
latency at a quantile must fit. Where nothing passes, latency is the limit that is relaxed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.eligibility import list_all_options, why_never, within_limits
from modelless.policies.selection.feasibility import best, check_quantile
from modelless.policies.views import Bind, Candidates, Choice, FloatArray, QueryView, Reject


class RouteBalance(SelectionPolicy):
    """Quality, latency and cost of each placement in one score; a query is bound on arrival.

    Args:
        quality, latency, cost: weights, of which only the ratios count.
        quantile: the latency quantile to predict with: p50, p90, p95 or p99.
        batching: how bound queries share batches.
    """

    def __init__(
        self,
        quality: float = 1.0,
        latency: float = 1.0,
        cost: float = 1.0,
        quantile: str = "p90",
        batching: BatchingPolicy | None = None,
    ) -> None:
        super().__init__(batching)
        for name, weight in (("quality", quality), ("latency", latency), ("cost", cost)):
            if not 0.0 <= weight < math.inf:
                raise InvalidInputError.of(name, weight, "a number, 0 or more")
        self.quality, self.latency, self.cost = quality, latency, cost
        self.quantile = check_quantile(quantile)

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        options = list_all_options(query, candidates, self.quantile)
        never = why_never(query, options)
        if never is not None:
            return Reject(never)
        if not options.feasible.any():
            options = options._replace(feasible=within_limits(query, options))
        left = options.feasible
        score = (
            self.quality * options.accuracy_percent / 100.0
            - self.latency * _over_most(options.finish_s - candidates.now_s, left)
            - self.cost * _over_most(options.cost_usd, left)
        )
        row = best(candidates, options, -score, candidates.free_at_s)
        return Reject(Reason.NOTHING_READY) if row is None else Bind(row, Reason.BEST_VALUE)


def _over_most(values: FloatArray, left: NDArray[np.bool_]) -> FloatArray:
    """Returns the values over the largest of those that are left; 0 if that is 0, and elsewhere."""
    most = values[left].max()
    return np.where(left, values, 0.0) / most if most > 0.0 else np.zeros_like(values)
