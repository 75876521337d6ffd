"""The device in this process: what it holds, the thread that runs batches, the one that loads.

Engines release the interpreter while they compute, so the event loop goes on parsing and replying.
Everything public is called on the event loop's thread, and every callback comes back on it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path

from modelless.common.errors import ModellessError
from modelless.controller.control.messages import (
    LoadInstance,
    PlanEffect,
    ResizeWorker,
    UnloadInstance,
)
from modelless.controller.device.changes import Change
from modelless.controller.device.load_backoff import never_ends
from modelless.controller.device.load_queue import LoadQueue
from modelless.controller.device.residency import Residency
from modelless.controller.device.resizing import Resident, take_along
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.live.worker.device_threads import (
    Batch,
    BatchResult,
    BatchThread,
    Load,
    LoadResult,
    LoadThread,
    Removal,
    Tensors,
)
from modelless.controller.live.worker.residency_log import ChangeLog
from modelless.controller.live.worker.resizing import Resizing
from modelless.policies.reasons import Reason
from modelless.policies.views import WorkerState
from modelless.profiler.measure.inputs import FREE_AXIS, sample_inputs, warm_up_inputs
from modelless.variants.runtimes import LoadedVariant, find_runtime
from modelless.variants.vocabulary import DeviceClass, Task, Variant

logger = logging.getLogger(__name__)

BatchCallback = Callable[[int, float, BatchResult], None]
"""batch id, seconds the device was busy, each query's outputs or what went wrong."""

STALLED_S = 120.0
"""A batch that runs longer hangs: its queries were given up long before."""


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
        sizes: what it may be resized to.
        pinned: scopes whose variants are to stay once they are loaded.
        load_s: predicts a variant's load, seconds; not finite if unknown.
        max_batch: most items a batch may have.
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
        max_batch: int = 1,
    ) -> None:
        self.worker_id = worker_id
        self.device_class = device_class
        self._fetch = fetch
        self._tasks = tasks
        self._on_change = on_change
        self._residency = Residency(worker_id, memory_bytes, pinned)
        self._changes = ChangeLog(worker_id)
        self._waiting = LoadQueue()
        self._wake: asyncio.TimerHandle | None = None
        self._busy_s, self._load_ended_s = 0.0, time.monotonic()  # busy since then
        self._loading: tuple[str, float] | None = None
        self._load_s = load_s
        self._max_batch = max_batch
        self._sizes = {size.name: size for size in (device_class, *sizes)}
        self._resizing: Resizing | None = None
        self._batches = BatchThread(worker_id, cores)
        self._loads = LoadThread(worker_id, self._load)

    # -- batches --------------------------------------------------------------------------------

    def run(
        self, batch_id: int, variant_id: str, inputs: Sequence[Tensors], callback: BatchCallback
    ) -> None:
        """Run the queries' inputs as one batch; ``callback`` gets each query's outputs."""
        try:
            loaded = self._residency.acquire(variant_id, time.monotonic())
        except ModellessError as error:
            callback(batch_id, 0.0, error)
            return

        def done(busy_s: float, result: BatchResult) -> None:
            self._busy_s += busy_s
            self._free(variant_id, self._residency.release(variant_id, time.monotonic()))
            callback(batch_id, busy_s, result)

        self._batches.put(Batch(loaded, inputs, done))

    def keep_to(self, cores: Collection[int]) -> None:
        """Run batches on these CPU cores from now on; empty for wherever the system puts them."""
        self._batches.keep_to(cores)

    # -- orders ---------------------------------------------------------------------------------

    def obey(
        self, effects: Sequence[PlanEffect], in_use: set[str], variants: Mapping[str, Variant]
    ) -> None:
        """Carry out the control loop's orders, in order.

        A variant that came into use since the decision stays, and then what was to take its room
        stays out: the next decision sees both. For what is not to be tried again yet, after a load
        that failed, nothing leaves.
        """
        now_s = time.monotonic()
        if effects:
            self._waiting.drop_spare()
        without_room = set()
        for effect in effects:
            if isinstance(effect, UnloadInstance):
                held_off = effect.for_variant_id in self._residency.barred(now_s)
                if held_off or effect.variant_id in in_use:
                    without_room.add(effect.for_variant_id)
                else:
                    self.unload(effect.variant_id, effect.reason, effect.for_variant_id)
            elif isinstance(effect, ResizeWorker):
                self.resize(effect.device_class, in_use, variants)
            elif isinstance(effect, LoadInstance) and effect.variant_id not in without_room:
                variant = variants.get(effect.variant_id)
                if variant is not None:
                    self.load(variant, effect.reason)

    def load(self, variant: Variant, reason: Reason = Reason.WANTED) -> None:
        """Load in the background, one at a time; asking again for what is there does nothing."""
        if self._resizing is not None:
            return
        was_ready = self._residency.is_ready(variant.id)
        waits = self._residency.is_absent(variant.id) and self._waiting.can_wait(variant, reason)
        if waits or self._residency.begin_load(variant.id, time.monotonic()):
            self._waiting.put(variant, reason)
            self._load_next()
        elif not was_ready and self._residency.is_ready(variant.id):
            self._changes.stays(variant.id)
            self._on_change()

    def unload(
        self, variant_id: str, reason: Reason = Reason.UNWANTED, for_variant_id: str = ""
    ) -> None:
        """Take it out of reach now; its memory is freed after what already waits to run."""
        if not self._residency.is_ready(variant_id):
            return
        self._changes.leaves(variant_id, reason, for_variant_id)
        self._free(variant_id, self._residency.drain(variant_id, time.monotonic()))
        self._on_change()

    def resize(self, size: str, in_use: set[str], variants: Mapping[str, Variant]) -> None:
        """Become one of another device class, in the background, while batches go on.

        Asking while something loads does nothing: the control loop asks again. See
        ``device/resizing``.
        """
        becomes = self._sizes.get(size)
        is_loading = self._loading is not None or self._waiting.needed or self._resizing is not None
        if becomes is None or becomes == self.device_class or is_loading:
            return
        ready, now_s = self._residency.ready, time.monotonic()
        residents = [
            Resident(
                instance.variant_id,
                instance.memory_bytes,
                instance.last_used_s if instance.use_count else -inf,
                instance.in_use,
            )
            for instance in self._residency.instances(in_use)
            if instance.variant_id in ready
        ]
        taken = take_along(residents, self._residency.free_bytes)
        if taken is None:
            logger.warning("%s cannot become %s: no room to load twice", self.worker_id, size)
            return
        self._waiting.drop_spare()  # it would be of the size that it is now
        self._resizing = Resizing(becomes, [variants[name] for name in taken], now_s)
        self._load_next()
        self._finish_resizing()

    def close(self) -> None:
        """Stop both threads after what they are at."""
        self._stop_resting()
        self._batches.close()
        self._loads.close()

    # -- reports --------------------------------------------------------------------------------

    def report(self) -> WorkerReport:
        """What dispatch needs to know of it."""
        return WorkerReport(self.worker_id, self.device_class.name, self._residency.ready)

    def state(self, in_use: set[str]) -> WorkerState:
        """What planning needs to know of it; its busy share is that since the last call.

        Args:
            in_use: variants with queries running or waiting.
        """
        now_s = time.monotonic()
        return WorkerState(
            self.worker_id,
            self.device_class.name,
            self._residency.memory_bytes,
            self._residency.instances(in_use),
            self._batches.busy.take_share(),
            resizing_to=self._resizing.device_class.name if self._resizing is not None else "",
            barred=self._residency.barred(now_s),
        )

    def take_changes(self) -> tuple[Change, ...]:
        """Loads and evictions that ended since the last call."""
        return self._changes.take()

    @property
    def failed_loads(self) -> Mapping[str, str]:
        """What could not be loaded, and why."""
        return self._residency.failed

    def holds(self, variant_id: str) -> bool:
        """Whether a batch can run with it now."""
        return self._residency.is_ready(variant_id)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is loaded or loading."""
        return not self._residency.states

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
        if self._loading is not None:
            variant_id, since_s = self._loading
            if never_ends(since_s, self._load_s(variant_id), now_s):
                raise RuntimeError(f"the load of {variant_id} has run for {now_s - since_s:.0f} s")

    # -- coming and going -----------------------------------------------------------------------

    def _load_next(self) -> None:
        """Begin the next load, if none is under way and nothing is still to make room for it."""
        if self._loading is not None:
            return
        if self._resizing is not None:
            for variant in self._resizing.missing.values():
                threads = self._resizing.device_class.threads
                self._begin_load(Load(variant, threads, partial(self._loaded_again, variant)))
                return
        elif self._waiting and not self._residency.is_draining:
            now_s = time.monotonic()
            if (rest_s := self._waiting.rest_s(now_s)) > 0.0:
                self._stop_resting()
                self._wake = asyncio.get_running_loop().call_later(rest_s, self._load_next)
                return
            variant, reason = self._waiting.take()
            waited = self._residency.is_absent(variant.id)  # its load was not begun
            if waited and not self._residency.begin_load(variant.id, now_s):
                self._load_next()
                return
            done = partial(self._loaded, variant, reason)
            self._begin_load(Load(variant, self.device_class.threads, done))

    def _stop_resting(self) -> None:
        if self._wake is not None:
            self._wake.cancel()

    def _begin_load(self, load: Load) -> None:
        self._loading = load.variant.id, time.monotonic()
        self._loads.put(load)

    def _load(self, variant: Variant, threads: int) -> LoadedVariant:
        """On the loader's thread."""
        inputs = self._tasks[variant.task].inputs
        side_px = variant.resolution_px or FREE_AXIS
        sizes = {spec.name: [side_px] * spec.shape[1:].count(-1) for spec in inputs}
        return find_runtime(variant.engine).load(
            variant,
            self._fetch(variant.artifact_sha256),
            threads=threads,
            warm_up=warm_up_inputs(
                lambda items: sample_inputs(inputs, items, free_axes=sizes), self._max_batch
            ),
        )

    def _loaded(self, variant: Variant, reason: Reason, loaded: LoadResult) -> None:
        assert self._loading is not None  # noqa: S101  (it has just been)
        (_, began_s), self._loading = self._loading, None
        now_s = time.monotonic()
        busy_share = min(self._busy_s / max(now_s - self._load_ended_s, 1e-9), 1.0)
        self._busy_s, self._load_ended_s = 0.0, now_s
        self._waiting.ended(variant, reason, now_s - began_s, now_s, busy_share)
        if isinstance(loaded, Exception):
            logger.error("cannot load %s in %s: %s", variant.id, self.worker_id, loaded)
            self._residency.fail_load(variant.id, str(loaded), now_s)
            self._changes.failed(variant.id, reason, str(loaded))
        else:
            self._residency.end_load(variant.id, loaded, now_s)
            self._changes.came(variant.id, reason, loaded.load_s, loaded.memory_bytes)
            if self._residency.excess_bytes:
                logger.warning(
                    "%s holds %d bytes more than its budget since it loaded %s (%d bytes)",
                    self.worker_id,
                    self._residency.excess_bytes,
                    variant.id,
                    loaded.memory_bytes,
                )
            self._on_change()
        self._load_next()

    def _loaded_again(self, variant: Variant, loaded: LoadResult) -> None:
        """A variant that is taken along to another size is there, or could not be loaded."""
        self._loading = None
        if self._resizing is not None:
            self._resizing.take(variant, loaded)
        self._load_next()
        self._finish_resizing()

    def _finish_resizing(self) -> None:
        """Switch over once everything is loaded; the old is freed after what waits to run on it."""
        done = self._resizing
        if done is None or done.missing:
            return
        used = self._residency.used_since(done.began_s)
        if done.take_along(used, self._residency.free_bytes - done.loaded_bytes):
            self._load_next()
            return
        self._resizing = None
        ready = self._residency.ready
        failed = [name for name in done.failed if name in ready]
        if failed:
            logger.error("%s stays %s: %s", self.worker_id, self.device_class.name, done.failed)
        else:
            missed = {each.variant.id for each in used}
            self._waiting.give_up(set(ready) - done.loaded.keys() - missed)
            for name in ready:
                if name in done.loaded:
                    self._drop(self._residency.replace(name, done.loaded.pop(name)))
                else:
                    self.unload(name)
            self.device_class = done.device_class
        for loaded in done.loaded.values():  # all for nothing, or unloaded meanwhile
            self._drop(loaded)
        self._on_change()

    def _drop(self, loaded: LoadedVariant) -> None:
        """Free what nothing is to run on any more, after what already waits to."""
        self._batches.put(Removal(loaded, lambda _: None))

    def _free(self, variant_id: str, loaded: LoadedVariant | None) -> None:
        if loaded is not None:
            size_bytes = loaded.memory_bytes

            def done(seconds: float) -> None:
                self._residency.end_free(variant_id)
                self._changes.left(variant_id, seconds, size_bytes)
                self._load_next()

            self._batches.put(Removal(loaded, done))
