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
from modelless.policies.scopes import in_scope, task_of
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
        self._kinds: dict[str, dict[Kind, float]] = {}
        self._in_vain: dict[str, float] = {}
        self.wait_s = view_s / 2.0

    def observe(self, view: ClusterView) -> bool:
        """Take in a view; False if it was seen already."""
        if view.now_s == self._now_s:
            return False
        is_first = self._now_s == -math.inf
        span_s = self._view_s if is_first else max(view.now_s - self._now_s, 0.0)
        self._now_s = view.now_s
        came = _by_task(view.arrivals_per_s, span_s)
        missed = _by_task(view.unmet_per_s, span_s)
        tasks = {variant.task for variant in view.variants}
        tasks |= {task_of(i.variant_id) for worker in view.workers for i in worker.instances}
        counts = {t: max(came.get(t, 0.0), missed.get(t, 0.0)) for t in {*came, *missed}}
        self._popularity.observe(span_s, counts, sorted(tasks))
        kept = 0.5 ** (span_s / self._longest_s)
        self._in_vain = {
            task: self._in_vain.get(task, 0.0) * kept + missed.get(task, 0.0)
            for task in {*self._in_vain, *missed} & tasks
        }
        self._learn_kinds(view, span_s, kept, tasks)
        self._learn_wait(view, span_s)
        return True

    def in_vain(self, task: str) -> float:
        """Queries of the task that found nothing ready since it was last forgiven, of late."""
        return self._in_vain.get(task, 0.0)

    def forgive(self, task: str) -> None:
        """Something of the task is loaded: what was refused before counts no more."""
        self._in_vain.pop(task, None)

    def stakes(self) -> Mapping[str, Sequence[Stake]]:
        """The kinds of queries by task, and how often they come."""
        by_task: dict[str, list[Stake]] = {}
        usual = self._usual_limits()
        for task, rate_per_s in self._popularity.per_s().items():
            kinds = self._kinds.get(task) or {Kind(task, limit_s, 0.0): n for limit_s, n in usual}
            total = sum(kinds.values()) or 1.0
            by_task[task] = [Stake(k, rate_per_s * n / total) for k, n in sorted(kinds.items())]
        return by_task

    def _learn_kinds(
        self, view: ClusterView, span_s: float, kept: float, tasks: Collection[str]
    ) -> None:
        """Which kinds of queries a task's are, of late."""
        for kinds in self._kinds.values():
            for kind in kinds:
                kinds[kind] *= kept
        for demand in view.demands:
            task = task_of(demand.scope)
            if task in tasks and 0.0 < demand.rate_per_s < math.inf:
                kind = Kind(demand.scope, demand.latency_s, demand.min_accuracy_percent)
                kinds = self._kinds.setdefault(task, {})
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
        """How long a load waits before it begins: for the planner's turn, and for other loads.

        What is in use but never was used is taken to be loading.
        """
        loading_s = math.fsum(
            reload_s(instance)
            for worker in view.workers
            for instance in worker.instances
            if instance.in_use and instance.use_count == 0
        )
        wait_s = self._view_s / 2.0 + loading_s / max(len(view.workers), 1)
        kept = 0.5 ** (span_s / self._shortest_s)
        self.wait_s += (1.0 - kept) * (wait_s - self.wait_s)


def _by_task(rates_per_s: Mapping[str, float], span_s: float) -> dict[str, float]:
    counts: dict[str, float] = {}
    for scope, rate in rates_per_s.items():
        if 0.0 < rate < math.inf:
            task = task_of(scope)
            counts[task] = counts.get(task, 0.0) + rate * span_s
    return counts
