"""Planned shares: draws placements by the shares that the control loop planned.

The query assignment of Proteus (Ahmad et al., ASPLOS 2024) and of InfAdapter (Salmani et al.,
EuroMLSys 2023). From time to time the scaling policy decides which placement serves which share. On
arrival this policy takes a weighted draw, regardless of the queues. The batching policy drops
queries that cannot be in time; they are not sent elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from modelless.policies.batching.proteus import ProteusBatching
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.eligibility import (
    in_time_if_idle,
    list_all_options,
    name_of,
    within_limits,
)
from modelless.policies.selection.feasibility import check_quantile
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.views import Bind, Candidates, Choice, QueryView
from modelless.variants.vocabulary import Placement

_MEMORY_QUERIES = 256  # number of queries at which a scope's counts are halved


class PlannedShares(SelectionPolicy):
    """A weighted random draw by the shares of the query's scope.

    A share is of all queries of a scope, but some queries can go only to few placements: those with
    a minimum accuracy or a tight limit. They are drawn among these placements. For other queries a
    placement's weight is its share less what such queries have taken of it. Without such queries
    the draw is by the shares alone, as published. Where the plan has no placement for the query, it
    gets the most accurate feasible one.

    Args:
        batching: how bound queries share batches; by default ``proteus-batching``.
        quantile: the latency quantile that must fit before the deadline if the plan gives no
            placement: p50, p90, p95 or p99.
    """

    def __init__(self, batching: BatchingPolicy | None = None, quantile: str = "p99") -> None:
        super().__init__(batching or ProteusBatching())
        self.quantile = check_quantile(quantile)
        self._otherwise = MostAccurateFeasible(quantile, self.batching)
        self._shares: dict[str, dict[Placement, float]] = {}
        self._taken: dict[str, _Taken] = {}

    def on_plan(self, shares: Mapping[str, Mapping[Placement, float]]) -> None:
        self._shares = {
            scope: {
                placement: given[placement]
                for placement in sorted(given, key=name_of)
                if given[placement] > 0.0
            }
            for scope, given in shares.items()
        }
        self._taken = {scope: _Taken() for scope in shares}

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        rows = self._planned_rows(query, candidates)
        if not rows:
            return self._otherwise.on_arrival(query, candidates, rng)
        shares, taken = self._shares[query.scope], self._taken[query.scope]
        due = taken.queries / sum(shares.values())
        weights = [
            max(shares[placement] * due - taken.by_others(placement, len(rows)), 0.0)
            for placement in rows
        ]
        if not sum(weights) > 0.0:
            weights = [shares[placement] for placement in rows]
        chosen = _draw(list(rows), weights, rng)
        taken.count(chosen, len(rows))
        return Bind(rows[chosen], Reason.PLANNED)

    def _planned_rows(self, query: QueryView, candidates: Candidates) -> dict[Placement, int]:
        """Returns the rows by placement, in order of name, that have a share and suit the query.

        A query has a tight limit if it has less time than the plan leaves for the wait in queues,
        as much again as for serving. If nothing is quick enough for that, anything will do that can
        be in time at all.
        """
        shares = self._shares.get(query.scope)
        if not shares:
            return {}
        options = list_all_options(query, candidates, "p50")
        possible = within_limits(query, options) & in_time_if_idle(query, options)
        easy = possible & (2.0 * options.latency_s <= query.deadline_s - query.arrival_s)
        row_of = {placement: row for row, placement in enumerate(candidates.placements)}
        there = {p: row_of[p] for p in shares if p in row_of and possible[row_of[p]]}
        return {placement: row for placement, row in there.items() if easy[row]} or there


class _Taken:
    """The recent queries of a scope by placement and by how many placements they could go to."""

    def __init__(self) -> None:
        self.queries = 1.0
        self._counts: dict[int, dict[Placement, float]] = {}

    def by_others(self, placement: Placement, options: int) -> float:
        """Returns the queries at the placement that could go to fewer than ``options``."""
        return sum(
            counts.get(placement, 0.0) for few, counts in self._counts.items() if few < options
        )

    def count(self, placement: Placement, options: int) -> None:
        """Count a query with ``options`` placements that goes to this one."""
        counts = self._counts.setdefault(options, {})
        counts[placement] = counts.get(placement, 0.0) + 1.0
        self.queries += 1.0
        if self.queries > _MEMORY_QUERIES:
            self.queries /= 2.0
            for counts in self._counts.values():
                for each in counts:
                    counts[each] /= 2.0


def _draw(
    placements: list[Placement], weights: Iterable[float], rng: np.random.Generator
) -> Placement:
    bounds = np.cumsum(list(weights))
    drawn = int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))
    return placements[min(drawn, len(placements) - 1)]
