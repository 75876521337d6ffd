"""What the clairvoyant bound's program is about: who comes, what serves them, in which windows."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.sim.bound.device_work import capacity, cut_times, fastest, hand_over
from modelless.controller.sim.bound.memory import Stock, serve_from, stock_of
from modelless.controller.sim.bound.program import Flow, IntArray, Program, serve
from modelless.controller.sim.bound.service import (
    BatchFacts,
    Offer,
    PlacedVariant,
    least_kept_s,
    mean_s,
    most_residual_s,
    offers_within,
)
from modelless.controller.sim.latencies import Truth
from modelless.controller.sim.worlds.profiles import Fleet
from modelless.controller.sim.worlds.query_streams import queries
from modelless.controller.sim.worlds.world import World, WorldFile
from modelless.variants.estimates import FloatArray

_FEW_VARIABLES, _MOST_VARIABLES = 16_000, 40_000
"""Of the first program, in equal windows, and of the second."""
_MOST_HELD = 170_000
"""Entries of the matrix that are about memory."""
_MOSTLY = 0.6
"""Where device time is short for so much of the time, shorter windows gain nothing."""
_PIECES = (32, 24, 16, 12, 8, 6, 4, 3, 2)
_SHORTEST_WINDOW_S = 0.01
_FREE = 1e-9
"""Device time at no more than this a second is not short."""


class Kind(NamedTuple):
    """Queries that are alike but for their arrival."""

    task: str
    latency_s: float
    min_accuracy: float
    items: int
    delay_s: float


class Lane(NamedTuple):
    """A kind of query on a device class.

    Attributes:
        device: number of the class.
        variant: number of the variant in the class's stock, if the class has one; else None, and
            batches are any variant's.
    """

    device: int
    away_s: float
    ready_s: float
    batches: tuple[BatchFacts, ...]
    variant: int | None = None


class Optimum(NamedTuple):
    """The program's solution.

    Attributes:
        is_scarce: by window: whether more device time would help, of some class.
    """

    worth: float
    is_scarce: NDArray[np.bool_]


# -- what there is -----------------------------------------------------------------------------


def arrivals_by_kind(file: WorldFile, seed: int) -> tuple[dict[Kind, FloatArray], int]:
    """When queries leave clients that are not cut off then, by kind; and how many all are.

    Raises:
        InvalidInputError: items of a stream differ in size; a bound for one size would not hold.
    """
    world = file.world
    for number, settings in enumerate(world.queries):
        if settings.sizes is not None:
            place = f"queries.{number}.sizes"
            raise InvalidInputError.of(place, settings.sizes, "none, where a bound is asked for")
    cuts = {stream.site: cut_times(world, stream.site) for stream in world.queries if stream.site}
    found: dict[Kind, array[float]] = {}
    total = 0
    for asked in queries(file, seed):
        total += 1
        client, at_s = asked.client, asked.arrival_s
        if client.delay_s and any(a <= at_s < b for a, b in cuts.get(client.site, ())):
            continue
        slo = client.slo
        task = asked.task.partition("/")[0]  # narrower scopes only lower what can be reached
        kind = Kind(task, client.latency_s, slo.min_accuracy, slo.items, client.delay_s)
        found.setdefault(kind, array("d")).append(at_s)
    return {kind: np.array(times) for kind, times in found.items()}, total


Placed = Sequence[Mapping[str, Sequence[PlacedVariant]]]
"""By device class and task: the variants that fit."""


def placed_on(world: World, fleet: Fleet) -> Placed:
    """What each device class could do for each task; see ``Placed``."""
    truth = Truth(fleet, world.limits.max_batch)
    placed: list[dict[str, list[PlacedVariant]]] = []
    for device in world.devices:
        spreads = truth.of_class(device.name)
        by_task: dict[str, list[PlacedVariant]] = {}
        for facts in fleet.facts:
            needed_bytes = facts.memory_bytes.get(device.name, math.inf)
            if needed_bytes > device.memory_bytes:
                continue
            name, accuracy = facts.variant_id, facts.accuracy_percent
            batches = tuple(
                BatchFacts(number + 1, accuracy, mean_s(spread), spread)
                for number, spread in enumerate(spreads[name])
            )
            placing = PlacedVariant(
                name, math.ceil(needed_bytes), facts.load_s[device.name], batches
            )
            by_task.setdefault(facts.task, []).append(placing)
        placed.append(by_task)
    return placed


def stocks_of(world: World, kinds: Iterable[Kind], placed: Placed) -> dict[int, Stock]:
    """The stocks of the classes that are short of memory, by number of the class."""
    found: dict[int, Stock] = {}
    every = list(kinds)
    for number, device in enumerate(world.devices):
        useful = {
            variant.variant_id: variant
            for kind in every
            for variant in _hopeful(world, kind, number, placed)
        }
        stock = stock_of(world, device, list(useful.values()), _residual_s(placed[number]))
        if stock is not None:
            found[number] = stock
    return found


def _hopeful(world: World, kind: Kind, number: int, placed: Placed) -> list[PlacedVariant]:
    """What can serve a kind of query on a class at all."""
    most_s = kind.latency_s - 2.0 * _away_s(world, kind, number)
    return [
        variant
        for variant in placed[number].get(kind.task, ())
        if variant.batches[0].accuracy_percent >= kind.min_accuracy
        and _offers(world, kind, variant.batches, most_s, weighted=True)
    ]


def _away_s(world: World, kind: Kind, number: int) -> float:
    """One way between a client and a device class."""
    return kind.delay_s + world.hop_s(world.devices[number])


def _lanes(world: World, kind: Kind, placed: Placed, stocks: Mapping[int, Stock]) -> list[Lane]:
    """Where a kind of query can be served at all; variant by variant where there is a stock."""
    lanes = []
    for number in range(len(world.devices)):
        known = _hopeful(world, kind, number, placed)
        stock = stocks.get(number)
        apart = [known] if stock is None else [[variant] for variant in known]
        for mine in filter(None, apart):
            load_s = min(variant.load_s for variant in mine) / fastest(world)
            lanes.append(
                Lane(
                    number,
                    _away_s(world, kind, number),
                    0.0 if world.warm_start else load_s,
                    tuple(batch for variant in mine for batch in variant.batches),
                    None if stock is None else stock.numbers[mine[0].variant_id],
                )
            )
    return lanes


# -- the program -------------------------------------------------------------------------------


class Problem:
    """The queries to be served, and the windows of time that the bound looks at.

    Args:
        arrivals: times by kind, ascending.
        stocks: of classes that are short of memory, by number; others, or none, are taken to hold
            all that could serve.
    """

    def __init__(
        self,
        world: World,
        arrivals: Mapping[Kind, FloatArray],
        placed: Placed,
        stocks: Mapping[int, Stock],
    ) -> None:
        self._world = world
        self._arrivals = arrivals
        self._stocks = stocks
        self._residuals_s = [_residual_s(by_task) for by_task in placed]
        self._lanes = {kind: _lanes(world, kind, placed, stocks) for kind in arrivals}
        self._known: dict[tuple[Kind, int, int | None, float, bool], list[Offer]] = {}
        self._known_kept_s: dict[tuple[Kind, int, int | None, float], float] = {}

    def equal_windows(self) -> FloatArray:
        """The edges of the shortest equal windows that keep the program small."""
        last_s = max(times[-1] for times in self._arrivals.values())
        end_s = max(times[-1] + kind.latency_s for kind, times in self._arrivals.items())
        window_s = _SHORTEST_WINDOW_S
        while True:
            held = sum(stock.entries(end_s, window_s) for stock in self._stocks.values())
            is_small = self._roughly(window_s) <= _FEW_VARIABLES and held <= _MOST_HELD
            if is_small or last_s < window_s:
                return window_s * np.arange(int(end_s / window_s) + 2, dtype=np.float64)
            window_s *= 1.25

    def refined(self, edges_s: FloatArray, is_scarce: NDArray[np.bool_]) -> FloatArray:
        """Shorter windows where device time is short at times, as short as the size allows."""
        near = is_scarce | np.roll(is_scarce, 1) | np.roll(is_scarce, -1)
        if not near.any() or near.mean() > _MOSTLY:
            return edges_s
        for pieces in _PIECES:
            parts = np.arange(pieces) / pieces
            finer = np.concatenate(
                [
                    low + (high - low) * parts if is_near else [low]
                    for low, high, is_near in zip(
                        edges_s[:-1], edges_s[1:], near.tolist(), strict=True
                    )
                ]
                + [edges_s[-1:]]
            )
            if self._flows(finer, weighted=True, most=_MOST_VARIABLES) is not None:
                return finer
        return edges_s

    def optimum(self, edges_s: FloatArray, *, weighted: bool) -> Optimum:
        """The program's solution in these windows."""
        flows = self._flows(edges_s, weighted=weighted) or []
        groups = [_windows(times, edges_s) for times in self._arrivals.values()]
        came, counts = (np.concatenate(part) for part in zip(*groups, strict=True))
        classes = list(zip(self._world.devices, self._residuals_s, strict=True))
        capacities = [capacity(self._world, *each, edges_s) for each in classes]
        hand_overs = [hand_over(self._world, *each, edges_s) for each in classes]
        program = Program()
        served, times = serve(program, counts, flows, capacities, hand_overs)
        if not served:
            return Optimum(0.0, np.zeros(len(edges_s) - 1, dtype=bool))
        if self._stocks:
            serve_from(program, self._stocks, served, counts, came, edges_s)
        worth, prices = program.maximum()
        return Optimum(worth, np.any(prices[np.stack(times)] > _FREE, axis=0))

    def why(self, total: int, value: Optimum, edges_s: FloatArray) -> str:
        """What bounds the figures, for people."""
        said = []
        reachable = sum(len(times) for times in self._arrivals.values())
        hopeless = sum(
            len(times) for kind, times in self._arrivals.items() if not self._lanes[kind]
        )
        if reachable < total:
            said.append(f"{(total - reachable) / total:.1%} of queries come from a site cut off")
        if hopeless:
            said.append(f"{hopeless / total:.1%} of queries cannot be served in time")
        spans_s = np.diff(edges_s)
        scarce = float(spans_s[value.is_scarce].sum() / spans_s.sum())
        if scarce > 0.0:
            said.append(f"device time is short for {scarce:.0%} of the time")
        else:
            said.append("device time is not short")
        low_s, high_s = float(spans_s.min()), float(spans_s.max())
        told = f"{low_s:.2g}" if high_s < 1.01 * low_s else f"{low_s:.2g} to {high_s:.2g}"
        return f"{'; '.join(said)} (windows of {told} s)"

    def _roughly(self, window_s: float) -> float:
        """How many variables windows of this length would need."""
        return sum(
            len(np.unique(np.floor_divide(times, window_s)))
            * (kind.latency_s / window_s + 2.0)
            * sum(len(self._offers(kind, lane, kind.latency_s, True)) for lane in self._lanes[kind])
            for kind, times in self._arrivals.items()
        )

    def _flows(
        self, edges_s: FloatArray, *, weighted: bool, most: float = math.inf
    ) -> list[Flow] | None:
        """All that may be served when; None if it takes more variables than ``most``."""
        flows: list[Flow] = []
        first = variables = 0
        for kind, times in self._arrivals.items():
            windows, _ = _windows(times, edges_s)
            groups = np.arange(first, first + len(windows))
            first += len(windows)
            for lane in self._lanes[kind]:
                for flow in self._flows_of(kind, lane, groups, windows, edges_s, weighted):
                    variables += len(flow.groups) * len(flow.offers)
                    if variables > most:
                        return None
                    flows.append(flow)
        return flows

    def _flows_of(
        self,
        kind: Kind,
        lane: Lane,
        groups: IntArray,
        windows: IntArray,
        edges_s: FloatArray,
        weighted: bool,
    ) -> Iterator[Flow]:
        """Of one kind on one class: by how many windows lie between arrival and start."""
        low_s, high_s = edges_s[:-1], edges_s[1:]
        step_s = float(np.diff(edges_s).min())
        most_s = kind.latency_s - 2.0 * lane.away_s
        for lag in range(len(low_s)):
            starts = windows + lag
            inside = starts < len(low_s)
            groups, windows, starts = groups[inside], windows[inside], starts[inside]
            # The time left for the latest arrival of one window at the earliest start of the other,
            # rounded up so that few limits occur.
            left_s = high_s[windows] - low_s[starts] + kind.latency_s - lane.away_s
            limits_s = np.minimum(np.ceil(left_s / step_s) * step_s, most_s)
            hopeful = left_s > 0.0
            if not hopeful.any():
                return
            can_be = (
                hopeful
                & (high_s[starts] > low_s[windows] + lane.away_s)
                & (high_s[starts] > lane.ready_s)
            )
            for limit_s in np.unique(limits_s[can_be]).tolist():
                mine = can_be & (limits_s == limit_s)
                offers = self._offers(kind, lane, limit_s, weighted)
                if offers:
                    kept_s = self._kept_s(kind, lane, limit_s)
                    mine_at = groups[mine], starts[mine]
                    yield Flow(lane.device, *mine_at, offers, kept_s, lane.variant)

    def _kept_s(self, kind: Kind, lane: Lane, limit_s: float) -> float:
        key = (kind, lane.device, lane.variant, limit_s)
        kept_s = self._known_kept_s.get(key)
        if kept_s is None:
            both_ways_s = 2.0 * (lane.away_s - kind.delay_s)
            kept_s = least_kept_s(lane.batches, kind.items, limit_s, both_ways_s)
            self._known_kept_s[key] = kept_s
        return kept_s

    def _offers(self, kind: Kind, lane: Lane, limit_s: float, weighted: bool) -> list[Offer]:
        key = (kind, lane.device, lane.variant, limit_s, weighted)
        known = self._known.get(key)
        if known is None:
            known = _offers(self._world, kind, lane.batches, limit_s, weighted=weighted)
            self._known[key] = known
        return known


def _windows(times: FloatArray, edges_s: FloatArray) -> tuple[IntArray, FloatArray]:
    """The windows in which something comes, and how much."""
    windows, counts = np.unique(
        np.searchsorted(edges_s, times, side="right") - 1, return_counts=True
    )
    return windows.astype(np.int64), counts.astype(np.float64)


def _offers(
    world: World, kind: Kind, batches: Sequence[BatchFacts], limit_s: float, *, weighted: bool
) -> list[Offer]:
    """The best ways to serve a query that has ``limit_s`` left."""
    retried = bool(world.faults) or kind.latency_s > DispatchLimits().overdue_s
    return offers_within(
        batches, kind.items, limit_s * fastest(world), retried=retried, weighted=weighted
    )


def _residual_s(by_task: Mapping[str, Sequence[PlacedVariant]]) -> float:
    """No batch of the class is expected to have more work left than this, whenever looked at."""
    return max(
        (
            most_residual_s(batch.spread)
            for variants in by_task.values()
            for variant in variants
            for batch in variant.batches
        ),
        default=0.0,
    )
