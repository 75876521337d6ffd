"""The demand by kind: a scope and the least accuracy that its clients accept.

The forecast gives a scope's rate. Its division into kinds and their latency limits are learned from
``ClusterView.demands``, because the last second alone contains too few queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite

from modelless.policies.views import ClusterView

_MEMORY = 0.9  # weight after a view of what was known before it
_LEAST_PER_S = 1e-3  # rate below which a scope is left out
_MOST_FLOORS = 4  # most kinds of a scope: each is a row of constraints in a program


@dataclass(frozen=True, slots=True)
class DemandKind:
    """Queries of one scope with the same least accuracy.

    Attributes:
        scope: as in ``QueryView``.
        min_accuracy_percent: 0 if none was given.
        latency_s: median time from arrival to deadline, seconds; inf if none was given.
        items_per_s: expected items a second.
    """

    scope: str
    min_accuracy_percent: float
    latency_s: float
    items_per_s: float


class DemandMix:
    """Learns the mix of limits and divides a forecast by it."""

    def __init__(self) -> None:
        self._weights: dict[tuple[str, float, float], float] = {}  # by scope, floor, latency
        self._items: dict[str, float] = {}

    def observe(self, view: ClusterView) -> None:
        """Take in the demands of one view."""
        if not view.demands:
            return
        for kind in self._weights:
            self._weights[kind] *= _MEMORY
        for demand in view.demands:
            if not 0.0 < demand.rate_per_s < inf:
                continue
            kind = (demand.scope, demand.min_accuracy_percent, demand.latency_s)
            self._weights[kind] = self._weights.get(kind, 0.0) + demand.rate_per_s
            before = self._items.get(demand.scope, demand.items)
            self._items[demand.scope] = _MEMORY * before + (1.0 - _MEMORY) * demand.items
        self._weights = {kind: w for kind, w in self._weights.items() if w > _LEAST_PER_S}

    def kinds(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> list[DemandKind]:
        """Returns the expected kinds, in order of scope and accuracy; none if no rate is known.

        Where the forecast is not finite, the last measured rate replaces it.
        """
        found: list[DemandKind] = []
        for scope in sorted(forecast_per_s):
            rate_per_s = forecast_per_s[scope]
            if not isfinite(rate_per_s):
                rate_per_s = view.arrivals_per_s.get(scope, 0.0)
            if _LEAST_PER_S < rate_per_s < inf:
                found += self._divided(scope, rate_per_s)
        return found

    def default_kinds(self, view: ClusterView) -> list[DemandKind]:
        """Returns kinds for a start without observations: equal tasks without limits."""
        return [DemandKind(task, 0.0, inf, 1.0) for task in sorted({v.task for v in view.variants})]

    def _divided(self, scope: str, rate_per_s: float) -> list[DemandKind]:
        limits: dict[float, dict[float, float]] = {}  # weight by latency, by floor
        for (of, floor, latency_s), weight in sorted(self._weights.items()):
            if of == scope:
                limits.setdefault(floor, {})[latency_s] = weight
        while len(limits) > _MOST_FLOORS:  # the rarest kind joins the next stricter one
            floors = list(limits)
            rarest = min(floors[:-1], key=lambda floor: sum(limits[floor].values()))
            stricter = limits[floors[floors.index(rarest) + 1]]
            for latency_s, weight in limits.pop(rarest).items():
                stricter[latency_s] = stricter.get(latency_s, 0.0) + weight
        limits = limits or {0.0: {inf: 1.0}}
        total = sum(sum(weights.values()) for weights in limits.values())
        items_per_s = rate_per_s * self._items.get(scope, 1.0)
        return [
            DemandKind(
                scope,
                floor,
                _median(weights),
                items_per_s * sum(weights.values()) / total,
            )
            for floor, weights in limits.items()
        ]


def _median(weights: Mapping[float, float]) -> float:
    """Returns the lower weighted median of the keys."""
    half, below = sum(weights.values()) / 2.0, 0.0
    for value in sorted(weights):
        below += weights[value]
        if below >= half:
            return value
    return inf
