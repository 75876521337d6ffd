"""The device in this process: instances in memory, one thread that runs batches, one that loads.

Engines release the interpreter while they compute, so the event loop goes on parsing and replying.
Everything public is called on the event loop's thread, and every callback comes back on it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.controller.core.effects import LoadInstance, PlanEffect, UnloadInstance
from modelless.controller.core.roster import WorkerReport
from modelless.controller.live.busy import BusyMeter
from modelless.policies.views import Instance, WorkerState
from modelless.profiler.inputs import FREE_AXIS, sample_inputs
from modelless.variants.runtimes import LoadedVariant, find_runtime
from modelless.variants.vocabulary import DeviceClass, Task, Variant

logger = logging.getLogger(__name__)

Tensors = Mapping[str, NDArray[Any]]
BatchCallback = Callable[[int, float, "Sequence[Tensors] | Exception"], None]
"""batch id, seconds the device was busy, each query's outputs or what went wrong."""


@dataclass(slots=True)
class _Slot:
    loaded: LoadedVariant
    last_used_s: float
    use_count: int = 0


@dataclass(slots=True)
class _Job:
    batch_id: int
    loaded: LoadedVariant
    inputs: Sequence[Tensors]
    callback: BatchCallback


class LocalDevice:
    """One device of one class, and what is loaded in it.

    Args:
        worker_id: its name in the cluster.
        device_class: what it is; its ``threads`` go to the engine.
        memory_bytes: budget that loaded variants, as measured, may fill.
        fetch: from an artifact's sha256 to a local file.
        tasks: by name, for warm-up inputs.
        on_change: called after a load or an unload.
        cores: CPU cores that batches run on; empty for wherever the system puts them.
    """

    def __init__(
        self,
        worker_id: str,
        device_class: DeviceClass,
        memory_bytes: int,
        fetch: Callable[[str], Path],
        tasks: Mapping[str, Task],
        on_change: Callable[[], None],
        cores: Collection[int] = (),
    ) -> None:
        self.worker_id = worker_id
        self.device_class = device_class
        self.memory_bytes = memory_bytes
        self._fetch = fetch
        self._tasks = tasks
        self._on_change = on_change
        self._cores = frozenset(cores)
        self._loop = asyncio.get_running_loop()
        self._slots: dict[str, _Slot] = {}
        self._loading: set[str] = set()
        self.failed_loads: dict[str, str] = {}
        # A batch to run, what is to be unloaded, or None: the end.
        self._jobs: SimpleQueue[_Job | LoadedVariant | None] = SimpleQueue()
        self._loads: SimpleQueue[Variant | None] = SimpleQueue()
        self._busy = BusyMeter(time.monotonic)
        self._threads = [
            threading.Thread(target=self._run_jobs, name="modelless-device", daemon=True),
            threading.Thread(target=self._run_loads, name="modelless-loader", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- on the event loop --------------------------------------------------------------------

    def run(
        self, batch_id: int, variant_id: str, inputs: Sequence[Tensors], callback: BatchCallback
    ) -> None:
        """Run the queries' inputs as one batch; ``callback`` gets each query's outputs."""
        slot = self._slots.get(variant_id)
        if slot is None:
            callback(batch_id, 0.0, RuntimeError(f"{variant_id} is not loaded in {self.worker_id}"))
            return
        slot.last_used_s = time.monotonic()
        slot.use_count += 1
        self._jobs.put(_Job(batch_id, slot.loaded, inputs, callback))

    def obey(
        self, effects: Sequence[PlanEffect], in_use: set[str], variants: Mapping[str, Variant]
    ) -> None:
        """Carry out the control loop's orders, in order.

        A variant that came into use since the decision stays, and then what was to take its room
        stays out: the next decision sees both.
        """
        without_room = set()
        for effect in effects:
            if isinstance(effect, UnloadInstance):
                if effect.variant_id in in_use:
                    without_room.add(effect.for_variant_id)
                else:
                    self.unload(effect.variant_id)
            elif isinstance(effect, LoadInstance) and effect.variant_id not in without_room:
                variant = variants.get(effect.variant_id)
                if variant is not None:
                    self.load(variant)

    def load(self, variant: Variant) -> None:
        """Load in the background, one at a time; asking again for what is there does nothing."""
        if variant.id in self._slots or variant.id in self._loading:
            return
        self._loading.add(variant.id)
        self._loads.put(variant)

    def unload(self, variant_id: str) -> None:
        """Take it out of reach now; its memory is freed after what already waits to run."""
        slot = self._slots.pop(variant_id, None)
        if slot is not None:
            self._jobs.put(slot.loaded)
            self._on_change()

    def report(self) -> WorkerReport:
        """What dispatch needs to know of it."""
        return WorkerReport(self.worker_id, self.device_class.name, tuple(self._slots))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is loaded or loading."""
        return not self._slots and not self._loading

    def state(self, in_use: set[str]) -> WorkerState:
        """What planning needs to know of it; its busy share is that since the last call.

        Args:
            in_use: variants with queries running or waiting.
        """
        resident = [
            Instance(
                self.worker_id,
                name,
                slot.loaded.memory_bytes,
                slot.loaded.load_s,
                slot.last_used_s,
                slot.use_count,
                in_use=name in in_use,
            )
            for name, slot in self._slots.items()
        ]
        arriving = [
            Instance(self.worker_id, name, 0, 0.0, time.monotonic(), 0, in_use=True)
            for name in self._loading
        ]
        return WorkerState(
            self.worker_id,
            self.device_class.name,
            self.memory_bytes,
            (*resident, *arriving),
            self._busy.take_share(),
        )

    @property
    def is_alive(self) -> bool:
        """Whether both threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Stop both threads after what they are at."""
        self._jobs.put(None)
        self._loads.put(None)

    # -- on the threads -----------------------------------------------------------------------

    def _run_jobs(self) -> None:
        if self._cores:
            try:
                os.sched_setaffinity(threading.get_native_id(), self._cores)
            except OSError as error:  # a core went offline, or a container forbids it
                logger.warning("%s is not held to cores %s: %s", self.worker_id, self._cores, error)
        while (job := self._jobs.get()) is not None:
            if not isinstance(job, _Job):
                self._free(job)
                continue
            self._busy.start()
            started_s = time.perf_counter()
            try:
                result: Sequence[Tensors] | Exception = _run_batch(job.loaded, job.inputs)
            except Exception as error:  # noqa: BLE001  (whatever an engine raises is an answer)
                result = error
            busy_s = time.perf_counter() - started_s
            self._busy.stop()
            self._call(job.callback, job.batch_id, busy_s, result)

    def _free(self, loaded: LoadedVariant) -> None:
        try:
            loaded.unload()
        except Exception:  # a card that fails here must not end the thread, nor all that is served
            logger.exception("cannot unload %s in %s", loaded.variant.id, self.worker_id)

    def _run_loads(self) -> None:
        while (variant := self._loads.get()) is not None:
            try:
                loaded: LoadedVariant | Exception = self._load(variant)
            except Exception as error:  # noqa: BLE001  (a load that fails must not end the thread)
                loaded = error
            self._call(self._loaded, variant, loaded)

    def _load(self, variant: Variant) -> LoadedVariant:
        inputs = self._tasks[variant.task].inputs
        side_px = variant.resolution_px or FREE_AXIS
        sizes = {spec.name: [side_px] * spec.shape[1:].count(-1) for spec in inputs}
        return find_runtime(variant.engine).load(
            variant,
            self._fetch(variant.artifact_sha256),
            threads=self.device_class.threads,
            warm_up=[sample_inputs(inputs, 1, free_axes=sizes)],
        )

    def _loaded(self, variant: Variant, loaded: LoadedVariant | Exception) -> None:
        self._loading.discard(variant.id)
        if isinstance(loaded, Exception):
            logger.error("cannot load %s in %s: %s", variant.id, self.worker_id, loaded)
            self.failed_loads[variant.id] = str(loaded)
            return
        self.failed_loads.pop(variant.id, None)
        self._slots[variant.id] = _Slot(loaded, time.monotonic())
        self._on_change()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            logger.debug("the event loop is gone; dropped a result of %s", self.worker_id)


def cores_of(rank: int, threads: int, devices: int) -> frozenset[int]:
    """The CPU cores of one of several like devices: its own, or none if there are too few for all.

    A model that always runs on one core finds its weights in that core's cache, and is not moved
    on top of another that runs.

    Args:
        rank: which of the devices, from 0.
        threads: cores that each takes.
        devices: how many there are.
    """
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return frozenset()
    cores = sorted(os.sched_getaffinity(0))
    if not 0 <= rank < devices or devices * threads > len(cores):
        return frozenset()
    return frozenset(cores[rank * threads : (rank + 1) * threads])


def _run_batch(loaded: LoadedVariant, inputs: Sequence[Tensors]) -> list[Tensors]:
    """Join the queries' tensors along axis 0, run once, and give each query its part."""
    if len(inputs) == 1:
        return [loaded.infer(inputs[0])]
    names = inputs[0].keys()
    outputs = loaded.infer({name: np.concatenate([t[name] for t in inputs]) for name in names})
    parts: list[Tensors] = []
    start = 0
    for tensors in inputs:
        end = start + len(next(iter(tensors.values())))
        parts.append({name: array[start:end] for name, array in outputs.items()})
        start = end
    return parts
