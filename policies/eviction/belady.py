"""Belady by cost: evicts the instance that is needed again last, for its load time and size.

Offline: it must know all future arrivals. Belady's rule (IBM Systems Journal, 1966) evicts what
is used again last, which is optimal for equal sizes and costs. If a miss need not be loaded, the
newcomer itself is a candidate for eviction: it is declined if everything that would leave for it is
asked for again sooner. With sizes and costs the optimal choice is NP-hard (Chrobak et al.,
Algorithmica 2012). Weighing by load time per byte is the usual greedy approximation, so this policy
is strong but no proven bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from modelless.policies.eviction.instance_figures import rank_by, reload_s, size_bytes
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.scopes import scopes_of
from modelless.policies.seams import Clairvoyant, EvictionPolicy
from modelless.policies.views import ClusterView, Instance

_SOON_S = 1e-3


class Belady(EvictionPolicy, Clairvoyant):
    """Least (load time / size / time to the next query of any scope it is in) first.

    Instances without a future query leave first. Ties go by last use, so it is LRU until arrivals
    are revealed. A load is declined if the victims would soon cost more: if its own load time over
    the time to its next query is less than the sum of theirs. Its next query is the first one after
    it is loaded.
    """

    def __init__(self) -> None:
        self._arrivals_s: dict[str, NDArray[np.float64]] = {}

    def reveal(self, arrivals_s: Mapping[str, NDArray[np.float64]]) -> None:
        self._arrivals_s = dict(arrivals_s)

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        if not self._arrivals_s:
            return LeastRecentlyUsed().rank(residents, view)

        return rank_by(residents, lambda i: self._loss(i, view.now_s) / size_bytes(i))

    def admits(self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView) -> bool:
        kept = sum(self._loss(victim, view.now_s) for victim in victims)
        return self._loss(newcomer, view.now_s, reload_s(newcomer)) >= kept

    def _loss(self, instance: Instance, now_s: float, ready_s: float = 0.0) -> float:
        """Returns the seconds of loading, a second until its next query, that its absence would
        cost.

        Args:
            instance: the instance.
            now_s: time now, seconds.
            ready_s: seconds until it can serve.
        """
        wait_s = self._next_s(instance.variant_id, now_s + ready_s) - now_s
        return reload_s(instance) / max(wait_s, _SOON_S)

    def _next_s(self, variant_id: str, now_s: float) -> float:
        """Returns the time of the next query that the variant could serve; inf if there is none."""
        next_s = math.inf
        for scope in scopes_of(variant_id):
            arrivals_s = self._arrivals_s.get(scope)
            if arrivals_s is not None:
                place = int(np.searchsorted(arrivals_s, now_s, side="right"))
                if place < len(arrivals_s):
                    next_s = min(next_s, float(arrivals_s[place]))
        return next_s
