"""Static: always uses the same variant, as if the client had named it.

It never looks at the load. The "fastest" and "most accurate" baselines of every comparison since
INFaaS (Romero et al., USENIX ATC 2021, sec. 5).
"""

from __future__ import annotations

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.eligibility import (
    list_all_options,
    select_options,
    why_never,
    within_limits,
)
from modelless.policies.selection.feasibility import Options, best
from modelless.policies.views import Bind, Candidates, Choice, QueryView, Reject


class Static(SelectionPolicy):
    """One variant for each scope and minimum accuracy, on the device that would finish soonest.

    Args:
        variant: ``fastest``, ``most-accurate``, or a variant's id (``task/model/name@version``). A
            query that this variant may not serve is refused.
        batching: how bound queries share batches.
    """

    def __init__(self, variant: str = "fastest", batching: BatchingPolicy | None = None) -> None:
        super().__init__(batching)
        self.variant = _check_variant(variant)

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        options = list_all_options(query, candidates)
        allowed = options._replace(feasible=within_limits(query, options))
        variant_id = self._choose(candidates, allowed)
        if variant_id is not None:
            of_it = [placement.variant_id == variant_id for placement in candidates.placements]
            allowed = select_options(allowed, np.array(of_it, dtype=np.bool_))
        never = why_never(query, allowed)
        if never is not None:
            return Reject(never)
        row = best(candidates, allowed, allowed.finish_s, allowed.cost_usd)
        return Reject(Reason.NOTHING_READY) if row is None else Bind(row, Reason.ALWAYS)

    def _choose(self, candidates: Candidates, allowed: Options) -> str | None:
        """Returns the variant to use, regardless of the queues; None if none may be used."""
        latency_s, accuracy_percent = allowed.latency_s, allowed.accuracy_percent
        if self.variant == "fastest":
            row = best(candidates, allowed, latency_s, -accuracy_percent)
        elif self.variant == "most-accurate":
            row = best(candidates, allowed, -accuracy_percent, latency_s)
        else:
            return self.variant
        return None if row is None else candidates.placements[row].variant_id


def _check_variant(value: str) -> str:
    """Returns ``value`` if it names a variant or a rule, else raises InvalidInputError."""
    if value not in ("fastest", "most-accurate") and value.count("/") != 2:
        raise InvalidInputError.of(
            "variant", value, "fastest, most-accurate, or an id such as task/model/name@version"
        )
    return value
