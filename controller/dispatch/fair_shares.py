"""Fairness among tenants, independent of the policy: a tenant over its share waits behind others.

While the dispatcher is overloaded, queries of a tenant that asks for more than the *fair rate* of
their priority, and has more waiting than its share, are *demoted*: they are served after all other
queries of that priority, from the capacity that the others leave. Networks share a link in the same
way without one queue for each flow (marking in and out of profile: Clark and Fang, IEEE/ACM ToN
1998). No capacity is wasted, and no policy has to take part.

The fair rate of a priority is max-min fair: the rate r at which the sum over tenants of
min(asked, r) is the work that the devices begin for queries of that priority. A tenant that asks
for at most r is never demoted, whatever its limits are. The others may have so much waiting *in
profile* (not demoted) as an equal share of the devices does in half of their queries' limits. Work
is the least device time for a query: that of the quickest variant that is accurate enough.

The dispatcher is overloaded while more than a few queries are refused for want of time or room, or
while queries wait for more than half their limits. (If a single refusal counted as overload, it
would cause the next one: a demoted query waits behind fresh ones, and is late for that.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.views import QueryView

_WINDOW_S = 1.0
"""Tenants and refusals count for one to two windows of this length."""
_MOST_CLIENTS = 4096
_LONGEST_LIMIT_S = 3600.0  # a query without a limit has an infinite one
_LIMIT_PART = 0.5
"""The share of their limits, and of the queue, for which a tenant's queries wait in profile."""
_WAIT_WEIGHT = 1.0 / 16.0
"""Weight of one batch in the mean of the share of their limits that queries waited."""
_MOST_REFUSED = 1.0 / 64.0
"""The dispatcher is not overloaded while no larger share of the queries is refused."""
OVERLOAD = frozenset({Reason.QUEUE_TOO_LONG, Reason.QUEUE_FULL, Reason.DEADLINE_PASSED})


Client = tuple[int, str]
"""Those who share: a priority, and a tenant that asks at it."""


@dataclass(slots=True)
class _Waiting:
    """A tenant's queries of a priority that wait in profile: work, microseconds; sum of limits."""

    work_us: int = 0
    queries: int = 0
    limits_s: float = 0.0


class FairShare(NamedTuple):
    """The share of each tenant that asks at a priority; work in microseconds of device time.

    Attributes:
        rate_us_per_s: the max-min fair rate; a tenant that asks for more is beyond its share if
            too much of it waits.
        equal_us_per_s: the part of the devices' work that each would have if they were equal.
        tenants: their number.
    """

    rate_us_per_s: float
    equal_us_per_s: float
    tenants: int


class Tenants:
    """Counts the queries of each tenant of one dispatcher, and computes the fair rates.

    Args:
        max_queued: number of queries that may wait in all.

    Attributes:
        shares: by priority, where tenants ask for more than the devices do; none while there is
            no overload. What waits is counted by tenant only while there are any.
    """

    def __init__(self, max_queued: int) -> None:
        self.shares: dict[int, FairShare] = {}
        self._max_queued = max_queued
        self._waiting: dict[Client, _Waiting] = {}
        self._all_us = 0  # work of all waiting queries
        # Of this window, and of the one before:
        self._asked_us: Counter[Client] = Counter()
        self._asked_before_us: Counter[Client] = Counter()
        self._begun_us: Counter[int] = Counter()  # by priority
        self._begun_before_us: Counter[int] = Counter()
        self._arrived = self._arrived_before = 0
        self._refused = self._refused_before = 0
        self._began_s = self._began_before_s = -math.inf
        self._waited = 0.0  # mean share of their limits that queries waited

    # -- counting -----------------------------------------------------------------------------

    def count_arrival(self, query: QueryView, work_us: int, now_s: float) -> None:
        """Count a query that arrived; it needs ``work_us`` of device time."""
        if now_s - self._began_s >= _WINDOW_S:
            self._begin_window(now_s)
        self._arrived += 1
        client = (query.priority, query.tenant)
        if client in self._asked_us or len(self._asked_us) < _MOST_CLIENTS:
            self._asked_us[client] += work_us

    def add_waiting(self, query: QueryView, work_us: int) -> None:
        """Count a query that begins to wait; it needs ``work_us`` of device time."""
        self._all_us += work_us
        if self.shares:
            self._count_waiting(query, work_us)

    def _count_waiting(self, query: QueryView, work_us: int) -> None:
        if query.demoted:
            return
        client = (query.priority, query.tenant)
        known = self._waiting.get(client)
        if known is None:
            known = self._waiting[client] = _Waiting()
        known.work_us += work_us
        known.queries += 1
        known.limits_s += _limit_s(query)

    def remove_waiting(self, query: QueryView, work_us: int) -> None:
        """Count a query that waits no more; ``work_us`` as in ``add_waiting``."""
        self._all_us -= work_us
        if not self.shares or query.demoted:
            return
        client = (query.priority, query.tenant)
        known = self._waiting[client]
        known.work_us -= work_us
        known.queries -= 1
        known.limits_s -= _limit_s(query)
        if not known.queries:
            del self._waiting[client]

    def count_start(self, query: QueryView, work_us: int) -> None:
        """Count a query that a worker begins to run; ``work_us`` as in ``add_waiting``."""
        self._begun_us[query.priority] += work_us

    def count_wait(self, query: QueryView, now_s: float) -> None:
        """Count how long the least urgent query of a batch waited for a worker."""
        limit_s = query.deadline_s - query.arrival_s
        share = (now_s - query.arrival_s) / limit_s if limit_s > 0.0 else 1.0
        self._waited += _WAIT_WEIGHT * (share - self._waited)

    def count_refusal(self, reason: AnyReason) -> None:
        if reason in OVERLOAD:
            self._refused += 1

    # -- shares -------------------------------------------------------------------------------

    def find_shares(self, now_s: float, waiting: Iterable[tuple[QueryView, int]] = ()) -> None:
        """Compute ``shares`` anew; see the module.

        Args:
            now_s: the present.
            waiting: all waiting queries, each with the work that ``add_waiting`` was told.
        """
        self.shares, self._waiting = {}, {}
        span_s = self._span_s(now_s)
        if not self._is_overloaded() or span_s <= 0.0:
            return
        asked: dict[int, list[int]] = {}
        for (priority, _), work_us in (self._asked_before_us + self._asked_us).items():
            asked.setdefault(priority, []).append(work_us)
        for priority, each in asked.items():
            begun_us = self._begun_before_us[priority] + self._begun_us[priority]
            fair_us = _find_max_min(each, begun_us) if len(each) > 1 else math.inf
            if fair_us < math.inf:
                equal_us = begun_us / len(each)
                self.shares[priority] = FairShare(fair_us / span_s, equal_us / span_s, len(each))
        if self.shares:
            for query, work_us in waiting:
                self._count_waiting(query, work_us)

    def is_over_share(self, query: QueryView, now_s: float) -> bool:
        """Return whether a query that arrives now is beyond its tenant's share."""
        client = (query.priority, query.tenant)
        return self._asks_for_more(client, now_s) and self.waits_beyond(query)

    def waits_beyond(self, query: QueryView) -> bool:
        """Return whether a query's tenant has more waiting, at its priority, than its share.

        Call it for tenants that ask for more than the fair rate.
        """
        return self._waits_beyond((query.priority, query.tenant), 1.0)

    def find_far_over(self, now_s: float) -> set[Client]:
        """Return the priorities and tenants that have more than twice their share waiting."""
        return {
            client
            for client in (self._waiting if self.shares else ())
            if self._asks_for_more(client, now_s) and self._waits_beyond(client, 2.0)
        }

    def half_drain_s(self, now_s: float) -> float | None:
        """Return how long half of the waiting work takes at the recent rate, seconds, or None.

        After that time there is room for a client that was refused.
        """
        begun_us = self._begun_us.total() + self._begun_before_us.total()
        drain_s = self._all_us / begun_us * self._span_s(now_s) if begun_us else 0.0
        return drain_s / 2.0 or None

    def _asks_for_more(self, client: Client, now_s: float) -> bool:
        share = self.shares.get(client[0])
        if share is None:
            return False
        asked_us = self._asked_before_us[client] + self._asked_us[client]
        return asked_us > share.rate_us_per_s * self._span_s(now_s)

    def _waits_beyond(self, client: Client, times: float) -> bool:
        """Return whether more waits in profile than ``times`` what an equal share allows."""
        waiting = self._waiting.get(client)
        if waiting is None:
            return False
        share = self.shares[client[0]]
        allowed_us = share.equal_us_per_s * _LIMIT_PART * waiting.limits_s / waiting.queries
        allowed = _LIMIT_PART * self._max_queued / share.tenants
        return waiting.work_us > times * allowed_us or waiting.queries > times * allowed

    def _is_overloaded(self) -> bool:
        """Return whether the dispatcher is overloaded; see the module."""
        if self._waited > _LIMIT_PART:
            return True
        refused = self._refused + self._refused_before
        return refused > 0 and refused > _MOST_REFUSED * (self._arrived + self._arrived_before)

    def _span_s(self, now_s: float) -> float:
        """Return the length of both windows until now, seconds."""
        return now_s - self._began_before_s

    def _begin_window(self, now_s: float) -> None:
        """Begin a new window; after a pause, forget the one before it."""
        self._began_before_s = self._began_s
        if now_s - self._began_s > 2.0 * _WINDOW_S:
            self._asked_us, self._begun_us = Counter(), Counter()
            self._arrived = self._refused = 0
            self._began_before_s = now_s
        self._began_s = now_s
        self._asked_us, self._asked_before_us = Counter(), self._asked_us
        self._begun_us, self._begun_before_us = Counter(), self._begun_us
        self._arrived, self._arrived_before = 0, self._arrived
        self._refused, self._refused_before = 0, self._refused


def _find_max_min(asked: Sequence[int], given: float) -> float:
    """Return the r at which the sum of min(each asked, r) is ``given``; inf if all have enough."""
    left = float(given)
    for served, each in enumerate(sorted(asked)):
        fair = left / (len(asked) - served)
        if each > fair:
            return fair
        left -= each
    return math.inf


def _limit_s(query: QueryView) -> float:
    return min(query.deadline_s - query.arrival_s, _LONGEST_LIMIT_S)
