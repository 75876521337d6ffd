"""Counters of a dispatcher, cheap enough to count every query and batch.

The gateway reports its counters to the control loop once a second. The control loop plans by them,
and adds up the meters among them for ``/metrics``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from modelless.policies.advisory import Advice
from modelless.policies.reasons import Reason
from modelless.policies.scopes import base_of
from modelless.policies.views import Demand, QueryView

_Key = TypeVar("_Key", bound=Hashable)
Kind = tuple[str, float, float]
"""Scope, latency in seconds and minimum accuracy in per cent of a query."""

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency buckets, seconds; one more bucket holds what took longer."""

BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds of the batch size buckets, items; one more bucket holds what is larger."""


_OTHER_REASON = "other"
_LISTED_REASONS = frozenset({*(reason.value for reason in Reason), _OTHER_REASON})
_MOST_CUSTOM_REASONS = 16
"""So many reasons of a policy's own are counted one by one."""

_MOST_TENANT_ENDS = 16_384
"""So many pairs of a tenant and an outcome are counted between two reports."""

_EXACT_KINDS = 512
"""So many kinds are counted as they are; the limits of further ones are rounded."""


@dataclass(slots=True)
class Meters:
    """Counts of finished queries and batches over some time.

    Attributes:
        ends: finished queries by scope and outcome; see ``Receipt``.
        latencies: of served queries by scope: a count for each bucket of ``LATENCY_BOUNDS_S`` and
            for what is above them; the last figure is the sum, seconds.
        exemplars: a query for each bucket of ``latencies``, by scope and the bucket's number: id
            and latency in seconds.
        batches: by variant and device class: a count for each bucket of ``BATCH_BOUNDS`` and for
            what is above them; the last two figures are the items and the seconds devices took.
        cache_hits: queries that the cache answered, by scope.
        advised: what the advisory would have done.
        tenants: finished queries by tenant and outcome, where they name one.
    """

    ends: dict[tuple[str, str], int] = field(default_factory=dict)
    refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    exemplars: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    batches: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    cache_hits: dict[str, int] = field(default_factory=dict)
    advised: Advice = field(default_factory=dict)
    tenants: dict[tuple[str, str], int] = field(default_factory=dict)

    def count_end(self, scope: str, outcome: str, tenant: str = "") -> None:
        key = (scope, outcome)
        self.ends[key] = self.ends.get(key, 0) + 1
        if tenant:
            end = tenant, outcome
            if end in self.tenants or len(self.tenants) < _MOST_TENANT_ENDS:
                _count(self.tenants, end)

    def count_refusal(self, scope: str, reason: str, count: int = 1) -> None:
        """Count refused queries; those for further reasons than a policy may have are ``other``."""
        if (scope, reason) not in self.refusals and reason not in _LISTED_REASONS:
            own = {known for _, known in self.refusals} - _LISTED_REASONS
            if reason not in own and len(own) >= _MOST_CUSTOM_REASONS:
                reason = _OTHER_REASON
        _count(self.refusals, (scope, reason), count)

    def count_latency(self, scope: str, latency_s: float, query_id: int) -> None:
        counts = self.latencies.get(scope)
        if counts is None:
            counts = self.latencies[scope] = [0.0] * (len(LATENCY_BOUNDS_S) + 2)
        bucket = bisect_left(LATENCY_BOUNDS_S, latency_s)
        counts[bucket] += 1.0
        counts[-1] += latency_s
        self.exemplars[scope, bucket] = query_id, latency_s

    def count_batch(self, variant_id: str, device_class: str, items: int, busy_s: float) -> None:
        key = (variant_id, device_class)
        counts = self.batches.get(key)
        if counts is None:
            counts = self.batches[key] = [0.0] * (len(BATCH_BOUNDS) + 3)
        counts[bisect_left(BATCH_BOUNDS, items)] += 1.0
        counts[-2] += items
        counts[-1] += busy_s

    def count_cache_hit(self, scope: str, count: int = 1) -> None:
        _count(self.cache_hits, scope, count)

    def add(self, other: Meters) -> None:
        """Add all counts but those of tenants: whoever keeps the sum has to bound their names."""
        for scope, count in other.cache_hits.items():
            self.count_cache_hit(scope, count)
        for end, count in other.ends.items():
            _count(self.ends, end, count)
        for (scope, reason), count in other.refusals.items():
            self.count_refusal(scope, reason, count)
        for scope, latencies in other.latencies.items():
            self.latencies[scope] = _sum(self.latencies.get(scope), latencies)
        for placement, batches in other.batches.items():
            self.batches[placement] = _sum(self.batches.get(placement), batches)


@dataclass(slots=True)
class DispatchCounters:
    """Counts since the last ``take_counters``: the gateway's report to the control loop.

    Attributes:
        kinds: queries that arrived and their items, by scope, latency in seconds and minimum
            accuracy.
        unmet: queries that found no ready variant, by scope.
    """

    kinds: dict[Kind, list[int]] = field(default_factory=dict)
    unmet: dict[str, int] = field(default_factory=dict)
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    meters: Meters = field(default_factory=Meters)

    def count_arrival(self, query: QueryView) -> None:
        latency_s = query.deadline_s - query.arrival_s
        kinds = self.kinds
        kind = _exact_kind(query.scope, latency_s, query.min_accuracy_percent)
        counts = kinds.get(kind)
        if counts is None:
            if len(kinds) >= _EXACT_KINDS:  # clients name ever new limits: round to stricter ones
                if latency_s < math.inf:
                    latency_s = 2.0 ** math.floor(math.log2(max(latency_s, 1e-3)))
                kind = (kind[0], latency_s, math.ceil(query.min_accuracy_percent / 5.0) * 5.0)
            counts = kinds.setdefault(kind, [0, 0])
        counts[0] += 1
        counts[1] += query.items

    def count_unmet(self, query: QueryView) -> None:
        """Count a query that no ready variant can serve."""
        _count(self.unmet, base_of(query.scope))

    def count_used(self, worker_id: str, variant_id: str, queries: int) -> None:
        _count(self.used, (worker_id, variant_id), queries)

    @property
    def outcomes(self) -> dict[str, int]:
        """Finished queries by outcome; see ``Receipt``."""
        outcomes: dict[str, int] = {}
        for (_, outcome), queries in self.meters.ends.items():
            _count(outcomes, outcome, queries)
        return outcomes

    @property
    def served(self) -> dict[str, int]:
        """Answered queries by variant."""
        served: dict[str, int] = {}
        for (_, variant_id), queries in self.used.items():
            _count(served, variant_id, queries)
        return served

    @property
    def arrivals(self) -> dict[str, int]:
        """Queries that arrived, by scope."""
        arrivals: dict[str, int] = {}
        for (scope, _, _), (queries, _) in self.kinds.items():
            _count(arrivals, scope, queries)
        return arrivals


@lru_cache(maxsize=4096)  # called for each query; most name the same limits
def _exact_kind(scope: str, latency_s: float, min_accuracy_percent: float) -> Kind:
    """Return the kind of a query. The arms of a trial count together: plans are for scopes."""
    return base_of(scope), round(latency_s, 4), min_accuracy_percent


def missed(outcomes: Mapping[str, int]) -> int:
    """Return how many of the finished queries were refused or answered late."""
    return outcomes.get("refused", 0) + outcomes.get("served-late", 0)


def demands_of(
    kinds: Mapping[Kind, Sequence[int]], interval_s: float, came: Mapping[Kind, Sequence[int]]
) -> tuple[Demand, ...]:
    """Return the queries of an interval as rates, in a fixed order.

    Args:
        kinds: as of ``DispatchCounters``, with those that came before and wait.
        interval_s: length of the interval, seconds.
        came: those that came in it.
    """
    return tuple(
        Demand(
            *kind,
            queries / interval_s,
            items / queries,
            (queries - came.get(kind, (0, 0))[0]) / interval_s,
        )
        for kind, (queries, items) in sorted(kinds.items())
    )


def _count(counts: dict[_Key, int], key: _Key, more: int = 1) -> None:
    counts[key] = counts.get(key, 0) + more


def _sum(before: list[float] | None, more: list[float]) -> list[float]:
    return list(more) if before is None else [a + b for a, b in zip(before, more, strict=True)]
