"""The options of policies without admission control.

Such baselines bind queries that will be late, so a deadline excludes only placements that could not
be in time even on an idle system. To bind to those would only waste the wait.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from modelless.policies.reasons import Reason
from modelless.policies.selection.feasibility import Options, list_options, why_infeasible
from modelless.policies.views import Candidates, QueryView
from modelless.variants.vocabulary import Placement


def list_all_options(query: QueryView, candidates: Candidates, quantile: str = "p50") -> Options:
    """Returns all rows as options, dominated ones included: option i is row i."""
    if candidates.shortlist is not None:
        candidates = replace(candidates, shortlist=None)
    return list_options(query, candidates, quantile)


def within_limits(query: QueryView, options: Options) -> NDArray[np.bool_]:
    """Returns which options are accurate and cheap enough, with known latency, shape (m,)."""
    eligible = np.isfinite(options.latency_s)
    eligible &= options.accuracy_percent >= query.min_accuracy_percent
    eligible &= options.cost_usd <= query.max_cost_usd
    return eligible


def in_time_if_idle(query: QueryView, options: Options) -> NDArray[np.bool_]:
    """Returns which options would be in time on an idle system, shape (m,)."""
    return options.latency_s <= query.deadline_s - query.arrival_s


def why_never(query: QueryView, options: Options) -> Reason | None:
    """Returns why no option could serve the query on an idle system; None if one could."""
    possible = within_limits(query, options) & in_time_if_idle(query, options)
    return None if possible.any() else why_infeasible(query, options)


def select_options(options: Options, kept: NDArray[np.bool_]) -> Options:
    """Returns the options where ``kept``, shape (m,), is true."""
    rows = np.flatnonzero(kept)
    return Options(
        rows if options.rows is None else options.rows[rows],
        options.accuracy_percent[rows],
        options.cost_usd[rows],
        options.latency_s[rows],
        options.finish_s[rows],
        options.feasible[rows],
    )


def name_of(placement: Placement) -> tuple[str, str]:
    """Returns the sort key of a placement, for orders that do not depend on that of the rows."""
    return (placement.variant_id, placement.device_class)


class NameOrder:
    """The rows of each scope sorted by name, again only when its placements change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[Placement, ...], NDArray[np.intp]]] = {}

    def rows(self, scope: str, placements: tuple[Placement, ...]) -> NDArray[np.intp]:
        """Returns all rows by name, shape (n,)."""
        known = self._known.get(scope)
        if known is None or known[0] is not placements:
            by_name = sorted(range(len(placements)), key=lambda row: name_of(placements[row]))
            known = self._known[scope] = (placements, np.array(by_name, dtype=np.intp))
        return known[1]
