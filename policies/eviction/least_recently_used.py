"""Least recently used: evicts the instance that was idle longest."""

from __future__ import annotations

from collections.abc import Sequence

from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Instance


class LeastRecentlyUsed(EvictionPolicy):
    """LRU by the end of the last batch; ties by id, so that the order is total."""

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        return sorted(residents, key=lambda i: (i.last_used_s, i.worker_id, i.variant_id))
