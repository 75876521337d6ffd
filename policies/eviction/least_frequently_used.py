"""Least frequently used: evicts the instance with the fewest batches since it was loaded."""

from __future__ import annotations

from collections.abc import Sequence

from modelless.policies.eviction.instance_figures import rank_by
from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Instance


class LeastFrequentlyUsed(EvictionPolicy):
    """In-cache LFU: counts begin anew with each load. Ties go by last use, then by id."""

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        return rank_by(residents, lambda instance: instance.use_count)
