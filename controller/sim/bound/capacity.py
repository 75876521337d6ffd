"""What the devices of a world can serve at most: what a load of 1 is.

The capacity is the largest rate at which every query of the world's mix could be answered within
its limits, if devices never stood still but for batches on their way there and back, all batches
were full, everyone took the variant that costs least, and all of them were loaded. It is the
optimum of a linear program: the least time each kind of query takes on each device class, and how
the kinds are shared out over the classes. Faults are left out, workers that scaling may add are in,
and each keeps the size it has.

Nobody reaches it. It says how hard a load is: at half of it, a good policy still answers everyone
in time, with variants below the best; beyond it, somebody must be refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.controller.sim.bound.problem import Kind, Placed, arrivals_by_kind, placed_on
from modelless.controller.sim.bound.service import PlacedVariant, chance_within, offers_within
from modelless.controller.sim.worlds.profiles import build_fleet
from modelless.controller.sim.worlds.world import DeviceSettings, World, WorldFile

_STRETCH_S = 5.0


class Demand(NamedTuple):
    """What a world asks for, beside what it can serve: queries a second.

    Attributes:
        capacity_per_s: what could be served of the same mix.
        busiest_per_s: what comes in the busiest stretch of five seconds, or as long as asked for.
    """

    capacity_per_s: float
    mean_per_s: float
    busiest_per_s: float

    @property
    def load(self) -> float:
        """Of the busiest stretch, relative to the capacity."""
        return self.busiest_per_s / self.capacity_per_s


def demand_of(
    file: WorldFile, stretch_s: float = _STRETCH_S, *, only_possible: bool = False
) -> Demand:
    """What a world's own seed asks for, and what its devices could serve of that.

    Args:
        only_possible: leave out queries that nothing answers in time every second time.

    Raises:
        InvalidInputError: the world, a table or a trace of it does not fit; no query comes; some
            can be served by nobody.
        EnvironmentUnfitError: the solver failed.
    """
    world = file.world.model_copy(update={"faults": ()})
    file = WorldFile(world, file.folder)
    arrivals, total = arrivals_by_kind(file, world.seed)
    if not total:
        raise InvalidInputError.of("queries", "none", "at least one query")
    placed = placed_on(world, build_fleet(file))
    if only_possible:
        arrivals = {
            kind: times for kind, times in arrivals.items() if _is_possible(world, kind, placed)
        }
        total = sum(map(len, arrivals.values()))
        if not total:
            raise InvalidInputError.of("queries", "limits that nothing can keep", "wider limits")
    at_s = np.sort(np.concatenate(list(arrivals.values())))
    span_s = world.duration_s or float(at_s[-1]) or stretch_s
    mix = {kind: len(times) / total for kind, times in arrivals.items()}
    ends = np.searchsorted(at_s, at_s + stretch_s)
    busiest = int((ends - np.arange(total)).max())
    return Demand(
        _capacity_per_s(world, mix, placed), total / span_s, busiest / min(stretch_s, span_s)
    )


def _capacity_per_s(world: World, mix: dict[Kind, float], placed: Placed) -> float:
    kinds, classes = list(mix), list(world.devices)
    ways = [
        (number, place, item_s)
        for number, kind in enumerate(kinds)
        for place, device in enumerate(classes)
        if (item_s := _least_s(world, kind, device, placed[place])) is not None
    ]
    if {number for number, _, _ in ways} != set(range(len(kinds))):
        raise InvalidInputError.of("queries", "limits that nothing can keep", "what can be served")
    # Served by each way, and the rate of all: no more than the devices' time, and each kind's part.
    rows = np.zeros((len(kinds) + len(classes), len(ways) + 1))
    for column, (number, place, item_s) in enumerate(ways):
        rows[number, column] = -1.0
        rows[len(kinds) + place, column] = item_s
    rows[: len(kinds), -1] = list(mix.values())
    room = np.concatenate([np.zeros(len(kinds)), [_workers(device) for device in classes]])
    answer = linprog(np.append(np.zeros(len(ways)), -1.0), A_ub=rows, b_ub=room)
    if not answer.success:
        raise EnvironmentUnfitError(f"The capacity's program was not solved: {answer.message}")
    if not answer.fun < 0.0:
        raise InvalidInputError.of("devices", "no worker where one is needed", "at least one")
    return float(-answer.fun)


def _is_possible(world: World, kind: Kind, placed: Placed) -> bool:
    """Whether some undisturbed worker answers it in time at least every second time."""
    return any(
        chance_within(batch.spread, kind.latency_s - 2.0 * (kind.delay_s + world.hop_s(device)))
        >= 0.5
        for place, device in enumerate(world.devices)
        for variant in placed[place].get(kind.task, ())
        for batch in variant.batches
        if batch.items >= kind.items and batch.accuracy_percent >= kind.min_accuracy
    )


def _least_s(
    world: World, kind: Kind, device: DeviceSettings, placed: Mapping[str, Sequence[PlacedVariant]]
) -> float | None:
    """The least time a query takes of a worker; None if the class cannot serve it in time.

    A worker has two batches at most, one of which may be on its way there or back.
    """
    hop_s = world.hop_s(device)
    limit_s = kind.latency_s - 2.0 * (kind.delay_s + hop_s)
    # In time of an undisturbed worker: neighbours do not slow what travels.
    away_s = 2.0 * hop_s * _workers(device) / max(_count(device), 1)
    found = [
        max(offer.cost_s, (offer.cost_s + away_s * kind.items / batch.items) / 2.0)
        for variant in placed.get(kind.task, ())
        if variant.batches[0].accuracy_percent >= kind.min_accuracy
        for batch in variant.batches
        for offer in offers_within([batch], kind.items, limit_s, retried=True, weighted=False)
    ]
    return min(found, default=None)


def _count(device: DeviceSettings) -> int:
    count = max(device.count, device.max_workers or 0)
    if device.max_cores is not None:
        count = min(count, device.max_cores // device.threads)
    return count


def _workers(device: DeviceSettings) -> float:
    """How many undisturbed ones a class's workers are worth, all of them busy.

    Of two workers that never stand still, every batch begins beside one of the other's: each meets
    all its neighbours. (Where they disturb each other so much that fewer do more, fewer are busy.)
    """
    count = _count(device)
    hosts = [min(device.per_host, count - n) for n in range(0, count, device.per_host)]
    busy = np.arange(1, max(hosts, default=0) + 1)
    worth = np.maximum.accumulate(busy / (1.0 + device.contention * (busy - 1)))
    return sum(float(worth[size - 1]) for size in hosts)
