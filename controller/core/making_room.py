"""Who leaves for the sake of room."""

from __future__ import annotations

from collections.abc import Iterable

from modelless.policies.views import Instance


def leavers(ranked: Iterable[Instance], lacking_bytes: float) -> list[Instance]:
    """Those that leave, in order, so that as many bytes become free; all, if that is too few.

    Down the ranking until there is room; then, from the dearest back, whoever need not have left
    after all stays: a large one may have been taken last that makes room enough without the small.

    Args:
        ranked: the cheapest to lose first.
        lacking_bytes: nobody leaves if it is 0 or less.
    """
    leaving: list[Instance] = []
    for instance in ranked:
        if lacking_bytes <= 0:
            break
        leaving.append(instance)
        lacking_bytes -= instance.memory_bytes
    for instance in leaving[::-1]:
        if lacking_bytes + instance.memory_bytes <= 0:
            lacking_bytes += instance.memory_bytes
            leaving.remove(instance)
    return leaving
