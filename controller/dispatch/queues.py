"""Batches, workers and queues: the state of the dispatcher that its other parts share.

Every waiting query is in exactly one queue: of a worker, of the deferred queries, or of those held
for a load. A worker's backlog is the sum of the times that its waiting queries were expected to
take when they were put there. So it returns to zero, though the cost model learns in between.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from modelless.controller.dispatch.fair_shares import Client, Tenants
from modelless.controller.dispatch.offline import is_offline
from modelless.controller.dispatch.worker_groups import NO_GROUP, WorkerGroup
from modelless.policies.priorities import rank, urgency
from modelless.policies.views import QueryView, QueueView
from modelless.variants.vocabulary import OFFLINE

QueueKey = tuple[str, str | None, Hashable]
"""Scope, variant (None while no variant is chosen) and batch key."""

_MOST_COPIED = 64
"""A policy gets a copy of a queue of up to so many queries, and a ``Window`` of a longer one."""


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that a worker runs or is to run next.

    Attributes:
        batch_id: as in ``Execute``; -1 for another gateway's.
        device_class: the worker's, when the batch was handed over.
        queries: its queries; none if the batch is another gateway's.
        items: the number of items of all its queries.
        started_s: when it was handed to the worker.
        expected_s: its median run time, seconds; inf if unknown.
        suspect_at_s: when it counts as hanging; inf if one of its queries may not be tried again.
        waited_s: how long the worker ran the batch before it, after it was handed over, seconds.
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
    waited_s: float = 0.0
    size: int = 0

    @property
    def ends_s(self) -> float:
        """When it is expected back."""
        return self.started_s + self.waited_s + self.expected_s

    @property
    def is_others(self) -> bool:
        """Whether it is another gateway's."""
        return not self.queries

    def delay(self, by_s: float) -> None:
        """Note that the batch begins ``by_s`` seconds later than was expected."""
        self.waited_s += by_s
        self.suspect_at_s += by_s
        self.overdue_at_s += by_s


@dataclass(slots=True, eq=False)
class Worker:
    """The dispatcher's state of a worker.

    Attributes:
        number: ascending in the order in which workers appeared.
        group: its group; only ``IdleWorkers.set_group`` changes it.
        running: its batch; None if it is idle.
        next: the batch that it was given early, to run after ``running``; see ``EarlyStarts``.
        busy_until_s: when its last batch is expected to end, or when the last one ended.
        backlog_s: how long its waiting queries are expected to take, seconds, by rank.
        queues: the queries bound to it; no queue is empty.
        lead_s: how long before its batch is expected back it accepts the next one, seconds.
        is_ours: whether no other gateway had a batch there at the last news of it.
    """

    worker_id: str
    device_class: str
    number: int = 0
    group: WorkerGroup = NO_GROUP
    running: Batch | None = None
    next: Batch | None = None
    busy_until_s: float = -math.inf
    backlog_s: dict[int, float] = field(default_factory=dict)
    queues: dict[QueueKey, Queue] = field(default_factory=dict)
    lead_s: float = 0.0
    is_ours: bool = False

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batch that it runs and the next one, as far as there are any."""
        return tuple([each for each in (self.running, self.next) if each is not None])

    @property
    def suspect_at_s(self) -> float:
        """When it counts as hanging; inf if a query that it has may not be tried again."""
        if self.running is None or (self.next is not None and self.next.suspect_at_s == math.inf):
            return math.inf
        return self.running.suspect_at_s


class Window(Sequence[QueryView]):
    """A policy's view of a long queue: read-only, and always as the queue is."""

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

    Args:
        key: scope, variant and batch key of its queries.
        container: the mapping that holds it by its key while it is not empty.
    """

    __slots__ = ("_queries", "_urgencies", "_view", "container", "key")

    def __init__(self, key: QueueKey, container: dict[QueueKey, Queue]) -> None:
        self.key = key
        self.container = container
        self._queries: list[QueryView] = []
        self._urgencies: list[tuple[int, float, int]] = []
        self._view: QueueView | None = None  # of its queries as they are

    def __len__(self) -> int:
        return len(self._queries)

    def __iter__(self) -> Iterator[QueryView]:
        return iter(self._queries)

    @property
    def rank_and_size(self) -> tuple[int, int]:
        """The rank of its first query, see ``priorities.rank``, and the size of its queries."""
        return self._urgencies[0][0], self._queries[0].size

    @property
    def last(self) -> QueryView:
        return self._queries[-1]

    @property
    def view(self) -> QueueView:
        view = self._view
        if view is None:
            queries = self._queries
            copy = tuple(queries) if len(queries) <= _MOST_COPIED else Window(queries)
            # This takes half as long as ``QueueView(...)``, whose constructor is Python code.
            view = self._view = tuple.__new__(QueueView, (*self.key, copy, self._urgencies[0]))
        return view

    def add(self, query: QueryView) -> None:
        self._view = None
        own = (query.demoted - 2 * query.priority, query.deadline_s, query.query_id)  # ``urgency``
        place = bisect_right(self._urgencies, own)
        self._urgencies.insert(place, own)
        self._queries.insert(place, query)

    def remove(self, query: QueryView) -> bool:
        """Remove a query, which must be there; return whether any are left."""
        self._view = None
        queries = self._queries
        place = 0 if queries[0] is query else bisect_left(self._urgencies, urgency(query))
        del self._urgencies[place]
        del queries[place]
        return bool(queries)

    def count_before(self, own: tuple[int, float, float]) -> int:
        """Return how many of its queries go before one of this urgency."""
        return bisect_left(self._urgencies, own)

    def find_expired(self, now_s: float) -> list[QueryView]:
        """Return the queries whose deadline has passed: the first ones of each rank."""
        urgencies, expired, start = self._urgencies, list[QueryView](), 0
        while start < len(urgencies):
            rank = urgencies[start][0]
            end = bisect_right(urgencies, (rank, now_s, math.inf), start)
            expired += self._queries[start:end]
            start = bisect_left(urgencies, (rank + 1,), end)
        return expired


class Place(NamedTuple):
    """The place of a waiting query.

    Attributes:
        worker: the worker that it is bound to; None if it is deferred or held.
        service_s: how long it is expected to take alone, seconds; 0 unless it is bound.
        work_us: the least device time for it, microseconds; see ``fair_shares``.
    """

    query: QueryView
    worker: Worker | None
    queue: Queue
    service_s: float
    work_us: int


class WaitingQueries:
    """All waiting queries of one dispatcher.

    Attributes:
        deferred: queues that any worker may serve; none is empty.
        held: queues of queries that wait for a load, which policies do not see; none is empty.
        bound: the number of queries that are bound to a worker.
        place: returns the place of a query, by its id; None if it does not wait.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self.deferred: dict[QueueKey, Queue] = {}
        self.held: dict[QueueKey, Queue] = {}
        self.bound = 0
        self._places: dict[int, Place] = {}
        self.place = self._places.get
        self._all: dict[Queue, None] = {}

    def __len__(self) -> int:
        return len(self._places)

    def bind_query(
        self, query: QueryView, worker: Worker, variant_id: str, service_s: float, work_us: int = 0
    ) -> None:
        """Let the query wait for the worker.

        Args:
            variant_id: the variant that is to serve it.
            service_s: how long it is expected to take alone, seconds; counts as 0 if not finite.
            work_us: the least device time for it, microseconds; see ``fair_shares``.
        """
        service_s = service_s if math.isfinite(service_s) else 0.0
        own = rank(query)
        worker.backlog_s[own] = worker.backlog_s.get(own, 0.0) + service_s
        key: QueueKey = (query.scope, variant_id, query.batch_key)
        self.bound += 1
        self._put(query, worker, key, worker.queues, service_s, work_us)

    def defer_query(self, query: QueryView, work_us: int = 0) -> QueueKey:
        """Let the query wait for any worker; return its queue's key. See ``bind_query``.

        Offline queries share no queue with others, because no policy may see them.
        """
        alike = (OFFLINE, query.batch_key) if is_offline(query) else query.batch_key
        key: QueueKey = (query.scope, None, alike)
        self._put(query, None, key, self.deferred, 0.0, work_us)
        return key

    def hold_query(self, query: QueryView) -> None:
        self._put(query, None, (query.scope, None, query.batch_key), self.held, 0.0, 0)

    def _put(
        self,
        query: QueryView,
        worker: Worker | None,
        key: QueueKey,
        queues: dict[QueueKey, Queue],
        service_s: float,
        work_us: int,
    ) -> None:
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = Queue(key, queues)
            self._all[queue] = None
        queue.add(query)
        # This takes half as long as ``Place(...)``, whose constructor is Python code.
        place = tuple.__new__(Place, (query, worker, queue, service_s, work_us))
        self._places[query.query_id] = place
        self._tenants.add_waiting(query, work_us)

    def remove_query(self, query_id: int) -> Place:
        """Remove a waiting query, and return where it waited."""
        place = self._places.pop(query_id)
        query, worker, queue, service_s, work_us = place
        if not queue.remove(query):
            del self._all[queue]
            del queue.container[queue.key]
        if worker is not None:
            self.bound -= 1
            if worker.queues:
                worker.backlog_s[rank(query)] -= service_s
            else:
                worker.backlog_s.clear()
        self._tenants.remove_waiting(query, work_us)
        return place

    def start_queries(self, queries: Sequence[QueryView], now_s: float) -> tuple[QueryView, ...]:
        """Remove the queries of a batch that a worker begins to run; return them as they waited."""
        places = [self.remove_query(query.query_id) for query in queries]
        for place in places:
            self._tenants.count_start(place.query, place.work_us)
        if not is_offline(places[-1].query):
            self._tenants.count_wait(places[-1].query, now_s)
        return tuple([place.query for place in places])

    def work(self) -> Iterator[tuple[QueryView, int]]:
        """Return all waiting queries, each with the least device time for it, microseconds."""
        return ((place.query, place.work_us) for place in self._places.values())

    def find_least_urgent(self) -> QueryView:
        """Return the least urgent query; there must be one. Looks at every queue."""
        return max([queue.last for queue in self._all], key=urgency)

    def demote_over_share(self, now_s: float) -> list[tuple[QueryView, Worker | None]]:
        """Demote queries of tenants that are far over their share, until each is within it.

        A demoted query goes behind the others of its priority.

        Returns:
            Each demoted query as it waits now, with the worker that it is bound to, if any.
        """
        over = self._tenants.find_far_over(now_s)
        places = self._find_places(over) if over else []
        return [
            (self._demote(place), place.worker)
            for place in places
            if self._tenants.waits_beyond(place.query)  # less so with each
        ]

    def _find_places(self, clients: Container[Client]) -> list[Place]:
        """Return the places of their queries that are not demoted, the least urgent first."""
        places = [
            place
            for place in self._places.values()
            if (place.query.priority, place.query.tenant) in clients
            and not place.query.demoted
            and place.queue.container is not self.held
        ]
        places.sort(key=lambda place: urgency(place.query), reverse=True)
        return places

    def _demote(self, place: Place) -> QueryView:
        query, worker, queue, service_s, work_us = self.remove_query(place.query.query_id)
        query = query._replace(demoted=True)
        if worker is None:
            self.defer_query(query, work_us)
        else:
            self.bind_query(query, worker, queue.key[1] or "", service_s, work_us)
        return query

    def all_queries(self) -> list[QueryView]:
        """Return all waiting queries, most urgent first."""
        return sorted((place.query for place in self._places.values()), key=urgency)

    def find_expired(self, now_s: float) -> list[QueryView]:
        """Return the waiting queries whose deadline has passed, most urgent first."""
        expired = [query for queue in self._all for query in queue.find_expired(now_s)]
        expired.sort(key=urgency)
        return expired
