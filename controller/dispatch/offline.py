"""Offline queries: those of priority -1, which get what all others leave.

No policy sees them, so they change neither its prices nor its choices, and they are no demand that
anything is loaded or started for. An idle worker to which the policy gives nothing runs a batch of
them, with the variant that takes the least device time of those within their limits.

A batch is not interrupted, so it is no longer than the time that 80 % of the recent online queries
had left of their limit when they were answered, and a batch of several queries takes ``_LONGEST_S``
at most. With no online queries lately, one query may take any time.

Whatever that foresees, online queries that are late beside offline batches are few: each takes from
a credit, and each that is in time adds ``_LATE_SHARE`` to it. While it is used up, no offline batch
begins. So at most that share of the online queries is late because of offline queries, be it for a
batch, for a busy processor, or for an estimate that is wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from modelless.policies.reasons import Reason
from modelless.policies.scopes import in_scope
from modelless.policies.views import (
    Candidates,
    Choice,
    Defer,
    QueryView,
    QueueView,
    Reject,
    ResidentView,
    Run,
    Wait,
    WorkerView,
)
from modelless.variants.vocabulary import OFFLINE

_LONGEST_S: Final = 0.025
_LATE_SHARE: Final = 0.005
"""Of the online queries, that may be late beside offline batches."""
_MOST_CREDIT: Final = 5.0
"""Late queries; the debt is no larger, so that one stall does not end offline work for long."""
_IGNORED: Final = 0.2
"""So many of the online queries may have less time left than a batch takes."""
_WINDOW_S: Final = 5.0
"""Online queries count for one to two windows of this length."""
_LOOK_AGAIN_S: Final = 0.1
_ROOT_HALF: Final = math.sqrt(0.5)


def is_offline(query: QueryView) -> bool:
    """Return whether a query is offline."""
    return query.priority <= OFFLINE


def choose_offline(
    query: QueryView, candidates: Candidates, load_s: float, *, is_served: bool
) -> Choice:
    """Return whether an offline query waits for a worker or is refused.

    Args:
        query: the query.
        candidates: its candidates.
        load_s: after how many seconds a load could serve it; inf if none could.
        is_served: whether anything ready is accurate enough.
    """
    if not is_served:
        is_ready_or_never = candidates.placements and load_s == math.inf
        return Reject(Reason.TOO_INACCURATE if is_ready_or_never else Reason.NOTHING_READY)
    allowed = candidates.accuracy_percent >= query.min_accuracy_percent
    if not (candidates.cost_usd[allowed] <= query.max_cost_usd).any():
        return Reject(Reason.TOO_DEAR)
    return Defer(Reason.DEFERRED)


class OfflineBatches:
    """Makes batches of offline queries, which online queries can wait for."""

    def __init__(self) -> None:
        # Online queries by what they had left of their limit, in powers of the square root of 2
        # seconds.
        self._left: Counter[int] = Counter()
        self._left_before: Counter[int] = Counter()
        self._began_s = self._ended_s = -math.inf
        self._until_s = -math.inf  # offline batches ran, or will run, until then
        self._credit = _MOST_CREDIT

    def note_end(self, query: QueryView, left_s: float, now_s: float) -> None:
        """Note that an online query was answered with so much of its limit left, or refused: 0."""
        if now_s - self._began_s >= _WINDOW_S:
            self._begin_window(now_s)
        self._ended_s = now_s
        if left_s <= 0.0:
            # An offline batch delays those that wait, and those that come to wait behind them.
            if 2.0 * query.arrival_s - query.deadline_s <= self._until_s:
                self._credit = max(self._credit - 1.0, -_MOST_CREDIT)
            return
        self._credit = min(self._credit + _LATE_SHARE, _MOST_CREDIT)
        if left_s < math.inf:
            fraction, exponent = math.frexp(left_s)  # quicker than a logarithm
            self._left[2 * exponent - 2 + (fraction >= _ROOT_HALF)] += 1

    def find_most_s(self, now_s: float) -> float:
        """Return how long a batch may take now, seconds; inf if there is nothing online."""
        if now_s - self._began_s >= _WINDOW_S:
            self._begin_window(now_s)
        if self._credit < 0.0 and now_s - self._ended_s < 2.0 * _WINDOW_S:
            return 0.0
        counts = self._left + self._left_before
        ignored = _IGNORED * counts.total()
        for step in sorted(counts):
            ignored -= counts[step]
            if ignored < 0.0:
                return float(2.0 ** (step / 2.0))
        return math.inf

    def choose_batch(
        self, worker: WorkerView, queues: Sequence[QueueView], price_usd_per_s: float, now_s: float
    ) -> Run | Wait:
        """Return the batch with the least device time an item, or a wait if none is short enough.

        Args:
            worker: the idle worker.
            queues: of offline queries, whose items have one size.
            price_usd_per_s: of the worker's time.
            now_s: the present.
        """
        wait_s = self.find_most_s(now_s)
        best, best_s = None, math.inf
        for queue in queues:
            for resident in worker.residents.values():
                if not in_scope(resident.variant_id, queue.scope):
                    continue
                queries = _fill(queue.queries, resident, worker.max_batch, price_usd_per_s, wait_s)
                items = sum([query.items for query in queries])
                if queries and resident.p50_s[items] / items < best_s:
                    best_s = resident.p50_s[items] / items
                    best = Run(resident.variant_id, tuple(queries), Reason.CHEAPEST_FEASIBLE)
                    until_s = now_s + resident.p99_s[items]
        if best is not None:
            self._until_s = max(self._until_s, until_s)
        return best or Wait(Reason.NOTHING_QUEUED, now_s + _LOOK_AGAIN_S)

    def _begin_window(self, now_s: float) -> None:
        is_recent = now_s - self._began_s < 2.0 * _WINDOW_S
        self._left_before = self._left if is_recent else Counter()
        self._left, self._began_s = Counter(), now_s


def _fill(
    queued: Sequence[QueryView],
    resident: ResidentView,
    most: int,
    price_usd_per_s: float,
    wait_s: float,
) -> list[QueryView]:
    """Return the first queries that a variant may serve, as many as make a short batch."""
    queries: list[QueryView] = []
    items, longest_s = 0, wait_s
    for query in islice(queued, 2 * most):
        more = items + query.items
        if more > most or resident.accuracy_percent < query.min_accuracy_percent:
            continue
        if not price_usd_per_s * resident.p50_s[query.items] <= query.max_cost_usd:
            continue
        if not resident.p99_s[more] <= longest_s or resident.p50_s[more] == math.inf:
            break
        queries.append(query)
        items, longest_s = more, min(wait_s, _LONGEST_S)
    return queries
