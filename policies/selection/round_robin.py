"""Round robin: uses the placements of a scope in turn, whatever their cost and latency.

The classic of load balancers, for comparison. It skips placements that break a query's minimum
accuracy or maximum cost.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.eligibility import (
    NameOrder,
    list_all_options,
    name_of,
    why_never,
    within_limits,
)
from modelless.policies.views import Bind, Candidates, Choice, QueryView, Reject


class RoundRobin(SelectionPolicy):
    """One after the other, in the order of their names; each scope has a turn of its own.

    Args:
        batching: how bound queries share batches.
    """

    def __init__(self, batching: BatchingPolicy | None = None) -> None:
        super().__init__(batching)
        self._order = NameOrder()
        self._last: dict[str, tuple[str, str]] = {}  # the last placement by scope

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        options = list_all_options(query, candidates)
        never = why_never(query, options)
        if never is not None:
            return Reject(never)
        placements = candidates.placements
        rows = self._order.rows(query.scope, placements)
        rows = rows[within_limits(query, options)[rows]]
        last = self._last.get(query.scope)
        turn = 0
        if last is not None:
            turn = bisect_right(rows, last, key=lambda row: name_of(placements[row]))
        row = int(rows[turn % len(rows)])
        self._last[query.scope] = name_of(placements[row])
        return Bind(row, Reason.IN_TURN)
