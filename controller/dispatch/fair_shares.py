"""Fairness among tenants, independent of the policy: a tenant over its share waits behind others.

While the dispatcher is overloaded, the queries that a tenant has waiting beyond its fair share are
*demoted*: they are served after all other queries of their priority, from the capacity that the
others leave. Networks share a link in the same way without one queue for each flow (marking in and
out of profile: Clark and Fang, IEEE/ACM ToN 1998). No capacity is wasted, and no policy has to take
part: a tenant that asks for less than an equal share of the devices never has much waiting, so its
queries are never demoted and never wait behind demoted ones. The tenants that ask for more each
have the same amount of work *in profile* (not demoted), and so get the same share of the rest
(max-min fairness).

The dispatcher is overloaded while more than a few queries are refused for want of time or room, or
while queries wait for more than half their limits. (If a single refusal counted as overload, it
would cause the next one: a demoted query waits behind fresh ones, and is late for that.) A tenant's
share of the queue is then the work that the devices can do in half the tightest limit, and the
number of queries that fills half the queue, both divided by the number of tenants. So no query
within its tenant's share waits longer than that, or finds no room. Work is the least device time
for a query: that of the quickest variant that is accurate enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.views import QueryView

_WINDOW_S = 1.0
"""Tenants and refusals count for one to two windows of this length."""
_MOST_TENANTS = 4096
_LIMIT_PART = 0.5
"""The share of the tightest limit, and of the queue, that tenants may fill in profile."""
_WAIT_WEIGHT = 1.0 / 16.0
"""Weight of one batch in the mean of the share of their limits that queries waited."""
_MOST_REFUSED = 1.0 / 64.0
"""The dispatcher is not overloaded while no larger share of the queries is refused."""
_OVERLOAD = frozenset({Reason.QUEUE_TOO_LONG, Reason.QUEUE_FULL, Reason.DEADLINE_PASSED})


class Share(NamedTuple):
    """The most that a tenant may have waiting in profile.

    Attributes:
        work_us: device time, microseconds.
        queries: number of queries.
    """

    work_us: float
    queries: float


class Tenants:
    """Counts the queries of each tenant of one dispatcher, and computes their fair share.

    Args:
        max_queued: number of queries that may wait in all.
    """

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._waiting: dict[str, list[int]] = {}  # by tenant: work and queries in profile
        self._all_us = 0  # work of all waiting queries
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._limit_s = self._limit_before_s = math.inf
        self._done_us = self._done_before_us = 0
        self._arrived = self._arrived_before = 0
        self._refused = self._refused_before = 0
        self._began_s = self._began_before_s = -math.inf
        self._waited = 0.0  # mean share of their limits that queries waited

    # -- counting -----------------------------------------------------------------------------

    def count_arrival(self, query: QueryView, now_s: float) -> None:
        """Count a query that arrived."""
        if now_s - self._began_s >= _WINDOW_S:
            self._begin_window(now_s)
        self._arrived += 1
        if len(self._seen) < _MOST_TENANTS:
            self._seen.add(query.tenant)

    def add_waiting(self, query: QueryView, work_us: int) -> None:
        """Count a query that begins to wait; it needs ``work_us`` of device time."""
        self._all_us += work_us
        if query.demoted:
            return
        known = self._waiting.get(query.tenant)
        if known is None:
            self._waiting[query.tenant] = [work_us, 1]
        else:
            known[0] += work_us
            known[1] += 1
        limit_s = query.deadline_s - query.arrival_s
        if limit_s < self._limit_s:
            self._limit_s = limit_s

    def remove_waiting(self, query: QueryView, work_us: int) -> None:
        """Count a query that waits no more; ``work_us`` as in ``add_waiting``."""
        self._all_us -= work_us
        if query.demoted:
            return
        known = self._waiting[query.tenant]
        known[0] -= work_us
        known[1] -= 1
        if not known[1]:
            del self._waiting[query.tenant]

    def count_start(self, queries: Sequence[QueryView], now_s: float) -> None:
        """Count how long the least urgent query of a batch, its last, waited for a worker."""
        query = queries[-1]
        limit_s = query.deadline_s - query.arrival_s
        share = (now_s - query.arrival_s) / limit_s if limit_s > 0.0 else 1.0
        self._waited += _WAIT_WEIGHT * (share - self._waited)

    def count_done(self, work_us: int) -> None:
        """Count a batch that ran; its queries needed ``work_us`` of device time."""
        self._done_us += work_us

    def count_refusal(self, reason: AnyReason) -> None:
        """Count a refused query."""
        if reason in _OVERLOAD:
            self._refused += 1

    # -- shares -------------------------------------------------------------------------------

    def is_over_share(self, query: QueryView, now_s: float) -> bool:
        """Whether a query that arrives now is beyond its tenant's share."""
        if not self._is_overloaded() or query.tenant not in self._waiting:
            return False
        return self.is_over(query.tenant, self.share(now_s))

    def is_over(self, tenant: str, share: Share | None) -> bool:
        """Whether the tenant has more than ``share`` waiting in profile; False if that is None."""
        waiting = self._waiting.get(tenant)
        return (
            share is not None
            and waiting is not None
            and (waiting[0] > share.work_us or waiting[1] > share.queries)
        )

    def find_far_over(self, share: Share | None) -> list[str]:
        """Return the tenants that have more than twice the share waiting in profile."""
        if share is None:
            return []
        twice = Share(2.0 * share.work_us, 2.0 * share.queries)
        return [tenant for tenant in self._waiting if self.is_over(tenant, twice)]

    def share(self, now_s: float) -> Share | None:
        """Return each tenant's share; None while the dispatcher is not overloaded."""
        if not self._is_overloaded():
            return None
        tenants = len(self._seen | self._seen_before) if self._seen_before else len(self._seen)
        limit_s = min(self._limit_s, self._limit_before_s)
        rate = self._done_us_per_s(now_s)
        if tenants < 2 or not rate or limit_s == math.inf:
            return None
        return Share(
            rate * _LIMIT_PART * limit_s / tenants, _LIMIT_PART * self._max_queued / tenants
        )

    def half_drain_s(self, now_s: float) -> float | None:
        """Return how long half of the waiting work takes at the recent rate, seconds, or None.

        After that time there is room for a client that was refused, and those before it are served.
        """
        rate = self._done_us_per_s(now_s)
        return self._all_us / rate / 2.0 if rate > 0.0 and self._all_us else None

    def _is_overloaded(self) -> bool:
        """Whether the dispatcher is overloaded; see the module."""
        if self._waited > _LIMIT_PART:
            return True
        refused = self._refused + self._refused_before
        return refused > 0 and refused > _MOST_REFUSED * (self._arrived + self._arrived_before)

    def _done_us_per_s(self, now_s: float) -> float:
        """Return the recent rate of work, microseconds a second: the capacity, under overload."""
        span_s = now_s - max(self._began_before_s, self._began_s - 2.0 * _WINDOW_S)
        return (self._done_us + self._done_before_us) / span_s if span_s > 0.0 else 0.0

    def _begin_window(self, now_s: float) -> None:
        """Begin a new window."""
        self._seen, self._seen_before = set(), self._seen
        self._limit_s, self._limit_before_s = math.inf, self._limit_s
        self._done_us, self._done_before_us = 0, self._done_us
        self._arrived, self._arrived_before = 0, self._arrived
        self._refused, self._refused_before = 0, self._refused
        self._began_s, self._began_before_s = now_s, self._began_s
