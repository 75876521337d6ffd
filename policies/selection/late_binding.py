"""The common base of policies that bind when a worker becomes idle.

On arrival such a policy rejects queries that no placement could serve in time, and defers all
others. When a worker becomes idle it takes the most urgent query that the worker can still serve,
and builds a batch from it. Costs are not known then, so it checks a maximum cost only on arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from modelless.policies.priorities import urgency
from modelless.policies.reasons import Reason
from modelless.policies.scopes import in_scope
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.eligibility import list_all_options, why_never
from modelless.policies.views import (
    Candidates,
    Choice,
    Defer,
    FloatArray,
    QueryView,
    QueueView,
    Reject,
    ResidentView,
    Run,
    Wait,
    WorkerView,
)

_LOOK_AGAIN_S = 0.1
"""The seconds after which a worker that can serve nothing of the queues is asked again."""


class Head(NamedTuple):
    """The most urgent query of a queue that the worker can start in time.

    Attributes:
        query: the query, the first of ``queries``.
        queries: the query and all behind it.
        residents: variants that can serve it in time, alone.
    """

    query: QueryView
    queries: Sequence[QueryView]
    residents: tuple[ResidentView, ...]


class Prefix(NamedTuple):
    """A possible batch.

    Attributes:
        members: the head and the most urgent of the others.
        items: number of items of all members.
        latency_s: p99 of the batch, seconds.
        deadline_s: earliest deadline of the members, seconds.
    """

    members: tuple[QueryView, ...]
    items: int
    latency_s: float
    deadline_s: float

    @property
    def latest_start_s(self) -> float:
        """The latest start with which all members are in time, seconds."""
        return self.deadline_s - self.latency_s


class LateBinding(SelectionPolicy):
    """Defers on arrival; subclasses choose when a worker is idle."""

    quantile = "p99"

    def __init__(self) -> None:
        super().__init__()
        # By scope and items: accuracy and p99 of all rows at the last such arrival.
        self._offers: dict[tuple[str, int], tuple[FloatArray, FloatArray]] = {}

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        options = list_all_options(query, candidates, self.quantile)
        offer = (options.accuracy_percent, options.latency_s)
        self._offers[query.scope, query.items] = offer
        never = why_never(query, options)
        return Defer(Reason.LATE_BINDING) if never is None else Reject(never)

    def variants_for(
        self, query: QueryView, residents: Sequence[ResidentView]
    ) -> Sequence[ResidentView]:
        """Returns which of these accurate variants may serve the query; all by default."""
        del query
        return residents

    def heads(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float
    ) -> tuple[list[Head], tuple[QueryView, ...]]:
        """Returns the head of each deferred queue, and the queries before them that are lost.

        A query is lost if it can no longer be in time with anything that was ready anywhere when
        the last query of its kind arrived.
        """
        heads, lost = [], []
        for queue in queues:
            if queue.variant_id is not None:
                continue
            residents = [
                resident
                for name, resident in worker.residents.items()
                if in_scope(name, queue.scope) and math.isfinite(resident.p99_s[1])
            ]
            alike: dict[tuple[int, float], tuple[list[ResidentView], float]] = {}
            for position, query in enumerate(queue.queries):
                kind = (query.items, query.min_accuracy_percent)
                if kind not in alike:  # a long queue has queries of few kinds
                    accurate = [r for r in residents if _can_run(query, r, worker.max_batch)]
                    alike[kind] = (accurate, self._quickest_s(query))
                accurate, quickest_s = alike[kind]
                able = tuple(
                    resident
                    for resident in self.variants_for(query, accurate)
                    if now_s + resident.p99_s[query.items] <= query.deadline_s
                )
                if able:
                    heads.append(Head(query, queue.queries[position:], able))
                    break
                if now_s + quickest_s > query.deadline_s:
                    lost.append(query)
        heads.sort(key=lambda head: urgency(head.query))
        return heads, tuple(lost)

    def _quickest_s(self, query: QueryView) -> float:
        """Returns the least p99 of all accurate enough, seconds; 0 if none is known."""
        offer = self._offers.get((query.scope, query.items))
        if offer is None:
            return 0.0
        accuracy_percent, latency_s = offer
        allowed = latency_s[accuracy_percent >= query.min_accuracy_percent]
        return float(np.fmin.reduce(allowed, initial=np.inf))


def prefixes(head: Head, resident: ResidentView, most: int) -> Iterator[Prefix]:
    """Returns the batches of a head with a variant, from the head alone to ``most`` items.

    Queries that want more accuracy than the variant has are skipped.
    """
    members: tuple[QueryView, ...] = ()
    items, earliest_s = 0, math.inf
    for query in head.queries:
        if query.min_accuracy_percent > resident.accuracy_percent:
            continue
        items += query.items
        if items > min(most, len(resident.p99_s) - 1):
            return
        members = (*members, query)
        earliest_s = min(earliest_s, query.deadline_s)
        yield Prefix(members, items, resident.p99_s[items], earliest_s)


def in_time(batches: Iterable[Prefix], now_s: float) -> list[Prefix]:
    """Returns the batches whose latest start has not passed."""
    return [batch for batch in batches if now_s + batch.latency_s <= batch.deadline_s]


def run_or_wait(
    chosen: tuple[ResidentView, Prefix] | None,
    reason: Reason,
    lost: tuple[QueryView, ...],
    now_s: float,
) -> Run | Wait:
    """Returns the decision: the chosen batch, if any, with the lost queries dropped."""
    if chosen is None:
        return Wait(Reason.NOTHING_QUEUED, now_s + _LOOK_AGAIN_S, lost)
    resident, batch = chosen
    return Run(resident.variant_id, batch.members, reason, lost)


def _can_run(query: QueryView, resident: ResidentView, most: int) -> bool:
    return (
        query.items <= min(most, len(resident.p99_s) - 1)
        and resident.accuracy_percent >= query.min_accuracy_percent
    )
