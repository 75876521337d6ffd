"""Miss cost: evicts the instance whose absence costs least, per byte.

Caching policies since GreedyDual (Young, 1994) weigh the use of an item by the cost of loading it
again. Model variants differ from files in three ways that this policy prices. Another variant may
answer the same queries; then there is no miss. A query may not wait for a load; then a miss also
costs answers. And then the load comes too late for the query that caused it, so it pays only if
more queries follow: a rare variant is better declined than loaded at the cost of a popular one.
TinyLFU (Einziger, Friedman and Manes, ACM Transactions on Storage 2017) admits by that comparison;
here it is made in seconds, as caching with rejection penalties does (Epstein, Imreh, Levin and
Nagy-Gyorgy, Algorithmica 2015).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from modelless.common.errors import InvalidInputError
from modelless.policies.eviction.instance_figures import Key, key_of, reload_s, size_bytes
from modelless.policies.eviction.query_rates import QueryRates, ServedKind
from modelless.policies.scopes import in_scope, task_of
from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Instance
from modelless.variants.vocabulary import Placement

_IN_TIME = 0.5


class MissCost(EvictionPolicy):
    """Least (rate of queries that only it serves x cost of a miss / size) first.

    The policy learns the rate by scope from every view, over several half-lives (see
    ``DecayedRates``), and divides it among kinds of queries as demands are. A kind that another
    instance serves as well, accurately and quickly enough, counts only by how busy that instance's
    worker is. A miss costs the load, and ``lost_query_s`` for each query whose deadline passes
    before the load ends: the first one, and those that arrive meanwhile. Instances that replace
    each other are ranked one after the other, so that the last one costs as much as if it were
    alone.

    A load on demand is admitted if it would end in time for a waiting query. Otherwise its seconds
    must be outweighed: by the answers that the newcomer would give over the longest half-life, less
    those that the victims would have given, and by the queries for it that were refused since it
    was last loaded. So nothing that is requested again and again is declined for ever; with no
    victims to lose, at most load time / ``lost_query_s`` times.

    Args:
        half_lives_s: half-lives of the remembered popularity, seconds, ascending; the longest
            should be several times as long as a variant stays popular.
        lost_query_s: seconds of loading that are worth as much as one query's answer.
        view_s: seconds between two views; the rates in the first view were counted over this time.
        admission: whether to decline loads; if false, whatever is asked for in vain is loaded.
    """

    def __init__(
        self,
        half_lives_s: Sequence[float] = (600.0, 7200.0),
        lost_query_s: float = 3.0,
        view_s: float = 1.0,
        admission: bool = True,
    ) -> None:
        lives_s = sorted(half_lives_s)
        if not lives_s or not all(0.0 < each < math.inf for each in lives_s):
            raise InvalidInputError.of("half_lives_s", half_lives_s, "one or more seconds above 0")
        if not 0.0 <= lost_query_s < math.inf:
            raise InvalidInputError.of("lost_query_s", lost_query_s, "seconds, 0 or more")
        if not 0.0 < view_s < math.inf:
            raise InvalidInputError.of("view_s", view_s, "seconds above 0")
        if not isinstance(admission, bool):
            raise InvalidInputError.of("admission", admission, "true or false")
        self.lost_query_s = lost_query_s
        self.admission = admission
        self._horizon_s = lives_s[-1]
        self._demand = QueryRates(lives_s, view_s)
        self._known_remaining: _Remaining | None = None  # of the last view, once asked for

    def observe(self, view: ClusterView) -> None:
        if self._demand.observe(view):
            self._known_remaining = None

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        remaining = self._remaining(view)
        ranked = self._rank_by_cost(residents, remaining)
        # The core asks for each worker on the same view: the first of a ranking may be gone.
        remaining.remove(ranked[:1])
        return ranked

    def admits(self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView) -> bool:
        remaining = self._remaining(view)
        if not self.admission or self._is_worth_it(newcomer, victims, view, remaining):
            self._demand.reset_refused(newcomer.variant_id)
            return True
        remaining.restore(victims)
        return False

    # -- the queries that each instance serves ----------------------------------------------------

    def _remaining(self, view: ClusterView) -> _Remaining:
        self.observe(view)
        if self._known_remaining is None:
            self._known_remaining = _Remaining(view, self._demand)
        return self._known_remaining

    def _cost(self, instance: Instance, busy_share: float, kinds: Iterable[ServedKind]) -> float:
        """Returns the cost a second and a byte of evicting the instance from a worker so busy."""
        load_s, cost_s = reload_s(instance), 0.0
        for kind in kinds:
            lost_s = self.lost_query_s * self._lost(load_s, kind)
            cost_s += kind.rate_per_s * kind.own_share(busy_share) * (load_s + lost_s)
        return cost_s / size_bytes(instance)

    def _lost(self, load_s: float, kind: ServedKind) -> float:
        """Returns the queries lost in a miss: perhaps the first, and those during the load."""
        slack_s = kind.queries.latency_s - load_s
        if slack_s > 0.0:
            return math.exp(-slack_s / self._demand.wait_s)
        return 1.0 + kind.rate_per_s * (self._demand.wait_s - slack_s)

    # -- evictions ------------------------------------------------------------------------------

    def _rank_by_cost(self, residents: Sequence[Instance], remaining: _Remaining) -> list[Instance]:
        """Returns the instances, the cheapest first, given that those before it are evicted."""
        kinds = remaining.kinds_of(residents)
        served = [(i, remaining.busy_share(i), kinds[key_of(i)]) for i in residents]
        waiting = [
            (self._cost(*each), each[0].last_used_s, *key_of(each[0]), number)
            for number, each in enumerate(served)
        ]
        heapq.heapify(waiting)
        ranked = []
        while waiting:
            cost, *rest, number = heapq.heappop(waiting)
            now = self._cost(*served[number])
            if now > cost:  # instances that could replace it have been evicted since
                heapq.heappush(waiting, (now, *rest, number))  # type: ignore[misc]
                continue
            ranked.append(residents[number])
            for kind in served[number][2]:
                kind.servers -= 1
        return ranked

    # -- loads ----------------------------------------------------------------------------------

    def _is_worth_it(
        self,
        newcomer: Instance,
        victims: Sequence[Instance],
        view: ClusterView,
        remaining: _Remaining,
    ) -> bool:
        """Returns whether the load serves a waiting query, or gains more than it costs."""
        kinds = remaining.kinds_of([*victims, newcomer])
        load_s, mine = reload_s(newcomer), kinds[key_of(newcomer)]
        if any(
            waiting > 0 and in_scope(newcomer.variant_id, scope) and self._is_in_time(load_s, mine)
            for scope, waiting in view.open_queries.items()
        ):
            return True
        lost_per_s = 0.0
        for victim in victims:
            busy_share = remaining.busy_share(victim)
            lost_per_s += self._answers_per_s(victim, busy_share, kinds[key_of(victim)])
            for kind in kinds[key_of(victim)]:
                kind.servers -= 1
        gained_per_s = self._answers_per_s(newcomer, remaining.busy_share(newcomer), mine)
        answers = self._horizon_s * (gained_per_s - lost_per_s)
        answers += self._demand.refused_queries(newcomer.variant_id)
        return self.lost_query_s * answers > load_s

    def _is_in_time(self, load_s: float, kinds: Iterable[ServedKind]) -> bool:
        """Returns whether a query that nothing else serves would probably still be answered."""
        return any(kind.servers <= 1 and self._lost(load_s, kind) < _IN_TIME for kind in kinds)

    def _answers_per_s(
        self, instance: Instance, busy_share: float, kinds: Iterable[ServedKind]
    ) -> float:
        """Returns the answers a second lost without the instance, if a load follows each miss."""
        load_s = reload_s(instance)
        return math.fsum(
            kind.rate_per_s * kind.own_share(busy_share) * self._lost(load_s, kind)
            for kind in kinds
        )


class _Remaining:
    """The instances of a view, less those that were ranked first to leave.

    They are counted by placement, so that a worker is ranked without looking at all the others.
    """

    def __init__(self, view: ClusterView, demand: QueryRates) -> None:
        self._demand = demand
        self._workers = {worker.worker_id: worker for worker in view.workers}
        self._facts = {variant.variant_id: variant for variant in view.variants}
        self._served: dict[Placement, list[int]] = {}  # numbers of the kinds that it can serve
        # By task and placement: the busy share of each one's worker, and its key, ascending.
        self._by_task: dict[str, dict[Placement, list[tuple[float, Key]]]] = {}
        self._removed: set[Key] = set()
        for worker in view.workers:
            for instance in worker.instances:
                alike, entry = self._place_of(instance)
                alike.append(entry)
        for placements in self._by_task.values():
            for alike in placements.values():
                alike.sort()

    def remove(self, instances: Iterable[Instance]) -> None:
        """Leave these out."""
        for instance in instances:
            if self._has(instance):
                alike, entry = self._place_of(instance)
                alike.remove(entry)
                self._removed.add(key_of(instance))

    def restore(self, instances: Iterable[Instance]) -> None:
        """Count these again if they were left out."""
        for instance in instances:
            if key_of(instance) in self._removed:
                self._removed.remove(key_of(instance))
                insort(*self._place_of(instance))

    def kinds_of(self, instances: Sequence[Instance]) -> dict[Key, list[ServedKind]]:
        """Returns the kinds of queries that each of these can serve. They count all of them, those
        that were left out and those of no view, too."""
        kinds: dict[str, list[ServedKind]] = {}
        for task in {task_of(each.variant_id) for each in instances}:
            kinds[task] = of_task = self._demand.kinds_of(task)
            for placement, alike in self._by_task.get(task, {}).items():
                if alike:
                    for number in self._served_by(placement, of_task):
                        of_task[number].count(len(alike), [share for share, _ in alike[:2]])
        found = {}
        for instance in instances:
            of_task = kinds[task_of(instance.variant_id)]
            placement, busy_share = self._placed(instance)
            mine = [of_task[number] for number in self._served_by(placement, of_task)]
            if not self._has(instance):
                for kind in mine:
                    kind.count(1, [busy_share])
            found[key_of(instance)] = mine
        return found

    def busy_share(self, instance: Instance) -> float:
        """Returns the busy share of an instance's worker."""
        return self._placed(instance)[1]

    def _served_by(self, placement: Placement, kinds: Sequence[ServedKind]) -> list[int]:
        if placement not in self._served:
            facts = self._facts.get(placement.variant_id)
            self._served[placement] = [
                number
                for number, kind in enumerate(kinds)
                if facts is None or kind.queries.is_served_by(facts, placement.device_class)
            ]
        return self._served[placement]

    def _has(self, instance: Instance) -> bool:
        alike, entry = self._place_of(instance)
        at = bisect_left(alike, entry)
        return at < len(alike) and alike[at] == entry

    def _place_of(self, instance: Instance) -> tuple[list[tuple[float, Key]], tuple[float, Key]]:
        """Returns the list in which the instance is counted, and its entry there."""
        placement, busy_share = self._placed(instance)
        placements = self._by_task.setdefault(task_of(instance.variant_id), {})
        return placements.setdefault(placement, []), (busy_share, key_of(instance))

    def _placed(self, instance: Instance) -> tuple[Placement, float]:
        """Returns its placement, and its worker's busy share."""
        worker = self._workers.get(instance.worker_id)
        if worker is None:
            return Placement(instance.variant_id, ""), 0.0
        return Placement(instance.variant_id, worker.device_class), worker.busy_share
