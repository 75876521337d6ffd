"""Simulated workers: memory, loads and batches one at a time, neighbours that disturb."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from modelless.controller.device.load_backoff import LoadBackoff
from modelless.controller.device.resizing import Resident
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.sim.latencies import Normals, Spread
from modelless.controller.sim.worlds.world import DeviceSettings
from modelless.policies.views import Instance, VariantFacts, WorkerState


@dataclass(slots=True, eq=False)
class Host:
    """What neighbours share.

    Attributes:
        busy: its workers that have a batch.
    """

    busy: int = 0


@dataclass(slots=True, eq=False)
class Held:
    """A variant in a worker's memory, or on its way there."""

    variant_id: str
    memory_bytes: int
    load_s: float
    last_used_s: float
    use_count: int = 0
    is_ready: bool = False


@dataclass(slots=True, eq=False)
class Running:
    """A batch on a worker.

    Attributes:
        batch_id, variant_id, query_ids, items: what.
        worker: where.
        dispatch_s, start_s, finish_s: handed out by the gateway; on the device from, until.
        neighbours: busy ones when it was handed out.
        settings: of the class that the worker was.
        cost_usd: what the device's time for it costs; known once it has run.
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

    @property
    def busy_s(self) -> float:
        """How long the device was busy with it."""
        return self.finish_s - self.start_s


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """One device and what it holds.

    Attributes:
        worker_id: ``class/number``.
        pool: the class it started as.
        settings: of its class.
        memory_bytes: what variants may fill.
        one_way_s: between the gateway and it.
        host: shared with its neighbours.
        spreads: latencies by variant id; at index b - 1 those of b items.
        normals: its own randomness.
        held: by variant id; changed by ``make_room`` and ``drop`` alone.
        loading: variant ids, the first one now.
        free_at_s: when what it was handed is done.
        slowness: times as long as it should take.
        used_bytes: of its memory, loads on their way counted.
        is_alive, is_reachable: as they are, whether anybody has noticed or not.
        is_leaving: it finishes what it runs and takes nothing more.
        resizing_to: the class it is about to become; empty if it stays what it is.
        handed: the variants of the batches that it has, to run now or next, in order.
        undelivered: batches that finished while it was not reachable.
        handed_s: seconds of work it was ever handed.
        backoff: what could not be loaded.
        told_s, told_busy_s: when it last told the planner, and how much of that was done then.
    """

    worker_id: str
    pool: str
    settings: DeviceSettings
    memory_bytes: int
    one_way_s: float
    host: Host
    spreads: Mapping[str, Sequence[Spread]]
    normals: Normals
    since_s: float
    held: dict[str, Held] = field(default_factory=dict)
    loading: deque[str] = field(default_factory=deque)
    free_at_s: float = 0.0
    slowness: float = 1.0
    used_bytes: int = 0
    is_alive: bool = True
    is_reachable: bool = True
    is_leaving: bool = False
    resizing_to: str = ""
    handed: list[str] = field(default_factory=list)
    undelivered: list[Running] = field(default_factory=list)
    handed_s: float = 0.0
    backoff: LoadBackoff = field(default_factory=LoadBackoff)
    told_s: float = 0.0
    told_busy_s: float = 0.0

    @property
    def device_class(self) -> str:
        """The name of its class."""
        return self.settings.name

    def report(self) -> WorkerReport:
        """What it tells a gateway."""
        ready: tuple[str, ...] = ()
        if not self.is_leaving:
            ready = tuple(held.variant_id for held in self.held.values() if held.is_ready)
        return WorkerReport(self.worker_id, self.device_class, ready, 2.0 * self.one_way_s)

    def state(self, in_use: set[str], now_s: float) -> WorkerState:
        """What it tells the planner; ``in_use``: variants that run or are queued for."""
        span_s = now_s - self.told_s
        # Of what it was handed, that after now_s is still to come.
        done_s = self.handed_s - max(self.free_at_s - now_s, 0.0)
        busy_share = min(max((done_s - self.told_busy_s) / span_s, 0.0), 1.0) if span_s else 0.0
        self.told_s, self.told_busy_s = now_s, done_s
        instances = tuple(
            Instance(
                self.worker_id,
                held.variant_id,
                held.memory_bytes,
                held.load_s,
                held.last_used_s,
                held.use_count,
                in_use=not held.is_ready or held.variant_id in in_use,
            )
            for held in self.held.values()
        )
        return WorkerState(
            self.worker_id,
            self.device_class,
            self.memory_bytes,
            instances,
            busy_share,
            pool=self.pool,
            resizing_to=self.resizing_to,
            barred=self.backoff.barred(now_s),
        )

    def make_room(self, facts: VariantFacts, now_s: float) -> Held | None:
        """Set memory aside for a variant; None if there is none, or it is there already."""
        needed = facts.memory_bytes.get(self.device_class)
        if needed is None or facts.variant_id in self.held:
            return None
        size = int(-(-needed // 1))
        if self.used_bytes + size > self.memory_bytes:
            return None
        load_s = facts.load_s[self.device_class]
        held = Held(facts.variant_id, size, load_s, now_s)
        self.held[facts.variant_id] = held
        self.used_bytes += size
        return held

    def drop(self, variant_id: str) -> Held:
        """Give the memory of a variant back."""
        held = self.held.pop(variant_id)
        self.used_bytes -= held.memory_bytes
        return held

    def residents(self, facts: Mapping[str, VariantFacts], in_use: set[str]) -> list[Resident]:
        """What it holds, with what it would take as one of the class that it is to become."""
        found = []
        for held in self.held.values():
            size = facts[held.variant_id].memory_bytes.get(self.resizing_to)
            if size is not None and held.is_ready:
                found.append(
                    Resident(
                        held.variant_id,
                        int(-(-size // 1)),
                        held.last_used_s if held.use_count else -inf,
                        held.variant_id in in_use,
                    )
                )
        return found

    def used_meanwhile(
        self,
        facts: Mapping[str, VariantFacts],
        taken: tuple[str, ...],
        since_s: float,
    ) -> tuple[str, ...]:
        """What came into use while it loaded ``taken`` a second time, as far as that fits, too."""
        sizes = {
            resident.variant_id: resident.needed_bytes for resident in self.residents(facts, set())
        }
        free_bytes = self.memory_bytes - self.used_bytes - sum(sizes.get(name, 0) for name in taken)
        more = []
        for name, size in sizes.items():
            held = self.held[name]
            was_used = name in self.handed or (held.use_count > 0 and held.last_used_s >= since_s)
            if was_used and name not in taken and size <= free_bytes:
                free_bytes -= size
                more.append(name)
        return tuple(more)

    def run(
        self, batch_id: int, variant_id: str, query_ids: tuple[int, ...], items: int, now_s: float
    ) -> Running:
        """Hand it a batch: it starts once it has arrived and what was handed before is done."""
        start_s = now_s + self.one_way_s
        if start_s < self.free_at_s:
            start_s = self.free_at_s
        host = self.host
        if not self.handed:
            host.busy += 1
        self.handed.append(variant_id)
        neighbours = host.busy - 1
        busy_s = self.spreads[variant_id][items - 1].at(self.normals()) * self.slowness
        if neighbours:
            busy_s *= 1.0 + self.settings.contention * neighbours
        self.free_at_s = finish_s = start_s + busy_s
        self.handed_s += busy_s
        return Running(
            batch_id,
            variant_id,
            query_ids,
            items,
            self,
            now_s,
            start_s,
            finish_s,
            neighbours,
            self.settings,
        )

    def done(self) -> None:
        """The first of the batches that it has is done."""
        del self.handed[0]
        if not self.handed:
            self.host.busy -= 1
