"""Who waits for what: each worker's queues, those of nobody yet, and the books that go with them.

Every waiting query is in exactly one queue. A worker's backlog is the sum of what its waiting
queries were expected to take when they were put there, so that it returns to zero whatever the
cost model has learned since.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from modelless.policies.views import QueryView

QueueKey = tuple[str, str | None, Hashable]
"""Scope, variant (None if nobody chose yet) and batch key."""


@dataclass(slots=True, eq=False)
class Batch:
    """What a worker runs.

    Attributes:
        items: of all its queries.
        overdue_at_s: when it is given up.
    """

    batch_id: int
    variant_id: str
    queries: tuple[QueryView, ...]
    items: int
    overdue_at_s: float


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as dispatch sees it.

    Attributes:
        running: its batch; None if it is idle.
        busy_until_s: when the batch is predicted to end, or when the last one ended.
        backlog_s: what its waiting queries are expected to take, seconds.
        queues: what waits for it.
    """

    worker_id: str
    device_class: str
    running: Batch | None = None
    busy_until_s: float = -math.inf
    backlog_s: float = 0.0
    queues: dict[QueueKey, list[QueryView]] = field(default_factory=dict)


def urgency(query: QueryView) -> tuple[int, float, int]:
    """The order in queues: priority, then deadline, then arrival."""
    return (-query.priority, query.deadline_s, query.query_id)


class Place(NamedTuple):
    """Where a query waits: for ``worker``, or for anyone if that is None."""

    query: QueryView
    worker: Worker | None
    key: QueueKey
    service_s: float


class WaitingRoom:
    """All waiting queries of one dispatcher."""

    def __init__(self) -> None:
        self.deferred: dict[QueueKey, list[QueryView]] = {}
        self._places: dict[int, Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def place(self, query_id: int) -> Place | None:
        """Where the query waits; None if it does not."""
        return self._places.get(query_id)

    def bind(self, query: QueryView, worker: Worker, variant_id: str, service_s: float) -> None:
        """Let the query wait for the worker.

        Args:
            service_s: seconds it is expected to take alone; counts as 0 if not finite.
        """
        key: QueueKey = (query.scope, variant_id, query.batch_key)
        service_s = service_s if math.isfinite(service_s) else 0.0
        insort(worker.queues.setdefault(key, []), query, key=urgency)
        worker.backlog_s += service_s
        self._places[query.query_id] = Place(query, worker, key, service_s)

    def defer(self, query: QueryView) -> None:
        """Let the query wait for whichever worker takes it."""
        key: QueueKey = (query.scope, None, query.batch_key)
        insort(self.deferred.setdefault(key, []), query, key=urgency)
        self._places[query.query_id] = Place(query, None, key, 0.0)

    def take(self, query_id: int) -> Place:
        """Take a waiting query out; returns where it was."""
        place = self._places.pop(query_id)
        worker = place.worker
        queues = self.deferred if worker is None else worker.queues
        queue = queues[place.key]
        queue.remove(place.query)
        if not queue:
            del queues[place.key]
        if worker is not None:
            worker.backlog_s = worker.backlog_s - place.service_s if worker.queues else 0.0
        return place

    def everyone(self) -> list[QueryView]:
        """All waiting queries, most urgent first."""
        return sorted((place.query for place in self._places.values()), key=urgency)

    def expired(self, now_s: float) -> list[QueryView]:
        """Waiting queries whose deadline has passed, most urgent first."""
        places = self._places.values()
        expired = [place.query for place in places if place.query.deadline_s <= now_s]
        expired.sort(key=urgency)
        return expired
