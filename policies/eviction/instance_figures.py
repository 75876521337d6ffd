"""Figures of instances for eviction policies, with inf and NaN in profiles made harmless."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modelless.policies.views import Instance

Key = tuple[str, str]

_MOST_S = 1e9


def key_of(instance: Instance) -> Key:
    """Returns the worker and the variant, which identify an instance."""
    return instance.worker_id, instance.variant_id


def rank_by(residents: Sequence[Instance], cost: Callable[[Instance], float]) -> list[Instance]:
    """Returns the residents by ascending cost, then by last use, then by worker and variant."""
    return sorted(residents, key=lambda i: (cost(i), i.last_used_s, *key_of(i)))


def reload_s(instance: Instance) -> float:
    """Returns the seconds to load it again: 0 if unknown, very many if it is impossible."""
    load_s = instance.load_s
    return min(max(load_s, 0.0), _MOST_S) if load_s == load_s else 0.0


def size_bytes(instance: Instance) -> int:
    """Returns its memory, at least 1 byte."""
    return max(instance.memory_bytes, 1)
