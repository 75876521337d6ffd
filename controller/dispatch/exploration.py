"""Exploration: a small share of the queries goes to a placement drawn at random.

``modelless whatif`` estimates from these how another policy would have done. The draw is among the
placements that meet the query's limits, so an explored query is as safe as any other. A policy that
binds on arrival has its choice replaced. One that defers queries cannot be told where they run: it
is asked about the query once more, with a scope that holds nothing but the drawn variant.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from modelless.policies.selection.eligibility import list_all_options
from modelless.policies.views import Bind, Candidates, Choice, QueryView, Reject


class FirstChoice(NamedTuple):
    """The first choice for a query, and how probable it was.

    Attributes:
        candidates: what there was to choose from.
        variant_id, device_class: the placement it was bound to; no device class if it only had to
            be this variant, and neither if the policy deferred or refused the query.
        propensity: probability of this choice, given the candidates and the policy; above 0.
        explored: whether it was drawn, and is not what the policy chose.
        row: the drawn row of ``candidates``; None if it was not explored.
    """

    candidates: Candidates
    variant_id: str
    device_class: str
    propensity: float
    explored: bool = False
    row: int | None = None

    def explain(self, query: QueryView) -> dict[str, Any]:
        """Return it as plain JSON, without the candidates."""
        return {
            "variant": self.variant_id or None,
            "device_class": self.device_class or None,
            "explored": self.explored,
            "propensity": self.propensity,
            "after_ms": (self.candidates.now_s - query.arrival_s) * 1e3,
        }


class Exploration:
    """Draws the placements of a share of the queries.

    Args:
        share: of the queries that at least one placement would serve within their limits.
        rng: its own generator, so that the policy's draws are the same with and without it.
    """

    def __init__(self, share: float, rng: np.random.Generator) -> None:
        self.share = share
        self._rng = rng

    def draw(self, query: QueryView, candidates: Candidates, choice: Choice) -> FirstChoice:
        """Return what is chosen for a query for which the policy made ``choice``."""
        own_row = int(choice.row) if isinstance(choice, Bind) else None
        variant_id, device_class = "", ""
        if own_row is not None:
            variant_id, device_class = candidates.placements[own_row]
        options = list_all_options(query, candidates, "p99")
        rows = np.flatnonzero(options.feasible).tolist()
        if isinstance(choice, Reject) or not rows:
            return FirstChoice(candidates, variant_id, device_class, 1.0)
        row, each = None, self.share / len(rows)
        if self._rng.random() < self.share:
            row = rows[int(self._rng.integers(len(rows)))]
        if row is None or row == own_row:
            propensity = 1.0 - self.share + each * (own_row in rows)
            return FirstChoice(candidates, variant_id, device_class, propensity)
        drawn = candidates.placements[row]
        if own_row is not None:
            return FirstChoice(candidates, *drawn, each, explored=True, row=row)
        alike = sum(candidates.placements[other].variant_id == drawn.variant_id for other in rows)
        return FirstChoice(candidates, drawn.variant_id, "", each * alike, explored=True, row=row)
