"""The linear program of the clairvoyant bound, put together and solved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from modelless.controller.sim.bound_capacity import Capacity
from modelless.controller.sim.bound_service import Offer
from modelless.variants.errors import EnvironmentUnfitError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_FREE = 1e-9
"""Device time at no more than this a second is not short."""


class Flow(NamedTuple):
    """What may be served of some groups of queries, each in one window, on one device class.

    Attributes:
        device: number of the class.
        groups: numbers of the groups.
        windows: in which their batches start, one for each group.
        offers: ways to serve them.
    """

    device: int
    groups: IntArray
    windows: IntArray
    offers: Sequence[Offer]


class Optimum(NamedTuple):
    """The solution.

    Attributes:
        worth: of all that is served.
        is_scarce: by window: whether more device time would help, of some class.
    """

    worth: float
    is_scarce: NDArray[np.bool_]


def solve(counts: FloatArray, flows: Sequence[Flow], capacities: Sequence[Capacity]) -> Optimum:
    """Serve the groups, of ``counts`` queries each, for the most worth.

    A row for each group: no more is served than came. A row for each class and window: what starts
    in it and what is carried into it, less what is carried out of it, is at most the window's work.

    Raises:
        EnvironmentUnfitError: the solver failed.
    """
    windows = len(capacities[0].work_s)
    rows, columns, entries, worths = [], [], [], []
    first = 0
    for flow in flows:
        size = len(flow.groups)
        for offer in flow.offers:
            numbers = np.arange(first, first + size)
            rows += [flow.groups, len(counts) + flow.device * windows + flow.windows]
            columns += [numbers, numbers]
            entries += [np.ones(size), np.full(size, offer.cost_s)]
            worths.append(np.full(size, offer.worth))
            first += size
    served = first
    for device in range(len(capacities)):
        numbers = np.arange(first, first + windows)
        here = len(counts) + device * windows + np.arange(windows)
        rows += [here, here[1:]]
        columns += [numbers, numbers[:-1]]
        entries += [np.full(windows, -1.0), np.ones(windows - 1)]
        first += windows
    if not served:
        return Optimum(0.0, np.zeros(windows, dtype=bool))
    matrix = coo_array(
        (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))),
        shape=(len(counts) + len(capacities) * windows, first),
    ).tocsr()
    most = np.concatenate(
        [np.full(served, np.inf), *(np.full(windows, each.carry_s) for each in capacities)]
    )
    gain = np.concatenate([*worths, np.zeros(first - served)])
    room = np.concatenate([counts, *(each.work_s for each in capacities)])
    bounds = np.stack([np.zeros(first), most], axis=1)
    for method in ("highs-ipm", "highs-ds"):  # the first is quicker, the second never gets stuck
        answer = linprog(-gain, A_ub=matrix, b_ub=room, bounds=bounds, method=method)
        if answer.success:
            break
    else:
        raise EnvironmentUnfitError(f"The bound's program was not solved: {answer.message}")
    prices = -answer.ineqlin.marginals[len(counts) :].reshape(len(capacities), windows)
    return Optimum(float(-answer.fun), (prices > _FREE).any(axis=0))
