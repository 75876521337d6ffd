"""Workers in other processes: one handle call a batch, pinned to the worker that was chosen."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from ray.exceptions import RayActorError

from modelless.controller.live.frontend import RunBatch
from modelless.variants.errors import ModellessError

logger = logging.getLogger(__name__)

Tensors = Mapping[str, NDArray[Any]]
RemoteCallback = Callable[[int, float, "Sequence[Tensors] | Exception", bool], None]


class WorkerGoneError(ModellessError):
    """The worker a batch was meant for is not there any more."""

    http_status = 503


FIRST_HOP_S = 0.002
"""Price of a hop before one was measured: a 150 kB batch by handle takes about this long."""


BELIEVED_GONE_S = 5.0
"""For how long a worker that was found gone gets nothing, though it may still tell of itself."""


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
        self._gone: dict[str, float] = {}  # and until when that is believed

    def know(self, worker_id: str, device_class: str) -> None:
        """A worker of that class exists."""
        self._class_of[worker_id] = device_class

    def still_there(self, worker_ids: Collection[str]) -> set[str]:
        """Those that have not been found gone: a worker that ends tells of itself to the last."""
        now_s = time.monotonic()
        self._gone = {name: until_s for name, until_s in self._gone.items() if now_s < until_s}
        return set(worker_ids) - self._gone.keys()

    def hop_s(self, worker_id: str) -> float:
        """What reaching the worker costs a batch, there and back, seconds; as measured lately."""
        return round(self._hop_s.get(self._class_of.get(worker_id, ""), FIRST_HOP_S), 4)

    def run(self, batch: RunBatch, callback: RemoteCallback) -> None:
        """Send the batch; ``callback`` comes on the event loop."""
        task = asyncio.get_running_loop().create_task(self._run(batch, callback))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, batch: RunBatch, callback: RemoteCallback) -> None:
        device_class = self._class_of[batch.worker_id]
        started_s = time.monotonic()
        lost = False
        result: Sequence[Tensors] | Exception
        busy_s = 0.0
        try:
            busy_s, result = await self._pools[device_class].run_batch.remote(
                batch.variant_id, list(batch.inputs), worker_id=batch.worker_id
            )
            self._learn(device_class, time.monotonic() - started_s - busy_s)
        except (RayActorError, WorkerGoneError) as error:
            result, lost = error, True
            self._gone[batch.worker_id] = time.monotonic() + BELIEVED_GONE_S
        except Exception as error:  # noqa: BLE001  (whatever comes back from afar is an answer)
            result = error
        callback(batch.batch_id, busy_s, result, lost)

    def _learn(self, device_class: str, hop_s: float) -> None:
        if hop_s > 0.0:
            before_s = self._hop_s.get(device_class, hop_s)
            self._hop_s[device_class] = before_s + 0.1 * (min(hop_s, 4 * before_s) - before_s)
