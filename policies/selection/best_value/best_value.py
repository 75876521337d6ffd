"""Best value: binds late, and spends device time where it gains most.

A query waits in the queue of its scope until a worker falls idle. The policy then looks at the
queues, the most urgent head first, and runs the batch with the highest gain. In accuracy points,

    gain = sum over its members of (accuracy + miss_penalty)
         - sum over its members of their value later
         - price x device time
         - what queries that will come would lose: its own priority's, and higher ones'

A member counts only if it is in time with probability 95 %. Its *value later* is what it would be
worth to the next worker, in a batch of the best size at the price:

    later(slack) = max over variants and sizes with p95 <= slack of
                   accuracy + miss_penalty - price(slack) x batch time / size,    0 if there is none

The *price* of a second of a worker's time is the dual of a linear program: maximise the value of
what is served, subject to the device time there is (``price``). While workers have time to spare it
is zero, and every query gets the most accurate variant that is in time. As demand grows, the price
rises, and variants are given up in the order of accuracy lost for each second won. Beyond capacity,
queries that are not worth the price are served only when nothing else waits. Demand is what arrives
plus, for each query that waits, 1 / time left; so the price rises at once with a burst. A query
that can wait pays less later: price(slack) is the price when each query that waits counts
1 / max(time left, slack). So what can wait until a burst is over does. Demand is shared out so that
all pools of workers, each of one device class with the same variants, are equally busy.

A batch pays for its share of full batches. It pays for the rest of its time as far as others want
the worker: by the part of its limit that its first query has waited, or by how far the queries that
wait would fill a batch of every worker. Of batches worth alike the largest runs.

The pieces are known: late binding and latency slack from SuperServe (Khare et al., NSDI 2025), and
the price as the dual of the accuracy-scaling program that Proteus solves (Ahmad et al., ASPLOS
2024). Their combination, with the value later, is this policy's own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.priorities import heads, rank
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.best_value.batches import (
    Batch,
    Later,
    Line,
    Terms,
    best_batch,
)
from modelless.policies.selection.best_value.fleet import Fleet, Pool
from modelless.policies.selection.best_value.menu import Menu
from modelless.policies.selection.best_value.price import (
    NO_PRICE,
    Higher,
    Kind,
    Offer,
    Prices,
    Rates,
    kind_of,
    offer_of,
    prices_of_time,
    share_out,
)
from modelless.policies.selection.feasibility import list_options, why_infeasible
from modelless.policies.views import (
    Candidates,
    Choice,
    Defer,
    FloatArray,
    QueryView,
    QueueView,
    Reject,
    Run,
    Wait,
    WorkerView,
)

_DEFERRED = Defer(Reason.LATE_BINDING)
_LOOK_AGAIN_S = 0.1
_QUEUES_LOOKED_AT = 8
_QUERIES_LOOKED_AT = 256
_SAMPLED = 64  # queries of a queue that stand for all in the price
_CHANCE_OF_LOSS = 0.05
"""No batch is worth this probability of losing a query of a higher priority."""
_SHARED_OUT_EVERY_S = 0.25
_KEPT = 4096
_SLACK_STEP = math.sqrt(2.0)
"""Ratio of the times left that have a price of their own."""
_GAMBLE = -1e9


class _Ready(NamedTuple):
    """The last candidates of a scope, and the least median latency by the limits of queries."""

    candidates: Candidates
    least_s: dict[tuple[float, float], float]


class _Able(NamedTuple):
    """The rows of a menu that may serve a query, as bits, and two latencies, seconds.

    Attributes:
        least_s: the least median anywhere.
        sure_s: the least p95 with these rows.
    """

    mask: int
    least_s: float
    sure_s: float


class BestValue(SelectionPolicy):
    """See the module.

    Args:
        target_utilisation: share of the device time that demand may fill before it has a price.
            Below 1, because arrivals and latencies vary.
        memory_s: time constant of the arrival rates, seconds. Bursts show in what waits at once.
        reprice_s: seconds between two computations of the price.
        miss_penalty: accuracy points that a query not answered in time costs, besides its own.
    """

    def __init__(
        self,
        target_utilisation: float = 0.95,
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
        self._fleet = Fleet()
        self._shares: dict[tuple[Kind, Pool], float] = {}
        self._shared_out_s = -math.inf
        self._ready: dict[tuple[str, int, int], _Ready] = {}
        # Caches, by what they are made of.
        self._able: dict[tuple[Menu, float, float, int], tuple[_Ready | None, _Able]] = {}
        self._later: dict[tuple[Menu, int, int, float], Later] = {}
        self._offers: dict[tuple[Kind, Menu, float], Offer] = {}

    def __getstate__(self) -> dict[str, object]:
        # The caches hold the dispatcher's views; they are filled again.
        empty: dict[str, object] = {
            name: {} for name in ("_ready", "_able", "_later", "_offers", "_shares")
        }
        return {**self.__dict__, **empty}

    # -- on arrival ---------------------------------------------------------------------------

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        least_s = self._least_s(query, candidates)
        if least_s < math.inf and candidates.now_s + least_s <= query.deadline_s:
            self._rates.count(kind_of(query), candidates.now_s)
            return _DEFERRED
        # No placement could ever serve it, queue or not.
        return Reject(why_infeasible(query, list_options(query, candidates, "p50")))

    def _least_s(self, query: QueryView, candidates: Candidates) -> float:
        """Returns the least median latency of the placements that meet its other limits."""
        key = (query.scope, query.items, query.size)
        ready = self._ready.get(key)
        if ready is None or ready.candidates.estimates is not candidates.estimates:
            if len(self._ready) >= _KEPT:
                self._ready.clear()
            ready = self._ready[key] = _Ready(candidates, {})
        limits = (query.min_accuracy_percent, query.max_cost_usd)
        least_s = ready.least_s.get(limits)
        if least_s is None:
            allowed = candidates.accuracy_percent >= query.min_accuracy_percent
            if query.max_cost_usd < math.inf:
                allowed &= candidates.cost_usd <= query.max_cost_usd
            # fmin: NaN is unknown
            least_s = float(np.fmin.reduce(candidates.estimates.p50_s[allowed], initial=np.inf))
            if len(ready.least_s) < _KEPT:
                ready.least_s[limits] = least_s
        return least_s

    # -- on idle ------------------------------------------------------------------------------

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        pool = self._fleet.on_idle(worker, now_s)
        if now_s - pool.priced_s >= self._reprice_s:
            self._find_price(worker, pool, queues, now_s)
        waiting = sum([len(queue.queries) for queue in queues])
        fill = min(waiting / (worker.max_batch * pool.count), 1.0)
        dropped: list[QueryView] = []
        batches = (
            self._best_of(worker, pool, queue.scope, queue.queries, fill, now_s, dropped)
            for queue in _most_urgent_first(queues)
        )
        found = islice(filter(None, batches), _QUEUES_LOOKED_AT)
        chosen = max(found, key=lambda batch: batch.gain, default=None)
        if chosen is None:
            return Wait(Reason.NOTHING_QUEUED, now_s + _LOOK_AGAIN_S, tuple(dropped))
        if chosen.rest:
            chosen = self._fill(worker, pool, chosen, queues, now_s)
        self._fleet.on_run(worker.worker_id, chosen.busy_s, now_s)
        return Run(chosen.variant_id, chosen.queries, Reason.BEST_VALUE, tuple(dropped))

    def _best_of(
        self,
        worker: WorkerView,
        pool: Pool,
        scope: str,
        queued: Sequence[QueryView],
        fill: float,
        now_s: float,
        dropped: list[QueryView],
    ) -> Batch | None:
        """Returns the best batch of queued queries; adds to ``dropped`` what nothing can serve.

        ``fill``: how far the queries that wait would fill a batch of every worker, 0 to 1.
        """
        menu = pool.menu(worker, scope, queued[0].size)
        if not menu.variant_ids:
            return None
        first, fillers = _by_rank(queued)
        full_s = float(menu.sure_s[:, -1].min())
        queries: list[QueryView] = []
        slacks_s: list[float] = []
        masks: list[int] = []
        doubtful: list[tuple[QueryView, int]] = []
        taken: dict[tuple[int, bool], int] = {}  # enough of each sort to fill two batches
        most_of_a_sort = 2 * menu.most
        able_by_limits: dict[tuple[float, float, int], _Able] = {}
        looked_at = 0
        for query in first:
            limits = query.min_accuracy_percent, query.max_cost_usd, query.items
            able = able_by_limits.get(limits)
            if able is None:
                able = able_by_limits[limits] = self._able_to_serve(worker, menu, query)
            mask, least_s, sure_s = able
            if not mask:
                continue
            looked_at += 1
            if looked_at > _QUERIES_LOOKED_AT:
                break
            slack_s = query.deadline_s - now_s
            if slack_s < least_s:
                dropped.append(query)
            elif slack_s < sure_s:
                doubtful.append((query, mask))
            else:
                sort = mask, slack_s >= full_s
                count = taken.get(sort, 0)
                if count < most_of_a_sort:
                    taken[sort] = count + 1
                    queries.append(query)
                    slacks_s.append(slack_s)
                    masks.append(mask)
        if not queries:
            gamble = _gamble(menu, doubtful, now_s)
            if gamble is None and fillers:
                return self._best_of(worker, pool, scope, fillers, fill, now_s, dropped)
            return gamble
        wait_s = self._fleet.next_idle_s(scope, worker.worker_id, now_s)
        limit_s = queries[0].deadline_s - queries[0].arrival_s
        waited = 1.0 - slacks_s[0] / limit_s if 0.0 < limit_s < math.inf else 0.0
        terms = Terms(
            pool.prices.now,
            max(waited, fill),
            self._miss_points,
            pool.higher.get(rank(queries[0])),
            pool.next_idle_s(worker.worker_id, now_s),
        )
        best: Batch | None = None
        slacks = np.array(slacks_s)
        sorts = [(mask, query.items) for mask, query in zip(masks, queries, strict=True)]
        later = self._points_later(menu, sorts, slacks - wait_s, pool.prices)
        for rows, places in _rows_by_queries(menu, masks):
            line = Line(queries, slacks, later)
            if len(places) < len(queries):
                line = Line([queries[place] for place in places], slacks[places], later[places])
            batch = best_batch(menu, rows, line, terms)
            if batch is not None and (best is None or batch.gain > best.gain):
                best = batch
        if best is not None and fillers:
            members = {query.query_id for query in best.queries}
            others = [query for query in queries if query.query_id not in members]
            return best._replace(rest=list(islice(chain(others, fillers), 2 * menu.most)))
        return best

    def _able_to_serve(self, worker: WorkerView, menu: Menu, query: QueryView) -> _Able:
        ready = self._ready.get((query.scope, query.items, query.size))
        key = (menu, query.min_accuracy_percent, query.max_cost_usd, query.items)
        known = self._able.get(key)
        if known is not None and known[0] is ready:
            return known[1]
        if len(self._able) >= _KEPT:
            self._able.clear()
        mask, sure_s = 0, math.inf
        for row, variant_id in enumerate(menu.variant_ids):
            if query.items > menu.most or menu.accuracy_percent[row] < query.min_accuracy_percent:
                continue
            if query.max_cost_usd < math.inf and not _costs_at_most(
                query.max_cost_usd, ready, variant_id, worker.device_class
            ):
                continue
            mask |= 1 << row
            sure_s = min(sure_s, float(menu.sure_s[row, query.items - 1]))
        limits = (query.min_accuracy_percent, query.max_cost_usd)
        least_s = ready.least_s.get(limits, 0.0) if ready is not None else 0.0
        able = _Able(mask, least_s, sure_s)
        self._able[key] = ready, able
        return able

    def _points_later(
        self, menu: Menu, sorts: Sequence[tuple[int, int]], slack_s: FloatArray, prices: Prices
    ) -> FloatArray:
        """Returns the points of queries, given the mask of rows and the items of each."""
        points = np.empty(len(sorts))
        own_prices = prices.within(slack_s).tolist()
        places: dict[tuple[tuple[int, int], float], list[int]] = {}
        for place, key in enumerate(zip(sorts, own_prices, strict=True)):
            places.setdefault(key, []).append(place)
        for (sort, price), mine in places.items():
            known = self._later.get((menu, *sort, price))
            if known is None:
                if len(self._later) >= _KEPT:
                    self._later.clear()
                mask, items = sort
                known = Later(menu, menu.rows_of(mask), items, price, self._miss_points)
                self._later[menu, mask, items, price] = known
            points[mine] = known.points(slack_s[mine])
        return points

    def _fill(
        self,
        worker: WorkerView,
        pool: Pool,
        batch: Batch,
        queues: Sequence[QueueView],
        now_s: float,
    ) -> Batch:
        """Adds queries of lower ranks for which the batch has room while all are in time.

        Each must be worth more than what its time costs the higher priorities that will come, and
        none of a higher rank that waits, in any queue, may be late for it.
        """
        first = batch.queries[0]
        menu = pool.menu(worker, first.scope, first.size)
        row = menu.variant_ids.index(batch.variant_id)
        lower = next((rank(query) for query in batch.rest if rank(query) > rank(first)), None)
        higher = pool.higher.get(lower) if lower is not None else None
        idle_s = pool.next_idle_s(worker.worker_id, now_s)
        busy_s = menu.busy_s[row]
        lost = higher.lost(np.minimum(busy_s, idle_s)) if higher else np.zeros(menu.most)
        patience_s = self._patience_s(worker, pool, batch, queues, now_s)
        points = float(menu.accuracy_percent[row]) + self._miss_points
        queries = list(batch.queries)
        items = sum([query.items for query in queries])
        deadline_s = min([query.deadline_s for query in queries])
        for query in batch.rest:
            more = items + query.items
            if more > menu.most or not self._able_to_serve(worker, menu, query).mask >> row & 1:
                continue
            if rank(query) > rank(first) and busy_s[more - 1] > patience_s:
                continue
            earliest_s = min(deadline_s, query.deadline_s)
            is_in_time = now_s + menu.sure_s[row, more - 1] <= earliest_s
            if is_in_time and lost[more - 1] - lost[items - 1] < points:
                queries.append(query)
                items, deadline_s = more, earliest_s
        return batch._replace(queries=tuple(queries), busy_s=float(busy_s[items - 1]))

    def _patience_s(
        self,
        worker: WorkerView,
        pool: Pool,
        batch: Batch,
        queues: Sequence[QueueView],
        now_s: float,
    ) -> float:
        """Returns how long the others of the batch's rank, and above, can wait for the worker.

        What could not wait for the batch as it is does not count.
        """
        own, members = rank(batch.queries[0]), {query.query_id for query in batch.queries}
        waits_s = [
            query.deadline_s - now_s - self._able_to_serve(worker, menu, query).sure_s
            for queue in queues
            for menu in [pool.menu(worker, queue.scope, queue.queries[0].size)]
            for query in islice(queue.queries, 2 * worker.max_batch)
            if rank(query) <= own and query.query_id not in members
        ]
        return min([wait_s for wait_s in waits_s if wait_s >= batch.busy_s], default=math.inf)

    # -- the price ----------------------------------------------------------------------------

    def _find_price(
        self, worker: WorkerView, pool: Pool, queues: Sequence[QueueView], now_s: float
    ) -> None:
        """Finds the prices of the pool's time, and the queries to expect there."""
        pool.priced_s = now_s
        for queue in queues:
            pool.menu(worker, queue.scope, queue.queries[0].size)
        rates = self._rates.per_s(now_s)
        if now_s - self._shared_out_s >= _SHARED_OUT_EVERY_S:
            self._shared_out_s = now_s
            self._share_out(rates, now_s)
        here = {
            kind: rate * self._shares.get((kind, pool), 1.0)
            for kind, rate in rates.items()
            if (kind.scope, kind.size) in pool.menus
        }
        scopes = {kind.scope for kind in here}
        # With w workers and q queues, a query waits q / w times as long as batches run.
        latency_share = pool.count / (pool.count + max(len(scopes), 1))
        waiting: dict[float, dict[Kind, float]] = {}  # by the time left, rounded down
        for queue in queues:
            every = -(-len(queue.queries) // _SAMPLED)
            for query in queue.queries[every // 2 :: every]:
                kind = kind_of(query)
                if kind in here:
                    left_s = max(query.deadline_s - now_s, self._reprice_s)
                    counts = waiting.setdefault(_round_down(left_s), dict.fromkeys(here, 0.0))
                    counts[kind] += every * self._shares.get((kind, pool), 1.0)
        offers = {
            kind: self._offer(kind, pool.menus[kind.scope, kind.size], latency_share)
            for kind in here
        }
        slack_s = np.array(sorted(waiting) or [self._reprice_s])
        demands = []
        for kind, rate in here.items():
            due_per_s = np.full(len(slack_s), rate)
            for left_s, counts in waiting.items():
                due_per_s += counts[kind] / np.maximum(slack_s, left_s)
            demands.append((due_per_s, offers[kind]))
        pool.prices = NO_PRICE
        if demands:
            capacity = self._utilisation * pool.count
            pool.prices = Prices(slack_s, prices_of_time(demands, self._miss_points, capacity))
        pool.higher = self._higher(here, offers, worker.max_batch / _CHANCE_OF_LOSS)

    def _share_out(self, rates: Mapping[Kind, float], now_s: float) -> None:
        self._fleet.forget_gone(now_s)
        pools = self._fleet.pools
        self._shares = {}
        if len(pools) < 2:
            return
        workers = np.array([float(pool.count) for pool in pools])
        latency_share = float(workers.sum() / (workers.sum() + len({k.scope for k in rates})))
        work_s = np.full((len(rates), len(pools)), np.inf)
        for row, (kind, rate) in enumerate(rates.items()):
            for column, pool in enumerate(pools):
                menu = pool.menus.get((kind.scope, kind.size))
                if menu is not None:
                    least_s = self._offer(kind, menu, latency_share).query_s.min(initial=np.inf)
                    work_s[row, column] = rate * least_s
        shares = share_out(work_s, workers)
        for row, kind in enumerate(rates):
            for column, pool in enumerate(pools):
                self._shares[kind, pool] = float(shares[row, column])

    def _offer(self, kind: Kind, menu: Menu, latency_share: float) -> Offer:
        key = (kind, menu, latency_share)
        offer = self._offers.get(key)
        if offer is None:
            if len(self._offers) >= _KEPT:
                self._offers.clear()
            offer = self._offers[key] = offer_of(kind, menu, latency_share)
        return offer

    def _higher(
        self, rates: Mapping[Kind, float], offers: Mapping[Kind, Offer], weight: float
    ) -> dict[int, Higher]:
        """Returns, by rank, the queries to expect of its own priority and of all higher ones.

        ``weight``: what one of a higher rank counts, in queries of the rank itself.
        """
        worth = [
            (
                kind.priority,
                rate * (self._miss_points + offers[kind].accuracy_percent[0]),
                offers[kind].patience_s,
            )
            for kind, rate in rates.items()
            if offers[kind].patience_s > 0.0
        ]
        higher = {}
        for priority in {kind.priority for kind in rates}:
            known = [each for each in worth if each[0] >= priority]
            for demoted in (False, True) if known else ():
                above = priority + (not demoted)
                points_per_s = [
                    points * (weight if of >= above else 1.0) for of, points, _ in known
                ]
                patience_s = [patience_s for *_, patience_s in known]
                higher[demoted - 2 * priority] = Higher(
                    np.array(points_per_s), np.array(patience_s)
                )
        return higher


def _round_down(left_s: float) -> float:
    """Returns the next lower power of the step."""
    if left_s == math.inf:
        return left_s
    return float(_SLACK_STEP ** math.floor(math.log(left_s, _SLACK_STEP)))


def _costs_at_most(
    most_usd: float, ready: _Ready | None, variant_id: str, device_class: str
) -> bool:
    row = ready.candidates.row_of(variant_id, device_class) if ready is not None else None
    return ready is not None and row is not None and ready.candidates.cost_usd[row] <= most_usd


def _gamble(menu: Menu, doubtful: Sequence[tuple[QueryView, int]], now_s: float) -> Batch | None:
    """Returns the most urgent query alone, with the variant that is most probably in time."""
    for query, mask in doubtful:
        latencies_s = menu.typical_s[:, query.items - 1] if query.items <= menu.most else ()
        row = min(menu.rows_of(mask), key=lambda row: latencies_s[row], default=None)
        if row is not None and now_s + latencies_s[row] <= query.deadline_s:
            busy_s = float(menu.busy_s[row, query.items - 1])
            return Batch(_GAMBLE, menu.variant_ids[row], (query,), busy_s)
    return None


def _rows_by_queries(menu: Menu, masks: Sequence[int]) -> Iterator[tuple[list[int], Sequence[int]]]:
    """Returns groups of rows, each with the places of the queries that they may serve."""
    distinct = sorted(set(masks))
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(menu.variant_ids)):
        served = tuple([mask for mask in distinct if mask >> row & 1])
        if served:
            groups.setdefault(served, []).append(row)
    for served, rows in groups.items():
        if len(served) == len(distinct):
            yield rows, range(len(masks))
        else:
            yield rows, [place for place, mask in enumerate(masks) if mask in served]


def _by_rank(queries: Sequence[QueryView]) -> tuple[Sequence[QueryView], Sequence[QueryView]]:
    """Returns the queries of the first one's rank, and those behind them."""
    first = rank(queries[0])
    if rank(queries[-1]) == first:
        return queries, ()
    stop = bisect_right(queries, first, key=rank)
    return queries[:stop], queries[stop:]


def _most_urgent_first(queues: Sequence[QueueView]) -> Iterator[QueueView]:
    """Returns the queues by their heads; sorts only if more than the first is wanted."""
    if len(queues) < 2:
        yield from queues
        return
    keys = heads(queues)
    first = keys.index(min(keys))
    yield queues[first]
    for place in sorted(range(len(queues)), key=keys.__getitem__):
        if place != first:
            yield queues[place]
