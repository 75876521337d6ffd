"""Greedy-Dual-Size-Frequency: keeps instances that are often used, slow to load and small.

Instances age while they are not used. FaasCache (Fuerst and Sharma, ASPLOS 2021, section 4) keeps
serverless functions warm by this rule, which Cherkasova (HP Labs, 1998) made for web caches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from modelless.policies.eviction.instance_figures import (
    Key,
    key_of,
    rank_by,
    reload_s,
    size_bytes,
)
from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Instance


class GreedyDualSizeFrequency(EvictionPolicy):
    """Least priority first: clock at the last use + frequency x load time / size.

    The frequency is a variant's batches over all its instances, counted anew once none is left. A
    victim's priority becomes the clock, so that unused instances fall behind used ones. The policy
    is not told what was evicted: at the next call the clock advances to the highest priority among
    the instances that are gone since the last call, on workers that still exist.
    """

    def __init__(self) -> None:
        self._clock = 0.0
        self._uses: dict[Key, tuple[int, float]] = {}  # number, and the clock at the last one
        self._priority: dict[Key, float] = {}

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        loaded = [each for worker in view.workers for each in worker.instances]
        held = {key_of(each): each for each in (*loaded, *residents)}
        self._advance({worker.worker_id for worker in view.workers}, held)
        uses = Counter[str]()
        for instance in held.values():
            uses[instance.variant_id] += instance.use_count
        self._uses = {key: self._touch(key, each.use_count) for key, each in held.items()}
        self._priority = {
            key: self._uses[key][1] + uses[each.variant_id] * reload_s(each) / size_bytes(each)
            for key, each in held.items()
        }
        return rank_by(residents, lambda instance: self._priority[key_of(instance)])

    def _advance(self, workers: set[str], held: Mapping[Key, Instance]) -> None:
        """Advance the clock by the instances that have been evicted."""
        evicted = [
            priority
            for key, priority in self._priority.items()
            if key not in held and key[0] in workers
        ]
        self._clock = max([self._clock, *evicted])

    def _touch(self, key: Key, uses: int) -> tuple[int, float]:
        before = self._uses.get(key)
        return before if before is not None and before[0] == uses else (uses, self._clock)
