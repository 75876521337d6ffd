"""Rates by kind of query, from counts: steady while they may be steady, quick once they are not.

The rate of a model that is asked for once in ten seconds cannot be told from one second, and a load
that takes forty is no answer to noise. So counts are kept over a long memory, and the long memory
is given up for a short one only when the two differ by more than Poisson noise explains. A forecast
is believed on the same terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf, isfinite, log2, sqrt
from typing import NamedTuple

from modelless.policies.views import ClusterView, Demand

_SHORT_MEMORY_S = 20.0
_SIGMAS = 3.0
"""A count that is further off is not explained by chance."""
_FORGOTTEN_QUERIES = 1e-3
_MOST_KINDS = 256
_LIMITS_AN_OCTAVE = 2
_ACCURACY_STEP = 2.0
_LONGEST_LIMIT_S = 3600.0


class KindRate(NamedTuple):
    """Queries that ask for about the same.

    Attributes:
        scope: as in ``QueryView``.
        latency_s: the least limit of those that count as one kind, seconds.
        min_accuracy_percent: the highest floor of those, per cent.
        items: of one query, on average.
        rate_per_s: queries a second.
        variance: of the rate, from the number of queries that it was counted from.
    """

    scope: str
    latency_s: float
    min_accuracy_percent: float
    items: float
    rate_per_s: float
    variance: float = 0.0


_Key = tuple[str, int, int]


@dataclass(slots=True)
class _Counted:
    """A kind's queries, counted with exponential forgetting over a long and a short memory."""

    latency_s: float
    min_accuracy_percent: float
    items: float
    long_s: float  # how long was counted, forgotten alike
    long_queries: float = 0.0
    short_queries: float = 0.0


class KindRates:
    """Learns rates by kind: limits within half an octave and floors within 2 points are one kind.

    Args:
        memory_s: time constant of the long memory.
    """

    def __init__(self, memory_s: float) -> None:
        self.memory_s = memory_s
        self.seen_s = 0.0  # how long was counted over the long memory
        self.span_s = 0.0  # between the last two views
        self._short_s = 0.0
        self._counted: dict[_Key, _Counted] = {}
        self._viewed_s: float | None = None

    def observe(self, view: ClusterView) -> None:
        """Count the demands since the last view; the first view's are taken to be of one second."""
        demands = [demand for demand in view.demands if 0.0 < demand.rate_per_s < inf]
        before_s, self._viewed_s = self._viewed_s, view.now_s
        first_s = 1.0 if demands else 0.0
        self.span_s = span_s = first_s if before_s is None else view.now_s - before_s
        if not 0.0 < span_s < inf:
            return
        keep_long, keep_short = exp(-span_s / self.memory_s), exp(-span_s / _SHORT_MEMORY_S)
        self.seen_s = self.seen_s * keep_long + span_s
        self._short_s = self._short_s * keep_short + span_s
        for counted in self._counted.values():
            counted.long_queries *= keep_long
            counted.short_queries *= keep_short
            counted.long_s = counted.long_s * keep_long + span_s
        for demand in demands:
            self._count(demand, span_s)
        for key, counted in list(self._counted.items()):
            expected = counted.long_queries / counted.long_s * self._short_s
            if _differs(counted.short_queries, expected):
                counted.long_queries, counted.long_s = counted.short_queries, self._short_s
            if counted.long_queries < _FORGOTTEN_QUERIES:
                del self._counted[key]

    def _count(self, demand: Demand, span_s: float) -> None:
        limit_s = min(demand.latency_s, _LONGEST_LIMIT_S)
        if not limit_s > 0.0:
            return
        floor = demand.min_accuracy_percent if isfinite(demand.min_accuracy_percent) else 0.0
        items = demand.items if 1.0 <= demand.items < inf else 1.0
        key = demand.scope, round(_LIMITS_AN_OCTAVE * log2(limit_s)), int(floor // _ACCURACY_STEP)
        counted = self._counted.get(key)
        if counted is None:
            if len(self._counted) >= _MOST_KINDS:
                del self._counted[min(self._counted, key=self._queries_of)]
            counted = self._counted[key] = _Counted(limit_s, floor, items, self.seen_s)
        counted.latency_s = min(counted.latency_s, limit_s)
        counted.min_accuracy_percent = max(counted.min_accuracy_percent, floor)
        counted.items += 0.1 * (items - counted.items)
        came = (demand.rate_per_s - demand.waiting_per_s) * span_s
        waiting = demand.waiting_per_s * span_s  # counted when they came, if that was reported
        counted.long_queries = max(counted.long_queries + came, waiting)
        counted.short_queries = max(counted.short_queries + came, waiting)

    def _queries_of(self, key: _Key) -> tuple[float, _Key]:
        return self._counted[key].long_queries, key

    def rates(self, forecast_per_s: Mapping[str, float]) -> list[KindRate]:
        """Returns the kinds to expect.

        Args:
            forecast_per_s: by scope; believed where it differs from the counts by more than chance.
        """
        counted_per_s: dict[str, float] = {}
        for (scope, *_), counted in sorted(self._counted.items()):
            rate_per_s = counted.long_queries / counted.long_s
            counted_per_s[scope] = counted_per_s.get(scope, 0.0) + rate_per_s
        factors = dict.fromkeys(counted_per_s, 1.0)
        unseen = []
        for scope, forecast in sorted(forecast_per_s.items()):
            known = counted_per_s.get(scope, 0.0)
            if not 0.0 <= forecast < inf or not _differs(forecast, known):
                continue
            if known > 0.0:
                factors[scope] = forecast / known
            else:
                unseen.append(KindRate(scope, _LONGEST_LIMIT_S, 0.0, 1.0, forecast))
        return unseen + [
            KindRate(
                scope,
                counted.latency_s,
                counted.min_accuracy_percent,
                counted.items,
                factors[scope] * counted.long_queries / counted.long_s,
                counted.long_queries / counted.long_s**2,
            )
            for (scope, *_), counted in sorted(self._counted.items())
        ]


def _differs(count: float, expected: float) -> bool:
    """Returns whether a count is further from what was expected than chance explains."""
    return abs(count - expected) > _SIGMAS * sqrt(max(expected, 1.0))
