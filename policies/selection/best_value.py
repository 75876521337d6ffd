"""Best value: bind late, and spend device time where it is worth most.

A query waits in one queue of its scope until a device falls idle; then variant, batch and members
are chosen together. Each possible batch is worth

    sum over its queries of accuracy x probability(answered in time)
    - what its device time is worth to the queries to come  (the price, see ``value_price``)
    - what its device time costs the queries that wait behind (those that would then be too late)

and the batch worth most runs. While devices have time to spare, both costs are zero and everyone
gets the most accurate variant that is in time; as demand grows the price rises, and variants are
given up in the order of accuracy lost per second won, never below a query's own minimum. Where not
all can be served, tenants share device time fairly (``value_fairness``).

The pieces are known: late binding and latency slack from SuperServe (Khare et al., NSDI 2025), the
price as the dual of the accuracy-scaling program that Proteus (Ahmad et al., ASPLOS 2024) solves.
Joining them, with the loss behind counted query by query, is this policy's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.batching.urgency import urgency
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.feasibility import best, look, why_infeasible
from modelless.policies.selection.value_batches import (
    Line,
    Offer,
    Stakes,
    best_batch,
    chance_in_time,
    what_waits,
)
from modelless.policies.selection.value_fairness import within_fair_share
from modelless.policies.selection.value_market import Market
from modelless.policies.selection.value_menu import Menu
from modelless.policies.views import (
    Bind,
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
from modelless.variants.errors import InvalidInputError
from modelless.variants.estimates import Estimates

_LOOK_AHEAD = 64  # queries of a queue that are looked at
_QUEUES_LOOKED_AT = 8
_LOOK_AGAIN_S = 0.003
_READY_KEPT = 4096
_BETTER_POINTS = 10.0  # accuracy points by which another device must be better to be waited for


class BestValue(SelectionPolicy):
    """See the module.

    Args:
        target_utilisation: share of the device time that the price lets steady demand fill.
        batching_share: share of a latency limit that batches may run for, in the price's view.
        memory_s: how long arrivals are remembered for the price.
        reprice_s: how often the price is found anew.
        caution: standard normal quantile of latency that must fit a deadline for a query to join
            a batch.
        miss_penalty: accuracy points that a query not answered in time costs, besides its own.
        batching: for queries bound on arrival: those with a cost limit.
    """

    def __init__(
        self,
        target_utilisation: float = 1.0,
        batching_share: float = 0.4,
        memory_s: float = 5.0,
        reprice_s: float = 0.02,
        caution: float = 2.33,
        miss_penalty: float = 100.0,
        batching: BatchingPolicy | None = None,
    ) -> None:
        super().__init__(batching or EarliestDeadlineFirst())
        for name, value, most in (
            ("target_utilisation", target_utilisation, 2.0),
            ("batching_share", batching_share, 1.0),
            ("memory_s", memory_s, 1e6),
            ("reprice_s", reprice_s, 1e6),
        ):
            if not 0.0 < value <= most:
                raise InvalidInputError.of(name, value, f"above 0, up to {most:g}")
        if not -3.0 <= caution <= 5.0:
            raise InvalidInputError.of("caution", caution, "-3 to 5")
        if not 0.0 <= miss_penalty <= 1e6:
            raise InvalidInputError.of("miss_penalty", miss_penalty, "0 to 1000000")
        self.stakes = Stakes(miss_penalty, caution)
        self._market = Market(target_utilisation, batching_share, miss_penalty, memory_s, reprice_s)
        self._left_until_s: dict[str, float] = {}
        # By scope and items: the estimates, and the least latency by minimum accuracy.
        self._ready: dict[tuple[str, int], tuple[Estimates, dict[float, float]]] = {}

    # -- on arrival ---------------------------------------------------------------------------

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        self._market.on_query(query, candidates.now_s)
        self._left_until_s.clear()  # a worker that waits is asked again at the next arrival
        if query.max_cost_usd != math.inf:
            return self._bind(query, candidates)
        reason = self._why_never(query, candidates)
        return Defer() if reason is None else Reject(reason)

    def on_late(self, query: QueryView, candidates: Candidates, rng: np.random.Generator) -> Choice:
        return self._bind(query, candidates)

    def _bind(self, query: QueryView, candidates: Candidates) -> Choice:
        """The most accurate feasible row; a worker that falls idle does not know what it costs."""
        options = look(query, candidates, "p90")
        row = best(candidates, options, -options.accuracy_percent, options.finish_s)
        if row is None:
            return Reject(why_infeasible(query, options))
        return Bind(row, Reason.BEST_VALUE)

    def _why_never(self, query: QueryView, candidates: Candidates) -> Reason | None:
        """Why no placement could ever serve the query, queue or not; None if one could."""
        least_s = self._least_s(query, candidates)
        if least_s < math.inf and candidates.now_s + least_s <= query.deadline_s:
            return None
        return why_infeasible(query, look(query, candidates, "p50"))

    def _least_s(self, query: QueryView, candidates: Candidates) -> float:
        """The least median latency of what is accurate enough, the queues left out."""
        key = (query.scope, query.items)
        known = self._ready.get(key)
        if known is None or known[0] is not candidates.estimates:
            if len(self._ready) >= _READY_KEPT:
                self._ready.clear()
            known = self._ready[key] = (candidates.estimates, {})
            if query.items == 1:
                least_s = np.fmin.reduce(candidates.estimates.p50_s, initial=np.inf)
                self._market.on_ready(query.scope, float(least_s))
        by_accuracy = known[1]
        least_s = by_accuracy.get(query.min_accuracy_percent)
        if least_s is None:
            accurate = candidates.accuracy_percent >= query.min_accuracy_percent
            known_s = candidates.estimates.p50_s[accurate]
            least_s = float(np.fmin.reduce(known_s, initial=np.inf))  # NaN is unknown
            if len(by_accuracy) < _READY_KEPT:
                by_accuracy[query.min_accuracy_percent] = least_s
        return least_s

    # -- on idle ------------------------------------------------------------------------------

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        bound = [queue for queue in queues if queue.variant_id is not None]
        if bound:
            decision = self.batching.next_batch(worker, bound, now_s)
            if isinstance(decision, Run) or len(bound) == len(queues):
                return decision
        until_s = self._left_until_s.get(worker.device_class, -math.inf)
        if now_s < until_s:
            return Wait(Reason.WORTH_WAITING, until_s)
        self._market.on_idle(worker, queues, now_s)
        heads = [
            (queue.scope, ahead)
            for queue in queues
            if queue.variant_id is None and (ahead := self._look_ahead(worker, queue))
        ]
        if not heads:
            return Wait(Reason.NOTHING_QUEUED)
        heads = nsmallest(_QUEUES_LOOKED_AT, heads, key=lambda head: urgency(head[1][0]))
        lines = [self._line_up(worker, scope, ahead, now_s) for scope, ahead in heads]
        dropped = tuple(query for line in lines for query in line.hopeless)
        price = self._market.price_on(worker.device_class)
        behind = what_waits(lines, self._market.peers(worker), price, self.stakes)
        chosen: Offer | None = None
        for line, margin_s in zip(lines, behind.by_line, strict=True):
            offer = best_batch(line, margin_s, behind, self.stakes)
            if offer is not None and (chosen is None or offer.worth > chosen.worth):
                chosen = offer
        if chosen is None:
            if not any(line.left for line in lines):
                return Wait(Reason.NOTHING_QUEUED, dropped=dropped)
            self._left_until_s[worker.device_class] = until_s = now_s + _LOOK_AGAIN_S
            self._market.on_left(now_s)
            return Wait(Reason.WORTH_WAITING, until_s, dropped)
        self._market.on_run(worker, chosen.latency_s, now_s)
        return Run(chosen.variant_id, chosen.queries, Reason.BEST_VALUE, dropped)

    def _look_ahead(self, worker: WorkerView, queue: QueueView) -> tuple[QueryView, ...]:
        """The most urgent queries that the worker could serve, all of the highest priority there.

        What it cannot serve, given all the time in the world, blocks nobody.
        """
        menu = self._market.menu(worker, queue.scope)
        known: dict[tuple[float, int], bool] = {}
        ahead: list[QueryView] = []
        for query in queue.queries:
            kind = (query.min_accuracy_percent, query.items)
            servable = known.get(kind)
            if servable is None:
                servable = known[kind] = menu.serves(*kind)
            if not servable:
                continue
            if len(ahead) == _LOOK_AHEAD or (ahead and query.priority != ahead[0].priority):
                break
            ahead.append(query)
        return tuple(ahead)

    def _line_up(
        self, worker: WorkerView, scope: str, queries: tuple[QueryView, ...], now_s: float
    ) -> Line:
        """The queries as arrays.

        The hopeless are put aside, and so are those that another device will serve better.
        """
        menu = self._market.menu(worker, scope)
        slack_s = np.array([query.deadline_s for query in queries]) - now_s
        min_accuracy = np.array([query.min_accuracy_percent for query in queries])
        alive = slack_s >= self._market.least_for(scope)
        hopeless: tuple[QueryView, ...] = ()
        if not alive.all():
            hopeless = tuple(q for q, is_alive in zip(queries, alive, strict=True) if not is_alive)
            queries = tuple(q for q, is_alive in zip(queries, alive, strict=True) if is_alive)
            slack_s, min_accuracy = slack_s[alive], min_accuracy[alive]
        work_s = np.empty(len(queries))
        for level in set(min_accuracy.tolist()):
            usable = menu.accuracy_percent >= level
            work_s[min_accuracy == level] = menu.item_s.min(where=usable, initial=np.inf)
        items = np.array([query.items for query in queries])
        line = Line(
            menu, queries, slack_s, min_accuracy, items, work_s * items, slack_s, hopeless, 0
        )
        line = line._replace(later=self._worth_later(worker, line, now_s))
        # What is alive, but not on this worker, is for one that this policy may not have met.
        left = slack_s < menu.typical_s[:, 0].min()
        left |= self._better_left(worker, scope, line, now_s)
        kept = ~left
        if len(queries) > worker.max_batch:
            # What can be done while the typical query waits is what there is to share out.
            capacity_s = self._market.peers(worker) * float(np.median(slack_s))
            modest = within_fair_share(queries, line.work_s, capacity_s)
            if modest is not None and (kept & modest).any():
                kept = kept & modest
        if kept.all():
            return line
        return line._replace(
            queries=tuple(q for q, is_kept in zip(queries, kept, strict=True) if is_kept),
            slack_s=slack_s[kept],
            min_accuracy=min_accuracy[kept],
            items=items[kept],
            work_s=line.work_s[kept],
            later=line.later[kept],
            left=int(left.sum()),
        )

    def _worth_later(self, worker: WorkerView, line: Line, now_s: float) -> FloatArray:
        """What each query will be worth if it is left for whoever falls idle next."""
        workers, wait_s = self._market.free(worker.device_class, now_s, without=worker.worker_id)
        if not workers:
            return np.full(len(line.queries), -self.stakes.miss_penalty)
        work_s = np.where(np.isfinite(line.work_s), line.work_s, 0.0)
        ahead_s = (np.cumsum(work_s) - work_s) / workers
        price = self._market.price_on(worker.device_class)
        return self._worth_alone(line.menu, line, line.slack_s - wait_s - ahead_s, price)

    def _better_left(
        self, worker: WorkerView, scope: str, line: Line, now_s: float
    ) -> NDArray[np.bool_]:
        """Which queries another device class will soon serve better."""
        others = self._market.others(worker, scope)
        elsewhere = np.full(len(line.queries), -np.inf)
        for name, menu in others.items():
            workers, wait_s = self._market.free(name, now_s)
            if not workers:
                continue
            price = self._market.price_on(name)
            usable = menu.accuracy_percent[:, None] >= line.min_accuracy
            liked = np.where(
                usable, (menu.accuracy_percent - price * menu.item_s)[:, None], -np.inf
            ).argmax(axis=0)
            item_s = np.where(usable.any(axis=0), menu.item_s[liked], 0.0)
            ahead_s = (np.cumsum(item_s) - item_s) / workers
            slack_s = line.slack_s - wait_s - ahead_s
            elsewhere = np.maximum(elsewhere, self._worth_alone(menu, line, slack_s, price))
        if not others:
            return np.zeros(len(line.queries), dtype=np.bool_)
        price = self._market.price_on(worker.device_class)
        here = self._worth_alone(line.menu, line, line.slack_s, price)
        return np.asarray(elsewhere > here + _BETTER_POINTS)

    def _worth_alone(self, menu: Menu, line: Line, slack_s: FloatArray, price: float) -> FloatArray:
        """What each query of the line would be worth alone, with the variant best for it."""
        chance = chance_in_time(slack_s, menu.typical_s[:, :1], menu.spread[:, :1])
        worth = (menu.accuracy_percent + self.stakes.miss_penalty)[:, None] * chance
        worth -= self.stakes.miss_penalty + price * menu.item_s[:, None]
        usable = menu.accuracy_percent[:, None] >= line.min_accuracy
        return np.asarray(np.where(usable, worth, -np.inf).max(axis=0))
