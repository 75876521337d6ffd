"""Uniform random: draws any placement that keeps the client's limits, with equal probability.

For comparison: it has no memory and no knowledge. The difference to another policy shows what that
policy's knowledge is worth.
"""

from __future__ import annotations

import numpy as np

from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.eligibility import (
    NameOrder,
    list_all_options,
    why_never,
    within_limits,
)
from modelless.policies.views import Bind, Candidates, Choice, QueryView, Reject


class UniformRandom(SelectionPolicy):
    """One at random of those that are accurate and cheap enough.

    Args:
        batching: how bound queries share batches.
    """

    def __init__(self, batching: BatchingPolicy | None = None) -> None:
        super().__init__(batching)
        self._order = NameOrder()  # a draw must not depend on the order of the rows

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        options = list_all_options(query, candidates)
        never = why_never(query, options)
        if never is not None:
            return Reject(never)
        rows = self._order.rows(query.scope, candidates.placements)
        rows = rows[within_limits(query, options)[rows]]
        return Bind(int(rows[rng.integers(len(rows))]), Reason.AT_RANDOM)
