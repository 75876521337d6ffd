"""The linear program of the clairvoyant bound, put together and solved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.sim.bound.device_work import Capacity
from modelless.controller.sim.bound.service import Offer
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.int64]


class Flow(NamedTuple):
    """What may be served of some groups of queries, each in one window, on one device class.

    Attributes:
        device: number of the class.
        groups: numbers of the groups.
        windows: in which their batches start, one for each group.
        kept_s: a query's share, at least, of the time that a worker is kept by its batch; see
            ``device_work.hand_over``.
        variant: number of the variant in the class's stock, if the class is short of memory; else
            None, and offers are any variant's.
    """

    device: int
    groups: IntArray
    windows: IntArray
    offers: Sequence[Offer]
    kept_s: float
    variant: int | None = None


class Served(NamedTuple):
    """A flow's variables: how much of each group is served by one of its offers."""

    flow: Flow
    offer: Offer
    numbers: IntArray


class Program:
    """A linear program in the making: variables of at least 0, rows that have only so much room."""

    def __init__(self) -> None:
        self._worths: list[FloatArray] = []
        self._most: list[FloatArray] = []
        self._rooms: list[FloatArray] = []
        self._entries: list[tuple[IntArray, IntArray, FloatArray]] = []
        self._variables = self._rows = 0

    def variables(self, most: FloatArray, worth: float = 0.0) -> IntArray:
        """New variables, each of at most ``most`` and worth so much apiece; their numbers."""
        self._most.append(most)
        self._worths.append(np.full(len(most), worth))
        first = self._variables
        self._variables += len(most)
        return np.arange(first, self._variables)

    def rows(self, room: FloatArray) -> IntArray:
        """New rows, whose sums are at most ``room``; their numbers."""
        self._rooms.append(room)
        first = self._rows
        self._rows += len(room)
        return np.arange(first, self._rows)

    def put(self, rows: IntArray, variables: IntArray, factors: FloatArray | float) -> None:
        """Add each variable, times its factor, to its row."""
        self._entries.append((rows, variables, np.broadcast_to(factors, rows.shape)))

    def maximum(self) -> tuple[float, FloatArray]:
        """The most worth, and by row what a little more room would add to it.

        Raises:
            EnvironmentUnfitError: the solver failed.
        """
        rows, columns, factors = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        shape = (self._rows, self._variables)
        matrix = coo_array((factors, (rows, columns)), shape=shape).tocsr()
        worth, most = np.concatenate(self._worths), np.concatenate(self._most)
        bounds = np.stack([np.zeros(len(most)), most], axis=1)
        room = np.concatenate(self._rooms)
        for method in ("highs-ipm", "highs-ds"):  # the first is quicker, the second never sticks
            answer = linprog(-worth, A_ub=matrix, b_ub=room, bounds=bounds, method=method)
            if answer.success:
                return float(-answer.fun), -answer.ineqlin.marginals
        raise EnvironmentUnfitError(f"The bound's program was not solved: {answer.message}")


def serve(
    program: Program,
    counts: FloatArray,
    flows: Sequence[Flow],
    capacities: Sequence[Capacity],
    hand_overs: Sequence[Capacity | None],
) -> tuple[list[Served], list[IntArray]]:
    """Serve the groups, of ``counts`` queries each.

    A row for each group: no more is served than came. A row for each class and window: what starts
    in it and what is carried into it, less what is carried out of it, is at most the window's work.
    And so for the time that workers are kept, where that is known.

    Returns:
        The variables of what is served; the rows of time, each of them one a window.
    """
    asked = program.rows(counts)
    work = [_windows_of(program, each) for each in capacities]
    kept = [None if each is None else _windows_of(program, each) for each in hand_overs]
    served = []
    for flow in flows:
        for offer in flow.offers:
            numbers = program.variables(np.full(len(flow.groups), np.inf), offer.worth)
            program.put(asked[flow.groups], numbers, 1.0)
            program.put(work[flow.device][flow.windows], numbers, offer.cost_s)
            if (rows := kept[flow.device]) is not None:
                program.put(rows[flow.windows], numbers, flow.kept_s)
            served.append(Served(flow, offer, numbers))
    return served, work + [rows for rows in kept if rows is not None]


def _windows_of(program: Program, capacity: Capacity) -> IntArray:
    rows = program.rows(capacity.work_s)
    carried = program.variables(np.full(len(rows), capacity.carry_s))
    program.put(rows, carried, -1.0)
    program.put(rows[1:], carried[:-1], 1.0)
    return rows
