"""Idle time over load time: evicts the instance with the largest ratio of the two.

Lemonade, a server of local models, orders its loaded models by idle / (load time x weight).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from modelless.common.errors import InvalidInputError
from modelless.policies.eviction.instance_figures import rank_by, reload_s
from modelless.policies.scopes import task_of
from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Instance

_LEAST_S = 1e-3


class Lemonade(EvictionPolicy):
    """Longest idle first, in units of weighted load time.

    Args:
        weights: by task, the weight of its variants; 1 for the others.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights = dict(weights or {})
        for task, weight in self.weights.items():
            if not (isinstance(weight, (int, float)) and 0.0 < weight < math.inf):
                raise InvalidInputError.of(f"weights.{task}", weight, "a number above 0")

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        def overstay(instance: Instance) -> float:
            weight = self.weights.get(task_of(instance.variant_id), 1.0)
            idle_s = max(view.now_s - instance.last_used_s, 0.0)
            return idle_s / (max(reload_s(instance), _LEAST_S) * weight)

        return rank_by(residents, lambda instance: -overstay(instance))
