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
from collections.abc import Callable, Collection, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from modelless.variants.runtimes import LoadedVariant
from modelless.variants.runtimes.runtime import Tensors

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

BatchResult = Sequence[Tensors] | Exception
_T = TypeVar("_T")


class JobThread:
    """A thread that does jobs, first come first served, and tells the event loop.

    Args:
        name: of the worker, for the log.
        thread_name: for the system.
    """

    def __init__(self, name: str, thread_name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[float, Any], None]] | None] = (
            SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], _T], done: Callable[[float, _T | Exception], None]) -> None:
        """Do the work after what was put before.

        Args:
            work: runs on the thread.
            done: called on the event loop with the seconds it took, and its result or its error.
        """
        self._jobs.put((work, done))

    def close(self) -> None:
        """End after what was put before."""
        self._jobs.put(None)

    @property
    def is_alive(self) -> bool:
        """Whether it still takes jobs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)

    def _do(self, work: Callable[[], Any], done: Callable[[float, Any], None]) -> None:
        started_s = time.perf_counter()
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  (whatever an engine raises is an answer)
            result = error
        took_s = time.perf_counter() - started_s
        try:
            self._loop.call_soon_threadsafe(done, took_s, result)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            logger.debug("the event loop is gone; dropped a result of %s", self._name)


class BatchThread(JobThread):
    """Runs batches and frees variants.

    Args:
        cores: CPU cores to keep to; empty for wherever the system puts it.

    Attributes:
        running_since_s: since when, of ``time.monotonic``, a batch runs; NaN if none does.
    """

    def __init__(self, name: str, cores: Collection[int]) -> None:
        self._cores = frozenset(cores)
        self.busy = BusyMeter(time.monotonic)
        self.running_since_s = math.nan
        super().__init__(name, "modelless-device")

    def keep_to(self, cores: Collection[int]) -> None:
        """Run on these CPU cores from now on; empty for wherever the system puts it."""
        self._cores = frozenset(cores)
        if self._thread.native_id is not None:
            self._hold(self._thread.native_id, self._cores or os.sched_getaffinity(0))

    def run_batch(self, loaded: LoadedVariant, inputs: Sequence[Tensors]) -> list[Tensors]:
        """Run the queries' inputs as one batch, on the thread; return each query's outputs."""
        self.busy.start()
        self.running_since_s = time.monotonic()
        try:
            return _run_batch(loaded, inputs)
        finally:
            self.running_since_s = math.nan
            self.busy.stop()

    def _run(self) -> None:
        if self._cores:
            self._hold(threading.get_native_id(), self._cores)
        super()._run()

    def _hold(self, thread_id: int, cores: Collection[int]) -> None:
        try:
            os.sched_setaffinity(thread_id, cores)
        except OSError as error:  # a core went offline, or a container forbids it
            logger.warning("%s is not held to cores %s: %s", self._name, cores, error)


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
