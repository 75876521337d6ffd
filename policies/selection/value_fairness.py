"""Fairness among tenants when not everyone can be served: max-min over device time.

(Bertsekas and Gallager, Data Networks, sec. 6.5.2.) Whoever asks for less than an equal share of
what the devices can do gets all of it; what is left is for the others. So a tenant that floods the
queue crowds out only itself, and nobody is held back who takes no more than their share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from modelless.policies.views import QueryView


def within_fair_share(
    queries: Sequence[QueryView], work_s: Sequence[float], capacity_s: float
) -> list[int] | None:
    """Which queries are of tenants that ask for no more than an equal share, as places.

    Args:
        queries: n that wait.
        work_s: device time each takes; those of no finite work count for nothing.
        capacity_s: device time there is for all of them.

    Returns:
        None if there is nothing to share out: they are of one tenant, there is time for all, or
        there is nobody who asks for no more than their share.
    """
    work_of: dict[str, float] = {}
    for query, one_s in zip(queries, work_s, strict=True):
        work_of[query.tenant] = work_of.get(query.tenant, 0.0) + (
            one_s if one_s < math.inf else 0.0
        )
    if len(work_of) < 2 or sum(work_of.values()) <= capacity_s:
        return None
    share_s = capacity_s / len(work_of)
    modest = {tenant for tenant, asked_s in work_of.items() if asked_s <= share_s}
    if not modest:
        return None
    return [place for place, query in enumerate(queries) if query.tenant in modest]
