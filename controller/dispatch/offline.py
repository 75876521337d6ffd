"""Offline queries: those of priority -1, which get what all others leave.

No policy sees them, so they change neither its prices nor its choices, and they are no demand that
anything is loaded or started for. An idle worker to which the policy gives nothing runs a batch of
them, with the variant that takes the least device time of those within their limits.

A batch is not interrupted, so it must be short beside the time that online queries can wait: their
latency limit less the least run time. It takes at most an eighth of the wait that 99 % of the
recent online queries can bear, and at most half of it if it is one query. With no online queries
lately, one query may take any time, and a batch ``_LONGEST_S``.
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
_PART_OF_BATCH: Final = 0.125
_PART_OF_QUERY: Final = 0.5
_IGNORED: Final = 0.01
"""So many of the online queries may be less patient than a batch assumes."""
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
    """Makes batches of offline queries, which are short beside what online queries can wait."""

    def __init__(self) -> None:
        # Online queries by how long they could wait, in powers of the square root of 2 seconds.
        self._patience: Counter[int] = Counter()
        self._patience_before: Counter[int] = Counter()
        self._began_s = -math.inf

    def count_online(self, query: QueryView, least_s: float, now_s: float) -> None:
        """Count an online query that arrived; it runs for ``least_s`` seconds at least."""
        if now_s - self._began_s >= _WINDOW_S:
            self._begin_window(now_s)
        patience_s = query.deadline_s - query.arrival_s - least_s
        if 0.0 < patience_s < math.inf:
            fraction, exponent = math.frexp(patience_s)  # quicker than a logarithm
            self._patience[2 * exponent - 2 + (fraction >= _ROOT_HALF)] += 1

    def find_most_s(self, now_s: float) -> float:
        """Return how long almost all recent online queries can wait, seconds; inf without any."""
        if now_s - self._began_s >= _WINDOW_S:
            self._begin_window(now_s)
        counts = self._patience + self._patience_before
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
        return best or Wait(Reason.NOTHING_QUEUED, now_s + _LOOK_AGAIN_S)

    def _begin_window(self, now_s: float) -> None:
        is_recent = now_s - self._began_s < 2.0 * _WINDOW_S
        self._patience_before = self._patience if is_recent else Counter()
        self._patience, self._began_s = Counter(), now_s


def _fill(
    queued: Sequence[QueryView],
    resident: ResidentView,
    most: int,
    price_usd_per_s: float,
    wait_s: float,
) -> list[QueryView]:
    """Return the first queries that a variant may serve, as many as make a short batch."""
    queries: list[QueryView] = []
    items, longest_s = 0, _PART_OF_QUERY * wait_s
    for query in islice(queued, 2 * most):
        more = items + query.items
        if more > most or resident.accuracy_percent < query.min_accuracy_percent:
            continue
        if not price_usd_per_s * resident.p50_s[query.items] <= query.max_cost_usd:
            continue
        if not resident.p99_s[more] <= longest_s or resident.p50_s[more] == math.inf:
            break
        queries.append(query)
        items, longest_s = more, min(_PART_OF_BATCH * wait_s, _LONGEST_S)
    return queries
