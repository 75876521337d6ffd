"""The feasible options of a query, for every policy that binds on arrival."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.views import Candidates, FloatArray, QueryView
from modelless.variants.estimates import Estimates

QUANTILES = ("p50", "p90", "p95", "p99")
_MOST_S = sys.float_info.max


class Options(NamedTuple):
    """The candidate rows considered for one query, as columns of shape (m,).

    Attributes:
        rows: their numbers among the candidates; None if they are all of them, in order.
        accuracy_percent, cost_usd: float64.
        latency_s: latency at the quantile the policy plans with, float64; inf or NaN where unknown.
        finish_s: predicted time of the answer, wait included, float64.
        feasible: whether accurate, cheap and quick enough; False where the latency is unknown.
    """

    rows: NDArray[np.intp] | None
    accuracy_percent: FloatArray
    cost_usd: FloatArray
    latency_s: FloatArray
    finish_s: FloatArray
    feasible: NDArray[np.bool_]

    def row_of(self, option: int) -> int:
        """Returns the candidates' row of an option."""
        return option if self.rows is None else int(self.rows[option])


def check_quantile(value: str) -> str:
    """Returns ``value`` if it names a quantile of ``Estimates``, else raises InvalidInputError."""
    if value not in QUANTILES:
        raise InvalidInputError.of("quantile", value, ", ".join(QUANTILES))
    return value


def latency_column(estimates: Estimates, quantile: str) -> FloatArray:
    """Returns the latency at a quantile, shape (n,), seconds."""
    column: FloatArray = getattr(estimates, f"{quantile}_s")
    return column


def list_options(query: QueryView, candidates: Candidates, quantile: str) -> Options:
    """Returns the options of a query and which of them are feasible.

    Args:
        query: the query.
        candidates: its candidates; only their shortlist is considered.
        quantile: latency quantile to plan with: p50, p90, p95 or p99.
    """
    rows = candidates.shortlist
    accuracy_percent, cost_usd = candidates.accuracy_percent, candidates.cost_usd
    latency_s, free_at_s = latency_column(candidates.estimates, quantile), candidates.free_at_s
    if rows is not None:
        accuracy_percent, cost_usd = accuracy_percent.take(rows), cost_usd.take(rows)
        latency_s, free_at_s = latency_s.take(rows), free_at_s.take(rows)
    finish_s = free_at_s + latency_s
    feasible = finish_s <= min(query.deadline_s, _MOST_S)  # no deadline does not mean never
    if query.min_accuracy_percent > 0.0:
        feasible &= accuracy_percent >= query.min_accuracy_percent
    if query.max_cost_usd != np.inf:
        feasible &= cost_usd <= query.max_cost_usd
    return Options(rows, accuracy_percent, cost_usd, latency_s, finish_s, feasible)


def why_infeasible(query: QueryView, options: Options) -> Reason:
    """Returns why nothing is feasible: the limit that alone excludes all options, if one does.

    The deadline excludes what could not meet it even if it had begun on arrival; the queue excludes
    the rest. Limits that only together exclude all options are in conflict.
    """
    known = np.isfinite(options.latency_s)
    if not known.any():
        return Reason.NOTHING_READY
    accurate = known & (options.accuracy_percent >= query.min_accuracy_percent)
    quick = known & (options.latency_s <= query.deadline_s - query.arrival_s)
    cheap = known & (options.cost_usd <= query.max_cost_usd)
    if not accurate.any():
        return Reason.TOO_INACCURATE
    if not quick.any():
        return Reason.TOO_SLOW
    if not cheap.any():
        return Reason.TOO_DEAR
    if not (accurate & quick & cheap).any():
        return Reason.LIMITS_CONFLICT
    return Reason.QUEUE_TOO_LONG


def best(
    candidates: Candidates, options: Options, first: FloatArray, second: FloatArray
) -> int | None:
    """Returns the row of the feasible option least in ``first``, then in ``second``, then by name.

    The name decides between equal options, so that the order of the candidates does not.

    Args:
        candidates: the candidates.
        options: their options.
        first, second: shape (m,); NaN comes last.

    Returns:
        A row of ``candidates``; None if nothing is feasible.
    """
    if not len(first):
        return None
    least = np.where(options.feasible, first, np.inf)
    option = int(least.argmin())
    value = least[option]
    if value < np.inf:
        equals = least == value
        if np.count_nonzero(equals) == 1:
            return options.row_of(option)
        tied = np.flatnonzero(equals)
    else:  # nothing is feasible, or ``first`` is not finite
        tied = np.flatnonzero(options.feasible)

    def key(option: int) -> tuple[float, float, str, str]:
        placement = candidates.placements[options.row_of(option)]
        return (
            _last_if_nan(first[option]),
            _last_if_nan(second[option]),
            placement.variant_id,
            placement.device_class,
        )

    return options.row_of(min(tied.tolist(), key=key)) if len(tied) else None


def _last_if_nan(value: float) -> float:
    return float(value) if value == value else np.inf
