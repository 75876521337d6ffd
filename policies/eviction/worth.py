"""Figures that eviction policies weigh with, made safe: profiles may hold inf and NaN."""

from __future__ import annotations

from modelless.policies.views import ClusterView, Instance

Key = tuple[str, str]

_MOST_S = 1e9


def key_of(instance: Instance) -> Key:
    """What tells an instance from every other: worker and variant."""
    return instance.worker_id, instance.variant_id


def instances_of(view: ClusterView) -> dict[Key, Instance]:
    """All that is loaded or loading, by key."""
    return {key_of(each): each for worker in view.workers for each in worker.instances}


def reload_s(instance: Instance) -> float:
    """Seconds to load it again: none if that is unknown, very many if it cannot be done."""
    load_s = instance.load_s
    return min(max(load_s, 0.0), _MOST_S) if load_s == load_s else 0.0


def size_bytes(instance: Instance) -> int:
    """Its memory, 1 byte at least."""
    return max(instance.memory_bytes, 1)
