"""Who waits for what: each worker's queues, those of nobody yet, and the books that go with them.

Every waiting query is in exactly one queue. A worker's backlog is the sum of what its waiting
queries were expected to take when they were put there, so that it returns to zero whatever the
cost model has learned since.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from modelless.policies.batching.urgency import urgency
from modelless.policies.views import QueryView, QueueView

QueueKey = tuple[str, str | None, Hashable]
"""Scope, variant (None if nobody chose yet) and batch key."""

_MOST_COPIED = 64
"""Queries of a queue that are copied for a policy; of longer ones it gets a ``Window``."""


@dataclass(slots=True, eq=False)
class Batch:
    """What a worker runs.

    Attributes:
        device_class: what the worker was when it began.
        items: of all its queries.
        started_s: when it was handed to the worker.
        expected_s: how long it should take, at the median; inf if that is unknown.
        suspect_at_s: from when on it hangs; inf if one of its queries may not be tried again.
        overdue_at_s: when it is given up.
    """

    batch_id: int
    variant_id: str
    device_class: str
    queries: tuple[QueryView, ...]
    items: int
    started_s: float
    expected_s: float
    suspect_at_s: float
    overdue_at_s: float


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as dispatch sees it.

    Attributes:
        number: that of a worker who came later is higher.
        running: its batch; None if it is idle.
        busy_until_s: when the batch is predicted to end, or when the last one ended.
        backlog_s: what its waiting queries are expected to take, seconds.
        queues: what waits for it; none of them is empty.
    """

    worker_id: str
    device_class: str
    number: int = 0
    running: Batch | None = None
    busy_until_s: float = -math.inf
    backlog_s: float = 0.0
    queues: dict[QueueKey, Queue] = field(default_factory=dict)


class Window(Sequence[QueryView]):
    """What policies see of a long queue: it is always as the queue is, and cannot be changed."""

    __slots__ = ("_queries",)

    def __init__(self, queries: list[QueryView]) -> None:
        self._queries = queries

    def __len__(self) -> int:
        return len(self._queries)

    def __iter__(self) -> Iterator[QueryView]:
        return iter(self._queries)

    @overload
    def __getitem__(self, place: int) -> QueryView: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[QueryView, ...]: ...

    def __getitem__(self, place: int | slice) -> QueryView | tuple[QueryView, ...]:
        if isinstance(place, slice):
            return tuple(self._queries[place])
        return self._queries[place]


class Queue:
    """Queries that may share a batch, the most urgent first.

    Attributes:
        key: what they have in common.
    """

    __slots__ = ("_queries", "_urgencies", "_view", "key")

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self._queries: list[QueryView] = []
        self._urgencies: list[tuple[int, float, int]] = []
        self._view: QueueView | None = None  # None if it is to be made anew

    def __len__(self) -> int:
        return len(self._queries)

    def __iter__(self) -> Iterator[QueryView]:
        return iter(self._queries)

    @property
    def view(self) -> QueueView:
        """What policies are shown."""
        view = self._view
        if view is None:
            queries = self._queries
            shown = tuple(queries) if len(queries) <= _MOST_COPIED else Window(queries)
            view = self._view = QueueView(*self.key, shown)
        return view

    def add(self, query: QueryView) -> None:
        """Put a query where it belongs."""
        self._view = None
        own = urgency(query)
        place = bisect_right(self._urgencies, own)
        self._urgencies.insert(place, own)
        self._queries.insert(place, query)

    def remove(self, query: QueryView) -> None:
        """Take a query out that is there."""
        self._view = None
        place = 0 if self._queries[0] is query else bisect_left(self._urgencies, urgency(query))
        del self._urgencies[place]
        del self._queries[place]

    def expired(self, now_s: float) -> list[QueryView]:
        """Those whose deadline has passed: of each priority, the first ones."""
        urgencies, expired, start = self._urgencies, list[QueryView](), 0
        while start < len(urgencies):
            rank = urgencies[start][0]
            end = bisect_right(urgencies, (rank, now_s, math.inf), start)
            expired += self._queries[start:end]
            start = bisect_left(urgencies, (rank + 1,), end)
        return expired


class Place(NamedTuple):
    """Where a query waits: for ``worker``, or for anyone if that is None."""

    query: QueryView
    worker: Worker | None
    queue: Queue
    service_s: float


class WaitingRoom:
    """All waiting queries of one dispatcher.

    Attributes:
        deferred: the queues of nobody yet; none of them is empty.
    """

    def __init__(self) -> None:
        self.deferred: dict[QueueKey, Queue] = {}
        self._places: dict[int, Place] = {}
        self._all: dict[Queue, None] = {}  # the deferred ones and those of workers

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
        service_s = service_s if math.isfinite(service_s) else 0.0
        worker.backlog_s += service_s
        key: QueueKey = (query.scope, variant_id, query.batch_key)
        self._put(query, worker, key, worker.queues, service_s)

    def defer(self, query: QueryView) -> None:
        """Let the query wait for whichever worker takes it."""
        self._put(query, None, (query.scope, None, query.batch_key), self.deferred, 0.0)

    def _put(
        self,
        query: QueryView,
        worker: Worker | None,
        key: QueueKey,
        queues: dict[QueueKey, Queue],
        service_s: float,
    ) -> None:
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = Queue(key)
            self._all[queue] = None
        queue.add(query)
        self._places[query.query_id] = Place(query, worker, queue, service_s)

    def take(self, query_id: int) -> Place:
        """Take a waiting query out; returns where it was."""
        place = self._places.pop(query_id)
        query, worker, queue, service_s = place
        queue.remove(query)
        if not queue:
            del self._all[queue]
            del (self.deferred if worker is None else worker.queues)[queue.key]
        if worker is not None:
            worker.backlog_s = worker.backlog_s - service_s if worker.queues else 0.0
        return place

    def everyone(self) -> list[QueryView]:
        """All waiting queries, most urgent first."""
        return sorted((place.query for place in self._places.values()), key=urgency)

    def expired(self, now_s: float) -> list[QueryView]:
        """Waiting queries whose deadline has passed, most urgent first."""
        expired = [query for queue in self._all for query in queue.expired(now_s)]
        expired.sort(key=urgency)
        return expired
