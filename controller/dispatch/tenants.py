"""Fairness among tenants, whatever the policy: who takes more than their share stands behind.

While there is too much to do, what a tenant has waiting beyond its fair share is *demoted*: it is
served after everyone else's of its priority, and so by what the others leave. That is how networks
share a link without a queue for each flow (marking in and out of profile: Clark and Fang, IEEE/ACM
ToN 1998). It wastes nothing, and needs no policy's help: whoever asks for less than an equal share
of the devices never has much waiting, is never demoted, and never waits behind who is. Of those who
ask for more, each has the same work in profile, and so gets the same share of what is left
(max-min fairness).

There is too much to do while more than a few queries are turned away for want of time or waiting, or
they wait for more than half their limits. (If one refusal were a sign of that, it would bring forth
the next: who is demoted waits behind fresh queries, and is late for that.) A tenant's share of the
queue is then as much work as the devices can do in half the tightest limit, and as many queries as
fill half the queue, divided by the number of tenants: so nobody within their share waits longer
than that, or finds no waiting. Work is device time at its least: that of the quickest variant which is
accurate enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from modelless.policies.reasons import Reason
from modelless.policies.views import QueryView

_WINDOW_S = 1.0
"""Tenants count for so long after their last query, and refusals for as long: one to two of it."""
_MOST_TENANTS = 4096
_PART_OF_LIMIT = 0.5
_LEARNT = 1.0 / 16.0
"""Weight of one batch in the mean share of their limits that queries waited."""
_FEW = 1.0 / 64.0
"""So large a share of the queries may be turned away while all is well."""
_CROWDED = frozenset({Reason.QUEUE_TOO_LONG, Reason.QUEUE_FULL, Reason.DEADLINE_PASSED})


class Share(NamedTuple):
    """What a tenant may have waiting in profile: device time, microseconds, and queries."""

    work_us: float
    queries: float


class Tenants:
    """What the tenants of one dispatcher have waiting, and what they may.

    Args:
        max_queued: queries that may wait in all.
    """

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._waiting: dict[str, list[int]] = {}  # work in profile, and queries: by tenant
        self._all_us = 0  # all that waits, in profile or not
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._limit_s = self._limit_before_s = math.inf
        self._done_us = self._done_before_us = 0
        self._came = self._came_before = 0
        self._refused = self._refused_before = 0
        self._began_s = self._began_before_s = -math.inf
        self._waited = 0.0

    # -- what happens -------------------------------------------------------------------------

    def count_arrival(self, query: QueryView, now_s: float) -> None:
        """A query has come in."""
        if now_s - self._began_s >= _WINDOW_S:
            self._begin_window(now_s)
        self._came += 1
        if len(self._seen) < _MOST_TENANTS:
            self._seen.add(query.tenant)

    def add_waiting(self, query: QueryView, work: int) -> None:
        """The query waits, for ``work`` microseconds of device time."""
        self._all_us += work
        if query.demoted:
            return
        known = self._waiting.get(query.tenant)
        if known is None:
            self._waiting[query.tenant] = [work, 1]
        else:
            known[0] += work
            known[1] += 1
        limit_s = query.deadline_s - query.arrival_s
        if limit_s < self._limit_s:
            self._limit_s = limit_s

    def remove_waiting(self, query: QueryView, work: int) -> None:
        """The query, which waited, does not any more."""
        self._all_us -= work
        if query.demoted:
            return
        known = self._waiting[query.tenant]
        known[0] -= work
        known[1] -= 1
        if not known[1]:
            del self._waiting[query.tenant]

    def count_start(self, queries: Sequence[QueryView], now_s: float) -> None:
        """A batch is handed to a worker: its last query is the one that waited with least right."""
        query = queries[-1]
        limit_s = query.deadline_s - query.arrival_s
        share = (now_s - query.arrival_s) / limit_s if limit_s > 0.0 else 1.0
        self._waited += _LEARNT * (share - self._waited)

    def count_done(self, work: int) -> None:
        """A batch has run whose queries needed ``work`` microseconds."""
        self._done_us += work

    def count_refusal(self, reason: Reason) -> None:
        """A query was refused."""
        if reason in _CROWDED:
            self._refused += 1

    # -- what follows -------------------------------------------------------------------------

    def is_beyond_share(self, query: QueryView, now_s: float) -> bool:
        """Whether a query that comes in now is beyond its tenant's share."""
        if not self._is_crowded() or query.tenant not in self._waiting:
            return False
        return self.exceeds(query.tenant, self.share(now_s))

    def exceeds(self, tenant: str, share: Share | None) -> bool:
        """Whether what the tenant has waiting in profile is more than that; never if it is None."""
        waiting = self._waiting.get(tenant)
        return (
            share is not None
            and waiting is not None
            and (waiting[0] > share.work_us or waiting[1] > share.queries)
        )

    def far_beyond(self, share: Share | None) -> list[str]:
        """Tenants that have more than twice their share waiting in profile."""
        if share is None:
            return []
        twice = Share(2.0 * share.work_us, 2.0 * share.queries)
        return [tenant for tenant in self._waiting if self.exceeds(tenant, twice)]

    def share(self, now_s: float) -> Share | None:
        """What each tenant may have waiting in profile; None while all can be served."""
        if not self._is_crowded():
            return None
        tenants = len(self._seen | self._seen_before) if self._seen_before else len(self._seen)
        limit_s = min(self._limit_s, self._limit_before_s)
        rate = self._done_us_per_s(now_s)
        if tenants < 2 or not rate or limit_s == math.inf:
            return None
        return Share(
            rate * _PART_OF_LIMIT * limit_s / tenants, _PART_OF_LIMIT * self._max_queued / tenants
        )

    def half_drain_s(self, now_s: float) -> float | None:
        """How long half of what waits will take, as work was done lately; None if that is unknown.

        When a client that was turned away may try again: there is waiting then, and the others who
        came before it are through.
        """
        rate = self._done_us_per_s(now_s)
        return self._all_us / rate / 2.0 if rate > 0.0 and self._all_us else None

    def _is_crowded(self) -> bool:
        """Whether there is too much to do; see the module."""
        if self._waited > _PART_OF_LIMIT:
            return True
        refused = self._refused + self._refused_before
        return refused > 0 and refused > _FEW * (self._came + self._came_before)

    def _done_us_per_s(self, now_s: float) -> float:
        """Work done lately, a second: while there is too much to do, what can be done; or 0."""
        span_s = now_s - max(self._began_before_s, self._began_s - 2.0 * _WINDOW_S)
        return (self._done_us + self._done_before_us) / span_s if span_s > 0.0 else 0.0

    def _begin_window(self, now_s: float) -> None:
        """A new window begins."""
        self._seen, self._seen_before = set(), self._seen
        self._limit_s, self._limit_before_s = math.inf, self._limit_s
        self._done_us, self._done_before_us = 0, self._done_us
        self._came, self._came_before = 0, self._came
        self._refused, self._refused_before = 0, self._refused
        self._began_s, self._began_before_s = now_s, self._began_s
