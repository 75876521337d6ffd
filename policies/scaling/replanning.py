"""When to plan anew: at intervals, and sooner if what was planned for is no longer so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from modelless.policies.scaling.demand_mix import DemandKind
from modelless.policies.views import ClusterView
from modelless.variants.errors import InvalidInputError


class Replanning:
    """Remembers what the last plan was made for.

    Args:
        interval_s: a plan is kept this long.
        change: unless demand has changed by more than this share of what was planned for, summed
            over scopes. Other workers or variants than then also call for a new plan.
    """

    def __init__(self, interval_s: float, change: float) -> None:
        if not 0.0 <= interval_s < inf:
            raise InvalidInputError.of("interval_s", interval_s, "0 or more seconds")
        if not change > 0.0:
            raise InvalidInputError.of("change", change, "more than 0")
        self.interval_s = interval_s
        self.change = change
        self._planned_s = -inf
        self._rates: dict[str, float] = {}
        self._cluster: tuple[Mapping[str, int], frozenset[str]] | None = None

    def is_same_cluster(self, view: ClusterView, workers: Mapping[str, int]) -> bool:
        """Whether there are as many workers and the same variants as when ``note`` was called."""
        return self._cluster == _cluster(view, workers)

    def is_due(
        self, view: ClusterView, workers: Mapping[str, int], kinds: Sequence[DemandKind]
    ) -> bool:
        """Whether to plan anew."""
        if not self.is_same_cluster(view, workers):
            return True
        if not 0.0 <= view.now_s - self._planned_s < self.interval_s:
            return True
        rates = _rates(kinds)
        moved = sum(
            abs(rates.get(scope, 0.0) - self._rates.get(scope, 0.0))
            for scope in sorted(rates.keys() | self._rates.keys())
        )
        return moved > self.change * sum(self._rates.values())

    def note(
        self, view: ClusterView, workers: Mapping[str, int], kinds: Sequence[DemandKind]
    ) -> None:
        """A plan has been made for this."""
        self._planned_s = view.now_s
        self._rates = _rates(kinds)
        self._cluster = _cluster(view, workers)


def _rates(kinds: Sequence[DemandKind]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for kind in kinds:
        rates[kind.scope] = rates.get(kind.scope, 0.0) + kind.items_per_s
    return rates


def _cluster(
    view: ClusterView, workers: Mapping[str, int]
) -> tuple[Mapping[str, int], frozenset[str]]:
    return dict(workers), frozenset(variant.variant_id for variant in view.variants)
