"""Miss cost: what would cost least if it were missing leaves first, per byte.

Caching policies since GreedyDual (Young, 1994) weigh how often a thing is used by what loading it
again costs. Model variants differ from files in two ways that this policy prices. Another variant
may answer the same queries, and then a miss is none; and a query may not wait for a load, so a miss
also costs answers.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from modelless.policies.eviction.popularity import Popularity
from modelless.policies.eviction.worth import Key, instances_of, key_of, reload_s, size_bytes
from modelless.policies.scopes import in_scope, task_of
from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Instance, VariantFacts
from modelless.variants.errors import InvalidInputError

_LEAST_SHARE = 1e-3
_MOST_KINDS = 64


class MissCost(EvictionPolicy):
    """Least (rate of queries that only it serves x cost of a miss / size) first.

    The rate is learned by task from batches served, queries that found nothing and arrivals, over
    several half-lives (see ``Popularity``), and split by kind of query as demands were seen. A kind
    that another instance serves as well, accurately and quickly enough, counts only by how busy
    that one's worker is. A miss costs the load, and ``lost_query_s`` for each query whose deadline
    passes before it ends: the first, and those that come meanwhile. Instances that stand in for
    each other are ranked one after the other, so that the last is as dear as if it were alone.

    Args:
        half_lives_s: of what is remembered of popularity, seconds, ascending.
        lost_query_s: seconds of loading that are worth as much as one query's answer.
        view_s: between two views, seconds: how long the rates in a view were counted.
    """

    def __init__(
        self,
        half_lives_s: Sequence[float] = (600.0, 7200.0),
        lost_query_s: float = 3.0,
        view_s: float = 1.0,
    ) -> None:
        lives_s = list(half_lives_s)
        if not lives_s or not all(0.0 < each < math.inf for each in lives_s):
            raise InvalidInputError.of("half_lives_s", half_lives_s, "one or more seconds above 0")
        if not 0.0 <= lost_query_s < math.inf:
            raise InvalidInputError.of("lost_query_s", lost_query_s, "seconds, 0 or more")
        if not 0.0 < view_s < math.inf:
            raise InvalidInputError.of("view_s", view_s, "seconds above 0")
        self.lost_query_s = lost_query_s
        self.view_s = view_s
        lives_s.sort()
        self._popularity = Popularity(lives_s)
        self._shortest_s, self._longest_s = lives_s[0], lives_s[-1]
        self._now_s = -math.inf
        self._uses: dict[Key, int] = {}
        self._wait_s = view_s / 2.0
        self._kinds: dict[str, dict[_Kind, float]] = {}
        self._leaving: set[Key] = set()

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        mine = {key_of(each): each for each in residents}
        held = instances_of(view) | mine
        if view.now_s != self._now_s:
            self._learn(view, held)
        # Workers are asked about one by one on the same view: who leads one's ranking may be gone.
        standing = [each for key, each in held.items() if key in mine or key not in self._leaving]
        ranked = self._rank_by_cost(residents, self._stakes(standing, view))
        self._leaving.update(key_of(each) for each in ranked[:1])
        return ranked

    # -- what is asked for ----------------------------------------------------------------------

    def _learn(self, view: ClusterView, held: Mapping[Key, Instance]) -> None:
        """Take in what happened since the last call: it is not every view that is shown."""
        is_first = self._now_s == -math.inf
        span_s = self.view_s if is_first else max(view.now_s - self._now_s, 0.0)
        served: Counter[str] = Counter()
        for key, instance in held.items():
            before = self._uses.get(key, instance.use_count if is_first else 0)
            more = instance.use_count - before
            served[task_of(key[1])] += more if more >= 0 else instance.use_count
        missed = _by_task(view.unmet_per_s, self.view_s)
        came = _by_task(view.arrivals_per_s, self.view_s)
        counts = {
            task: max(served[task] + missed.get(task, 0.0), came.get(task, 0.0))
            for task in {*served, *missed, *came}
        }
        tasks = {variant.task for variant in view.variants} | set(served)
        self._popularity.observe(span_s, counts, sorted(tasks))
        self._learn_kinds(view, span_s, tasks)
        self._learn_wait(view, span_s)
        self._uses = {key: instance.use_count for key, instance in held.items()}
        self._now_s = view.now_s
        self._leaving = set()

    def _learn_kinds(self, view: ClusterView, span_s: float, tasks: Container[str]) -> None:
        """Which kinds of queries a task's are, of late."""
        kept = 0.5 ** (span_s / self._longest_s)
        for kinds in self._kinds.values():
            for kind in kinds:
                kinds[kind] *= kept
        for demand in view.demands:
            task = task_of(demand.scope)
            if task in tasks and 0.0 < demand.rate_per_s < math.inf:
                kind = _Kind(demand.scope, demand.latency_s, demand.min_accuracy_percent)
                kinds = self._kinds.setdefault(task, {})
                kinds[kind] = kinds.get(kind, 0.0) + demand.rate_per_s * self.view_s
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
        wait_s = self.view_s / 2.0 + loading_s / max(len(view.workers), 1)
        kept = 0.5 ** (span_s / self._shortest_s)
        self._wait_s += (1.0 - kept) * (wait_s - self._wait_s)

    # -- what is at stake -----------------------------------------------------------------------

    def _stakes(self, standing: Iterable[Instance], view: ClusterView) -> dict[Key, list[_Stake]]:
        """The kinds of queries that each instance can serve."""
        by_task: defaultdict[str, list[_Stake]] = defaultdict(list)
        usual = self._usual_limits()
        for task, rate_per_s in self._popularity.per_s().items():
            kinds = self._kinds.get(task) or {_Kind(task, limit_s, 0.0): n for limit_s, n in usual}
            total = sum(kinds.values()) or 1.0
            by_task[task] = [_Stake(k, rate_per_s * n / total) for k, n in sorted(kinds.items())]
        classes = {worker.worker_id: worker.device_class for worker in view.workers}
        facts = {variant.variant_id: variant for variant in view.variants}
        busy = {worker.worker_id: worker.busy_share for worker in view.workers}
        stakes: dict[Key, list[_Stake]] = {}
        for instance in standing:
            known = facts.get(instance.variant_id)
            name = classes.get(instance.worker_id, "")
            mine = by_task.get(task_of(instance.variant_id), [])
            served = [s for s in mine if known is None or _serves(known, name, s.kind)]
            for stake in served:
                stake.servers += 1
                stake.busy_share = min(stake.busy_share, busy.get(instance.worker_id, 0.0))
            stakes[key_of(instance)] = served
        return stakes

    def _cost(self, instance: Instance, stakes: Iterable[_Stake]) -> float:
        """What it would cost a second, and a byte, to be without the instance."""
        load_s, cost_s = reload_s(instance), 0.0
        for stake in stakes:
            lost_s = self.lost_query_s * self._lost(load_s, stake)
            cost_s += stake.rate_per_s * stake.own_share() * (load_s + lost_s)
        return cost_s / size_bytes(instance)

    def _lost(self, load_s: float, stake: _Stake) -> float:
        """Queries lost in a miss: the first, perhaps, and those that come while it is too late."""
        slack_s = stake.kind.latency_s - load_s
        if slack_s > 0.0:
            return math.exp(-slack_s / self._wait_s)
        return 1.0 + stake.rate_per_s * (self._wait_s - slack_s)

    def _rank_by_cost(
        self, residents: Sequence[Instance], stakes: Mapping[Key, list[_Stake]]
    ) -> list[Instance]:
        """The cheapest to miss first, given that those before it are gone."""
        waiting = [
            (self._cost(i, stakes[key_of(i)]), i.last_used_s, i.worker_id, i.variant_id, number)
            for number, i in enumerate(residents)
        ]
        heapq.heapify(waiting)
        ranked = []
        while waiting:
            cost, *rest, number = heapq.heappop(waiting)
            instance = residents[number]
            mine = stakes[key_of(instance)]
            now = self._cost(instance, mine)
            if now > cost:  # others it was counted on have left since
                heapq.heappush(waiting, (now, *rest, number))  # type: ignore[misc]
                continue
            ranked.append(instance)
            for stake in mine:
                stake.servers -= 1
        return ranked


class _Kind(NamedTuple):
    """Queries with the same limits."""

    scope: str
    latency_s: float
    min_accuracy_percent: float


@dataclass(slots=True)
class _Stake:
    """A kind of queries, how many come, and how many instances serve it."""

    kind: _Kind
    rate_per_s: float
    servers: int = 0
    busy_share: float = 1.0  # of the least busy of their workers

    def own_share(self) -> float:
        """The share of the queries that would be lost with one of the servers."""
        return 1.0 if self.servers <= 1 else max(self.busy_share, _LEAST_SHARE)


def _serves(variant: VariantFacts, device_class: str, kind: _Kind) -> bool:
    """Whether the variant answers such queries, where its latency there is known."""
    return (
        in_scope(variant.variant_id, kind.scope)
        and variant.accuracy_percent >= kind.min_accuracy_percent
        and variant.latency_s.get(device_class, 0.0) <= kind.latency_s
    )


def _by_task(rates_per_s: Mapping[str, float], span_s: float) -> dict[str, float]:
    counts: dict[str, float] = {}
    for scope, rate in rates_per_s.items():
        if 0.0 < rate < math.inf:
            task = task_of(scope)
            counts[task] = counts.get(task, 0.0) + rate * span_s
    return counts
