"""Simulated workers: a device each, drawn latencies, and neighbours that slow each other down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelless.controller.device.machine import Device
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.sim.latencies import Normals, Spread, Truth
from modelless.controller.sim.worlds.world import DeviceSettings
from modelless.policies.views import WorkerState
from modelless.variants.vocabulary import Placement


@dataclass(slots=True, eq=False)
class Host:
    """What neighbours share.

    Attributes:
        busy: how many of its workers have a batch.
    """

    busy: int = 0


@dataclass(slots=True, eq=False)
class SimulatedBatch:
    """A batch on its way to a worker, on its device, or on its way back.

    Attributes:
        start_s, finish_s: when the device starts and ends it; known once it has arrived.
        neighbours: how many others on the host were busy when it arrived.
        settings: of the class that the worker was.
        cost_usd: what the device's time for it costs; known once it has run.
        size: numbers in each of its items; 0 for items as they were profiled.
    """

    batch_id: int
    variant_id: str
    query_ids: tuple[int, ...]
    items: int
    worker: SimulatedWorker
    dispatch_s: float
    start_s: float
    finish_s: float
    neighbours: int
    settings: DeviceSettings
    cost_usd: float = 0.0
    size: int = 0

    @property
    def busy_s(self) -> float:
        """How long the device was busy with it."""
        return self.finish_s - self.start_s


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """One device, and the physics around it.

    Attributes:
        worker_id: ``class/number``.
        device: decides what it holds, loads, frees and runs.
        truth: the latencies of batches by the size of items.
        spreads: those for items as profiled, by variant id; at index b - 1 those of b items.
        since_s: when it became one of its class.
        free_at_s: when the device has run all batches that arrived.
        slowness: times as long as it should take.
        is_alive, is_reachable: its true state, whether anybody has noticed or not.
        is_leaving: it finishes its batches and takes no more.
        on_device: how many batches have arrived and not ended.
        open: its batches from dispatch until their answers are back, by id.
        undelivered: batches that ended while it was not reachable.
        handed_s: seconds of work that arrived so far.
        told_s, told_busy_s: when it last told the planner, and how much of that was done then.
    """

    worker_id: str
    pool: str
    settings: DeviceSettings
    device: Device
    one_way_s: float
    host: Host
    truth: Truth
    spreads: Mapping[str, Sequence[Spread]]
    normals: Normals
    since_s: float
    free_at_s: float = 0.0
    slowness: float = 1.0
    is_alive: bool = True
    is_reachable: bool = True
    is_leaving: bool = False
    on_device: int = 0
    open: dict[int, SimulatedBatch] = field(default_factory=dict)
    undelivered: list[SimulatedBatch] = field(default_factory=list)
    handed_s: float = 0.0
    told_s: float = 0.0
    told_busy_s: float = 0.0

    def report(self) -> WorkerReport:
        """What it tells a gateway."""
        ready = self.device.ready if not self.is_leaving else ()
        hop_s = 2.0 * self.one_way_s
        return WorkerReport(self.worker_id, self.device.device_class, ready, hop_s)

    def state(self, in_use: set[str], now_s: float) -> WorkerState:
        """What it tells the planner; ``in_use``: variants that run or are queued for."""
        span_s = now_s - self.told_s
        # Of the work that arrived, the part after now_s is still to come.
        done_s = self.handed_s - max(self.free_at_s - now_s, 0.0)
        busy_share = min(max((done_s - self.told_busy_s) / span_s, 0.0), 1.0) if span_s else 0.0
        self.told_s, self.told_busy_s = now_s, done_s
        return self.device.state(in_use, busy_share, now_s)

    def start(self, batch: SimulatedBatch, now_s: float) -> None:
        """Decide when the device runs a batch that has arrived, and for how long."""
        start_s = max(now_s, self.free_at_s)
        if not self.on_device:
            self.host.busy += 1
        self.on_device += 1
        batch.neighbours = neighbours = self.host.busy - 1
        if batch.size:
            placement = Placement(batch.variant_id, self.settings.name)
            spread = self.truth.at_size(placement, batch.items, batch.size)
        else:
            spread = self.spreads[batch.variant_id][batch.items - 1]
        busy_s = spread.at(self.normals()) * self.slowness
        if neighbours:
            busy_s *= 1.0 + self.settings.contention * neighbours
        batch.settings, batch.start_s = self.settings, start_s
        batch.finish_s = self.free_at_s = start_s + busy_s
        self.handed_s += busy_s

    def end(self) -> None:
        """The device has run a batch."""
        self.on_device -= 1
        if not self.on_device:
            self.host.busy -= 1
