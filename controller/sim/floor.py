"""All simulated workers: they come, load, unload, fail and go; whoever listens is told."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import Protocol

from modelless.controller.device.resizing import take_along
from modelless.controller.sim.devices import Host, SimulatedWorker
from modelless.controller.sim.events import Events
from modelless.controller.sim.latencies import Normals, Truth
from modelless.controller.sim.recorder import Recorder
from modelless.controller.sim.worlds.profiles import Fleet
from modelless.controller.sim.worlds.world import DeviceSettings, LoadFails, World
from modelless.policies.views import Pool

MIB = 1 << 20


class Listener(Protocol):
    """Who is told of workers; what it does about it is its own affair."""

    def on_ready(self, worker: SimulatedWorker) -> None:
        """It is there, or holds something else than before."""

    def on_silent(self, worker: SimulatedWorker) -> None:
        """It has not been heard of for as long as it takes to notice."""


class Floor:
    """The workers of a world.

    Args:
        world: devices, sites, faults.
        fleet: what runs on them.
        seed: of their latencies.
        events: the clock.
        recorder: the books.

    Attributes:
        workers: those that are there, by id.
        pools: what may be done with them.
        listener: set before anything happens.
    """

    def __init__(
        self, world: World, fleet: Fleet, seed: int, events: Events, recorder: Recorder
    ) -> None:
        self.workers: dict[str, SimulatedWorker] = {}
        self.listener: Listener | None = None
        self._world = world
        self._seed = seed
        self._events = events
        self._recorder = recorder
        self._facts = {facts.variant_id: facts for facts in fleet.facts}
        classes = {name: list(facts.latency_s) for name, facts in self._facts.items()}
        truth = Truth(fleet.measurements, classes, world.limits.max_batch)
        self._settings = {device.name: device for device in world.devices}
        self.pools = tuple(map(_pool_of, world.devices))
        self._spreads = {name: truth.of_class(name) for name in self._settings}
        self._hosts: dict[tuple[str, int], Host] = {}
        self._numbers = Counter[str]()
        self._coming = Counter[str]()
        self._normals: dict[str, Normals] = {}
        self._cut_sites: set[str] = set()
        self._load_faults = [fault for fault in world.faults if isinstance(fault, LoadFails)]

    # -- workers ------------------------------------------------------------------------------

    def open(self) -> None:
        """Bring in the workers that are there to begin with."""
        for device in self._world.devices:
            for _ in range(device.count):
                self._add(device)

    def close(self) -> None:
        """All is over: account for the time that workers were there."""
        for worker in self.workers.values():
            self._recorder.presence(worker.device_class, worker.since_s, self._events.now_s)

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
            self._tell_ready(worker)  # with nothing: what waits for it goes elsewhere
            self._leave(worker)

    def resize(self, worker_id: str, device_class: str, in_use: set[str]) -> None:
        """Load what the worker holds again for another class, beside the old; then it is that.

        Nothing happens if it is at something else already.
        """
        worker = self.workers.get(worker_id)
        if worker is None or worker.loading or worker.resizing_to:
            return
        worker.resizing_to = device_class
        free_bytes = worker.memory_bytes - worker.used_bytes
        taken = take_along(worker.residents(self._facts, in_use), free_bytes)
        if taken is None:
            worker.resizing_to = ""
            self._resize_row(worker, "resize-failed", device_class)
            return
        self._resize_row(worker, "resize", device_class)
        self._load_again(worker, (), taken, self._events.now_s)

    def _load_again(
        self,
        worker: SimulatedWorker,
        before: tuple[str, ...],
        more: tuple[str, ...],
        since_s: float,
    ) -> None:
        """Load ``more`` a second time, besides what was ``before``."""
        load_s = sum(self._facts[name].load_s[worker.resizing_to] for name in more)
        done_s = self._events.now_s + load_s * worker.slowness
        self._events.at(done_s, self._resized, (worker, before + more, since_s))

    def _resized(self, what: tuple[SimulatedWorker, tuple[str, ...], float]) -> None:
        worker, taken, since_s = what
        if not worker.is_alive or worker.is_leaving:
            return
        now_s, device_class = self._events.now_s, worker.resizing_to
        missed = worker.used_meanwhile(self._facts, taken, since_s)
        if missed:  # under a load that grows, that is just what must not be missing now
            self._load_again(worker, taken, missed, since_s)
            return
        for name in [name for name in worker.held if name not in taken]:
            self._drop(worker, name, "unwanted", "")
        self._recorder.presence(worker.device_class, worker.since_s, now_s)
        worker.since_s, worker.resizing_to = now_s, ""
        worker.settings = self._settings[device_class]
        worker.spreads = self._spreads[device_class]
        self._resize_row(worker, "resized", device_class)
        for held in worker.held.values():
            facts = self._facts[held.variant_id]
            worker.used_bytes -= held.memory_bytes
            held.memory_bytes = int(-(-facts.memory_bytes[device_class] // 1))
            held.load_s = facts.load_s[device_class]
            worker.used_bytes += held.memory_bytes
        if worker.is_reachable:
            self._tell_ready(worker)

    def _resize_row(self, worker: SimulatedWorker, action: str, device_class: str) -> None:
        self._recorder.control(
            self._events.now_s, action, worker=worker.worker_id, device=device_class
        )

    def die(self, worker: SimulatedWorker) -> None:
        """The worker dies; it is noticed after a while."""
        self._remove(worker, "worker-down")
        worker.is_alive = False
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
            self._tell_ready(worker)
        return mended

    def _leave(self, worker: SimulatedWorker) -> None:
        """Let a worker that takes nothing more go, once its last batch is back."""
        now_s = self._events.now_s
        if not worker.is_alive:
            return
        idle_at_s = worker.free_at_s + worker.one_way_s
        if idle_at_s > now_s:
            self._events.at(idle_at_s, self._leave, worker)
            return
        self._remove(worker, "worker-gone")
        self._tell_silent(worker)

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
        worker = SimulatedWorker(
            worker_id,
            device.name,
            device,
            int(device.memory_mib * MIB),
            hop_s,
            host or Host(),
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
            memory_bytes=worker.memory_bytes,
        )
        if worker.is_reachable:
            self._tell_ready(worker)

    def _remove(self, worker: SimulatedWorker, action: str) -> None:
        del self.workers[worker.worker_id]
        worker.is_alive = False
        now_s = self._events.now_s
        self._recorder.presence(worker.device_class, worker.since_s, now_s)
        self._recorder.control(now_s, action, worker=worker.worker_id, device=worker.device_class)

    def _notice(self, worker: SimulatedWorker) -> None:
        successor = self.workers.get(worker.worker_id)
        if successor is worker and worker.is_reachable:
            return  # it was only out of reach, and is back
        if successor is None or successor is worker:
            self._tell_silent(worker)

    def _tell_ready(self, worker: SimulatedWorker) -> None:
        if self.listener is not None:
            self.listener.on_ready(worker)

    def _tell_silent(self, worker: SimulatedWorker) -> None:
        if self.listener is not None:
            self.listener.on_silent(worker)

    # -- loads --------------------------------------------------------------------------------

    def load(self, worker_id: str, variant_id: str, reason: str, *, at_once: bool) -> None:
        """Load a variant, after whatever loads already; ``at_once``: it was there before.

        Nothing happens if the worker is being resized, as on a device that serves.
        """
        worker = self.workers.get(worker_id)
        if worker is not None and worker.resizing_to:
            return
        facts = self._facts[variant_id]
        now_s = self._events.now_s
        held = worker.make_room(facts, now_s) if worker is not None else None
        self._recorder.control(
            now_s,
            "load" if held is not None else "load-failed",
            worker=worker_id,
            device=worker.device_class if worker is not None else None,
            variant=variant_id,
            memory_bytes=held.memory_bytes if held is not None else None,
            reason=reason if held is not None else "no-room",
        )
        if worker is None or held is None:
            self._recorder.summary.failed_loads += 1
            return
        if at_once:
            held.is_ready = True
            self._loaded_rows(worker, variant_id, "loaded")
            return
        worker.loading.append(variant_id)
        if len(worker.loading) == 1:
            self._begin_load(worker)

    def unload(self, worker_id: str, variant_id: str, reason: str, for_variant: str) -> None:
        """Unload a variant; its memory is free at once."""
        worker = self.workers.get(worker_id)
        if worker is None or variant_id not in worker.held:
            return
        self._drop(worker, variant_id, reason, for_variant)
        if worker.is_reachable:
            self._tell_ready(worker)

    def _drop(
        self, worker: SimulatedWorker, variant_id: str, reason: str, for_variant: str
    ) -> None:
        held = worker.drop(variant_id)
        summary = self._recorder.summary
        summary.unloads += 1
        if for_variant:
            summary.evictions += 1
        self._recorder.control(
            self._events.now_s,
            "unload",
            worker=worker.worker_id,
            device=worker.device_class,
            variant=variant_id,
            memory_bytes=held.memory_bytes,
            for_variant=for_variant or None,
            reason=reason,
        )

    def _begin_load(self, worker: SimulatedWorker) -> None:
        load_s = worker.held[worker.loading[0]].load_s * worker.slowness
        self._events.at(self._events.now_s + load_s, self._end_load, (worker, load_s))

    def _end_load(self, what: tuple[SimulatedWorker, float]) -> None:
        worker, load_s = what
        if not worker.is_alive:
            return
        variant_id = worker.loading.popleft()
        summary = self._recorder.summary
        summary.cold_start_s += load_s
        if self._load_fails(worker, variant_id):
            worker.drop(variant_id)
            worker.backoff.failed(variant_id, self._events.now_s)
            summary.failed_loads += 1
            self._loaded_rows(worker, variant_id, "load-failed", "fault")
        else:
            summary.loads += 1
            worker.backoff.loaded(variant_id)
            worker.held[variant_id].is_ready = True
            worker.held[variant_id].last_used_s = self._events.now_s
            self._loaded_rows(worker, variant_id, "loaded")
            if worker.is_reachable:
                self._tell_ready(worker)
        if worker.loading:
            self._begin_load(worker)

    def _load_fails(self, worker: SimulatedWorker, variant_id: str) -> bool:
        now_s = self._events.now_s
        return any(
            fault.at_s <= now_s < fault.until_s
            and fnmatchcase(worker.worker_id, fault.worker)
            and fnmatchcase(variant_id, fault.variant)
            for fault in self._load_faults
        )

    def _loaded_rows(
        self, worker: SimulatedWorker, variant_id: str, action: str, reason: str | None = None
    ) -> None:
        self._recorder.control(
            self._events.now_s,
            action,
            worker=worker.worker_id,
            device=worker.device_class,
            variant=variant_id,
            reason=reason,
        )


def _pool_of(device: DeviceSettings) -> Pool:
    return Pool(
        device.name,
        (device.name, *(size for size in device.sizes if size != device.name)),
        device.count if device.min_workers is None else device.min_workers,
        device.count if device.max_workers is None else device.max_workers,
        device.max_cores,
        device.start_s,
    )
