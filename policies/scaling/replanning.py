"""Planning anew: at intervals, and sooner if what was planned for is no longer so."""

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
    """Has a plan made for the kinds of demand there are, and keeps it while it holds.

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
        self._mix = DemandMix()
        self._targets: Targets | None = None
        # What these targets were planned for: when, demand by scope, workers and variants.
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
            self._targets = self._plan(view, workers, kinds or self._mix.supposed(view))
        return self._targets

    @abstractmethod
    def _plan(
        self, view: ClusterView, workers: Mapping[str, int], kinds: Sequence[DemandKind]
    ) -> Targets:
        """A plan for these kinds of demand.

        Args:
            workers: how many there are by device class, in order of the names.
        """

    def _is_outdated(self, now_s: float, items_per_s: Mapping[str, float]) -> bool:
        """Whether the interval is over, or demand is no longer what was planned for."""
        if not 0.0 <= now_s - self._planned_s < self.interval_s:
            return True
        planned = self._items_per_s
        moved = sum(
            abs(items_per_s.get(scope, 0.0) - planned.get(scope, 0.0))
            for scope in sorted(items_per_s.keys() | planned.keys())
        )
        return moved > self.change * sum(planned.values())


def _by_scope(kinds: Sequence[DemandKind]) -> dict[str, float]:
    """Items a second."""
    items_per_s: dict[str, float] = {}
    for kind in kinds:
        items_per_s[kind.scope] = items_per_s.get(kind.scope, 0.0) + kind.items_per_s
    return items_per_s
