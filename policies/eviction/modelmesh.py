"""ModelMesh: least recently used, with a guard against churn.

KServe's ModelMesh evicts the least recently used entries, weighted by size, until the new one fits.
It refuses to load if even the oldest entry was used so recently that models would only evict each
other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from modelless.common.errors import InvalidInputError
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.views import ClusterView, Instance


class ModelMesh(LeastRecentlyUsed):
    """LRU that declines a load on demand if even the oldest entry was used too recently.

    It declines only where room would have to be made.

    Args:
        churn_age_s: seconds since the last use of the oldest entry below which a load is refused.
    """

    def __init__(self, churn_age_s: float = 60.0) -> None:
        if not (isinstance(churn_age_s, (int, float)) and 0.0 <= churn_age_s < math.inf):
            raise InvalidInputError.of("churn_age_s", churn_age_s, "seconds, 0 or more")
        self.churn_age_s = churn_age_s

    def admits(self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView) -> bool:
        if not victims:
            return True
        held = [w.instances for w in view.workers if w.worker_id == newcomer.worker_id]
        oldest_s = min(instance.last_used_s for each in (victims, *held) for instance in each)
        return view.now_s - oldest_s >= self.churn_age_s
