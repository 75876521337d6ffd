"""A plan for Proteus without a solver: workers are set one after the other, then swapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from modelless.policies.scaling.demand_mix import DemandKind
from modelless.policies.scaling.worker_options import WorkerOption, served_and_accuracy, worth
from modelless.policies.views import FloatArray

_CHUNKS = 16  # of a device class's workers: so many are moved at a time
_MOST_SWAPS = 32
_MOST_SWAP_ROWS = 500  # looked at at a time; with more options, the plan stays as it is


def greedy_plan(
    kinds: Sequence[DemandKind],
    options: Sequence[WorkerOption],
    workers: Mapping[str, int],
    headroom: float = 1.0,
) -> FloatArray:
    """Workers by option: add what helps most until none is left, then swap while that helps.

    Args:
        kinds: demand.
        options: what workers may be set to.
        workers: by device class.
        headroom: capacity is planned for this many times the demand.
    """
    kinds = [replace(kind, items_per_s=headroom * kind.items_per_s) for kind in kinds]
    classes = [option.placement.device_class for option in options]
    chunk = {name: max(1, count // _CHUNKS) for name, count in workers.items()}
    free = dict(workers)
    counts = np.zeros(len(options))
    best = -inf
    while True:
        open_ = [o for o, name in enumerate(classes) if free[name] > 0]
        if not open_:
            break
        plans = np.repeat(counts[None, :], len(open_), axis=0)
        for row, option in enumerate(open_):
            plans[row, option] += min(chunk[classes[option]], free[classes[option]])
        value = worth(*served_and_accuracy(kinds, options, plans))
        row = int(value.argmax())
        if not value[row] > best + 1e-9:
            break
        best = float(value[row])
        free[classes[open_[row]]] -= round(float((plans[row] - counts).sum()))
        counts = plans[row]
    for _ in range(_MOST_SWAPS):
        swaps = [
            (out, into)
            for out in np.flatnonzero(counts).tolist()
            for into, name in enumerate(classes)
            if name == classes[out] and into != out
        ]
        if not 0 < len(swaps) <= _MOST_SWAP_ROWS:
            break
        plans = np.repeat(counts[None, :], len(swaps), axis=0)
        for row, (out, into) in enumerate(swaps):
            moved = min(float(chunk[classes[out]]), counts[out])
            plans[row, out] -= moved
            plans[row, into] += moved
        value = worth(*served_and_accuracy(kinds, options, plans))
        row = int(value.argmax())
        if not value[row] > best + 1e-9:
            break
        best, counts = float(value[row]), plans[row]
    return counts
