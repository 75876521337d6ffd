"""The demand as ``miss_cost`` knows it: rates by kind of query, and refused queries.

It is learned from every view.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from modelless.policies.eviction.instance_figures import reload_s
from modelless.policies.scopes import in_scope, scopes_of, task_of
from modelless.policies.views import ClusterView, FloatArray, VariantFacts

_LEAST_SHARE = 1e-3
_MOST_KINDS = 64


class QueryKind(NamedTuple):
    """Queries with the same limits."""

    scope: str
    latency_s: float
    min_accuracy_percent: float

    def is_served_by(self, variant: VariantFacts, device_class: str) -> bool:
        """Returns whether the variant answers such queries; an unknown latency counts as quick."""
        return (
            in_scope(variant.variant_id, self.scope)
            and variant.accuracy_percent >= self.min_accuracy_percent
            and variant.latency_s.get(device_class, 0.0) <= self.latency_s
        )


@dataclass(slots=True)
class ServedKind:
    """A kind of queries, its rate, and the number of instances that serve it."""

    queries: QueryKind
    rate_per_s: float
    servers: int = 0
    least_shares: tuple[float, float] = (1.0, 1.0)  # of the two least busy workers among them

    def count(self, servers: int, busy_shares: Iterable[float]) -> None:
        """Count more instances that serve it; the least busy ones' workers are so busy."""
        self.servers += servers
        least, following, *_ = sorted([*self.least_shares, *busy_shares])
        self.least_shares = least, following

    def own_share(self, busy_share: float) -> float:
        """Returns the share of the queries that would be lost with the instance of such a worker:
        the share of the time in which the least busy of the others is busy."""
        if self.servers <= 1:
            return 1.0
        least, following = self.least_shares
        return max(following if busy_share <= least else least, _LEAST_SHARE)


class QueryRates:
    """Rates by kind of query, refused queries, and how long a load waits before it begins.

    Args:
        half_lives_s: half-lives of the remembered rates, seconds, ascending.
        view_s: seconds between two views.
    """

    def __init__(self, half_lives_s: Sequence[float], view_s: float) -> None:
        self._rates = DecayedRates(half_lives_s)
        self._shortest_s, self._longest_s = half_lives_s[0], half_lives_s[-1]
        self._view_s = view_s
        self._now_s = -math.inf
        self._kinds: dict[str, dict[QueryKind, float]] = {}  # by scope
        self._kinds_per_s: dict[str, list[tuple[QueryKind, float]]] = {}  # by task, once asked for
        self._in_vain: dict[str, float] = {}
        self._names: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()
        self.wait_s = view_s / 2.0

    def observe(self, view: ClusterView) -> bool:
        """Take in a view; return False if it was taken in before."""
        if view.now_s == self._now_s:
            return False
        self._kinds_per_s = {}
        is_first = self._now_s == -math.inf
        span_s = self._view_s if is_first else max(view.now_s - self._now_s, 0.0)
        self._now_s = view.now_s
        scopes = self._scopes(view)
        came = _counts(view.arrivals_per_s, span_s, scopes)
        missed = _counts(view.unmet_per_s, span_s, scopes)
        counts = {s: max(came.get(s, 0.0), missed.get(s, 0.0)) for s in {*came, *missed}}
        tasks = {task_of(scope) for scope in scopes}
        self._rates.observe(span_s, counts, sorted(tasks | counts.keys()))
        kept = 0.5 ** (span_s / self._longest_s)
        self._in_vain = {
            scope: self._in_vain.get(scope, 0.0) * kept + missed.get(scope, 0.0)
            for scope in {*self._in_vain, *missed} & scopes
        }
        self._learn_kinds(view, span_s, kept, scopes)
        self._learn_wait(view, span_s)
        return True

    def refused_queries(self, variant_id: str) -> float:
        """Returns the recent queries that the variant could serve and that found nothing ready.

        Queries from before ``reset_refused`` do not count.
        """
        return math.fsum(self._in_vain.get(scope, 0.0) for scope in scopes_of(variant_id))

    def reset_refused(self, variant_id: str) -> None:
        """Forget the refused queries that the variant could serve, because it is loaded."""
        for scope in scopes_of(variant_id):
            self._in_vain.pop(scope, None)

    def kinds_of(self, task: str) -> list[ServedKind]:
        """Returns the kinds of queries for a task and their rates, in an order that is the same
        until the next view."""
        if not self._kinds_per_s:
            self._kinds_per_s = self._by_task()
        return [ServedKind(*each) for each in self._kinds_per_s.get(task, ())]

    def _by_task(self) -> dict[str, list[tuple[QueryKind, float]]]:
        by_task: dict[str, list[tuple[QueryKind, float]]] = {}
        usual = self._usual_limits()
        for scope, rate_per_s in self._rates.rates_per_s().items():
            kinds = self._kinds.get(scope) or {
                QueryKind(scope, limit_s, 0.0): n for limit_s, n in usual
            }
            total = sum(kinds.values()) or 1.0
            by_task.setdefault(task_of(scope), []).extend(
                (kind, rate_per_s * n / total) for kind, n in sorted(kinds.items())
            )
        return by_task

    def _scopes(self, view: ClusterView) -> frozenset[str]:
        """Returns every scope that something can serve; requests for other scopes are ignored."""
        held = {i.variant_id for worker in view.workers for i in worker.instances}
        names = frozenset(held | {variant.variant_id for variant in view.variants})
        if names != self._names:
            self._names = names
            self._known = frozenset(scope for name in names for scope in scopes_of(name))
        return self._known

    def _learn_kinds(
        self, view: ClusterView, span_s: float, kept: float, scopes: Collection[str]
    ) -> None:
        """Learn the recent mix of kinds of each scope."""
        for kinds in self._kinds.values():
            for kind in kinds:
                kinds[kind] *= kept
        for demand in view.demands:
            came_per_s = demand.rate_per_s - demand.waiting_per_s
            if demand.scope in scopes and 0.0 < came_per_s < math.inf:
                kind = QueryKind(demand.scope, demand.latency_s, demand.min_accuracy_percent)
                kinds = self._kinds.setdefault(demand.scope, {})
                kinds[kind] = kinds.get(kind, 0.0) + came_per_s * span_s
                if len(kinds) > _MOST_KINDS:
                    del kinds[min(kinds, key=lambda each: (kinds[each], each))]

    def _usual_limits(self) -> list[tuple[float, float]]:
        """Returns latency limits and weights over all tasks, for scopes without observed limits."""
        weights: defaultdict[float, float] = defaultdict(float)
        for kinds in self._kinds.values():
            for kind, weight in kinds.items():
                weights[kind.latency_s] += weight
        return sorted(weights.items()) or [(math.inf, 1.0)]

    def _learn_wait(self, view: ClusterView, span_s: float) -> None:
        """Learn how long a load waits for the planner's turn and for other loads."""
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


_PRIOR_QUERIES = 0.5
_LEAST_PER_S = 1e-9


class DecayedRates:
    """Rates from decayed counts of several half-lives, mixed by how well each predicted lately.

    A short half-life follows changes, a long one distinguishes rare names, and which one is better
    differs by name. So each is weighted, name by name, by the Poisson likelihood that it gave to
    what came (a discounted Bayesian mixture). Each estimate is shrunk towards the mean of all
    names, as if half a query of the name had been seen already.

    Args:
        half_lives_s: half-lives of the counts, seconds, ascending.
    """

    def __init__(self, half_lives_s: Sequence[float]) -> None:
        self._decay_per_s = math.log(2.0) / np.array(half_lives_s, dtype=np.float64)[:, None]
        self._forget_s = float(half_lives_s[-1])
        self._rows: dict[str, int] = {}
        self._counts: FloatArray = np.zeros((len(half_lives_s), 0))
        self._evidence: FloatArray = np.zeros((len(half_lives_s), 0))
        self._watched_s: FloatArray = np.zeros((len(half_lives_s), 1))

    def observe(self, span_s: float, counts: Mapping[str, float], names: Iterable[str]) -> None:
        """Take in the number of queries by name in the last ``span_s`` seconds.

        Args:
            span_s: seconds.
            counts: queries by name; names without one had none.
            names: all existing names; new ones are added, with no past.
        """
        for name in names:
            self._rows.setdefault(name, len(self._rows))
        if not self._rows:
            return
        missing = ((0, 0), (0, len(self._rows) - self._counts.shape[1]))
        self._counts = np.pad(self._counts, missing)
        self._evidence = np.pad(self._evidence, missing)
        came = np.zeros(len(self._rows))
        for name, count in counts.items():
            if name in self._rows:
                came[self._rows[name]] += count
        if self._watched_s.any():
            expected_per_s = self._rates_per_s()
            self._evidence *= 0.5 ** (span_s / self._forget_s)
            self._evidence += came * np.log(expected_per_s) - expected_per_s * span_s
        kept = np.exp(-self._decay_per_s * span_s)
        self._counts = self._counts * kept + came
        self._watched_s = self._watched_s * kept + (1.0 - kept) / self._decay_per_s

    def rates_per_s(self) -> dict[str, float]:
        """Returns the expected queries a second by name."""
        if not self._rows:
            return {}
        weights = np.exp(self._evidence - self._evidence.max(axis=0))
        mixed = (weights * self._rates_per_s()).sum(axis=0) / weights.sum(axis=0)
        return dict(zip(self._rows, mixed.tolist(), strict=True))

    def _rates_per_s(self) -> FloatArray:
        """Returns the rates by half-life and name."""
        watched_s = np.maximum(self._watched_s, _LEAST_PER_S)
        mean_per_s = self._counts.mean(axis=1, keepdims=True) / watched_s
        prior_s = _PRIOR_QUERIES / np.maximum(mean_per_s, _LEAST_PER_S)
        rates: FloatArray = (self._counts + _PRIOR_QUERIES) / (watched_s + prior_s)
        return rates
