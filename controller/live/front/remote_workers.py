"""Workers in other processes: each batch is one handle call, pinned to the chosen worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ray.exceptions import RayActorError

from modelless.common.errors import ModellessError
from modelless.controller.live.front.calls import RunBatch
from modelless.controller.live.front.overhead import Overhead
from modelless.controller.live.front.routable import ROUTABLE, RoutableWorkers
from modelless.controller.live.worker.batch_replies import Ran, TurnedBack

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
