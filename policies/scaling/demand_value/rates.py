"""Rates by kind of query, from counts: steady while they may be steady, quick once they are not.

The rate of a model that is asked for once in ten seconds cannot be told from one second, and a load
that takes forty is no answer to noise. So counts are kept over a long memory, and the long memory
is given up for a short one only when the two differ by more than Poisson noise explains. A forecast
is believed on the same terms: where it says what chance does not. Rates of few counts are shrunk
towards the mean of all kinds (a gamma prior, as in empirical Bayes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf, isfinite, sqrt
from typing import NamedTuple

from modelless.policies.views import ClusterView

_SHORT_MEMORY_S = 20.0
_SIGMAS = 3.0  # further off than this is no chance
_PRIOR_QUERIES = 0.5  # what the mean of all kinds counts against a kind's own queries
_FORGOTTEN_QUERIES = 1e-3


class KindKey(NamedTuple):
    """What the queries of one kind share: see ``Demand``."""

    scope: str
    latency_s: float
    min_accuracy_percent: float


class KindRate(NamedTuple):
    """A kind and how much of it there will be.

    Attributes:
        rate_per_s: queries a second.
        items: of one query, on average.
    """

    key: KindKey
    rate_per_s: float
    items: float


@dataclass(slots=True)
class _Counted:
    """Queries counted with exponential forgetting, over a long and a short memory."""

    long_queries: float = 0.0
    short_queries: float = 0.0
    long_s: float = 0.0  # how long was counted, forgotten alike
    items: float = 1.0


class KindRates:
    """Learns rates by kind.

    Args:
        memory_s: time constant of the long memory.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._counted: dict[KindKey, _Counted] = {}
        self._long_s = 0.0
        self._short_s = 0.0
        self._seen_s: float | None = None

    def observe(self, view: ClusterView) -> None:
        """Count the view's demands; where there are none, its arrivals, as queries without limits.

        The first view's rates are taken to be of one second; a view of the same instant as the one
        before teaches nothing.
        """
        seen_s, self._seen_s = self._seen_s, view.now_s
        kinds = _kinds_of(view)
        first_s = 1.0 if kinds else 0.0
        span_s = first_s if seen_s is None else view.now_s - seen_s
        if not 0.0 < span_s < inf:
            return
        keep_long, keep_short = exp(-span_s / self._memory_s), exp(-span_s / _SHORT_MEMORY_S)
        self._long_s = self._long_s * keep_long + span_s
        self._short_s = self._short_s * keep_short + span_s
        for counted in self._counted.values():
            counted.long_queries *= keep_long
            counted.short_queries *= keep_short
            counted.long_s = counted.long_s * keep_long + span_s
        for key, (rate_per_s, items) in kinds.items():
            counted = self._counted.get(key) or _Counted(long_s=self._long_s, items=items)
            counted.long_queries += rate_per_s * span_s
            counted.short_queries += rate_per_s * span_s
            counted.items += 0.1 * (items - counted.items)
            self._counted[key] = counted
        for key, counted in list(self._counted.items()):
            expected = counted.long_queries / counted.long_s * self._short_s
            if _differs(counted.short_queries, expected):
                counted.long_queries, counted.long_s = counted.short_queries, self._short_s
            if counted.long_queries < _FORGOTTEN_QUERIES:
                del self._counted[key]

    def rates(self, forecast_per_s: Mapping[str, float], scopes: int) -> list[KindRate]:
        """What to expect, by kind in order of its key.

        Args:
            forecast_per_s: by scope; believed where it differs from the counts by more than chance.
            scopes: how many scopes there may be: the mean rate is that of all over so many.
        """
        mean_per_s = self.mean_per_s(scopes)
        weight_s = _PRIOR_QUERIES / mean_per_s if mean_per_s > 0.0 else 0.0
        rates = {
            key: (counted.long_queries + _PRIOR_QUERIES * (weight_s > 0.0))
            / (counted.long_s + weight_s)
            for key, counted in self._counted.items()
        }
        by_scope: dict[str, float] = {}
        for key in sorted(rates):
            by_scope[key.scope] = by_scope.get(key.scope, 0.0) + rates[key]
        factors: dict[str, float] = {}
        for scope, forecast in forecast_per_s.items():
            if not 0.0 <= forecast < inf:
                continue
            counted_per_s = by_scope.get(scope, 0.0)
            if _differs(forecast, counted_per_s):
                if counted_per_s > 0.0:
                    factors[scope] = forecast / counted_per_s
                else:
                    rates[KindKey(scope, inf, 0.0)] = forecast
        return [
            KindRate(
                key,
                rates[key] * factors.get(key.scope, 1.0),
                self._counted[key].items if key in self._counted else 1.0,
            )
            for key in sorted(rates)
        ]

    def unseen_per_s(self, scopes: int) -> float:
        """What to expect of a scope nobody has asked for yet; 1 while nothing was counted."""
        mean_per_s = self.mean_per_s(scopes)
        if mean_per_s <= 0.0:
            return 1.0
        return _PRIOR_QUERIES / (self._long_s + _PRIOR_QUERIES / mean_per_s)

    def mean_per_s(self, scopes: int) -> float:
        """The mean rate of a scope; 0 while nothing was counted."""
        if not self._counted:
            return 0.0
        total = sum(c.long_queries / c.long_s for _, c in sorted(self._counted.items()))
        return total / max(scopes, 1)


def _kinds_of(view: ClusterView) -> dict[KindKey, tuple[float, float]]:
    """Rate and items by kind, of what makes sense."""
    kinds: dict[KindKey, tuple[float, float]] = {}
    for demand in view.demands:
        if 0.0 < demand.rate_per_s < inf and demand.latency_s > 0.0:
            floor = demand.min_accuracy_percent
            key = KindKey(demand.scope, demand.latency_s, floor if isfinite(floor) else 0.0)
            items = demand.items if 1.0 <= demand.items < inf else 1.0
            kinds[key] = (demand.rate_per_s, items)
    if not view.demands:
        for scope, rate_per_s in view.arrivals_per_s.items():
            if 0.0 < rate_per_s < inf:
                kinds[KindKey(scope, inf, 0.0)] = (rate_per_s, 1.0)
    return kinds


def _differs(count: float, expected: float) -> bool:
    """Whether a count is further from what was expected than a Poisson variable would be."""
    return abs(count - expected) > _SIGMAS * sqrt(max(expected, 1.0))
