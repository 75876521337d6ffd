"""What feasible means, said once for every policy that binds on arrival."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from modelless.policies.reasons import Reason
from modelless.policies.views import Candidates, FloatArray, QueryView
from modelless.variants.errors import InvalidInputError
from modelless.variants.estimates import Estimates

QUANTILES = ("p50", "p90", "p99")


def check_quantile(value: str) -> str:
    """Return ``value`` if it names a quantile of ``Estimates``, else raise InvalidInputError."""
    if value not in QUANTILES:
        raise InvalidInputError.of("quantile", value, ", ".join(QUANTILES))
    return value


def latency_column(estimates: Estimates, quantile: str) -> FloatArray:
    """The column of ``estimates`` a policy plans with, shape (n,), seconds."""
    return {"p50": estimates.p50_s, "p90": estimates.p90_s, "p99": estimates.p99_s}[quantile]


def feasible_rows(
    query: QueryView, candidates: Candidates, latency_s: FloatArray
) -> NDArray[np.bool_]:
    """Rows accurate, cheap and soon enough, counting the wait for the worker. Shape (n,)."""
    feasible = (candidates.free_at_s + latency_s) <= query.deadline_s
    if query.min_accuracy_percent > 0.0:
        feasible &= candidates.accuracy_percent >= query.min_accuracy_percent
    if query.max_cost_usd != np.inf:
        feasible &= candidates.cost_usd <= query.max_cost_usd
    feasible &= latency_s != np.inf
    return feasible


def why_infeasible(query: QueryView, candidates: Candidates, latency_s: FloatArray) -> Reason:
    """The reason for which no row is feasible: the limit that alone rules out every row, if one does."""
    if not len(candidates.placements) or not np.isfinite(latency_s).any():
        return Reason.NOTHING_READY
    accurate = candidates.accuracy_percent >= query.min_accuracy_percent
    cheap = candidates.cost_usd <= query.max_cost_usd
    quick = latency_s <= query.deadline_s - candidates.now_s
    if not accurate.any():
        return Reason.TOO_INACCURATE
    if not quick.any():
        return Reason.TOO_SLOW
    if not cheap.any():
        return Reason.TOO_DEAR
    if not (accurate & quick & cheap).any():
        return Reason.LIMITS_CONFLICT
    return Reason.QUEUE_TOO_LONG
