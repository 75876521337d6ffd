"""Who waits for what: each worker's queues, those of nobody yet, and the books that go with them.

Every waiting query is in exactly one queue. A worker's backlog is the sum of what its waiting
queries were expected to take when they were put there, so that it returns to zero whatever the
cost model has learned since.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, overload

from modelless.controller.dispatch.tenants import Share, Tenants
from modelless.controller.dispatch.worker_groups import NO_GROUP, WorkerGroup
from modelless.policies.batching.urgency import rank, urgency
from modelless.policies.views import QueryView, QueueView

if TYPE_CHECKING:
    from modelless.controller.dispatch.worker_groups import GroupsByScope

# The queues of nobody yet, as the workers of each group are cached_view them.
#
# A worker that falls idle is cached_view every deferred queue that it could serve: dozens, where there
# are
# many tasks, and few of them are other than when one like it was asked last. So what an group was
# cached_view is kept, and only what has changed since is looked at.

_MOST_CHANGES = 4096
_MOST_KEPT = 256


class _CachedViews:
    """What one group is cached_view.

    Attributes:
        views: by queue, in the order in which the queues came to be.
        looked: how many changes there had been when it was made or put right.
        clear_count: how often it had been forgotten who can serve what by then.
    """

    __slots__ = ("clear_count", "change_count", "views")

    def __init__(self) -> None:
        self.views: dict[Queue, QueueView] = {}
        self.change_count = self.clear_count = -1


class VisibleQueueCache:
    """What each group is cached_view of the deferred queues.

    Args:
        deferred: these queues. Whoever puts a query into one or takes one out must say so, unless
            nobody has looked at the queue (``Queue.cached_view``) since that was last said.
    """

    def __init__(self, deferred: Mapping[QueueKey, Queue]) -> None:
        self._deferred = deferred
        self._changes: list[Queue] = []  # the latest, oldest first
        self._forgotten = 0  # changes before those
        self._kept: dict[WorkerGroup, _CachedViews] = {}

    def note_change(self, queue: Queue) -> None:
        """A query comes to a queue, which may be new, or leaves it, which may be gone then."""
        if len(self._changes) >= _MOST_CHANGES:
            self._forgotten += len(self._changes)
            self._changes.clear()
        self._changes.append(queue)

    def find_views(self, group: WorkerGroup, groups_by_scope: GroupsByScope) -> list[QueueView]:
        """The queues that a worker of this group could serve, oldest first.

        Args:
            group: what the worker holds.
            groups_by_scope: who can serve what.
        """
        cached = self._kept.get(group)
        if cached is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            cached = self._kept[group] = _CachedViews()
        views, changes = cached.views, self._changes
        since = cached.change_count - self._forgotten
        if (
            since < 0
            or cached.clear_count != groups_by_scope.clear_count
            or len(changes) - since > 2 * len(views) + 8
        ):
            views.clear()
            cached.clear_count = groups_by_scope.clear_count
            for key, queue in self._deferred.items():
                if group in groups_by_scope[key[0]]:
                    views[queue] = queue.cached_view or queue.view
        else:
            for queue in changes[since:]:
                if not len(queue):
                    views.pop(queue, None)
                elif queue in views or group in groups_by_scope[queue.key[0]]:
                    views[queue] = queue.cached_view or queue.view
        cached.change_count = self._forgotten + len(changes)
        return list(views.values())


QueueKey = tuple[str, str | None, Hashable]
"""Scope, variant (None if nobody chose yet) and batch key."""

_MOST_COPIED = 64
"""Queries of a queue that are copied for a policy; of longer ones it gets a ``Window``."""


@dataclass(slots=True, eq=False)
class Batch:
    """What a worker runs.

    Attributes:
        device_class: what the worker was when it began.
        queries: none if the batch is another gateway's.
        items: of all its queries.
        started_s: when it was handed to the worker.
        expected_s: how long it should take, at the median; inf if that is unknown.
        suspect_at_s: from when on it hangs; inf if one of its queries may not be tried again.
        overdue_at_s: when it is given up.
        work_us: device time at its least; see ``tenants``.
        waited_s: for how long, after it was handed over, the worker ran the batch before it.
        ends_s: when it is expected back.
        is_others: whether it is another gateway's.
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
    work_us: int = 0
    waited_s: float = 0.0

    @property
    def ends_s(self) -> float:
        """See the class."""
        return self.started_s + self.waited_s + self.expected_s

    @property
    def is_others(self) -> bool:
        """See the class."""
        return not self.queries

    def delay(self, by_s: float) -> None:
        """It begins so much later than it was thought to: from then on it can be late or hang."""
        self.waited_s += by_s
        self.suspect_at_s += by_s
        self.overdue_at_s += by_s


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as dispatch sees it.

    Attributes:
        number: that of a worker who came later is higher.
        group: what it is and holds; changed by ``IdleWorkers.dress`` alone.
        running: its batch; None if it is idle.
        next: the batch that it was given to run after that; see ``early_starts``.
        busy_until_s: when the last of them is predicted to end, or when the last one ended.
        backlog_s: what its waiting queries are expected to take, seconds, by their rank.
        queues: what waits for it; none of them is empty.
        lead_s: how long before its batch is expected back it takes the next one; 0: not before.
        is_ours: no other gateway had a batch there when it was last heard of.
        suspect_at_s: from when on it hangs; inf if a query that it has may not be tried again.
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
        """What it runs and what it is to run after that, of ours or others'."""
        return tuple([each for each in (self.running, self.next) if each is not None])

    @property
    def suspect_at_s(self) -> float:
        """See the class."""
        if self.running is None or (self.next is not None and self.next.suspect_at_s == math.inf):
            return math.inf
        return self.running.suspect_at_s


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
        container: where it is kept by its key, as long as it is not empty.
        cached_view: its ``view``, if anybody looked since it changed: to look here first spares a call.
    """

    __slots__ = ("_queries", "_urgencies", "container", "key", "cached_view")

    def __init__(self, key: QueueKey, container: dict[QueueKey, Queue]) -> None:
        self.key = key
        self.container = container
        self._queries: list[QueryView] = []
        self._urgencies: list[tuple[int, float, int]] = []
        self.cached_view: QueueView | None = None

    def __len__(self) -> int:
        return len(self._queries)

    def __iter__(self) -> Iterator[QueryView]:
        return iter(self._queries)

    @property
    def rank(self) -> int:
        """Of its first query; see ``urgency.rank``."""
        return self._urgencies[0][0]

    @property
    def first(self) -> QueryView:
        """Its most urgent query."""
        return self._queries[0]

    @property
    def last(self) -> QueryView:
        """Its least urgent query."""
        return self._queries[-1]

    @property
    def view(self) -> QueueView:
        """What policies are cached_view."""
        view = self.cached_view
        if view is None:
            queries = self._queries
            copy = tuple(queries) if len(queries) <= _MOST_COPIED else Window(queries)
            # As ``QueueView(...)``, whose constructor is a Python function: half as long.
            view = self.cached_view = tuple.__new__(
                QueueView, (*self.key, copy, self._urgencies[0])
            )
        return view

    def add(self, query: QueryView) -> None:
        """Put a query where it belongs."""
        self.cached_view = None
        own = urgency(query)
        place = bisect_right(self._urgencies, own)
        self._urgencies.insert(place, own)
        self._queries.insert(place, query)

    def remove(self, query: QueryView) -> bool:
        """Take a query out that is there; whether any are left."""
        self.cached_view = None
        queries = self._queries
        place = 0 if queries[0] is query else bisect_left(self._urgencies, urgency(query))
        del self._urgencies[place]
        del queries[place]
        return bool(queries)

    def find_expired(self, now_s: float) -> list[QueryView]:
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
    work_us: int


class WaitingQueries:
    """All waiting queries of one dispatcher.

    Args:
        tenants: whose queries they are; is told of each that comes and goes.

    Attributes:
        deferred: the queues of nobody yet; none of them is empty.
        visible: what policies are cached_view of these.
        held: likewise, of those that wait for a load; policies are not cached_view them.
        is_mixed: whether queries of several ranks came since nobody waited.
        bound: how many wait for one worker.
        place: where a query waits, by its id; None if it does not.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self.deferred: dict[QueueKey, Queue] = {}
        self.visible = VisibleQueueCache(self.deferred)
        self.held: dict[QueueKey, Queue] = {}
        self.is_mixed = False
        self.bound = 0
        self._rank = 0  # of the first that came since nobody waited
        self._places: dict[int, Place] = {}
        self.place = self._places.get
        self._all: dict[Queue, None] = {}  # the deferred ones and those of workers

    def __len__(self) -> int:
        return len(self._places)

    def bind_query(
        self, query: QueryView, worker: Worker, variant_id: str, service_s: float, work: int = 0
    ) -> None:
        """Let the query wait for the worker.

        Args:
            service_s: seconds it is expected to take alone; counts as 0 if not finite.
            work: device time at its least, microseconds; see ``tenants``.
        """
        service_s = service_s if math.isfinite(service_s) else 0.0
        own = rank(query)
        worker.backlog_s[own] = worker.backlog_s.get(own, 0.0) + service_s
        key: QueueKey = (query.scope, variant_id, query.batch_key)
        self.bound += 1
        self._put(query, worker, key, worker.queues, service_s, work)

    def defer_query(self, query: QueryView, work: int = 0) -> Queue:
        """Let the query wait for whichever worker takes it; ``work`` as in ``bind``.

        Returns its queue.
        """
        key: QueueKey = (query.scope, None, query.batch_key)
        return self._put(query, None, key, self.deferred, 0.0, work)

    def hold_query(self, query: QueryView) -> None:
        """Let the query wait for a load."""
        self._put(query, None, (query.scope, None, query.batch_key), self.held, 0.0, 0)

    def _put(
        self,
        query: QueryView,
        worker: Worker | None,
        key: QueueKey,
        queues: dict[QueueKey, Queue],
        service_s: float,
        work: int,
    ) -> Queue:
        own = query.demoted - 2 * query.priority
        if not self._places:
            self._rank, self.is_mixed = own, False
        elif own != self._rank:
            self.is_mixed = True
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = Queue(key, queues)
            self._all[queue] = None
            is_news = True
        else:
            is_news = queue.cached_view is not None  # else that it changes was told already
        if is_news and queues is self.deferred:
            self.visible.note_change(queue)
        queue.add(query)
        # A named tuple's own constructor is a Python function: this takes half as long.
        place = tuple.__new__(Place, (query, worker, queue, service_s, work))
        self._places[query.query_id] = place
        self._tenants.add_waiting(query, work)
        return queue

    def remove_query(self, query_id: int) -> Place:
        """Take a waiting query out; returns where it was."""
        place = self._places.pop(query_id)
        query, worker, queue, service_s, work = place
        if queue.cached_view is not None and queue.container is self.deferred:
            self.visible.note_change(queue)
        if not queue.remove(query):
            del self._all[queue]
            del queue.container[queue.key]
        if worker is not None:
            self.bound -= 1
            if worker.queues:
                worker.backlog_s[rank(query)] -= service_s
            else:
                worker.backlog_s.clear()
        self._tenants.remove_waiting(query, work)
        return place

    def find_least_urgent(self) -> QueryView:
        """The last of all in line; there must be one. Looks at every queue."""
        return max([queue.last for queue in self._all], key=urgency)

    def demote_over_share(self, share: Share | None) -> list[tuple[QueryView, Worker | None]]:
        """Let what tenants have far beyond their share go behind the others of its priority.

        Returns each such query as it waits now, and for whom.
        """
        beyond = self._tenants.far_beyond(share)
        places = self._of_tenants(beyond) if beyond else []
        return [
            (self._demote(place), place.worker)
            for place in places
            if self._tenants.exceeds(place.query.tenant, share)  # less so with each
        ]

    def _of_tenants(self, names: Container[str]) -> list[Place]:
        """What waits and is not demoted, of these tenants, the least urgent first."""
        places = [
            place
            for place in self._places.values()
            if place.query.tenant in names
            and not place.query.demoted
            and place.queue.container is not self.held
        ]
        places.sort(key=lambda place: urgency(place.query), reverse=True)
        return places

    def _demote(self, place: Place) -> QueryView:
        """Let a waiting query go behind the others of its priority; returns it as it waits now."""
        query, worker, queue, service_s, work = self.remove_query(place.query.query_id)
        query = query._replace(demoted=True)
        if worker is None:
            self.defer_query(query, work)
        else:
            self.bind_query(query, worker, queue.key[1] or "", service_s, work)
        return query

    def all_queries(self) -> list[QueryView]:
        """All waiting queries, most urgent first."""
        return sorted((place.query for place in self._places.values()), key=urgency)

    def find_expired(self, now_s: float) -> list[QueryView]:
        """Waiting queries whose deadline has passed, most urgent first."""
        expired = [query for queue in self._all for query in queue.find_expired(now_s)]
        expired.sort(key=urgency)
        return expired
