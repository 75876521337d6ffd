"""Fairness among tenants, independent of the policy: a tenant over its share waits behind others.

While the dispatcher is overloaded, the queries of a tenant beyond its *fair rate* are *demoted*:
they are served after all other queries of their priority, from the capacity that the others leave.
Networks share a link in the same way without one queue for each flow (marking in and out of
profile by rate: Clark and Fang, IEEE/ACM ToN 1998). No capacity is wasted, and no policy has to
take part.

The fair rate is max-min fair: the rate r at which the sum over tenants of min(asked, r) is the work
that the devices do. So a tenant that asks for at most r is never demoted, whatever its limits are,
and each that asks for more has work at the rate r *in profile* (not demoted). Of that it may have
as much waiting as an equal share of the devices does in half of its queries' limits. Work is the
least device time for a query: that of the quickest variant that is accurate enough.

The dispatcher is overloaded while more than a few queries are refused for want of time or room, or
while queries wait for more than half their limits. (If a single refusal counted as overload, it
would cause the next one: a demoted query waits behind fresh ones, and is late for that.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.views import QueryView

_WINDOW_S = 1.0
"""Tenants and refusals count for one to two windows of this length."""
_BURST_S = 0.1
"""A tenant that asks for more may send the work of so long, at the fair rate, at once."""
_MOST_TENANTS = 4096
_LONGEST_LIMIT_S = 3600.0  # a query without a limit has an infinite one
_LIMIT_PART = 0.5
"""The share of their limits, and of the queue, for which a tenant's queries wait in profile."""
_WAIT_WEIGHT = 1.0 / 16.0
"""Weight of one batch in the mean of the share of their limits that queries waited."""
_MOST_REFUSED = 1.0 / 64.0
"""The dispatcher is not overloaded while no larger share of the queries is refused."""
_OVERLOAD = frozenset({Reason.QUEUE_TOO_LONG, Reason.QUEUE_FULL, Reason.DEADLINE_PASSED})


@dataclass(slots=True)
class _Waiting:
    """The queries of a tenant that wait in profile: work, microseconds; number; sum of limits."""

    work_us: int = 0
    queries: int = 0
    limits_s: float = 0.0


@dataclass(slots=True)
class _Allowance:
    """The work that a tenant could still ask for in profile, microseconds, at a time, seconds."""

    work_us: float
    at_s: float


class Tenants:
    """Counts the queries of each tenant of one dispatcher, and computes the fair rate.

    Args:
        max_queued: number of queries that may wait in all.

    Attributes:
        fair_rate_us_per_s: the work that a tenant may ask for in profile, microseconds of device
            time a second; inf while there is no overload.
    """

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._waiting: dict[str, _Waiting] = {}
        self._allowances: dict[str, _Allowance] = {}  # of tenants that ask for more than the rate
        self._all_us = 0  # work of all waiting queries
        # Of this window, and of the one before:
        self._asked_us: Counter[str] = Counter()
        self._asked_before_us: Counter[str] = Counter()
        self._done_us = self._done_before_us = 0
        self._arrived = self._arrived_before = 0
        self._refused = self._refused_before = 0
        self._began_s = self._began_before_s = -math.inf
        self._waited = 0.0  # mean share of their limits that queries waited
        self.fair_rate_us_per_s = math.inf
        self._equal_us_per_s = math.inf
        self._asking = 1  # tenants

    # -- counting -----------------------------------------------------------------------------

    def count_arrival(self, query: QueryView, work_us: int, now_s: float) -> None:
        """Count a query that arrived; it needs ``work_us`` of device time."""
        if now_s - self._began_s >= _WINDOW_S:
            self._begin_window(now_s)
        self._arrived += 1
        if query.tenant in self._asked_us or len(self._asked_us) < _MOST_TENANTS:
            self._asked_us[query.tenant] += work_us

    def add_waiting(self, query: QueryView, work_us: int) -> None:
        """Count a query that begins to wait; it needs ``work_us`` of device time."""
        self._all_us += work_us
        if query.demoted:
            return
        known = self._waiting.get(query.tenant)
        if known is None:
            known = self._waiting[query.tenant] = _Waiting()
        known.work_us += work_us
        known.queries += 1
        known.limits_s += _limit_s(query)

    def remove_waiting(self, query: QueryView, work_us: int) -> None:
        """Count a query that waits no more; ``work_us`` as in ``add_waiting``."""
        self._all_us -= work_us
        if query.demoted:
            return
        known = self._waiting[query.tenant]
        known.work_us -= work_us
        known.queries -= 1
        known.limits_s -= _limit_s(query)
        if not known.queries:
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
        if reason in _OVERLOAD:
            self._refused += 1

    # -- shares -------------------------------------------------------------------------------

    def find_fair_rate(self, now_s: float) -> None:
        """Compute ``fair_rate_us_per_s`` anew; see the module."""
        self.fair_rate_us_per_s = math.inf
        left_us = float(self._done_before_us + self._done_us)
        if left_us and self._is_overloaded():
            asked_us = sorted((self._asked_before_us + self._asked_us).values())
            self._asking = max(len(asked_us), 1)
            self._equal_us_per_s = self._done_us_per_s(now_s) / self._asking
            for served, each_us in enumerate(asked_us if self._asking > 1 else ()):
                fair_us = left_us / (self._asking - served)
                if each_us > fair_us:
                    self.fair_rate_us_per_s = fair_us / self._span_s(now_s)
                    break
                left_us -= each_us
        if self.fair_rate_us_per_s == math.inf or len(self._allowances) >= _MOST_TENANTS:
            self._allowances.clear()

    def is_over_share(self, query: QueryView, work_us: int, now_s: float) -> bool:
        """Return whether a query that arrives now exceeds its tenant's share; if not, charge it."""
        rate = self.fair_rate_us_per_s
        if not self._asks_for_more(query.tenant, now_s):
            return False
        if self.waits_beyond(query.tenant):
            return True
        depth_us = max(rate * _BURST_S, float(work_us))
        known = self._allowances.get(query.tenant)
        if known is None:
            known = self._allowances[query.tenant] = _Allowance(depth_us, now_s)
        known.work_us = min(known.work_us + rate * (now_s - known.at_s), depth_us)
        known.at_s = now_s
        if known.work_us < work_us:
            return True
        known.work_us -= work_us
        return False

    def waits_beyond(self, tenant: str, times: float = 1.0) -> bool:
        """Return whether more waits in profile than ``times`` what an equal share allows.

        Call it for tenants that ask for more than the fair rate.
        """
        waiting = self._waiting.get(tenant)
        if waiting is None:
            return False
        allowed_us = self._equal_us_per_s * _LIMIT_PART * waiting.limits_s / waiting.queries
        allowed = _LIMIT_PART * self._max_queued / self._asking
        return waiting.work_us > times * allowed_us or waiting.queries > times * allowed

    def find_far_over(self, now_s: float) -> list[str]:
        """Return the tenants that have more than twice their share waiting in profile."""
        return [
            tenant
            for tenant in self._waiting
            if self._asks_for_more(tenant, now_s) and self.waits_beyond(tenant, 2.0)
        ]

    def half_drain_s(self, now_s: float) -> float | None:
        """Return how long half of the waiting work takes at the recent rate, seconds, or None.

        After that time there is room for a client that was refused.
        """
        rate = self._done_us_per_s(now_s)
        return self._all_us / rate / 2.0 if rate > 0.0 and self._all_us else None

    def _asks_for_more(self, tenant: str, now_s: float) -> bool:
        if self.fair_rate_us_per_s == math.inf:
            return False
        asked_us = self._asked_before_us[tenant] + self._asked_us[tenant]
        return asked_us > self.fair_rate_us_per_s * self._span_s(now_s)

    def _is_overloaded(self) -> bool:
        """Return whether the dispatcher is overloaded; see the module."""
        if self._waited > _LIMIT_PART:
            return True
        refused = self._refused + self._refused_before
        return refused > 0 and refused > _MOST_REFUSED * (self._arrived + self._arrived_before)

    def _done_us_per_s(self, now_s: float) -> float:
        """Return the recent rate of work, microseconds a second: the capacity, under overload."""
        span_s = self._span_s(now_s)
        return (self._done_us + self._done_before_us) / span_s if span_s > 0.0 else 0.0

    def _span_s(self, now_s: float) -> float:
        return now_s - max(self._began_before_s, self._began_s - 2.0 * _WINDOW_S)

    def _begin_window(self, now_s: float) -> None:
        self._asked_us, self._asked_before_us = Counter(), self._asked_us
        self._done_us, self._done_before_us = 0, self._done_us
        self._arrived, self._arrived_before = 0, self._arrived
        self._refused, self._refused_before = 0, self._refused
        self._began_s, self._began_before_s = now_s, self._began_s


def _limit_s(query: QueryView) -> float:
    return min(query.deadline_s - query.arrival_s, _LONGEST_LIMIT_S)
