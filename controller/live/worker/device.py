"""The device in this process: a driver of ``device/machine``, with the engines and two threads.

Engines release the interpreter while they compute, so the event loop goes on parsing and replying.
Everything public is called on the event loop's thread, and every callback comes back on it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from modelless.controller.config import RecordSettings
from modelless.controller.device import messages
from modelless.controller.device.load_backoff import is_load_stuck
from modelless.controller.device.messages import LoadInstance, Order
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.live.recordings import open_device
from modelless.controller.live.worker.batch_replies import TurnedBack
from modelless.controller.live.worker.device_threads import BatchResult, BatchThread, JobThread
from modelless.policies.views import WorkerState
from modelless.profiler.measure.inputs import FREE_AXIS, sample_inputs, warm_up_inputs
from modelless.profiler.measure.item_shapes import ItemShape, free_sizes
from modelless.variants.runtimes import LoadedVariant, find_runtime
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.vocabulary import DeviceClass, Task, Variant

logger = logging.getLogger(__name__)

BatchCallback = Callable[[int, float, BatchResult | TurnedBack], None]
"""batch id, seconds the device was busy, each query's outputs or what went wrong."""

NOT_RECORDED = RecordSettings()

STALLED_S = 120.0
"""A batch that runs longer hangs: its queries were given up long before."""
_MOST_CHANGES = 256
"""Changes kept until they are reported; beyond it the oldest are forgotten."""


class LocalDevice:
    """One device of one class, and the engines that are loaded in it.

    Args:
        device_class: its class, whose ``threads`` go to the engines.
        memory_bytes: budget that loaded variants, as measured, may fill.
        fetch: from an artifact's sha256 to a local file.
        on_change: called when other variants are ready than before.
        cores: CPU cores that batches run on; empty for wherever the system puts them.
        sizes: device classes that it may be resized to.
        pinned: scopes whose variants are to stay once they are loaded.
        load_s: predicts a variant's load, seconds; not finite if unknown.
        item_shape: of a usual item of a variant, to warm up with; None if unknown.
        max_batch: most items a batch may have.
        most_waiting: batches that it accepts beside the one that runs.
        record: whether and where its events are recorded.
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
        sizes: Iterable[DeviceClass] = (),
        pinned: Collection[str] = (),
        load_s: Callable[[str], float] = lambda _: math.nan,
        item_shape: Callable[[str], ItemShape | None] = lambda _: None,
        max_batch: int = 1,
        most_waiting: float = inf,
        record: RecordSettings = NOT_RECORDED,
    ) -> None:
        self.worker_id = worker_id
        self._fetch = fetch
        self._tasks = tasks
        self._on_change = on_change
        self._load_s = load_s
        self._item_shape = item_shape
        self._max_batch = max_batch
        self._sizes = {size.name: size for size in (device_class, *sizes)}
        self._machine, self._tape = open_device(
            record,
            {
                "worker_id": worker_id,
                "device_class": device_class.name,
                "memory_bytes": memory_bytes,
                "now_s": time.monotonic(),
                "sizes": list(self._sizes),
                "pinned": list(pinned),
                "most_waiting": most_waiting,
            },
        )
        self._variants: dict[str, Variant] = {}
        self._engines: dict[int, LoadedVariant] = {}
        self._handed_in: dict[int, tuple[Sequence[Tensors], BatchCallback]] = {}
        self._changes: deque[messages.ResidencyChange] = deque(maxlen=_MOST_CHANGES)
        self._wake: asyncio.TimerHandle | None = None
        self._batches = BatchThread(worker_id, cores)
        self._loads = JobThread(worker_id, "modelless-loader")
        self._carry_out: dict[type, Callable[[Any], None]] = {
            messages.StartBatch: self._start_batch,
            messages.TurnBatchBack: self._turn_batch_back,
            messages.StartLoad: self._start_load,
            messages.Free: self._free,
            messages.ReportReady: lambda _: on_change(),
            messages.ResidencyChange: self._note_change,
            messages.NoteResize: self._note_resize,
            messages.WakeAt: self._wake_at,
        }

    def run(
        self,
        batch_id: int,
        variant_id: str,
        inputs: Sequence[Tensors],
        callback: BatchCallback,
        expected_s: float = 0.0,
        patience_s: float = inf,
    ) -> None:
        """Run the queries' inputs as one batch, or turn it back: ``callback`` is told.

        Args:
            batch_id: a number that no other batch on this device has.
            variant_id, inputs: the variant, and each query's tensors.
            callback: called with each query's outputs, or why there are none.
        """
        self._handed_in[batch_id] = inputs, callback
        self._handle(messages.BatchHandedIn(batch_id, variant_id, expected_s, patience_s))

    def keep_to(self, cores: Collection[int]) -> None:
        """Run batches on these CPU cores from now on; empty for wherever the system puts them."""
        self._batches.keep_to(cores)

    def obey(
        self, effects: Sequence[Order], in_use: Collection[str], variants: Mapping[str, Variant]
    ) -> None:
        """Carry out the control loop's orders, as far as their variants are known here."""
        loads = {effect.variant_id for effect in effects if isinstance(effect, LoadInstance)}
        self._variants |= {name: variants[name] for name in loads if name in variants}
        known = [
            effect
            for effect in effects
            if not isinstance(effect, LoadInstance) or effect.variant_id in variants
        ]
        self._handle(messages.Ordered(known, frozenset(in_use)))

    def close(self) -> None:
        """Stop both threads after what they are at, and end the recording."""
        if self._wake is not None:
            self._wake.cancel()
        self._batches.close()
        self._loads.close()
        if self._tape is not None:
            self._tape.close()

    # -- reports --------------------------------------------------------------------------------

    @property
    def device_class(self) -> DeviceClass:
        return self._sizes[self._machine.device_class]

    @property
    def in_use(self) -> set[str]:
        """The variants with batches that run or wait."""
        return self._machine.in_use

    @property
    def waiting(self) -> int:
        """How many batches wait beside the one that runs."""
        return max(self._machine.batches - 1, 0)

    def remaining_s(self) -> float:
        """Seconds for which the accepted batches will keep the device; 0 if it is idle."""
        return self._machine.remaining_s(time.monotonic())

    def report(self) -> WorkerReport:
        """The variants that are ready, for dispatch."""
        return WorkerReport(self.worker_id, self._machine.device_class, self._machine.ready)

    def state(self, in_use: Collection[str] = ()) -> WorkerState:
        """The device as planning sees it; its busy share is that since the last call.

        Args:
            in_use: variants with queries that run or wait, besides those of accepted batches.
        """
        share = self._batches.busy.take_share()
        return self._machine.state(in_use, share, time.monotonic())

    def take_changes(self) -> tuple[messages.ResidencyChange, ...]:
        """Loads and unloads that ended since the last call."""
        taken = tuple(self._changes)
        self._changes.clear()
        return taken

    @property
    def failed_loads(self) -> Mapping[str, str]:
        return self._machine.failed_loads

    @property
    def is_empty(self) -> bool:
        """Whether nothing is loaded or loading."""
        return self._machine.is_empty

    def check_health(self, now_s: float) -> None:
        """Raise RuntimeError if it cannot go on: a thread has died, a batch or a load never ends.

        Args:
            now_s: of ``time.monotonic``.
        """
        for thread in (self._batches, self._loads):
            if not thread.is_alive:
                raise RuntimeError(f"a thread of {self.worker_id} has died")
        running_s = now_s - self._batches.running_since_s
        if running_s > STALLED_S:  # a NaN, while nothing runs, is not
            raise RuntimeError(f"a batch has run in {self.worker_id} for {running_s:.0f} s")
        if self._machine.loading is not None:
            variant_id, since_s = self._machine.loading
            if is_load_stuck(since_s, self._load_s(variant_id), now_s):
                raise RuntimeError(f"the load of {variant_id} has run for {now_s - since_s:.0f} s")

    # -- events and effects ---------------------------------------------------------------------

    def _handle(self, event: messages.Event) -> None:
        for effect in self._machine.handle(event, time.monotonic()):
            self._carry_out[type(effect)](effect)

    def _start_batch(self, effect: messages.StartBatch) -> None:
        inputs, callback = self._handed_in.pop(effect.batch_id)

        def done(busy_s: float, result: BatchResult) -> None:
            self._handle(messages.BatchEnded(effect.batch_id, busy_s))
            callback(effect.batch_id, busy_s, result)

        engine = self._engines[effect.copy_id]
        self._batches.put(partial(self._batches.run_batch, engine, inputs), done)

    def _turn_batch_back(self, effect: messages.TurnBatchBack) -> None:
        _, callback = self._handed_in.pop(effect.batch_id)
        holds = None if effect.is_held else self.report()
        callback(effect.batch_id, 0.0, TurnedBack(effect.others_s, holds))

    def _start_load(self, effect: messages.StartLoad) -> None:
        variant = self._variants[effect.variant_id]
        threads = self._sizes[effect.device_class].threads
        self._loads.put(partial(self._load, variant, threads), partial(self._end_load, effect))

    def _load(self, variant: Variant, threads: int) -> LoadedVariant:
        """On the loader's thread."""
        inputs = self._tasks[variant.task].inputs
        shape = self._item_shape(variant.id)
        if shape is None:
            side_px = variant.resolution_px or FREE_AXIS
            sizes = {spec.name: (side_px,) * spec.shape[1:].count(-1) for spec in inputs}
        else:
            sizes = free_sizes(inputs, shape)
        return find_runtime(variant.engine).load(
            variant,
            self._fetch(variant.artifact_sha256),
            threads=threads,
            warm_up=warm_up_inputs(
                lambda items: sample_inputs(inputs, items, free_axes=sizes), self._max_batch
            ),
        )

    def _end_load(
        self, effect: messages.StartLoad, _: float, loaded: LoadedVariant | Exception
    ) -> None:
        if isinstance(loaded, Exception):
            self._handle(messages.LoadFailed(effect.copy_id, str(loaded)))
            return
        self._engines[effect.copy_id] = loaded
        self._handle(messages.LoadEnded(effect.copy_id, loaded.memory_bytes, loaded.load_s))
        excess_bytes = self._machine.used_bytes - self._machine.memory_bytes
        if excess_bytes > 0:
            logger.warning(
                "%s holds %d bytes more than its budget since it loaded %s (%d bytes)",
                self.worker_id,
                excess_bytes,
                effect.variant_id,
                loaded.memory_bytes,
            )

    def _free(self, effect: messages.Free) -> None:
        engine = self._engines.pop(effect.copy_id)

        def done(seconds: float, problem: Exception | None) -> None:
            if problem is not None:  # of a card that fails, say: all else goes on
                name = engine.variant.id
                logger.error("cannot unload %s in %s", name, self.worker_id, exc_info=problem)
            self._handle(messages.FreeEnded(effect.copy_id, seconds))

        self._batches.put(engine.unload, done)

    def _note_change(self, effect: messages.ResidencyChange) -> None:
        self._changes.append(effect._replace(at_s=time.time()))
        if effect.kind is messages.ChangeKind.LOAD_FAILED:
            logger.error(
                "cannot load %s in %s: %s", effect.variant_id, self.worker_id, effect.problem
            )

    def _note_resize(self, effect: messages.NoteResize) -> None:
        if effect.step is messages.ResizeStep.FAILED:
            logger.warning(
                "%s stays %s and cannot become %s: %s",
                self.worker_id,
                self._machine.device_class,
                effect.device_class,
                effect.problem,
            )

    def _wake_at(self, effect: messages.WakeAt) -> None:
        if self._wake is not None:
            self._wake.cancel()
        delay_s = max(effect.at_s - time.monotonic(), 0.0)
        self._wake = asyncio.get_running_loop().call_later(delay_s, self._handle, messages.Tick())
