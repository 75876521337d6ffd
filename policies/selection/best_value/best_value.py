"""Best value: binds late, and spends device time where it gains most.

A query waits in the queue of its scope until a device falls idle. The policy then looks at the
queues, the one with the most urgent query first, and chooses variant, batch and members together:
the batch with the most value. The value of a batch is the accuracy that it gains by answering in
time, less what its queries would be worth to the next worker, less a price for the device time.

In full, a batch is worth

    sum over its members of (accuracy + penalty) x probability(answered in time) - penalty
    - what each of them would be worth if left for the next worker of the class  (``value_table``)
    - price x device time                                                        (``value_price``)

and the batch worth most runs. While devices have time to spare the price is zero and everyone gets
the most accurate variant that is in time; as demand grows the price rises, and variants are given
up in the order of accuracy lost per second won, never below a query's own minimum. Each device
class has a price of its own, by what it spares the others (``value_classes``). Who is indifferent
at the price between two variants takes the one now and then the other, as often as there is time
for: if all took the quicker one, nobody would wait, and small batches of it would fill the devices.
And who can outwait a crowd is compared with what time will be worth after it.

A batch that is not full takes longer an item than it need. Who is charged for that depends on who
waits: if the most urgent query has only just come, nobody else wants the device, each member pays
for its share of a batch of the best size, and a slow, accurate batch gives the next one time to
fill. The more of its limit the query has waited, or, at a price, the more batches those who wait
would fill, the more of the whole batch's time is charged, and batches grow by taking in who waits.
Full batches are what makes a fleet's capacity.

A query that a device of another class will soon serve better is left for that; much better, if this
one's time has a price. For a moment that stands (``value_left``), also for who joins the queue
behind others: so most arrivals need no decision, however many devices are idle.

A batch also pays for what it keeps from higher priorities: queries that come while it runs, before
another worker falls idle, and cannot wait so long. So one device in time stays free for them, or
runs what is short.

Where not all can be served, who comes first is settled for each query, by priority and fairly to
tenants (``value_admission``); the others run while nobody else waits in their queue. Each gateway
goes by the demand that it sees, and takes the fleet for its own.

The pieces are known: late binding and latency slack from SuperServe (Khare et al., NSDI 2025), the
price as the dual of the accuracy-scaling program that Proteus (Ahmad et al., ASPLOS 2024) solves.
Joining them, with a value function of the time left, is this policy's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.priorities import heads
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.best_value.batches import Line, Offer, best_for_now
from modelless.policies.selection.best_value.crowd import Crowd
from modelless.policies.selection.best_value.left import LeftForOthers, look_again_s
from modelless.policies.selection.best_value.market import Market
from modelless.policies.selection.best_value.menu import Menu
from modelless.policies.selection.best_value.table import ValueTable
from modelless.policies.selection.feasibility import best, list_options, why_infeasible
from modelless.policies.views import (
    Bind,
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
from modelless.variants.estimates import Estimates

_DEFERRED = Defer()
_QUEUES_LOOKED_AT = 8
_MOST_LOOKED_AT = 256  # queries of a queue that a worker can serve, at a time
_READY_KEPT = 4096
_GOOD_ENOUGH_POINTS = 10.0  # so much below its best, a query, is a batch of the most urgent queue
# Accuracy points by which another device must be better to be waited for: while this one has time
# to spare, and if it has none.
_BETTER_POINTS, _MUCH_BETTER_POINTS = 1.0, 5.0
# And this share of what the time costs here: how classes' prices relate is known for the mean of
# some seconds only, and in a crowd they are high.
_IN_DOUBT = 0.5


class BestValue(SelectionPolicy):
    """See the module.

    Args:
        target_utilisation: share of the device time that steady demand may fill, for the price.
        batching_share: share of a latency limit that waiting and running may take, for the price.
        memory_s: seconds for which the price remembers arrivals; a query that can wait 0.4 times as
            long is patient.
        reprice_s: seconds between two computations of the price.
        miss_penalty: accuracy points that a query not answered in time costs, besides its own.
        batching: the policy for queries bound on arrival: those with a cost limit.
    """

    def __init__(
        self,
        target_utilisation: float = 0.95,
        batching_share: float = 0.85,
        memory_s: float = 5.0,
        reprice_s: float = 0.02,
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
        if not 0.0 <= miss_penalty <= 1e6:
            raise InvalidInputError.of("miss_penalty", miss_penalty, "0 to 1000000")
        self._market = Market(target_utilisation, batching_share, miss_penalty, memory_s, reprice_s)
        self._left = LeftForOthers()
        # By scope and items: the estimates, and the least latency by minimum accuracy.
        self._ready: dict[tuple[str, int], tuple[Estimates, dict[float, float]]] = {}

    # -- on arrival ---------------------------------------------------------------------------

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        least_s = self._least_s(query, candidates)
        if query.max_cost_usd != math.inf:
            self._market.on_query(query, candidates.now_s)
            return self._bind(query, candidates)
        if least_s < math.inf and candidates.now_s + least_s <= query.deadline_s:
            self._market.on_query(query, candidates.now_s)
            return _DEFERRED
        # No placement could ever serve it, queue or not.
        return Reject(why_infeasible(query, list_options(query, candidates, "p50")))

    def on_late(self, query: QueryView, candidates: Candidates, rng: np.random.Generator) -> Choice:
        return self._bind(query, candidates)

    def _bind(self, query: QueryView, candidates: Candidates) -> Choice:
        """The most accurate feasible row; a worker that falls idle does not know what it costs."""
        options = list_options(query, candidates, "p90")
        row = best(candidates, options, -options.accuracy_percent, options.finish_s)
        if row is None:
            return Reject(why_infeasible(query, options))
        return Bind(row, Reason.BEST_VALUE)

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
        deferred = [queue for queue in queues if queue.variant_id is None]
        if len(deferred) < len(queues):
            bound = [queue for queue in queues if queue.variant_id is not None]
            decision = self.batching.next_batch(worker, bound, now_s)
            if isinstance(decision, Run) or not deferred:
                return decision
        market = self._market
        market.on_idle(worker, deferred, now_s)
        waiting = sum([len(queue.queries) for queue in deferred])
        chosen: Offer | None = None
        hopeless: list[QueryView] = []
        until_s = math.inf  # what is left for others, if anything, is left so long
        since_s = now_s  # and the head that was left first, since then
        looked = 0
        for queue in _most_urgent_first(deferred):
            menu = market.menu(worker, queue.scope)
            stands_s = self._left.until_s(menu, worker.device_class, queue, now_s)
            if stands_s > now_s:
                until_s = min(until_s, stands_s)
                continue
            left: list[QueryView] = []
            line = self._line_up(worker, queue, menu, waiting, now_s, hopeless, left)
            if left:
                until_s = min(until_s, look_again_s(now_s))
            if line is None:
                if left:
                    ids = [query.query_id for query in left]
                    head_s = self._left.put(menu, worker.device_class, queue, ids, now_s)
                    since_s = min(since_s, head_s)
                continue
            offer = self._offer(line)
            if offer is not None and (chosen is None or offer.worth > chosen.worth):
                chosen = offer
                if offer.worth >= -_GOOD_ENOUGH_POINTS * len(offer.queries):
                    break
            looked += 1
            if looked == _QUEUES_LOOKED_AT:
                break
        dropped = tuple(hopeless)
        if chosen is None:
            if until_s == math.inf:
                return Wait(Reason.NOTHING_QUEUED, dropped=dropped)
            market.fleet.on_left(worker.device_class, since_s, now_s)
            return Wait(Reason.WORTH_WAITING, until_s, dropped, for_alike=True)
        market.on_run(worker, chosen.busy_s, chosen.latency_s, now_s)
        return Run(chosen.variant_id, chosen.queries, Reason.BEST_VALUE, dropped)

    def _offer(self, line: Line) -> Offer | None:
        """The best batch from a line."""
        if len(line.queries) > 1 or line.queries[0].items > 1 or line.coming is not None:
            return best_for_now(line)
        worth, row = line.table.alone(line.slack_s[0], line.reach[0])
        menu = line.table.menu
        worth -= line.later()[0]
        busy_s, latency_s = float(menu.busy_s[row, 0]), float(menu.typical_s[row, 0])
        return Offer(worth, menu.variant_ids[row], tuple(line.queries), busy_s, latency_s)

    def _line_up(
        self,
        worker: WorkerView,
        queue: QueueView,
        menu: Menu,
        waiting: int,
        now_s: float,
        hopeless: list[QueryView],
        left: list[QueryView],
    ) -> Line | None:
        """Whom the worker could serve; None if nobody.

        The most urgent queries, all of the highest priority there. What the worker cannot serve,
        given all the time in the world, blocks nobody. Those for whom there is no time are there
        only if nobody else is looked at.

        Args:
            worker, queue: who asks, and where to look.
            menu: what the worker offers there.
            waiting: queries in all queues.
            now_s: the time.
            hopeless: takes up those whom nobody could serve in time.
            left: takes up those who are left for others.
        """
        market = self._market
        if not menu.variant_ids:
            return None
        table = market.table(menu, worker.device_class)
        admission = market.admission
        others = market.others(worker.device_class, queue.scope)
        # The most urgent may all be left for others.
        crowd = Crowd(menu, is_choosy=table.price > 0.0 or bool(others))
        standby = Crowd(menu, is_choosy=True)
        least_s = market.least_for(queue.scope)
        looked_at = 0
        for query in queue.queries:
            reach = menu.reach_for(query.min_accuracy_percent, query.items)
            if not reach:
                continue
            looked_at += 1
            if looked_at > _MOST_LOOKED_AT:
                break
            slack_s = query.deadline_s - now_s
            if slack_s < least_s:
                hopeless.append(query)
                continue
            if slack_s < menu.least_s:
                left.append(query)  # for a quicker worker, which this policy may not have met
                continue
            if (
                admission
                and reach not in crowd.enough
                and not admission.is_first(query)
                and not (admission.admits(query) and table.worth(slack_s, reach) > -table.penalty)
            ):
                standby.take(query, slack_s, reach)
            elif not crowd.take(query, slack_s, reach):
                break
        those = crowd if crowd.queries else standby
        return self._kept(worker, queue, table, those, others, waiting, now_s, left)

    def _kept(
        self,
        worker: WorkerView,
        queue: QueueView,
        table: ValueTable,
        crowd: Crowd,
        others: Mapping[str, Menu],
        waiting: int,
        now_s: float,
        left: list[QueryView],
    ) -> Line | None:
        """Those of a crowd who are not left for others; None if nobody is there."""
        if not crowd.queries:
            return None
        market, device_class = self._market, worker.device_class
        peers, wait_s = market.fleet.free(device_class, now_s, without=worker.worker_id)
        pressure = 0.0
        if table.price > 0.0:
            pressure = min(waiting / (table.menu.most * (peers + 1)), 1.0)
        line = Line(
            table,
            crowd.queries,
            crowd.slack_s,
            crowd.reach,
            min(wait_s, market.fleet.batch_s(device_class)),
            pressure,
            market.calm_table(table.menu, device_class),
            market.patient_s,
            market.coming(device_class, crowd.queries[0].priority, wait_s, now_s),
        )
        if not others:
            return line
        kept = self._better_here(line, others, waiting / len(queue.queries), now_s)
        if len(kept) == len(line.queries):
            return line
        if not kept:
            left += line.queries
            return None
        stay = set(kept)
        left += [query for place, query in enumerate(line.queries) if place not in stay]
        return line.only(kept)

    def _better_here(
        self,
        line: Line,
        others: Mapping[str, Menu],
        ahead_of: float,
        now_s: float,
    ) -> Sequence[int]:
        """Whom no other device class will soon serve better, as places.

        ``ahead_of``: how many go, of all queues, before the second of this one.
        """
        own, slacks_s, reaches = line.table, line.slack_s, line.reach
        margin = _BETTER_POINTS if own.price == 0.0 else _MUCH_BETTER_POINTS
        margin += _IN_DOUBT * own.price * own.menu.quickest_item_s(len(own.menu.variant_ids))
        kept = range(len(line.queries))
        left = set[int]()
        for name, menu in others.items():
            table = self._market.table(menu, name)
            least = table.most - margin
            ample_s = {reach: own.ample_s(least, reach) for reach in set(reaches)}
            doubtful = [place for place in kept if slacks_s[place] < ample_s[reaches[place]]]
            workers, wait_s = self._market.fleet.free(name, now_s) if doubtful else (0, math.inf)
            if not workers:
                continue
            # Who is ahead in this queue runs in one batch with it; the others' are shared out.
            batches = 1.0 + (ahead_of - 1.0) / workers
            item_s = batches * menu.quickest_item_s(len(menu.variant_ids))
            item_s *= self._market.delay_of(name)
            for place in doubtful:
                slack_s = slacks_s[place]
                reach = menu.reach(line.queries[place].min_accuracy_percent)
                elsewhere = table.worth(slack_s - wait_s - place * item_s, reach)
                if elsewhere > own.worth(slack_s, reaches[place]) + margin:
                    left.add(place)
        return [place for place in kept if place not in left] if left else kept


def _most_urgent_first(queues: list[QueueView]) -> Iterator[QueueView]:
    """By their heads; the order of the others is not worked out if only the first is wanted."""
    if len(queues) < 2:
        yield from queues
        return
    keys = heads(queues)
    first = keys.index(min(keys))
    yield queues[first]
    for place in sorted(range(len(queues)), key=keys.__getitem__):
        if place != first:
            yield queues[place]
