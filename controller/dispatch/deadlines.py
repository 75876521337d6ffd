"""Queries that can no longer meet their deadline: which they are, and whether they are served late.

The dispatcher refuses the others at its ticks and before each batch. A selection policy may give a
query up sooner: see ``Run.dropped`` and ``Wait.dropped``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from modelless.controller.dispatch.receipts import Receipt
from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.views import QueryView, ResidentView

_TIME_REASONS = frozenset(
    {
        Reason.TOO_SLOW,
        Reason.QUEUE_TOO_LONG,
        Reason.DEADLINE_PASSED,
        Reason.LIMITS_CONFLICT,
        Reason.NOTHING_READY,
    }
)


def extend_deadline(receipt: Receipt, reason: AnyReason, max_late_s: float) -> QueryView | None:
    """Return the query as it waits from now on; None if it must be refused for this reason.

    A late query goes behind all that can still be in time: served first, it would make the others
    late, too (the domino effect of earliest deadline first: Buttazzo, Hard Real-Time Computing
    Systems, sec. 9.2). Its deadline is extended once, and its other limits stay.

    Args:
        max_late_s: by how much its deadline is extended, seconds.
    """
    query = receipt.query
    waits = receipt.standing or query
    if not query.serve_late or reason not in _TIME_REASONS:
        return None
    if waits.deadline_s > query.deadline_s or query.deadline_s == math.inf:
        return None
    return query._replace(deadline_s=query.deadline_s + max_late_s, demoted=True)


def find_late(queue: Iterable[QueryView], resident: ResidentView, now_s: float) -> list[QueryView]:
    """Return the first queries of a queue, as far as they would be late if they ran now."""
    late = []
    for query in queue:
        if now_s + resident.p50_s[query.items] <= query.deadline_s:
            break
        late.append(query)
    return late
