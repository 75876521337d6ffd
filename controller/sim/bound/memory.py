"""What short memory and slow loads keep from being served: rows of the clairvoyant bound's program.

Only where all workers of a device class together cannot hold every variant that could serve there,
and where the class has the same workers all the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.sim.bound.device_work import fastest, is_fixed
from modelless.controller.sim.bound.program import IntArray, Program, Served
from modelless.controller.sim.bound.service import PlacedVariant
from modelless.controller.sim.worlds.world import DeviceSettings, World
from modelless.variants.estimates import FloatArray

_MOST_ALIKE = (1, 2, 3, 4)
"""Copies in a worker, up to which it counts that they are whole."""
_ROUNDING_S = 1e-9
"""Times that differ by less count as equal, in the bound's favour."""


class Stock(NamedTuple):
    """What a device class that is short of memory may hold.

    Attributes:
        sizes: a row a way to measure copies, see ``measures_of``: by variant, the share of a
            worker's memory that a copy takes.
        load_s: by variant: no load is done in less, seconds.
        is_warm: what is wanted at the start is there.
        residual_s: no batch is expected to have more work left than this, whenever looked at; None
            if a batch may last longer than its variant is kept for it.
    """

    numbers: Mapping[str, int]
    workers: int
    sizes: FloatArray
    load_s: FloatArray
    is_warm: bool
    residual_s: float | None

    @property
    def share(self) -> float:
        """Of what could serve, how much fits."""
        return self.workers / float(self.sizes[0].sum())

    def entries(self, end_s: float, window_s: float) -> float:
        """About how many entries of the program's matrix ``hold`` makes."""
        over = 1.0 + self.load_s / window_s  # windows that a load is under way in
        return float(end_s / window_s * (3.0 + (len(self.sizes) + 3.0) * over).sum())


class Holdings(NamedTuple):
    """A stock's variables, by variant and window.

    Attributes:
        held: copies that are ready when it begins.
    """

    held: IntArray
    loaded: IntArray


def stock_of(
    world: World, device: DeviceSettings, useful: Sequence[PlacedVariant], residual_s: float
) -> Stock | None:
    """A class's stock, if it is short of memory and always has the same workers; else None."""
    needed_bytes = sum(variant.memory_bytes for variant in useful)
    if needed_bytes <= device.count * device.memory_bytes or not is_fixed(world, device):
        return None
    longest_s = max(batch.spread.most_s for variant in useful for batch in variant.batches)
    longest_s *= 1.0 + device.contention * (device.per_host - 1)
    is_kept = not world.faults and longest_s < DispatchLimits().overdue_s
    return Stock(
        {variant.variant_id: number for number, variant in enumerate(useful)},
        device.count,
        measures_of(device.memory_bytes, [variant.memory_bytes for variant in useful]),
        np.array([variant.load_s / fastest(world) for variant in useful]),
        world.warm_start,
        residual_s if is_kept else None,
    )


def measures_of(memory_bytes: int, sizes_bytes: Sequence[int]) -> FloatArray:
    """Ways to measure copies, a row each: what is in one worker together measures at most 1.

    The first is the share of its memory. The others know that copies are whole: where each takes
    more than 1 / (k + 1), at most k are there. They are dual feasible functions (Fekete and
    Schepers, Mathematical Programming 2001), and hold for other sizes beside those, too. Such as
    measure nothing to be larger than another way does are left out.
    """
    sizes = np.array(sizes_bytes, dtype=np.int64)
    found = [sizes / memory_bytes]
    for most in _MOST_ALIKE:
        whole, rest = np.divmod((most + 1) * sizes, memory_bytes)
        measure = np.where(rest == 0, sizes / memory_bytes, whole / most)
        found = [each for each in found if each is found[0] or (each > measure).any()]
        if all((measure > each).any() for each in found):
            found.append(measure)
    return np.stack(found)


def hold(program: Program, stock: Stock, edges_s: FloatArray) -> Holdings:
    """The variants held and loaded in each window of time.

    A load of ``load_s`` that ends in a window is under way at an earlier moment if that lies no
    more than ``load_s`` before its end: certainly so before the window's own end, and possibly so
    before its beginning. Rows, at the beginning of each window:

    - nothing is ready but what was so a window ago, or has been loaded in between;
    - what is ready and what is certainly under way fits into memory;
    - a worker loads one at a time, so no more are under way than there are workers.

    And in each window: loads that end in it take their time, less what was done before it began,
    plus what is done in it for those that end later.
    """
    low_s, high_s = edges_s[:-1], edges_s[1:]
    variants, windows = len(stock.load_s), len(low_s)
    held_most = np.full((variants, windows), float(stock.workers))
    if not stock.is_warm:
        held_most[:, 0] = 0.0
    loaded_most = np.where(high_s + _ROUNDING_S < stock.load_s[:, None], 0.0, np.inf)
    shape = (variants, windows)
    held = program.variables(held_most.ravel()).reshape(shape)
    loaded = program.variables(loaded_most.ravel()).reshape(shape)
    begun_most = np.full(windows + 1, np.inf)
    begun_most[0] = 0.0
    begun = program.variables(begun_most)  # seconds done of what is under way

    kept = program.rows(np.zeros(variants * (windows - 1))).reshape(variants, windows - 1)
    program.put(kept.ravel(), held[:, 1:].ravel(), 1.0)
    program.put(kept.ravel(), held[:, :-1].ravel(), -1.0)
    program.put(kept.ravel(), loaded[:, :-1].ravel(), -1.0)

    ways = len(stock.sizes)
    memory = program.rows(np.full(ways * windows, float(stock.workers))).reshape(ways, windows)
    loaders = program.rows(np.full(windows, float(stock.workers)))
    spent = program.rows(stock.workers * (high_s - low_s))
    least_begun, most_begun = program.rows(np.zeros(windows)), program.rows(np.zeros(windows))
    program.put(spent, begun[1:], 1.0)
    program.put(spent, begun[:-1], -1.0)
    program.put(least_begun, begun[:-1], -1.0)
    program.put(most_begun, begun[:-1], 1.0)
    for variant, load_s in enumerate(stock.load_s):
        taken = [pair for pair in zip(memory, stock.sizes[:, variant], strict=True) if pair[1]]
        for rows, size in taken:
            program.put(rows, held[variant], size)
        program.put(spent, loaded[variant], load_s)
        # Pairs: at the beginning of a window; its load ends in that or a later one.
        ends = np.searchsorted(low_s, low_s + load_s)
        now = np.repeat(np.arange(windows), ends - np.arange(windows))
        later = np.concatenate([np.arange(first, end) for first, end in enumerate(ends)])
        least_s = load_s - (high_s[later] - low_s[now])
        most_s = load_s - (low_s[later] - low_s[now])
        program.put(most_begun[now], loaded[variant, later], -most_s)
        certain = least_s > _ROUNDING_S
        now, later, least_s = now[certain], later[certain], least_s[certain]
        program.put(least_begun[now], loaded[variant, later], least_s)
        for rows, size in taken:
            program.put(rows[now], loaded[variant, later], size)
        program.put(loaders[now], loaded[variant, later], 1.0)
    return Holdings(held, loaded)


def serve_from(
    program: Program,
    stocks: Mapping[int, Stock],
    served: Sequence[Served],
    counts: FloatArray,
    came: IntArray,
    edges_s: FloatArray,
) -> None:
    """Let classes that are short of memory serve only with what they hold.

    A row for each group and variant: a query is served only if a copy is ready when its batch is
    handed out, some time between the beginning of the window of its arrival and the end of the last
    one in which it may start; whether there is one is the same for the whole group. A row for each
    variant and window: copies run one batch at a time.

    Args:
        stocks: by number of the class.
        counts, came: by group: how many queries, and the window in which they come.
    """
    by_variant: dict[tuple[int, int], list[Served]] = defaultdict(list)
    for each in served:
        if each.flow.variant is not None:
            by_variant[each.flow.device, each.flow.variant].append(each)
    holdings = {device: hold(program, stock, edges_s) for device, stock in stocks.items()}
    length_s = np.diff(edges_s)
    for (device, variant), mine in by_variant.items():
        held, loaded = (part[variant] for part in holdings[device])
        numbers = np.concatenate([each.numbers for each in mine])
        groups = np.concatenate([each.flow.groups for each in mine])
        starts = np.concatenate([each.flow.windows for each in mine])
        cost_s = np.concatenate([np.full(len(each.numbers), each.offer.cost_s) for each in mine])

        known, place = np.unique(groups, return_inverse=True)
        last = np.zeros(len(known), dtype=np.int64)
        np.maximum.at(last, place, starts)
        rows = program.rows(np.zeros(len(known)))
        program.put(rows[place], numbers, 1.0)
        program.put(rows, held[came[known]], -counts[known])
        for row, group, until in zip(rows, known, last, strict=True):
            during = loaded[came[group] : until + 1]
            program.put(np.full(len(during), row), during, -counts[group])

        residual_s = stocks[device].residual_s
        if residual_s is None:
            continue
        used, place = np.unique(starts, return_inverse=True)
        rows = program.rows(np.zeros(len(used)))
        program.put(rows[place], numbers, cost_s)
        for copies in (held, loaded):
            program.put(rows, copies[used], -(length_s[used] + residual_s))
