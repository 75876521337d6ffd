"""Queries for which nothing is ready, held while a load could still end in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from modelless.controller.dispatch.instances import ReadyInstances
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import AskForLoad, DispatchEffect
from modelless.controller.dispatch.queues import Queue, QueueKey, WaitingQueries
from modelless.policies.scopes import base_of
from modelless.policies.views import QueryView


class PendingLoads:
    """Which of the deferred queries wait for a load, and until when.

    Args:
        waiting: where they wait, with those that the policy deferred.
        instances: who can serve what.
        limits: ``max_hold_s`` and ``max_held`` are minded here.
    """

    def __init__(
        self, waiting: WaitingQueries, instances: ReadyInstances, limits: DispatchLimits
    ) -> None:
        self._waiting = waiting
        self._instances = instances
        self._limits = limits
        self._held: dict[int, tuple[QueryView, float]] = {}  # by id; and until when
        self._loads: Counter[AskForLoad] = Counter()  # what the held ones wait for

    def hold_query(self, query: QueryView, now_s: float) -> bool:
        """Let the query wait for a load; False if none could end in time, or too many wait."""
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
        """What the query, which has just been held, waits for: if it is the first to."""
        load = _load_for(query)
        return [load] if self._loads[load] == 1 else []

    def forget_query(self, query_id: int) -> None:
        """The query does not wait for a load any more, if it did."""
        held = self._held.pop(query_id, None)
        if held is not None:
            load = _load_for(held[0])
            self._loads[load] -= 1
            if not self._loads[load]:
                del self._loads[load]

    def find_expired(self, now_s: float) -> list[QueryView]:
        """Queries that have waited as long as they may."""
        return [query for query, until_s in self._held.values() if until_s <= now_s]

    def find_misplaced(self) -> list[QueryView]:
        """Deferred queries to choose for anew: nobody can serve them any more, or someone can now.

        To be able to takes a ready variant that is accurate enough.
        """
        lost = self._among(self._waiting.deferred, served=False)
        return lost + self._among(self._waiting.held, served=True)

    def _among(self, queues: Mapping[QueueKey, Queue], *, served: bool) -> list[QueryView]:
        return [q for queue in queues.values() for q in queue if self.is_served(q) == served]

    def is_served(self, query: QueryView) -> bool:
        """Whether something is ready that is accurate enough for the query."""
        return self._instances.is_served_accurately(query.scope, query.min_accuracy_percent)


def _load_for(query: QueryView) -> AskForLoad:
    return AskForLoad(base_of(query.scope), query.min_accuracy_percent)
