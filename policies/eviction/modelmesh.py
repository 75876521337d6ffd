"""ModelMesh: least recently used, with a guard against churn.

KServe's ModelMesh keeps a cache in which entries weigh their size and the least recently used
leave until the new one fits; it refuses to load when even the oldest entry was used so lately that
loads would only chase each other out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Instance
from modelless.variants.errors import InvalidInputError


class ModelMesh(EvictionPolicy):
    """LRU among instances idle for the churn age; the others leave after them, newcomers first.

    A size counts as it does there: the planner takes from the front until the memory suffices. A
    policy that ranks cannot refuse a load, so the guard is in the order of those used within the
    churn age: fewest batches since their load first, then most recently used. If all are young,
    newcomers give way to newcomers and what is in steady use stays, as if the loads had been
    refused.

    Args:
        churn_age_s: how long an instance is idle before it leaves in turn, seconds.
    """

    def __init__(self, churn_age_s: float = 60.0) -> None:
        if not (isinstance(churn_age_s, (int, float)) and 0.0 <= churn_age_s < math.inf):
            raise InvalidInputError.of("churn_age_s", churn_age_s, "seconds, 0 or more")
        self.churn_age_s = churn_age_s

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        def order(instance: Instance) -> tuple[bool, int, float, str, str]:
            is_young = view.now_s - instance.last_used_s < self.churn_age_s
            names = instance.worker_id, instance.variant_id
            if is_young:
                return True, instance.use_count, -instance.last_used_s, *names
            return False, 0, instance.last_used_s, *names

        return sorted(residents, key=order)
