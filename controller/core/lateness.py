"""Queries that cannot be in time: which they are, and what becomes of those that may be late."""

from __future__ import annotations

import math
from collections.abc import Iterable

from modelless.controller.core.receipts import Receipt
from modelless.policies.reasons import Reason
from modelless.policies.views import QueryView, ResidentView

_FOR_WANT_OF_TIME = frozenset(
    {
        Reason.TOO_SLOW,
        Reason.QUEUE_TOO_LONG,
        Reason.DEADLINE_PASSED,
        Reason.LIMITS_CONFLICT,
        Reason.NOTHING_READY,
    }
)


def may_be_late(receipt: Receipt, reason: Reason, max_late_s: float) -> QueryView | None:
    """The query as it waits from now on; None if it is to be refused for this reason.

    What is late goes behind all that can still be in time: served first, it would make the others
    late, too (the domino effect of earliest deadline first: Buttazzo, Hard Real-Time Computing
    Systems, sec. 9.2). Its deadline is put off once; the other limits stand.
    """
    query = receipt.query
    waits = receipt.standing or query
    if not query.serve_late or reason not in _FOR_WANT_OF_TIME:
        return None
    if waits.deadline_s > query.deadline_s or query.deadline_s == math.inf:
        return None
    return query._replace(deadline_s=query.deadline_s + max_late_s, demoted=True)


def late_in(queue: Iterable[QueryView], resident: ResidentView, now_s: float) -> list[QueryView]:
    """The first queries of a queue, the most urgent first, that would be late if run now."""
    late = []
    for query in queue:
        if now_s + resident.p50_s[query.items] <= query.deadline_s:
            break
        late.append(query)
    return late
