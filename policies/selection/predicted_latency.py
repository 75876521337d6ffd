"""Predicted latency: the placement whose predicted latency comes closest to the query's limit.

The predicted-latency scheduling of llm-d (llm-d.ai, "Latency Predictor", 2026; plug-ins
``slo-headroom-tier-filter``, ``latency-scorer`` and ``weighted-random-picker``). The headroom of an
endpoint is the limit less the predicted latency. Endpoints with headroom form one tier, those
without another, which is tried for one request in a hundred if both exist. The score is the
headroom, scaled to 0 to 1 over the tier: the least headroom is best (``least``, which packs
requests and keeps capacity for bursts) or the most (``most``). In the tier without headroom an idle
endpoint comes first, then what misses the limit least. An endpoint is drawn with its score as the
weight. Without a limit, the lowest latency is best.

Departures. llm-d trains its predictor online on the state of LLM servers, for the first token and
the later ones apart, and assumes equal servers. Here the cost model predicts one latency, wait
included, and placements differ. Its clients name the model; here all variants that keep a query's
limits are endpoints. Prefix caches do not exist here. It sheds requests of negative priority, which
do not exist here either.
"""

from __future__ import annotations

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.eligibility import (
    NameOrder,
    list_all_options,
    why_never,
    within_limits,
)
from modelless.policies.selection.feasibility import check_quantile
from modelless.policies.views import Bind, Candidates, Choice, FloatArray, QueryView, Reject


class PredictedLatency(SelectionPolicy):
    """A weighted draw by headroom; a query is bound on arrival.

    Args:
        headroom: ``least`` or ``most``, the headroom that is best.
        explore: probability with which the tier without headroom is tried though the other exists.
        quantile: the latency quantile to predict with: p50, p90, p95 or p99.
        batching: how bound queries share batches.
    """

    def __init__(
        self,
        headroom: str = "least",
        explore: float = 0.01,
        quantile: str = "p90",
        batching: BatchingPolicy | None = None,
    ) -> None:
        super().__init__(batching)
        if headroom not in ("least", "most"):
            raise InvalidInputError.of("headroom", headroom, "least or most")
        if not 0.0 <= explore <= 1.0:
            raise InvalidInputError.of("explore", explore, "0 to 1")
        self.headroom, self.explore = headroom, explore
        self.quantile = check_quantile(quantile)
        self._order = NameOrder()  # a draw must not depend on the order of the rows

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        options = list_all_options(query, candidates, self.quantile)
        never = why_never(query, options)
        if never is not None:
            return Reject(never)
        rows = self._order.rows(query.scope, candidates.placements)
        rows = rows[within_limits(query, options)[rows]]
        limit_s = query.deadline_s if query.deadline_s < np.inf else candidates.now_s
        headroom_s = limit_s - options.finish_s[rows]
        meets = headroom_s >= 0.0
        is_positive = meets.any() and not (not meets.all() and rng.random() < self.explore)
        tier = meets if is_positive else ~meets
        if not is_positive and query.deadline_s < np.inf:
            idle = tier & (candidates.free_at_s[rows] <= candidates.now_s)
            tier = idle if idle.any() else tier
        rows, headroom_s = rows[tier], headroom_s[tier]
        weights = _scaled(headroom_s)
        if is_positive and self.headroom == "least":
            weights = 1.0 - weights
        weights = weights if weights.any() else np.ones_like(weights)
        row = rng.choice(rows, p=weights / weights.sum())
        return Bind(int(row), Reason.BEST_FIT)


def _scaled(values: FloatArray) -> FloatArray:
    """Returns the values from 0, the least, to 1, the most; 0 if all are equal."""
    least, most = values.min(), values.max()
    return (values - least) / (most - least) if most > least else np.zeros_like(values)
