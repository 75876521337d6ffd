"""Best value: binds late, and spends device time where it gains most.

A query waits in the queue of its scope until a worker falls idle. The policy then looks at the
queues, the most urgent head first, and runs the batch with the highest gain of those of the highest
priority.

In accuracy points, it is

    gain = sum over its members of (accuracy + miss_penalty)
         - sum over its members of their value later
         - price x device time
         - what queries that will come would lose: its own priority's, and higher ones'

A member counts only if it is in time with probability 95 %. Its *value later* is what it would be
worth to the next worker, in a batch of the best size:

    later(slack) = max over variants and sizes with p95 <= slack of
                   accuracy + miss_penalty - price x batch time / size,    0 if there is none

The *price* of a second of a worker's time is the dual of a linear program: maximise the value of
what is served, subject to the device time there is (``price``). While workers have time to spare it
is zero, and every query gets the most accurate variant that is in time. As demand grows, the price
rises, and variants are given up in the order of accuracy lost for each second won. Beyond capacity,
queries that are not worth the price are served only when nothing else waits. Demand is what arrives
plus, for each query that waits, 1 / time left; so the price rises at once with a burst. As demand
varies, the price is the mean over what may come within a latency limit.

A batch pays for its share of full batches, and for the rest of its time as far as the queries that
wait would fill a batch of every worker. Of batches worth alike the quickest an item runs.

The pieces are known: late binding and latency slack from SuperServe (Khare et al., NSDI 2025), and
the price as the dual of the accuracy-scaling program that Proteus solves (Ahmad et al., ASPLOS
2024). Their combination, with the value later, is this policy's own.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.priorities import heads, rank
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.best_value.batches import Batch, Member, Terms, best_batch
from modelless.policies.selection.best_value.menu import Menu, Suited
from modelless.policies.selection.best_value.pools import Pool, Pools
from modelless.policies.selection.best_value.price import Rates, kind_of
from modelless.policies.selection.feasibility import list_options, why_infeasible
from modelless.policies.views import (
    Candidates,
    Choice,
    Defer,
    QueryView,
    QueueView,
    Reject,
    Run,
    Wait,
    WorkerView,
)

_DEFERRED = Defer(Reason.LATE_BINDING)
_LOOK_AGAIN_S = 0.1
_QUEUES_LOOKED_AT = 4
"""The most urgent ones that are compared; more cost time and bring nothing."""
_QUERIES_LOOKED_AT = 256
"""Of a queue, at most; a bound on the time of a decision."""
_SHARED_OUT_EVERY_S = 0.25
_BATCHES = 10
"""Over so many the time of a batch is averaged."""
_KEPT = 4096
_GAMBLE = -1e9
"""Gain of a query that is only perhaps in time: it runs if nothing else can."""
_DEADLINE_S = attrgetter("deadline_s")

_Limits = tuple[str, int, int, float, float]


def _limits(query: QueryView) -> _Limits:
    """Returns what decides which variants may serve a query."""
    return query.scope, query.items, query.size, query.min_accuracy_percent, query.max_cost_usd


class _Asked(NamedTuple):
    """A question about an idle worker.

    Attributes:
        idle_s: in how many seconds another worker of the pool is idle.
        fill: how far the queries that wait would fill a batch of every worker, 0 to 1.
        dropped: what nothing can serve, by id; grows with the answer.
    """

    worker: WorkerView
    pool: Pool
    now_s: float
    idle_s: float
    fill: float
    dropped: dict[int, QueryView]


class BestValue(SelectionPolicy):
    """See the module.

    Args:
        target_utilisation: share of the device time that demand may fill before it has a price.
        memory_s: time constant of the arrival rates, seconds. Bursts show in what waits at once.
        reprice_s: seconds between two computations of the price.
        miss_penalty: accuracy points that a query not answered in time costs, besides its own.
    """

    quantile = "p95"

    def __init__(
        self,
        target_utilisation: float = 1.0,
        memory_s: float = 5.0,
        reprice_s: float = 0.02,
        miss_penalty: float = 100.0,
    ) -> None:
        super().__init__()
        for name, value, most in (
            ("target_utilisation", target_utilisation, 2.0),
            ("memory_s", memory_s, 1e6),
            ("reprice_s", reprice_s, 1e6),
        ):
            if not 0.0 < value <= most:
                raise InvalidInputError.of(name, value, f"above 0, up to {most:g}")
        if not 0.0 <= miss_penalty <= 1e6:
            raise InvalidInputError.of("miss_penalty", miss_penalty, "0 to 1000000")
        self._utilisation = target_utilisation
        self._reprice_s = reprice_s
        self._miss_points = miss_penalty
        self._rates = Rates(memory_s)
        self._pools = Pools(miss_penalty)
        self._shared_out_s = -math.inf
        self._batch_s = 0.0  # the mean time of a batch
        # By limits: candidates, and the least median latency among those that meet the limits.
        self._asked_for: dict[_Limits, tuple[Candidates, float]] = {}
        self._suited: dict[tuple[Menu, _Limits], tuple[object, Suited]] = {}

    def __getstate__(self) -> dict[str, object]:
        # The caches hold the dispatcher's views; they are filled again.
        return {**self.__dict__, "_asked_for": {}, "_suited": {}}

    # -- on arrival ---------------------------------------------------------------------------

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        limits = _limits(query)
        known = self._asked_for.get(limits)
        if known is None or known[0].estimates is not candidates.estimates:
            if len(self._asked_for) >= _KEPT:
                self._asked_for.clear()
            known = self._asked_for[limits] = candidates, _find_least_s(query, candidates)
        if known[1] < math.inf and candidates.now_s + known[1] <= query.deadline_s:
            self._rates.count(kind_of(query), candidates.now_s)
            return _DEFERRED
        # No placement could ever serve it, queue or not.
        return Reject(why_infeasible(query, list_options(query, candidates, "p50")))

    # -- on idle ------------------------------------------------------------------------------

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        pool = self._pools.on_idle(worker, now_s)
        if now_s - pool.priced_s >= self._reprice_s:
            rates = self._rates.per_s(now_s)
            if now_s - self._shared_out_s >= _SHARED_OUT_EVERY_S:
                self._shared_out_s = now_s
                self._pools.share_out(rates, queues, now_s)
            pool.find_price(
                worker,
                queues,
                rates,
                self._utilisation,
                now_s,
                self._reprice_s,
                self._rates.dispersion,
            )
        idle_s = pool.next_idle_s(worker.worker_id, now_s)
        waiting = sum([len(queue.queries) for queue in queues])
        fill = min(waiting / (worker.max_batch * len(pool.until_s)), 1.0)
        asked = _Asked(worker, pool, now_s, idle_s, fill, {})
        found = []
        keys = heads(queues)
        for place in sorted(range(len(queues)), key=keys.__getitem__):
            queue = queues[place]
            menu = pool.menu(worker, queue.scope, queue.queries[0].size)
            batch = self._best_of(asked, menu, queue.queries) if menu.variant_ids else None
            if batch is not None:
                found.append((batch, menu, queue))
                if len(found) == _QUEUES_LOOKED_AT:
                    break
        if not found:
            return Wait(Reason.NOTHING_QUEUED, now_s + _LOOK_AGAIN_S, tuple(asked.dropped.values()))
        batch, menu, queue = max(found, key=lambda each: (-rank(each[0].queries[0]), each[0].gain))
        if rank(queue.queries[-1]) > rank(batch.queries[0]):
            batch = self._fill(asked, menu, batch, queue, queues)
        column = sum([query.items for query in batch.queries]) - 1
        spread_s = float(menu.sure_s[batch.row, column] - menu.typical_s[batch.row, column])
        pool.until_s[worker.worker_id] = now_s + batch.busy_s + spread_s  # at p95
        self._batch_s += (batch.busy_s - self._batch_s) / (_BATCHES if self._batch_s else 1)
        name = menu.variant_ids[batch.row]
        return Run(name, batch.queries, Reason.BEST_VALUE, tuple(asked.dropped.values()))

    def _best_of(self, asked: _Asked, menu: Menu, queued: Sequence[QueryView]) -> Batch | None:
        """Returns the best batch of queued queries; notes as dropped what nothing can serve.

        A batch begins with the most urgent query. If that would be late in a full batch of the same
        variant, it may begin with the first query that would not: what is in a hurry must not split
        a long queue into small batches.
        """
        first, lower = _by_rank(queued)
        best = self._best_from(asked, menu, first)
        if best is None or sum([query.items for query in best.queries]) < menu.most:
            full_s = menu.sure_s[:, -1]
            relaxed_s = asked.now_s + float(full_s.min() if best is None else full_s[best.row])
            start = bisect_left(first, relaxed_s, key=_DEADLINE_S)
            if 0 < start < len(first):
                other = self._best_from(asked, menu, first[start:])
                if best is None or (other is not None and other.gain > best.gain):
                    best = other
        if best is None and lower:
            return self._best_of(asked, menu, lower)
        return best

    def _best_from(self, asked: _Asked, menu: Menu, queued: Sequence[QueryView]) -> Batch | None:
        """Returns the best batch that begins with the first of these queries that it suits.

        Of queries that the same variants may serve, so many are looked at as fill a batch.
        """
        line: list[Member] = []
        sorts: dict[tuple[float, float, int], tuple[Suited, list[float], list[float]]] = {}
        items_of: dict[tuple[int, ...], int] = {}  # by the variants that may serve them
        lacking = set(range(len(menu.variant_ids)))  # those without a full batch so far
        gamble: Batch | None = None
        looked_at = 0
        pool, now_s, idle_s, most = asked.pool, asked.now_s, asked.idle_s, menu.most
        soon_s = min(idle_s, self._batch_s)
        for query in queued:
            limits = query.min_accuracy_percent, query.max_cost_usd, query.items
            if limits not in sorts:
                mine = self._suited_to(asked.worker.device_class, menu, query)
                later = mine.later(pool.price, self._miss_points) if mine.places else ([], [])
                sorts[limits] = mine, *later
            mine, edges_s, worth = sorts[limits]
            if not mine.places:
                continue
            looked_at += 1
            slack_s = query.deadline_s - now_s
            if slack_s >= mine.sure_s:
                before = items_of.get(mine.places, 0)
                if before < most:
                    items_of[mine.places] = before + query.items
                    left = worth[bisect_right(edges_s, slack_s - soon_s)]
                    # This takes half as long as ``Member(...)``, whose constructor is Python code.
                    line.append(tuple.__new__(Member, (query, mine, slack_s, left)))
                    if before + query.items >= most:
                        lacking.difference_update(mine.places)
                if not lacking:
                    break
            elif slack_s < mine.least_s:
                asked.dropped[query.query_id] = query
            elif gamble is None and not self._is_sure_elsewhere(pool, query, now_s):
                gamble = _alone(menu, mine, query, slack_s)
            if looked_at == _QUERIES_LOOKED_AT:
                break
        if not line:
            return gamble
        first = line[0].query
        limit_s = first.deadline_s - first.arrival_s
        waited = 1.0 - line[0].slack_s / limit_s if 0.0 < limit_s < math.inf else 0.0
        to_come = pool.to_come(rank(first))
        terms = Terms(pool.price, max(waited, asked.fill), self._miss_points, to_come, idle_s)
        return best_batch(menu, line, terms)

    def _is_sure_elsewhere(self, pool: Pool, query: QueryView, now_s: float) -> bool:
        """Returns whether an idle worker of another pool has a variant that is surely in time."""
        slack_s = query.deadline_s - now_s
        return any(
            self._suited_to(device_class, menu, query).sure_s <= slack_s
            for device_class, menu in self._pools.idle_elsewhere(pool, query, now_s)
        )

    def _suited_to(self, device_class: str, menu: Menu, query: QueryView) -> Suited:
        """Returns the variants of a menu that may serve a query."""
        limits = _limits(query)
        asked_for = self._asked_for.get(limits)
        known = self._suited.get((menu, limits))
        if known is not None and known[0] is asked_for:
            return known[1]
        candidates, least_s = asked_for or (None, 0.0)
        rows, usd = menu.accuracy_percent >= query.min_accuracy_percent, query.max_cost_usd
        may = (rows & (query.items <= menu.most)).tolist()
        if usd < math.inf:
            for row, name in enumerate(menu.variant_ids):
                may[row] &= candidates is not None and _costs_at_most(
                    usd, candidates, name, device_class
                )
        if len(self._suited) >= _KEPT:
            self._suited.clear()
        found = Suited(menu, may, query.items, least_s)
        self._suited[menu, limits] = asked_for, found
        return found

    def _fill(
        self,
        asked: _Asked,
        menu: Menu,
        batch: Batch,
        queue: QueueView,
        queues: Sequence[QueueView],
    ) -> Batch:
        """Adds queries, also of lower ranks, for which there is room while all are in time.

        One of a lower rank must be worth more than what its time costs the higher priorities that
        will come, and none of the batch's rank or above that waits, in any queue, may be late for
        it.
        """
        worker, pool, now_s = asked.worker, asked.pool, asked.now_s
        own, members = rank(batch.queries[0]), {query.query_id for query in batch.queries}
        patience_s = math.inf
        for each in queues:
            for query in islice(each.queries, 2 * worker.max_batch):
                if rank(query) <= own and query.query_id not in members:
                    other = pool.menu(worker, each.scope, query.size)
                    its = self._suited_to(worker.device_class, other, query)
                    wait_s = query.deadline_s - now_s - its.sure_s
                    if wait_s >= batch.busy_s:  # else it could not wait for the batch as it is
                        patience_s = min(patience_s, wait_s)
        busy_s, sure_s = menu.busy_s[batch.row], menu.sure_s[batch.row]
        points = float(menu.accuracy_percent[batch.row]) + self._miss_points
        queries = list(batch.queries)
        items = sum([query.items for query in queries])
        deadline_s = min([query.deadline_s for query in queries])
        for query in islice(queue.queries, _QUERIES_LOOKED_AT):
            more = items + query.items
            if (
                query.query_id in members
                or rank(query) < own
                or more > menu.most
                or not self._suited_to(worker.device_class, menu, query).may[batch.row]
                or now_s + sure_s[more - 1] > min(deadline_s, query.deadline_s)
            ):
                continue
            if rank(query) > own:
                to_come, last = pool.to_come(rank(query)), busy_s[[items - 1, more - 1]]
                if last[1] > patience_s:
                    continue
                lost = to_come.lost(np.minimum(last, asked.idle_s))
                if to_come.least_s < math.inf and lost[1] - lost[0] >= points:
                    continue
            queries.append(query)
            items, deadline_s = more, min(deadline_s, query.deadline_s)
        return batch._replace(queries=tuple(queries), busy_s=float(busy_s[items - 1]))


def _find_least_s(query: QueryView, candidates: Candidates) -> float:
    """Returns the least median latency of the placements that meet the query's other limits."""
    allowed = candidates.accuracy_percent >= query.min_accuracy_percent
    if query.max_cost_usd < math.inf:
        allowed &= candidates.cost_usd <= query.max_cost_usd
    # fmin: NaN is unknown
    return float(np.fmin.reduce(candidates.estimates.p50_s[allowed], initial=np.inf))


def _costs_at_most(usd: float, candidates: Candidates, variant_id: str, device_class: str) -> bool:
    row = candidates.row_of(variant_id, device_class)
    return row is not None and bool(candidates.cost_usd[row] <= usd)


def _alone(menu: Menu, suited: Suited, query: QueryView, slack_s: float) -> Batch | None:
    """Returns a query alone with the quickest variant, if it is in time at the median."""
    column = query.items - 1
    row = min(suited.places, key=menu.typical_s[:, column].__getitem__)
    if menu.typical_s[row, column] > slack_s:
        return None
    return Batch(_GAMBLE, row, (query,), float(menu.busy_s[row, column]))


def _by_rank(queries: Sequence[QueryView]) -> tuple[Sequence[QueryView], Sequence[QueryView]]:
    """Returns the queries of the first one's rank, and those behind them."""
    first = rank(queries[0])
    if rank(queries[-1]) == first:
        return queries, ()
    stop = bisect_right(queries, first, key=rank)
    return queries[:stop], queries[stop:]
