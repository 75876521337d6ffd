"""What ``miss_cost`` knows of demand: how often each kind of query comes, and what was refused.

Learned from every view, whether something must leave or not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from modelless.policies.eviction.popularity import Popularity
from modelless.policies.eviction.worth import reload_s
from modelless.policies.scopes import in_scope, scopes_of, task_of
from modelless.policies.views import ClusterView, VariantFacts

_LEAST_SHARE = 1e-3
_MOST_KINDS = 64


class Kind(NamedTuple):
    """Queries with the same limits."""

    scope: str
    latency_s: float
    min_accuracy_percent: float

    def is_served_by(self, variant: VariantFacts, device_class: str) -> bool:
        """Whether the variant answers such queries, where its latency there is known."""
        return (
            in_scope(variant.variant_id, self.scope)
            and variant.accuracy_percent >= self.min_accuracy_percent
            and variant.latency_s.get(device_class, 0.0) <= self.latency_s
        )


@dataclass(slots=True)
class Stake:
    """A kind of queries, how many come, and how many instances serve it."""

    kind: Kind
    rate_per_s: float
    servers: int = 0
    busy_share: float = 1.0  # of the least busy of their workers

    def own_share(self) -> float:
        """The share of the queries that would be lost with one of the servers."""
        return 1.0 if self.servers <= 1 else max(self.busy_share, _LEAST_SHARE)


class MissDemand:
    """Rates by kind of query, queries in vain, and how long a load waits before it begins.

    Args:
        half_lives_s: of what is remembered of popularity, seconds, ascending.
        view_s: between two views, seconds.
    """

    def __init__(self, half_lives_s: Sequence[float], view_s: float) -> None:
        self._popularity = Popularity(half_lives_s)
        self._shortest_s, self._longest_s = half_lives_s[0], half_lives_s[-1]
        self._view_s = view_s
        self._now_s = -math.inf
        self._kinds: dict[str, dict[Kind, float]] = {}  # by scope
        self._in_vain: dict[str, float] = {}
        self._names: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()
        self.wait_s = view_s / 2.0

    def observe(self, view: ClusterView) -> bool:
        """Take in a view; False if it was seen already."""
        if view.now_s == self._now_s:
            return False
        is_first = self._now_s == -math.inf
        span_s = self._view_s if is_first else max(view.now_s - self._now_s, 0.0)
        self._now_s = view.now_s
        scopes = self._scopes(view)
        came = _counts(view.arrivals_per_s, span_s, scopes)
        missed = _counts(view.unmet_per_s, span_s, scopes)
        counts = {s: max(came.get(s, 0.0), missed.get(s, 0.0)) for s in {*came, *missed}}
        tasks = {task_of(scope) for scope in scopes}
        self._popularity.observe(span_s, counts, sorted(tasks | counts.keys()))
        kept = 0.5 ** (span_s / self._longest_s)
        self._in_vain = {
            scope: self._in_vain.get(scope, 0.0) * kept + missed.get(scope, 0.0)
            for scope in {*self._in_vain, *missed} & scopes
        }
        self._learn_kinds(view, span_s, kept, scopes)
        self._learn_wait(view, span_s)
        return True

    def in_vain(self, variant_id: str) -> float:
        """Queries that the variant could be for and that found nothing ready, of late; those of
        before it was last forgiven do not count."""
        return math.fsum(self._in_vain.get(scope, 0.0) for scope in scopes_of(variant_id))

    def forgive(self, variant_id: str) -> None:
        """The variant is loaded: what was refused for want of it counts no more."""
        for scope in scopes_of(variant_id):
            self._in_vain.pop(scope, None)

    def stakes(self) -> Mapping[str, Sequence[Stake]]:
        """The kinds of queries by task, and how often they come."""
        by_task: defaultdict[str, list[Stake]] = defaultdict(list)
        usual = self._usual_limits()
        for scope, rate_per_s in self._popularity.per_s().items():
            kinds = self._kinds.get(scope) or {Kind(scope, limit_s, 0.0): n for limit_s, n in usual}
            total = sum(kinds.values()) or 1.0
            by_task[task_of(scope)] += [
                Stake(kind, rate_per_s * n / total) for kind, n in sorted(kinds.items())
            ]
        return by_task

    def _scopes(self, view: ClusterView) -> frozenset[str]:
        """Every scope that there is something to serve with: what else is asked for is nonsense."""
        held = {i.variant_id for worker in view.workers for i in worker.instances}
        names = frozenset(held | {variant.variant_id for variant in view.variants})
        if names != self._names:
            self._names = names
            self._known = frozenset(scope for name in names for scope in scopes_of(name))
        return self._known

    def _learn_kinds(
        self, view: ClusterView, span_s: float, kept: float, scopes: Collection[str]
    ) -> None:
        """Which kinds of queries a scope's are, of late."""
        for kinds in self._kinds.values():
            for kind in kinds:
                kinds[kind] *= kept
        for demand in view.demands:
            if demand.scope in scopes and 0.0 < demand.rate_per_s < math.inf:
                kind = Kind(demand.scope, demand.latency_s, demand.min_accuracy_percent)
                kinds = self._kinds.setdefault(demand.scope, {})
                kinds[kind] = kinds.get(kind, 0.0) + demand.rate_per_s * span_s
                if len(kinds) > _MOST_KINDS:
                    del kinds[min(kinds, key=lambda each: (kinds[each], each))]

    def _usual_limits(self) -> list[tuple[float, float]]:
        """Latency limits and their weights over all tasks: for those never seen being asked for."""
        weights: defaultdict[float, float] = defaultdict(float)
        for kinds in self._kinds.values():
            for kind, weight in kinds.items():
                weights[kind.latency_s] += weight
        return sorted(weights.items()) or [(math.inf, 1.0)]

    def _learn_wait(self, view: ClusterView, span_s: float) -> None:
        """How long a load waits before it begins: for the planner's turn, and for other loads."""
        loading_s = math.fsum(
            reload_s(instance)
            for worker in view.workers
            for instance in worker.instances
            if instance.is_loading
        )
        wait_s = self._view_s / 2.0 + loading_s / max(len(view.workers), 1)
        kept = 0.5 ** (span_s / self._shortest_s)
        self.wait_s += (1.0 - kept) * (wait_s - self.wait_s)


def _counts(
    rates_per_s: Mapping[str, float], span_s: float, scopes: Collection[str]
) -> dict[str, float]:
    return {
        scope: rate * span_s
        for scope, rate in rates_per_s.items()
        if scope in scopes and 0.0 < rate < math.inf
    }
