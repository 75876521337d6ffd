"""Quotes: what a query could have now, and how probably it would be in time.

A quote reads the same candidates, backlogs and queues as a choice does, and changes none of them.
The start is when the workers that could serve the query, each at the rate of its quickest variant
that is allowed, will have done what waits before it. With a placement's median and p99 it gives a
margin: the time left, in standard deviations of wait and latency together.

A margin alone says nothing of what comes later: queries that overtake, and a policy's own ways. So
some arrivals are quoted silently, and the probability of a margin is the share of those with a
margin like it that were in time (histogram binning: Zadrozny and Elkan, ICML 2001): of queries with
like limits, as far as there are any, with the share of all queries as the prior, and the normal
distribution as the prior of that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.queues import WaitingQueries
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.dispatch.refusal_messages import Offer, nearest_limits
from modelless.policies.priorities import rank
from modelless.policies.reasons import Reason
from modelless.policies.scopes import base_of
from modelless.policies.selection.feasibility import list_options, why_infeasible
from modelless.policies.views import Candidates, FloatArray, QueryView

SURE: Final = 1.645
"""The margin of an answer that is in time with a probability of 95 %, as the estimates have it."""

_Z99: Final = 2.326
_WAIT_SPREAD: Final = 0.3  # standard deviation of a wait, as a part of it
_QUEUES_LOOKED_AT: Final = 128
_QUERIES_LOOKED_AT: Final = 16  # of a queue; they stand for the others

_EDGES: Final = (-4.0, -2.5, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 8.0, 16.0)
_EVERY_S: Final = 0.03  # between two silent quotes
_MOST_OPEN: Final = 512
_MOST_KINDS: Final = 512
_PRIOR: Final = 8.0  # silent quotes that the prior counts as
_KEPT: Final = 256.0  # silent quotes in a bin that count; older ones fade


class QuotedPlacement(NamedTuple):
    """A placement that is ready, and what a query could expect of it now.

    Attributes:
        variant_id, device_class: the placement.
        probability: of being in time there, 0 to 1.
        wait_s: until a worker with it could begin.
        latency_s, p99_latency_s: from now to the answer, wait included: median, and p99 if the wait
            is as expected.
        accuracy_percent, cost_usd: as a choice sees them.
    """

    variant_id: str
    device_class: str
    probability: float
    wait_s: float
    latency_s: float
    p99_latency_s: float
    accuracy_percent: float
    cost_usd: float


class Quote(NamedTuple):
    """The answer to a query that is not sent yet.

    Attributes:
        probability: of an answer in time and within the other limits, by whatever serves it.
        reason: why nothing that is ready is expected to be in time within the limits; None if
            something is.
        serves: the most accurate placement that is surely in time, or else the one most probably in
            time; the policy may choose another that is within the limits. None if none is accurate
            and cheap enough.
        fastest: the quickest that is accurate and cheap enough, whatever the latency limit.
        most_accurate: the most accurate that is surely in time and cheap enough.
        cheapest: the cheapest that is surely in time and accurate enough.
        nearest: limits that an idle system could meet, if it cannot meet those of the query.
        load_s: until a variant that is not loaded could answer, if nothing ready is accurate
            enough; None otherwise, or if none could.
    """

    probability: float
    reason: Reason | None
    serves: QuotedPlacement | None
    fastest: QuotedPlacement | None
    most_accurate: QuotedPlacement | None
    cheapest: QuotedPlacement | None
    nearest: tuple[Offer, ...]
    load_s: float | None


class _Outlook(NamedTuple):
    """The expected figures of each candidate, shape (n,).

    Attributes:
        candidates: the rows.
        allowed: whether accurate and cheap enough, with known latency.
        wait_s, latency_s: until it could begin, and until the answer, from now.
        margin: see the module; -inf where the latency is unknown.
        best: the margin of the best row that is allowed.
    """

    candidates: Candidates
    allowed: NDArray[np.bool_]
    wait_s: FloatArray
    latency_s: FloatArray
    margin: FloatArray
    best: float


class _Silent(NamedTuple):
    receipt: Receipt
    bins: list[_Bin]
    weight: int  # the arrivals that it stands for


@dataclass(slots=True)
class _Bin:
    """Silent quotes with like margins, and those of them that were in time; older ones fade."""

    quotes: float = 0.0
    in_time: float = 0.0


class Quotes:
    """Quotes of one dispatcher.

    Args:
        instances: the ready instances.
        waiting: the queries that wait.
        limits: tell how many items a query may have, and whether it may wait for a load.
    """

    def __init__(
        self, instances: ReadyInstances, waiting: WaitingQueries, limits: DispatchLimits
    ) -> None:
        self._instances = instances
        self._waiting = waiting
        self._limits = limits
        self._bins: dict[tuple[object, ...], list[_Bin]] = {}  # by kind
        self._silent: list[_Silent] = []
        self._next_s = -math.inf
        self._arrived = 0  # since the last silent quote

    def quote(self, query: QueryView, now_s: float) -> Quote:
        """Return what the query could expect if it arrived now; changes nothing."""
        if not 1 <= query.items <= self._limits.max_batch:
            return Quote(0.0, Reason.BAD_ITEM_COUNT, None, None, None, None, (), None)
        outlook = self._look(query, now_s)
        candidates, allowed, _, latency_s, margin, best = outlook
        load_s = self._load_s(query, now_s)
        if load_s is not None:
            best = _load_margin(query, load_s, now_s)
        accuracy, cost = candidates.accuracy_percent, candidates.cost_usd
        sure, known = margin >= SURE, np.isfinite(latency_s)
        accurate, cheap = accuracy >= query.min_accuracy_percent, cost <= query.max_cost_usd

        def pick(rows: NDArray[np.bool_], *keys: FloatArray) -> QuotedPlacement | None:
            found = np.flatnonzero(rows)
            if not len(found):
                return None
            row = int(found[np.lexsort([key[found] for key in reversed(keys)])[0]])
            return self._placement(query, outlook, row)

        serves = pick(allowed & sure, -accuracy, cost, latency_s) or pick(allowed, -margin)
        reason = None
        if not best >= 0.0:
            reason = why_infeasible(query, list_options(query, candidates, "p50"))
        return Quote(
            self._probability(query, best, is_load=load_s is not None),
            reason,
            serves,
            pick(allowed, latency_s, -accuracy),
            pick(sure & cheap, -accuracy, latency_s),
            pick(sure & accurate & known, cost, -accuracy),
            nearest_limits(query, candidates) if reason is not None else (),
            load_s,
        )

    def quote_each(self, query: QueryView, now_s: float) -> list[QuotedPlacement]:
        """Return what the query could expect of each placement that is ready."""
        if not 1 <= query.items <= self._limits.max_batch:
            return []
        outlook = self._look(query, now_s)
        rows = np.flatnonzero(np.isfinite(outlook.latency_s)).tolist()
        return [self._placement(query, outlook, row) for row in rows]

    def note_arrival(self, receipt: Receipt, now_s: float) -> None:
        """Quote a query that arrives silently, if it is time to, to learn from what comes of it."""
        self._arrived += 1
        if now_s < self._next_s or receipt.query.deadline_s == math.inf:
            return
        self._next_s = now_s + _EVERY_S
        still_open = []
        for silent in self._silent:
            if _is_over(silent.receipt, now_s):
                self._learn(silent)
            else:
                still_open.append(silent)
        self._silent = still_open
        if len(still_open) >= _MOST_OPEN:
            return
        weight, self._arrived = self._arrived, 0
        query = receipt.standing or receipt.query
        load_s = self._load_s(query, now_s)
        if load_s is not None:
            margin = _load_margin(query, load_s, now_s)
        elif self._instances.is_served(query.scope):
            margin = self._look(query, now_s).best
        else:  # it is refused, whatever the load
            return
        number, bins = bisect_right(_EDGES, margin), []
        for key in _kinds_of(query, is_load=load_s is not None):
            if key not in self._bins and len(self._bins) < _MOST_KINDS:
                self._bins[key] = [_Bin() for _ in range(len(_EDGES) + 1)]
            bins += [self._bins[key][number]] if key in self._bins else []
        self._silent.append(_Silent(receipt, bins, weight))

    def _learn(self, silent: _Silent) -> None:
        if silent.receipt.outcome == "cancelled":
            return
        kept, in_time = 1.0 - 1.0 / _KEPT, silent.receipt.outcome == "served"
        for found in silent.bins:
            found.quotes = found.quotes * kept + silent.weight
            found.in_time = found.in_time * kept + silent.weight * in_time

    def _look(self, query: QueryView, now_s: float) -> _Outlook:
        instances, own = self._instances, rank(query)
        candidates = instances.candidates(query.scope, query.items, now_s, own, query.size)
        estimates = candidates.estimates
        with np.errstate(invalid="ignore"):
            known = np.isfinite(estimates.p50_s) & np.isfinite(estimates.p99_s)
            allowed = known & (candidates.accuracy_percent >= query.min_accuracy_percent)
            allowed &= candidates.cost_usd <= query.max_cost_usd
            ahead = self._queries_ahead(query)
            start_s = instances.start_s(query, allowed if allowed.any() else known, ahead, now_s)
            wait_s = np.maximum(candidates.free_at_s, start_s) - now_s
            latency_s = wait_s + estimates.p50_s
            spread_s = np.hypot((estimates.p99_s - estimates.p50_s) / _Z99, _WAIT_SPREAD * wait_s)
            left_s = query.deadline_s - now_s
            margin = (left_s - latency_s) / np.maximum(spread_s, 1e-6)
        margin = np.where(known, margin, -np.inf)
        best = float(margin[allowed].max(initial=-np.inf))
        return _Outlook(candidates, allowed, wait_s, latency_s, margin, best)

    def _load_s(self, query: QueryView, now_s: float) -> float | None:
        """Return when a load could serve the query, from now, if it would wait for one."""
        instances = self._instances
        if instances.is_served_accurately(query.scope, query.min_accuracy_percent):
            return None
        load_s = instances.fastest_load_s(query)
        return load_s if load_s <= min(query.deadline_s - now_s, self._limits.max_hold_s) else None

    def _queries_ahead(self, query: QueryView) -> float:
        """Return how many queries like this one take as long as what is served before it.

        Of the deferred queries only: the bound ones are in the backlogs of their workers.
        """
        place, serving = self._waiting.place, self._instances.groups_by_scope[query.scope]
        own, ahead_us = (rank(query), query.deadline_s, math.inf), 0.0
        for queue in islice(self._waiting.deferred.values(), _QUEUES_LOOKED_AT):
            if serving.isdisjoint(self._instances.groups_by_scope[queue.key[0]]):
                continue
            count = queue.count_before(own)
            step = -(-count // _QUERIES_LOOKED_AT) or 1
            for other in islice(queue, step // 2, count, step):
                found = place(other.query_id)
                ahead_us += step * found.work_us if found is not None else 0.0
        return ahead_us / max(self._instances.least_work_us(query), 1)

    def _probability(self, query: QueryView, margin: float, *, is_load: bool = False) -> float:
        probability = 0.5 * math.erfc(-margin / math.sqrt(2.0))
        number = bisect_right(_EDGES, margin)
        for key in _kinds_of(query, is_load=is_load):
            if key in self._bins:
                found = self._bins[key][number]
                probability = (found.in_time + _PRIOR * probability) / (found.quotes + _PRIOR)
        return probability

    def _placement(self, query: QueryView, outlook: _Outlook, row: int) -> QuotedPlacement:
        candidates, wait_s = outlook.candidates, float(outlook.wait_s[row])
        placement = candidates.placements[row]
        return QuotedPlacement(
            placement.variant_id,
            placement.device_class,
            self._probability(query, float(outlook.margin[row])),
            wait_s,
            float(outlook.latency_s[row]),
            wait_s + float(candidates.estimates.p99_s[row]),
            float(candidates.accuracy_percent[row]),
            float(candidates.cost_usd[row]),
        )


def _kinds_of(query: QueryView, *, is_load: bool) -> tuple[tuple[object, ...], ...]:
    """Return a coarse kind of queries that fare alike, and a fine one."""
    coarse = rank(query), is_load
    limit_s = query.deadline_s - query.arrival_s
    octave = round(2.0 * math.log2(limit_s)) if 0.0 < limit_s < math.inf else None
    return coarse, (*coarse, base_of(query.scope), octave, round(query.min_accuracy_percent))


def _load_margin(query: QueryView, load_s: float, now_s: float) -> float:
    return (query.deadline_s - now_s - load_s) / (_WAIT_SPREAD * load_s)


def _is_over(receipt: Receipt, now_s: float) -> bool:
    """Whether it is known if the query was in time."""
    return receipt.outcome not in ("waiting", "running") or receipt.query.deadline_s < now_s
