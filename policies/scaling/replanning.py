"""Policies that plan at intervals, and sooner if demand or the cluster has changed."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from modelless.common.errors import InvalidInputError
from modelless.policies.scaling.demand_mix import DemandKind, DemandMix
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets


class ReplanningPolicy(ScalingPolicy):
    """Makes a plan for the current kinds of demand, and keeps it while it holds.

    Args:
        interval_s: seconds for which a plan is kept.
        change: share of the planned demand, summed over scopes, beyond which a change of demand
            calls for a new plan at once. Other workers or variants do so, too.
    """

    def __init__(self, interval_s: float, change: float) -> None:
        if not 0.0 <= interval_s < inf:
            raise InvalidInputError.of("interval_s", interval_s, "0 or more seconds")
        if not change > 0.0:
            raise InvalidInputError.of("change", change, "more than 0")
        self.interval_s = interval_s
        self.change = change
        self._mix = DemandMix()
        self._targets: Targets | None = None
        # The basis of these targets: time, demand by scope, workers and variants.
        self._planned_s = -inf
        self._items_per_s: dict[str, float] = {}
        self._cluster: tuple[Mapping[str, int], frozenset[str]] | None = None

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        self._mix.observe(view)
        workers = dict(sorted(Counter(w.device_class for w in view.workers).items()))
        kinds = self._mix.kinds(view, forecast_per_s)
        cluster = workers, frozenset(variant.variant_id for variant in view.variants)
        items_per_s = _by_scope(kinds)
        if (
            self._targets is None
            or cluster != self._cluster
            or (kinds and self._is_outdated(view.now_s, items_per_s))
        ):
            self._planned_s, self._items_per_s = view.now_s, items_per_s
            self._cluster = cluster
            self._targets = self._plan(view, workers, kinds or self._mix.default_kinds(view))
        return self._targets

    @abstractmethod
    def _plan(
        self, view: ClusterView, workers: Mapping[str, int], kinds: Sequence[DemandKind]
    ) -> Targets:
        """Returns a plan for these kinds of demand.

        Args:
            view: the cluster.
            workers: number of workers by device class, in order of the names.
            kinds: demand to plan for.
        """

    def _is_outdated(self, now_s: float, items_per_s: Mapping[str, float]) -> bool:
        """Returns whether the interval is over or demand has changed too much."""
        if not 0.0 <= now_s - self._planned_s < self.interval_s:
            return True
        planned = self._items_per_s
        moved = sum(
            abs(items_per_s.get(scope, 0.0) - planned.get(scope, 0.0))
            for scope in sorted(items_per_s.keys() | planned.keys())
        )
        return moved > self.change * sum(planned.values())


def _by_scope(kinds: Sequence[DemandKind]) -> dict[str, float]:
    """Returns items a second by scope."""
    items_per_s: dict[str, float] = {}
    for kind in kinds:
        items_per_s[kind.scope] = items_per_s.get(kind.scope, 0.0) + kind.items_per_s
    return items_per_s
