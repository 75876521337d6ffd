"""Workers in other processes: one handle call a batch, pinned to the worker that was chosen."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.exceptions import RayActorError

from modelless.controller.live.frontend import RunBatch
from modelless.controller.live.sharing import Ran, TurnedBack
from modelless.variants.errors import ModellessError

logger = logging.getLogger(__name__)

RemoteCallback = Callable[[int, "Ran | TurnedBack | Exception", bool], None]
"""batch id, what came of it, whether the worker is gone."""


class WorkerGoneError(ModellessError):
    """The worker a batch was meant for is not there any more."""

    http_status = 503


FIRST_HOP_S = 0.002
"""Price of a hop before one was measured: a 150 kB batch by handle takes about this long."""


class RemoteWorkers:
    """Sends batches to the workers of pools, and learns what the way there costs.

    Args:
        pools: a Serve handle by device class; the worker is named in the call, for its router.
    """

    def __init__(self, pools: Mapping[str, Any]) -> None:
        self._pools = pools
        self._class_of: dict[str, str] = {}
        self._hop_s: dict[str, float] = {}
        self._running: set[asyncio.Task[None]] = set()

    def know(self, worker_id: str, device_class: str) -> None:
        """A worker of that class exists."""
        self._class_of[worker_id] = device_class

    def hop_s(self, worker_id: str) -> float:
        """What reaching the worker costs a batch, there and back, seconds; as measured lately."""
        return round(self._hop_s.get(self._class_of.get(worker_id, ""), FIRST_HOP_S), 4)

    def run(
        self, batch: RunBatch, expected_s: float, patience_s: float, callback: RemoteCallback
    ) -> None:
        """Send the batch; ``callback`` comes on the event loop.

        Args:
            batch: what is to run, and where.
            expected_s: how long it is expected to take, the way included.
            patience_s: how much longer it may take.
            callback: is told what came of it.
        """
        running = self._run(batch, expected_s, patience_s, callback)
        task = asyncio.get_running_loop().create_task(running)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(
        self, batch: RunBatch, expected_s: float, patience_s: float, callback: RemoteCallback
    ) -> None:
        device_class = self._class_of[batch.worker_id]
        started_s = time.monotonic()
        lost = False
        result: Ran | TurnedBack | Exception
        hop_s = self.hop_s(batch.worker_id)
        try:
            result = await self._pools[device_class].run_batch.remote(
                batch.variant_id,
                list(batch.inputs),
                max(expected_s - hop_s, 0.0),
                patience_s,
                worker_id=batch.worker_id,
            )
            if isinstance(result, Ran):
                on_the_way_s = time.monotonic() - started_s - result.busy_s - result.waited_s
                self._learn(device_class, on_the_way_s)
        except (RayActorError, WorkerGoneError) as error:
            result, lost = error, True
        except Exception as error:  # noqa: BLE001  (whatever comes back from afar is an answer)
            result = error
        if isinstance(result, (Ran, TurnedBack)):  # the next batch takes as long on its way
            result = result._replace(others_s=max(result.others_s - hop_s, 0.0))
        callback(batch.batch_id, result, lost)

    def _learn(self, device_class: str, hop_s: float) -> None:
        if hop_s > 0.0:
            before_s = self._hop_s.get(device_class, hop_s)
            self._hop_s[device_class] = before_s + 0.1 * (min(hop_s, 4 * before_s) - before_s)
