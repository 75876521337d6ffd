"""All simulated workers: they come, fail and go; it drives their devices on the virtual clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from math import ceil, inf, isfinite
from typing import Any, Protocol

from modelless.controller.device import messages
from modelless.controller.device.machine import Device
from modelless.controller.device.messages import Order
from modelless.controller.sim.devices import Host, SimulatedBatch, SimulatedWorker
from modelless.controller.sim.events import Events
from modelless.controller.sim.latencies import Normals, Truth
from modelless.controller.sim.recorder import Recorder
from modelless.controller.sim.worlds.faults import LoadFails
from modelless.controller.sim.worlds.profiles import Fleet
from modelless.controller.sim.worlds.world import DeviceSettings, World
from modelless.policies.views import Pool
from modelless.variants.vocabulary import Placement


class Gateway(Protocol):
    """What workers tell the gateway."""

    def on_ready(self, worker: SimulatedWorker) -> None:
        """The worker is there, or other variants are ready than before."""

    def on_silent(self, worker: SimulatedWorker) -> None:
        """The worker has not been heard of for as long as it takes to notice."""

    def on_batch_done(self, batch: SimulatedBatch) -> None:
        """The answer of a batch has come."""

    def on_batch_returned(self, batch: SimulatedBatch, others_s: float) -> None:
        """A worker has not accepted a batch; see ``TurnBatchBack``."""


class SimulatedCluster:
    """The workers of a world."""

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        seed: int,
        events: Events,
        recorder: Recorder,
        gateway: Gateway,
    ) -> None:
        self.workers: dict[str, SimulatedWorker] = {}
        self._gateway = gateway
        self._world = world
        self._seed = seed
        self._events = events
        self._recorder = recorder
        self._facts = {facts.variant_id: facts for facts in fleet.facts}
        truth = self._truth = Truth(fleet, world.limits.max_batch)
        self._settings = {device.name: device for device in world.devices}
        self.pools = tuple(map(_pool_of, world.devices))
        self._spreads = {name: truth.of_class(name) for name in self._settings}
        self._hosts: dict[tuple[str, int], Host] = {}
        self._numbers = Counter[str]()
        self._coming = Counter[str]()
        self._normals: dict[str, Normals] = {}
        self._cut_sites: set[str] = set()
        self._load_faults = [fault for fault in world.faults if isinstance(fault, LoadFails)]
        self._started_batches = self._neighbours = 0
        self._is_opening = False
        self._carry_out: dict[type, Callable[[SimulatedWorker, Any], None]] = {
            messages.StartBatch: self._start_batch,
            messages.TurnBatchBack: self._turn_batch_back,
            messages.StartLoad: self._start_load,
            messages.Free: self._free,
            messages.ReportReady: self._report_ready,
            messages.ResidencyChange: self._note_change,
            messages.NoteResize: self._note_resize,
            messages.WakeAt: self._wake_at,
        }

    # -- workers ------------------------------------------------------------------------------

    def open(self) -> None:
        """Bring in the workers that are there to begin with."""
        for device in self._world.devices:
            for _ in range(device.count):
                self._add(device)

    def close(self) -> None:
        """All is over: account for the time that workers were there."""
        for worker in self.workers.values():
            name = worker.device.device_class
            self._recorder.presence(name, worker.since_s, self._events.now_s)

    def is_cut(self, site: str) -> bool:
        """Whether the site cannot be reached now."""
        return site in self._cut_sites

    def named(self, pattern: str) -> list[SimulatedWorker]:
        """The workers that are there and called so."""
        return [worker for name, worker in self.workers.items() if fnmatchcase(name, pattern)]

    def scale(self, device_class: str, wanted: int) -> None:
        """Bring a class to ``wanted`` workers: more come after a while, the newest leave first."""
        device = self._settings[device_class]
        mine = [
            worker
            for worker in self.workers.values()
            if worker.pool == device_class and not worker.is_leaving
        ]
        for _ in range(wanted - len(mine) - self._coming[device_class]):
            self._coming[device_class] += 1
            self._events.at(self._events.now_s + device.start_s, self._arrive, device)
        for worker in mine[wanted:]:
            worker.is_leaving = True
            self._gateway.on_ready(worker)  # with nothing: what waits for it goes elsewhere
            self._leave_if_done(worker)

    def die(self, worker: SimulatedWorker) -> None:
        """The worker dies; it is noticed after a while."""
        self._remove(worker, "worker-down")
        delay_s = self._world.limits.detect_s
        self._events.at(self._events.now_s + delay_s, self._notice, worker)

    def come_back(self, dead: SimulatedWorker) -> None:
        """A worker of the same name is there again, empty."""
        self._notice(dead)
        self._add(self._settings[dead.pool], dead.worker_id, dead.host)

    def cut(self, site: str) -> None:
        """The site cannot be reached; it is noticed after a while."""
        self._cut_sites.add(site)
        for worker in self.workers.values():
            if worker.settings.site == site:
                worker.is_reachable = False
                delay_s = self._world.limits.detect_s
                self._events.at(self._events.now_s + delay_s, self._notice, worker)

    def mend(self, site: str) -> list[SimulatedWorker]:
        """The site can be reached again; returns its workers."""
        self._cut_sites.discard(site)
        mended = [w for w in self.workers.values() if w.settings.site == site]
        for worker in mended:
            worker.is_reachable = True
            self._gateway.on_ready(worker)
        return mended

    def _leave_if_done(self, worker: SimulatedWorker) -> None:
        """Let a worker that takes nothing more go, once its last answer is back."""
        if worker.is_leaving and worker.is_alive and not worker.open:
            self._remove(worker, "worker-gone")
            self._gateway.on_silent(worker)

    def _arrive(self, device: DeviceSettings) -> None:
        self._coming[device.name] -= 1
        self._add(device)

    def _add(self, device: DeviceSettings, worker_id: str = "", host: Host | None = None) -> None:
        if not worker_id:
            number = self._numbers[device.name]
            self._numbers[device.name] += 1
            worker_id = f"{device.name}/{number}"
            host = self._hosts.setdefault((device.name, number // device.per_host), Host())
        hop_s = self._world.hop_s(device)
        if worker_id not in self._normals:
            self._normals[worker_id] = Normals(self._seed, "latency", worker_id)
        sizes = tuple(self._settings)
        worker = SimulatedWorker(
            worker_id,
            device.name,
            device,
            Device(
                worker_id,
                device.name,
                device.memory_bytes,
                self._events.now_s,
                sizes=sizes,
                pool=device.name,
            ),
            hop_s,
            host or Host(),
            self._truth,
            self._spreads[device.name],
            self._normals[worker_id],
            self._events.now_s,
            is_reachable=device.site not in self._cut_sites,
        )
        self.workers[worker_id] = worker
        self._recorder.control(
            self._events.now_s,
            "worker-up",
            worker=worker_id,
            device=device.name,
            memory_bytes=device.memory_bytes,
        )
        if worker.is_reachable:
            self._gateway.on_ready(worker)

    def _remove(self, worker: SimulatedWorker, action: str) -> None:
        del self.workers[worker.worker_id]
        worker.is_alive = False
        now_s, name = self._events.now_s, worker.device.device_class
        self._recorder.presence(name, worker.since_s, now_s)
        self._recorder.control(now_s, action, worker=worker.worker_id, device=name)

    def _notice(self, worker: SimulatedWorker) -> None:
        successor = self.workers.get(worker.worker_id)
        if successor is worker and worker.is_reachable:
            return  # it was only out of reach, and is back
        if successor is None or successor is worker:
            self._gateway.on_silent(worker)

    # -- orders and batches -------------------------------------------------------------------

    def order(
        self,
        worker: SimulatedWorker,
        effects: Sequence[Order],
        in_use: Collection[str],
        *,
        at_once: bool,
    ) -> None:
        """Give a worker the control loop's orders.

        Args:
            in_use: the worker's variants that run or are queued for.
            at_once: what is to be loaded was loaded before the world began.
        """
        self._is_opening = at_once
        self._handle(worker, messages.Ordered(effects, in_use))
        if at_once:
            self._events.happen_until(self._events.now_s)
            self._is_opening = False

    def send(self, batch: SimulatedBatch) -> None:
        """A batch sets out for its worker."""
        worker = batch.worker
        worker.open[batch.batch_id] = batch
        if worker.one_way_s:
            self._events.at(self._events.now_s + worker.one_way_s, self._hand_in, batch)
        else:
            self._hand_in(batch)

    def take_busy_neighbours(self) -> float:
        """How many neighbours of a worker were busy when a batch arrived there: the mean since the
        last call."""
        mean = self._neighbours / max(self._started_batches, 1)
        self._started_batches = self._neighbours = 0
        return mean

    def _hand_in(self, batch: SimulatedBatch) -> None:
        if batch.worker.is_alive:
            self._handle(batch.worker, messages.BatchHandedIn(batch.batch_id, batch.variant_id))

    def _end_batch(self, batch: SimulatedBatch) -> None:
        worker = batch.worker
        worker.end()
        if not worker.is_alive:
            return
        self._recorder.batch(batch)
        self._handle(worker, messages.BatchEnded(batch.batch_id, batch.busy_s))
        if worker.one_way_s:
            self._events.at(self._events.now_s + worker.one_way_s, self._answer, batch)
        else:
            self._answer(batch)

    def _answer(self, batch: SimulatedBatch) -> None:
        worker = batch.worker
        if not worker.is_alive:
            return
        del worker.open[batch.batch_id]
        if worker.is_reachable:
            self._gateway.on_batch_done(batch)
        else:
            worker.undelivered.append(batch)
        self._leave_if_done(worker)

    def _return(self, what: tuple[SimulatedBatch, float]) -> None:
        batch, others_s = what
        worker = batch.worker
        if not worker.is_alive:
            return
        if not worker.is_reachable:
            self._events.at(self._events.now_s + self._world.limits.detect_s, self._return, what)
            return
        del worker.open[batch.batch_id]
        self._gateway.on_ready(worker)
        self._gateway.on_batch_returned(batch, others_s)
        self._leave_if_done(worker)

    # -- effects of a device ------------------------------------------------------------------

    def _handle(self, worker: SimulatedWorker, event: messages.Event) -> None:
        for effect in worker.device.handle(event, self._events.now_s):
            self._carry_out[type(effect)](worker, effect)

    def _start_batch(self, worker: SimulatedWorker, effect: messages.StartBatch) -> None:
        batch = worker.open[effect.batch_id]
        worker.start(batch, self._events.now_s)
        self._started_batches += 1
        self._neighbours += batch.neighbours
        self._events.at(batch.finish_s, self._end_batch, batch)

    def _turn_batch_back(self, worker: SimulatedWorker, effect: messages.TurnBatchBack) -> None:
        told = worker.open[effect.batch_id], effect.others_s
        self._events.at(self._events.now_s + worker.one_way_s, self._return, told)

    def _start_load(self, worker: SimulatedWorker, effect: messages.StartLoad) -> None:
        if effect.device_class == worker.device.device_class:  # else it is a second copy
            size, reason = effect.memory_bytes, effect.reason.value
            self._row(worker, "load", effect.variant_id, memory_bytes=size, reason=reason)
        load_s = 0.0
        if not self._is_opening:
            load_s = self._facts[effect.variant_id].load_s[effect.device_class] * worker.slowness
        self._events.at(self._events.now_s + load_s, self._end_load, (worker, effect, load_s))

    def _end_load(self, what: tuple[SimulatedWorker, messages.StartLoad, float]) -> None:
        worker, effect, took_s = what
        if not worker.is_alive:
            return
        variant_id, device_class = effect.variant_id, effect.device_class
        if device_class == worker.device.device_class:
            self._recorder.summary.cold_start_s += took_s
        if self._load_fails(worker, variant_id) and not self._is_opening:
            self._handle(worker, messages.LoadFailed(effect.copy_id, "fault"))
        else:
            size_bytes = int(self._size_bytes(Placement(variant_id, device_class)))
            load_s = self._facts[variant_id].load_s[device_class]
            self._handle(worker, messages.LoadEnded(effect.copy_id, size_bytes, load_s))

    def _free(self, worker: SimulatedWorker, effect: messages.Free) -> None:
        self._handle(worker, messages.FreeEnded(effect.copy_id, 0.0))

    def _report_ready(self, worker: SimulatedWorker, effect: messages.ReportReady) -> None:
        del effect
        if worker.is_reachable and not self._is_opening:
            self._gateway.on_ready(worker)

    def _note_change(self, worker: SimulatedWorker, effect: messages.ResidencyChange) -> None:
        summary, variant_id = self._recorder.summary, effect.variant_id
        if effect.kind is messages.ChangeKind.LOADED:
            summary.loads += not self._is_opening
            self._row(worker, "loaded", variant_id)
        elif effect.kind is messages.ChangeKind.LOAD_FAILED:
            summary.failed_loads += 1
            self._row(worker, "load-failed", variant_id, reason=effect.problem)
        else:
            summary.unloads += 1
            summary.evictions += bool(effect.for_variant_id)
            self._row(
                worker,
                "unload",
                variant_id,
                memory_bytes=effect.memory_bytes,
                for_variant=effect.for_variant_id or None,
                reason=effect.reason.value,
            )

    def _note_resize(self, worker: SimulatedWorker, effect: messages.NoteResize) -> None:
        now_s, device_class = self._events.now_s, effect.device_class
        if effect.step is messages.ResizeStep.ENDED:
            self._recorder.presence(worker.settings.name, worker.since_s, now_s)
            worker.since_s = now_s
            worker.settings = self._settings[device_class]
            worker.spreads = self._spreads[device_class]
        self._recorder.control(
            now_s, effect.step.value, worker=worker.worker_id, device=device_class
        )

    def _wake_at(self, worker: SimulatedWorker, effect: messages.WakeAt) -> None:
        self._events.at(effect.at_s, self._wake, worker)

    def _wake(self, worker: SimulatedWorker) -> None:
        if worker.is_alive:
            self._handle(worker, messages.Tick())

    def _size_bytes(self, placement: Placement) -> float:
        size = self._facts[placement.variant_id].memory_bytes.get(placement.device_class, inf)
        return ceil(size) if isfinite(size) else inf

    def _load_fails(self, worker: SimulatedWorker, variant_id: str) -> bool:
        now_s = self._events.now_s
        return any(
            fault.at_s <= now_s < fault.until_s
            and fnmatchcase(worker.worker_id, fault.worker)
            and fnmatchcase(variant_id, fault.variant)
            for fault in self._load_faults
        )

    def _row(
        self, worker: SimulatedWorker, action: str, variant_id: str, **columns: str | int | None
    ) -> None:
        name, device = worker.worker_id, worker.settings.name
        self._recorder.control(
            self._events.now_s, action, worker=name, device=device, variant=variant_id, **columns
        )


def _pool_of(device: DeviceSettings) -> Pool:
    return Pool(
        device.name,
        (device.name, *(size for size in device.sizes if size != device.name)),
        device.fewest_workers,
        device.most_workers,
        device.max_cores,
        device.start_s,
    )
