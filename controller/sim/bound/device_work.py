"""How much work the devices of a world can do, window by window: never less than they really can.

Work is measured in seconds of an undisturbed device at its usual speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from modelless.controller.sim.worlds.faults import SiteCut, WorkerDies, WorkerSlows
from modelless.controller.sim.worlds.world import DeviceSettings, World
from modelless.variants.estimates import FloatArray


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one device class can do.

    Attributes:
        work_s: by window: most work in it.
        carry_s: most work that batches started so far can have left over at any time.
    """

    work_s: FloatArray
    carry_s: float


def cut_times(world: World, site: str) -> list[tuple[float, float]]:
    """When a site cannot be reached: from, until. The first end mends all that has begun."""
    cuts = [fault for fault in world.faults if isinstance(fault, SiteCut) and fault.site == site]
    return [
        (cut.at_s, min(other.until_s for other in cuts if other.until_s > cut.at_s)) for cut in cuts
    ]


def is_fixed(world: World, device: DeviceSettings) -> bool:
    """Whether a class has the same workers all the time, and all stay what they are."""
    bounds = {device.min_workers, device.max_workers} - {None, device.count}
    resized = any(size != device.name for size in device.sizes) or _guests(world, device)
    dead = (fault for fault in world.faults if isinstance(fault, WorkerDies))
    return not (bounds or resized or any(_may_match(fault.worker, device.name) for fault in dead))


def fastest(world: World) -> float:
    """How many times the usual speed no worker ever exceeds: 1, unless a fault quickens some."""
    factors = [f.factor for f in world.faults if isinstance(f, WorkerSlows) and f.factor < 1.0]
    return math.prod(1.0 / factor for factor in factors)


def capacity(
    world: World, device: DeviceSettings, residual_s: float, edges_s: FloatArray
) -> Capacity:
    """The capacity of a class.

    A worker counts for the whole window unless it is away for all of it, and one that a fault slows
    counts as if it were not.

    Neighbours: of the batches that run on a host at one time, the j-th to have been handed out
    (from 0) met at least j busy neighbours, so that a host does no more work in a second than the
    sum of 1 / (1 + contention x j). Where a class may grow, new hosts come, and none disturbs.
    Workers of other classes that may be resized to it count as if they were.

    What leaves with work in hand (a dead worker, one that is scaled away or whose site is cut off)
    makes room for more starts than the windows' work; each such time is allowed a batch's rest.

    Args:
        residual_s: no batch has more work left than this, in expectation, whenever looked at.
        edges_s: of the windows, ascending; one more than there are windows.
    """
    low_s, high_s = edges_s[:-1], edges_s[1:]
    most = max(device.most_workers, device.count) + _guests(world, device)
    start_s = 0.0 if _guests(world, device) else device.start_s
    dead = [fault for fault in world.faults if isinstance(fault, WorkerDies)]
    dead = [fault for fault in dead if _may_match(fault.worker, device.name)]
    lost = _replaceable(dead, most)
    replaced = sum(
        (count * (high_s > at_s + device.start_s) for at_s, count in lost), np.zeros(len(low_s))
    )
    deaths = sum(count for _, count in lost)
    length_s = high_s - low_s
    top = fastest(world)
    if device.fewest_workers < most:
        back = sum((count * (high_s > at_s) for at_s, count in lost), np.zeros(len(low_s)))
        workers = np.where(high_s > start_s, float(most), float(device.count)) + back
        # Scaling away and back lets workers finish beside their successors, a generation at most
        # every start_s.
        generation_s = max(start_s, world.limits.control_s)
        work_s = workers * top * length_s * (1.0 + residual_s * top / generation_s)
        return Capacity(work_s, residual_s * (3.0 * most + 2.0 * deaths))
    work_s = (_initial(world, device, dead, low_s, high_s) + replaced * top) * length_s
    cuts = cut_times(world, device.site)
    for from_s, until_s in cuts:
        # What it still runs was started before: see carry_s.
        work_s[(low_s >= from_s) & (high_s <= until_s)] = 0.0
    return Capacity(work_s, residual_s * (most * (1 + len(cuts)) + 2.0 * deaths))


def hand_over(
    world: World, device: DeviceSettings, residual_s: float, edges_s: FloatArray
) -> Capacity | None:
    """How long the workers of a class that is some way off can be kept; None if that is not known.

    A worker has two batches at most, of which each is on its way there, waits or runs, or is on its
    way back. So if a batch counts from its start until two hops after its end, no more than two of
    a worker do at a time: the next but one sets out when it is back, and starts a hop later. Its
    items share the mean of its latency and two hops.

    Faults and scaling cut that short: where there are any, nothing is said. (A worker whose batch
    is given up for hanging may have a third for a while; it had none beside that one for longer.)
    """
    hop_s = world.hop_s(device)
    if not hop_s or world.faults or not is_fixed(world, device):
        return None
    kept_s = 2.0 * device.count * np.diff(edges_s)
    # When a window ends, of a worker's two batches one may run, and one be back already.
    return Capacity(kept_s, device.count * (residual_s + 4.0 * hop_s))


def _guests(world: World, device: DeviceSettings) -> int:
    """Workers of other classes that may be resized to this one."""
    return sum(
        max(other.count, other.max_workers or 0)
        for other in world.devices
        if other is not device and device.name in other.sizes
    )


def _initial(
    world: World,
    device: DeviceSettings,
    dead: Sequence[WorkerDies],
    low_s: FloatArray,
    high_s: FloatArray,
) -> FloatArray:
    """What the workers that are there from the beginning do in a second, by window."""
    total = np.zeros(len(low_s))
    slow = [fault for fault in world.faults if isinstance(fault, WorkerSlows)]
    patterns = [*(fault.worker for fault in dead), *(fault.worker for fault in slow)]
    for first in range(0, device.count, device.per_host):
        size = min(device.per_host, device.count - first)
        shares = 1.0 / (1.0 + device.contention * np.arange(size))
        names = [f"{device.name}/{number}" for number in range(first, first + size)]
        if not any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
            total += shares.sum()
            continue
        speeds = np.stack([_speed(name, dead, slow, low_s, high_s) for name in names])
        total += shares @ -np.sort(-speeds, axis=0)  # the quickest are disturbed least
    return total


def _speed(
    name: str,
    dead: Sequence[WorkerDies],
    slow: Sequence[WorkerSlows],
    low_s: FloatArray,
    high_s: FloatArray,
) -> FloatArray:
    """A worker's speed by window: 0 while it is away, never less than it really has."""
    speed = np.ones(len(low_s))
    mine = [fault for fault in dead if fnmatchcase(name, fault.worker)]
    for quick in slow:
        if quick.factor < 1.0 and fnmatchcase(name, quick.worker):
            speed /= quick.factor
    for fault in mine:
        back_s = math.inf if fault.back_s is None else fault.back_s
        if len(mine) == 1:
            speed[(low_s >= fault.at_s) & (high_s <= back_s)] = 0.0
    return speed


def _may_match(pattern: str, device: str) -> bool:
    """Whether a pattern of workers may name one of the class, now or later."""
    if _is_exact(pattern):
        return pattern.rpartition("/")[0] == device
    return True


def _is_exact(pattern: str) -> bool:
    return not any(letter in pattern for letter in "*?[")


def _replaceable(dead: Sequence[WorkerDies], workers: int) -> list[tuple[float, int]]:
    """When, and how many, workers may be lost at most, and others be started in their place."""
    lost: list[tuple[float, int]] = []
    for fault in sorted(dead, key=lambda fault: fault.at_s):
        there = workers + sum(count for _, count in lost)
        lost.append((fault.at_s, 1 if _is_exact(fault.worker) else there))
    return lost
