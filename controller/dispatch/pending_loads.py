"""Held queries: no ready variant can serve them, but a load could still end in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from modelless.controller.dispatch.counters import DispatchCounters, Kind
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import AskForLoad, DispatchEffect
from modelless.controller.dispatch.queues import Queue, QueueKey, WaitingQueries
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.policies.scopes import base_of
from modelless.policies.views import QueryView


class PendingLoads:
    """The held queries, and the loads that they wait for.

    Args:
        instances: tells which queries can be served, and how soon a load could end.
    """

    def __init__(
        self, waiting: WaitingQueries, instances: ReadyInstances, limits: DispatchLimits
    ) -> None:
        self._waiting = waiting
        self._instances = instances
        self._limits = limits
        self._held: dict[int, tuple[QueryView, float]] = {}  # by id; held until this time
        self._loads: Counter[AskForLoad] = Counter()  # held queries by the load they wait for

    def hold_query(self, query: QueryView, now_s: float) -> bool:
        """Hold the query; return False if no load could end in time, or too many are held."""
        if len(self._held) >= min(self._limits.max_held, max(self._limits.max_queued // 4, 1)):
            return False
        until_s = min(query.deadline_s, now_s + self._limits.max_hold_s)
        if not now_s + self._instances.fastest_load_s(query) <= until_s:
            return False
        self._held[query.query_id] = query, until_s
        self._loads[_load_for(query)] += 1
        self._waiting.hold_query(query)
        return True

    def ask_for_load(self, query: QueryView) -> list[DispatchEffect]:
        """Return the request for the load of a query just held, if it is the first to need it."""
        load = _load_for(query)
        return [load] if self._loads[load] == 1 else []

    def forget_query(self, query_id: int) -> None:
        held = self._held.pop(query_id, None)
        if held is not None:
            load = _load_for(held[0])
            self._loads[load] -= 1
            if not self._loads[load]:
                del self._loads[load]

    @property
    def kinds(self) -> dict[Kind, list[int]]:
        counters = DispatchCounters()
        for query, _ in self._held.values():
            counters.count_arrival(query)
        return counters.kinds

    def find_expired(self, now_s: float) -> list[QueryView]:
        """Return the queries that were held as long as they may be."""
        return [query for query, until_s in self._held.values() if until_s <= now_s]

    def find_misplaced(self) -> list[QueryView]:
        """Return the deferred queries that no worker can serve now, and the held ones that one can.

        A worker can serve a query if it holds a ready variant that is accurate enough.
        """
        unserved = self._select(self._waiting.deferred, served=False)
        return unserved + self._select(self._waiting.held, served=True)

    def _select(self, queues: Mapping[QueueKey, Queue], *, served: bool) -> list[QueryView]:
        is_served = self._instances.is_served_accurately
        return [
            query
            for queue in queues.values()
            for query in queue
            if is_served(query.scope, query.min_accuracy_percent) == served
        ]


def _load_for(query: QueryView) -> AskForLoad:
    return AskForLoad(base_of(query.scope), query.min_accuracy_percent)
