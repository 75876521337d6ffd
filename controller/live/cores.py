"""Which of the machine's CPU cores a device keeps to."""

from __future__ import annotations

import os


def cores_of(rank: int, threads: int, devices: int) -> frozenset[int]:
    """The CPU cores of one of several like devices: its own, or none if there are too few for all.

    A model that always runs on one core finds its weights in that core's cache, and is not moved
    on top of another that runs.

    Args:
        rank: which of the devices, from 0.
        threads: cores that each takes.
        devices: how many there are.
    """
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return frozenset()
    cores = sorted(os.sched_getaffinity(0))
    if not 0 <= rank < devices or devices * threads > len(cores):
        return frozenset()
    return frozenset(cores[rank * threads : (rank + 1) * threads])
