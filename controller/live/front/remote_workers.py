"""Workers in other processes: each batch is one handle call, pinned to the chosen worker."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ray.exceptions import RayActorError

from modelless.common.errors import ModellessError
from modelless.controller.live.front.interfaces import RunBatch
from modelless.controller.live.worker.batch_replies import Ran, TurnedBack


class RoutableWorkers:
    """The workers that this process can send batches to: those that Serve's routers in it know.

    A worker reports to the control loop before Serve's routers know it, and Serve takes a worker
    out of the routers before it stops. A batch for a worker that no router knows would wait in
    vain, so only the workers in here are given batches. Routers write them, by Serve application,
    each on its own thread.
    """

    def __init__(self) -> None:
        self._ids: dict[str, frozenset[str]] = {}
        self._listeners: list[Callable[[], None]] = []

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after each change, on the router's thread."""
        self._listeners.append(on_change)

    def put(self, app: str, worker_ids: Collection[str]) -> None:
        """Set the application's workers."""
        ids = frozenset(worker_ids)
        if ids != self._ids.get(app):
            self._ids[app] = ids
            for listener in tuple(self._listeners):
                listener()

    def app_of(self, worker_id: str) -> str | None:
        """Return the application that the worker belongs to; None if no router knows it."""
        for app, ids in tuple(self._ids.items()):
            if worker_id in ids:
                return app
        return None


ROUTABLE = RoutableWorkers()
"""The workers that this process's routers know."""


REMEMBERED_S = 5.0
"""A mean without new measurements stands so long; then it begins to fade."""

HALVES_S = 5.0


class Overhead:
    """An exponential mean that returns to its first guess while nothing is measured.

    Queries are refused by predictions that contain it. An overload may drive it beyond every
    deadline. Then nothing is admitted and nothing is measured, so without the return the gateway
    would never notice the end of the overload.

    Args:
        first_s: the first guess, seconds.
        learnt: a measurement's weight, 0 to 1.
        clock: returns the time in seconds.
        most_growth: a measurement counts at most so many times the mean.
        believe_first: whether the first measurement replaces the guess.
    """

    def __init__(
        self,
        first_s: float,
        learnt: float,
        clock: Callable[[], float],
        most_growth: float = math.inf,
        *,
        believe_first: bool = False,
    ) -> None:
        self._first_s = self._mean_s = first_s
        self._learnt = learnt
        self._clock = clock
        self._most_growth = most_growth
        self._learnt_at_s = clock()
        self._is_to_believe = believe_first

    def learn(self, took_s: float) -> None:
        """Add a measurement, seconds; a negative one comes from the clock and counts as 0."""
        before_s = max(took_s, 0.0) if self._is_to_believe else self.seconds
        self._is_to_believe = False
        counted_s = min(max(took_s, 0.0), self._most_growth * before_s if before_s else math.inf)
        self._mean_s = before_s + self._learnt * (counted_s - before_s)
        self._learnt_at_s = self._clock()

    @property
    def seconds(self) -> float:
        """The mean now, seconds."""
        idle_s = max(self._clock() - self._learnt_at_s - REMEMBERED_S, 0.0)
        fades: float = 0.5 ** (idle_s / HALVES_S)
        return self._first_s + (self._mean_s - self._first_s) * fades


logger = logging.getLogger(__name__)

RemoteCallback = Callable[[int, "Ran | TurnedBack | Exception", bool], None]
"""Takes a batch id, the result, and whether the worker is gone."""


class WorkerGoneError(ModellessError):
    """The worker that a batch was meant for is gone."""

    http_status = 503


FIRST_HOP_S = 0.002
"""Time of a hop before one was measured: a 150 kB batch by handle takes about this long."""

HOP_LEARNT = 0.1
MOST_GROWTH = 4.0

BELIEVED_GONE_S = 5.0
"""A worker that was found gone gets no batch for so long, though it may still report."""


class RemoteWorkers:
    """Sends batches to the workers of pools, and learns how long the way there takes.

    Args:
        pools: a Serve handle by pool; the worker is named in the call, for its router.
        routable: the workers that Serve's routers know.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        pools: Mapping[str, Any],
        routable: RoutableWorkers = ROUTABLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._apps = {pool.app_name: pool for pool in pools.values()}
        self._routable = routable
        self._clock = clock
        self._hops = {
            app: Overhead(FIRST_HOP_S, HOP_LEARNT, clock, MOST_GROWTH, believe_first=True)
            for app in self._apps
        }
        self._running: set[asyncio.Task[None]] = set()
        self._gone: dict[str, float] = {}  # until when each is believed gone

    def start(self, on_change: Callable[[], None]) -> None:
        """Open the way to the workers; call ``on_change`` when other workers can be reached.

        The call comes on the event loop. Serve's handles begin to listen when they are first used.
        """
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(on_change)

        self._routable.listen(tell)
        self._apps = {app: handle.options() for app, handle in self._apps.items()}

    def reaches(self, worker_id: str) -> bool:
        """Whether batches can be sent to the worker now."""
        return self._routable.app_of(worker_id) in self._apps

    def still_there(self, worker_ids: Collection[str]) -> set[str]:
        """Return the workers that were not found gone: one that ends reports to the last."""
        now_s = self._clock()
        self._gone = {name: until_s for name, until_s in self._gone.items() if now_s < until_s}
        return set(worker_ids) - self._gone.keys()

    def hop_s(self, worker_id: str) -> float:
        """Return the recent time that a batch travels to the worker and back, seconds."""
        hop = self._hops.get(self._routable.app_of(worker_id) or "")
        return round(hop.seconds if hop is not None else FIRST_HOP_S, 4)

    def run(
        self, batch: RunBatch, expected_s: float, patience_s: float, callback: RemoteCallback
    ) -> None:
        """Send the batch; ``callback`` is called on the event loop.

        Args:
            batch: the batch, with its worker.
            expected_s: how long it is expected to take, the way included, seconds.
            patience_s: how much longer it may take, seconds.
            callback: takes the result.
        """
        running = self._run(batch, expected_s, patience_s, callback)
        task = asyncio.get_running_loop().create_task(running)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(
        self, batch: RunBatch, expected_s: float, patience_s: float, callback: RemoteCallback
    ) -> None:
        app = self._routable.app_of(batch.worker_id)
        started_s = self._clock()
        lost = False
        result: Ran | TurnedBack | Exception
        hop_s = self.hop_s(batch.worker_id)
        try:
            if app is None or app not in self._apps:
                raise WorkerGoneError(f"worker {batch.worker_id!r} is not there any more")
            result = await self._apps[app].run_batch.remote(
                batch.variant_id,
                list(batch.inputs),
                max(expected_s - hop_s, 0.0),
                patience_s,
                worker_id=batch.worker_id,
            )
            if isinstance(result, Ran):
                hop_taken_s = self._clock() - started_s - result.busy_s - result.waited_s
                self._hops[app].learn(hop_taken_s)
        except (RayActorError, WorkerGoneError) as error:
            result, lost = error, True
            self._gone[batch.worker_id] = self._clock() + BELIEVED_GONE_S
        except Exception as error:  # noqa: BLE001  (whatever comes back from afar is an answer)
            result = error
        if isinstance(result, (Ran, TurnedBack)):  # the next batch travels as long
            result = result._replace(others_s=max(result.others_s - hop_s, 0.0))
        callback(batch.batch_id, result, lost)
