"""A device's two threads: one runs batches and frees what is done with, one loads.

Each does one thing at a time in the order in which it was asked, and answers on the event loop.
Only the first ever touches a variant that is ready, so no two batches meet in one session.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from modelless.variants.runtimes import LoadedVariant
from modelless.variants.vocabulary import Variant

# How busy a device was: by the clock, also while a batch still runs.


class BusyMeter:
    """Share of the time in which a batch ran. One thread runs batches, another asks.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s = clock()
        self._busy_s = 0.0  # of the time since then, without what runs now
        self._since_s: float | None = None

    def start(self) -> None:
        with self._lock:
            self._since_s = self._clock()

    def stop(self) -> None:
        with self._lock:
            if self._since_s is not None:
                self._busy_s += self._clock() - self._since_s
                self._since_s = None

    def take_share(self) -> float:
        """The share since the last call, 0 to 1; what runs now counts up to now."""
        with self._lock:
            now_s = self._clock()
            busy_s, self._busy_s = self._busy_s, 0.0
            if self._since_s is not None:
                busy_s += now_s - self._since_s
                self._since_s = now_s
            span_s, self._asked_s = now_s - self._asked_s, now_s
        return min(busy_s / span_s, 1.0) if span_s > 0.0 else 0.0


logger = logging.getLogger(__name__)

Tensors = Mapping[str, NDArray[Any]]
BatchResult = Sequence[Tensors] | Exception
LoadResult = LoadedVariant | Exception
_Job = TypeVar("_Job")


@dataclass(slots=True)
class Batch:
    """Queries to run together.

    Attributes:
        done: called on the event loop with the seconds it took and each query's outputs, or what
            went wrong.
    """

    loaded: LoadedVariant
    inputs: Sequence[Tensors]
    done: Callable[[float, BatchResult], None]


@dataclass(slots=True)
class Removal:
    """A variant to be freed; ``done`` is called on the event loop with the seconds it took."""

    loaded: LoadedVariant
    done: Callable[[float], None]


@dataclass(slots=True)
class Load:
    """A variant to be loaded for so many threads; ``done`` is called on the event loop."""

    variant: Variant
    threads: int
    done: Callable[[LoadResult], None]


class _JobThread(ABC, Generic[_Job]):
    """A thread that does jobs, first come first served, and tells the event loop.

    Attributes:
        is_alive: it still takes jobs.
    """

    def __init__(self, name: str, thread_name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        """Do it after what was put before."""
        self._jobs.put(job)

    def close(self) -> None:
        """End after what was put before."""
        self._jobs.put(None)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)

    @abstractmethod
    def _do(self, job: _Job) -> None:
        """Do one job, on the thread."""

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function on the event loop."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            logger.debug("the event loop is gone; dropped a result of %s", self._name)


class BatchThread(_JobThread[Batch | Removal]):
    """Runs batches and frees variants.

    Args:
        cores: CPU cores to keep to; empty for wherever the system puts it.

    Attributes:
        running_since_s: since when, of ``time.monotonic``, a batch runs; NaN if none does.
    """

    def __init__(self, name: str, cores: Collection[int] = ()) -> None:
        self._cores = frozenset(cores)
        self.busy = BusyMeter(time.monotonic)
        self.running_since_s = math.nan
        super().__init__(name, "modelless-device")

    def keep_to(self, cores: Collection[int]) -> None:
        """Run on these CPU cores from now on; empty for wherever the system puts it."""
        self._cores = frozenset(cores)
        if self._thread.native_id is not None and hasattr(os, "sched_setaffinity"):  # Linux
            self._hold(self._thread.native_id, self._cores or os.sched_getaffinity(0))

    def _run(self) -> None:
        if self._cores:
            self._hold(threading.get_native_id(), self._cores)
        super()._run()

    def _do(self, job: Batch | Removal) -> None:
        started_s = time.perf_counter()
        if isinstance(job, Removal):
            self._free(job.loaded)
            self._call(job.done, time.perf_counter() - started_s)
            return
        self.busy.start()
        self.running_since_s = time.monotonic()
        try:
            result: BatchResult = _run_batch(job.loaded, job.inputs)
        except Exception as error:  # noqa: BLE001  (whatever an engine raises is an answer)
            result = error
        busy_s = time.perf_counter() - started_s
        self.running_since_s = math.nan
        self.busy.stop()
        self._call(job.done, busy_s, result)

    def _hold(self, thread_id: int, cores: Collection[int]) -> None:
        try:
            os.sched_setaffinity(thread_id, cores)
        except OSError as error:  # a core went offline, or a container forbids it
            logger.warning("%s is not held to cores %s: %s", self._name, cores, error)

    def _free(self, loaded: LoadedVariant) -> None:
        try:
            loaded.unload()
        except Exception:  # a card that fails here must not end the thread, nor all that is served
            logger.exception("cannot unload %s in %s", loaded.variant.id, self._name)


class LoadThread(_JobThread[Load]):
    """Loads one variant at a time.

    Args:
        load: reads a variant, builds its session for so many threads and warms it up.
    """

    def __init__(self, name: str, load: Callable[[Variant, int], LoadedVariant]) -> None:
        self._load = load
        super().__init__(name, "modelless-loader")

    def _do(self, job: Load) -> None:
        try:
            result: LoadResult = self._load(job.variant, job.threads)
        except Exception as error:  # noqa: BLE001  (a load that fails must not end the thread)
            result = error
        self._call(job.done, result)


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
