"""Pool workers: replicas that own a device and run whole batches for the gateways."""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from modelless.controller.live.device import LocalDevice
from modelless.controller.live.knowledge import Knowledge
from modelless.controller.live.messages import Report
from modelless.controller.live.remote import WorkerGoneError
from modelless.variants.runtimes.resident_memory import resident_bytes

logger = logging.getLogger(__name__)

Tensors = Mapping[str, NDArray[Any]]


FIND_WORKER_S = 2.0
"""How long a router waits to hear of the worker a call names before it gives the call up."""
MOST_KNOWN = 4096
"""Replicas that a router remembers, gone or not."""


class PinnedRouter(RequestRouter):  # type: ignore[misc]  # Ray ships no types
    """Routes each call to the replica whose id the call names as ``worker_id``.

    A replica that it knew and that Serve has taken out since is gone: that is said at once, so that
    the batch goes elsewhere while there is time.

    The choice is made in the caller's own coroutine, as Ray's ``CapacityQueueRouter`` makes its:
    calls of one incoming request share an id there, and the usual way would lose all but one.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._known: dict[str, None] = {}
        super().__init__(*arguments, **named)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve says which replicas there are."""
        super().update_replicas(replicas)
        self._known |= {replica_id.unique_id: None for replica_id in self._replicas}
        for forgotten in list(self._known)[:-MOST_KNOWN]:
            del self._known[forgotten]

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Never asked: see ``_choose_replica_for_request``."""
        del pending_request
        return [candidate_replicas]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        del is_retry
        wanted = pending_request.kwargs.get("worker_id")
        give_up_s = time.monotonic() + FIND_WORKER_S
        while time.monotonic() < give_up_s:
            for replica_id, replica in self._replicas.items():
                if replica_id.unique_id == wanted:
                    return replica
            if wanted in self._known:
                break
            await asyncio.sleep(0.02)
        raise WorkerGoneError(f"worker {wanted!r} is not there any more")


class PoolWorker:
    """One device, reached from the gateways.

    Args:
        worker_id: its name: the replica's id.
        device_class_name: what it owns.
        knowledge: as in a gateway.
        control: called with a report once a second; answers with orders.
    """

    def __init__(
        self,
        worker_id: str,
        device_class_name: str,
        knowledge: Knowledge,
        control: Any,
    ) -> None:
        device_class = knowledge.device_class(device_class_name)
        self._knowledge = knowledge
        self._control = control
        self._running: dict[str, int] = {}
        self._next_batch_id = 0
        self._last_s = time.monotonic()
        self._device = LocalDevice(
            worker_id,
            device_class,
            device_class.memory_bytes,
            knowledge.fetch,
            knowledge.catalog.tasks,
            lambda: None,
            load_s=partial(knowledge.load_s, device_class_name),
        )
        self._task = asyncio.get_running_loop().create_task(self._exchange_forever())

    def check_health(self) -> None:
        """Raise if this worker cannot go on; Serve lets its batches end and starts another."""
        self._device.check_health()
        if self._task.done():
            raise RuntimeError(f"the worker's loop has ended: {self._task}")

    async def run_batch(
        self, variant_id: str, inputs: Sequence[Tensors], worker_id: str
    ) -> tuple[float, Sequence[Tensors]]:
        """Run one batch; returns the seconds the device was busy and each query's outputs.

        ``worker_id`` is for the router alone.
        """
        del worker_id
        done: asyncio.Future[tuple[float, Sequence[Tensors]]] = (
            asyncio.get_running_loop().create_future()
        )

        def on_batch(_: int, busy_s: float, result: Sequence[Tensors] | Exception) -> None:
            if done.cancelled():
                return
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result((busy_s, result))

        self._next_batch_id += 1
        self._running[variant_id] = self._running.get(variant_id, 0) + 1
        try:
            self._device.run(self._next_batch_id, variant_id, inputs, on_batch)
            return await done
        finally:
            self._running[variant_id] -= 1

    async def _exchange_forever(self) -> None:
        while True:
            now_s = time.monotonic()
            state = self._device.state(self._in_use())
            try:
                orders = await self._control(
                    Report(
                        state.worker_id,
                        is_gateway=False,
                        state=state,
                        failed_loads=dict(self._device.failed_loads),
                        interval_s=now_s - self._last_s,
                        resident_bytes=resident_bytes(),
                        tasks=len(asyncio.all_tasks()),
                        host=platform.node(),
                    )
                )
                self._last_s = now_s
                self._device.obey(orders.effects, self._in_use(), self._knowledge.catalog.versions)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001  (serving goes on without a control loop)
                logger.warning("the control loop did not answer: %s", error)
            await asyncio.sleep(1.0 if state.instances else 0.1)

    def _in_use(self) -> set[str]:
        """Variants with batches running or waiting now."""
        return {name for name, count in self._running.items() if count}
