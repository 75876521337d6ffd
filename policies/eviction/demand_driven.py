"""Demand-driven: least recently used, but instances that clients ask for now go last.

Clockwork (Gujarati et al., OSDI 2020, section 5.3) loads the model with the most demand that is not
met, and unloads the least recently used.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelless.policies.eviction.instance_figures import rank_by
from modelless.policies.scopes import scopes_of
from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Instance


class DemandDriven(EvictionPolicy):
    """By the queries now waiting or running that a variant could serve, then LRU.

    Clockwork ranks the loads by unmet demand; here the scaling policy does that. This policy
    prevents that a load for one client evicts what the next client in the queue waits for.
    """

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        def demand(instance: Instance) -> float:
            asked = view.open_queries
            return sum(asked.get(scope, 0) for scope in scopes_of(instance.variant_id))

        return rank_by(residents, demand)
