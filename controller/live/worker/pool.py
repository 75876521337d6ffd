"""Pool workers: replicas that own a device and run whole batches for the gateways."""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from modelless.controller.config import RecordSettings
from modelless.controller.control.messages import MemberReport
from modelless.controller.live.control.control_link import ControlLink
from modelless.controller.live.front.remote_workers import WorkerGoneError
from modelless.controller.live.knowledge import Knowledge, Rereader
from modelless.controller.live.report_pace import EXCHANGE_S, Pace
from modelless.controller.live.successor import Successor
from modelless.controller.live.version_follower import VersionFollower
from modelless.controller.live.worker.batch_replies import Ran, TurnedBack
from modelless.controller.live.worker.device import NOT_RECORDED, LocalDevice
from modelless.variants.runtimes.resident_memory import resident_bytes
from modelless.variants.runtimes.runtime import Tensors

logger = logging.getLogger(__name__)

FIND_WORKER_S = 2.0
"""How long a router waits to hear of the worker a call names before it gives the call up."""
LOOK_S = 0.02
"""How often it looks, and how long it waits before it sends a call there once more."""

MOST_WAITING = 1
"""Batches that wait beside the one that runs: enough for the device never to wait for a hop."""

GONE_KEPT = 1024
"""How many workers that are gone a router remembers, not to wait for them."""


class PinnedRouter(RequestRouter):  # type: ignore[misc]  # Ray ships no types
    """Routes each call to the replica whose id the call names as ``worker_id``.

    A replica that it knew and that has died, or that Serve has taken out since, is gone: that is
    said at once, so that the batch goes elsewhere while there is time.

    The choice is made in the caller's own coroutine, as Ray's ``CapacityQueueRouter`` makes its:
    calls of one incoming request share an id there, and the usual way would lose all but one.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._clock = time.time  # as Ray stamps its requests
        self._pause = asyncio.sleep
        self._gone: deque[str] = deque(maxlen=GONE_KEPT)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve tells which replicas there are: those that are to stop are not among them."""
        before = self._unique_ids()
        super().update_replicas(replicas)
        self._lose(before - {replica.replica_id.unique_id for replica in replicas})

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """A call has found it dead, before Serve told of it."""
        super().on_replica_actor_died(replica_id)
        self._lose({replica_id.unique_id})

    def _lose(self, unique_ids: Collection[str]) -> None:
        # Serve pickles this class with its module's globals; an import finds the process's own.
        from modelless.controller.live.front.remote_workers import ROUTABLE

        self._gone.extend(unique_ids)
        # (Serve may go on to tell of one that was found dead.)
        ROUTABLE.put(self._deployment_id.app_name, self._unique_ids().difference(self._gone))

    def _unique_ids(self) -> set[str]:
        return {replica_id.unique_id for replica_id in self._replicas}

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
        wanted = pending_request.kwargs.get("worker_id")
        # It was not taken there and may be taken soon; Serve does not say if it never will be.
        give_up_s = FIND_WORKER_S + (pending_request.created_at if is_retry else self._clock())
        if is_retry:
            await self._pause(LOOK_S)
        while self._clock() < give_up_s and wanted not in self._gone:
            for replica_id, replica in self._replicas.items():
                if replica_id.unique_id == wanted:
                    return replica
            await self._pause(LOOK_S)
        raise WorkerGoneError(f"worker {wanted!r} is not there any more, or takes nothing")


class PoolWorker:
    """One device, reached from the gateways.

    Args:
        control: called with a report once a second; answers with orders.
        reread: reads the store anew, for versions registered or profiled since.
        sizes: device classes that it may be resized to.
        pinned: scopes whose variants are to stay once they are loaded.
        max_batch: most items a batch may have.
    """

    def __init__(
        self,
        worker_id: str,
        device_class_name: str,
        knowledge: Knowledge,
        control: ControlLink,
        reread: Rereader,
        memory_bytes: int,
        sizes: Iterable[str] = (),
        pinned: Collection[str] = (),
        max_batch: int = 1,
        successor: Successor | None = None,
        record: RecordSettings = NOT_RECORDED,
    ) -> None:
        device_class = knowledge.device_class(device_class_name)
        self._pool = device_class_name
        self._knowledge = knowledge
        self._tasks_by_name = dict(knowledge.catalog.tasks)
        self._control = control
        self._successor = successor or Successor()
        self._next_batch_id = 0
        self._last_s = time.monotonic()
        self._device = LocalDevice(
            worker_id,
            device_class,
            memory_bytes,
            knowledge.fetch,
            self._tasks_by_name,
            self._on_device_change,
            sizes=[knowledge.device_class(name) for name in sizes],
            pinned=pinned,
            load_s=lambda variant_id: self._knowledge.load_s(device_class_name, variant_id),
            item_shape=lambda variant_id: self._knowledge.item_shapes.get(variant_id),
            max_batch=max_batch,
            most_waiting=MOST_WAITING,
            record=record,
        )
        follower = VersionFollower(
            knowledge, reread, control.versions, lambda _: None, self._on_knowledge
        )
        loop = asyncio.get_running_loop()
        self._pace = Pace()
        self._tasks = [
            loop.create_task(self._exchange_forever()),
            loop.create_task(follower.follow_forever()),
            loop.create_task(self._pace.heed_forever(partial(control.called, worker_id))),
        ]

    async def run_batch(
        self,
        variant_id: str,
        inputs: Sequence[Tensors],
        expected_s: float,
        patience_s: float,
        worker_id: str,
    ) -> Ran | TurnedBack:
        """Run one batch, or turn it back: if others' would keep it waiting too long, or its variant
        is not ready here any more.

        Args:
            variant_id, inputs: the variant, and each query's tensors.
        """
        del worker_id
        has_others = self._device.remaining_s() > 0.0
        came_s = time.monotonic()
        done: asyncio.Future[tuple[float, Sequence[Tensors] | TurnedBack]] = (
            asyncio.get_running_loop().create_future()
        )

        def on_batch(
            _: int, busy_s: float, result: Sequence[Tensors] | Exception | TurnedBack
        ) -> None:
            if done.cancelled():
                return
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result((busy_s, result))

        self._next_batch_id += 1
        self._device.run(self._next_batch_id, variant_id, inputs, on_batch, expected_s, patience_s)
        busy_s, result = await done
        if isinstance(result, TurnedBack):
            return result
        waited_s = max(time.monotonic() - came_s - busy_s, 0.0) if has_others else 0.0
        return Ran(busy_s, waited_s, result, self._device.remaining_s())

    async def leave(self) -> None:
        """Say goodbye: what was handed to this worker is done, and it stops."""
        for task in self._tasks:
            task.cancel()
        await self._control.say_goodbye(MemberReport(self._device.worker_id, False, None))
        self._device.close()

    def check_health(self) -> None:
        """Raise if this worker cannot run batches any more."""
        self._device.check_health(time.monotonic())
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"a loop of the worker has ended: {task}")

    def _on_device_change(self) -> None:
        self._pace.hurry()  # gateways must not have to wait a second to hear of it

    async def _exchange_forever(self) -> None:
        while True:
            now_s = time.monotonic()
            state = self._device.state()
            try:
                orders = await self._control.exchange(
                    MemberReport(
                        state.worker_id,
                        is_gateway=False,
                        state=state,
                        failed_loads=dict(self._device.failed_loads),
                        interval_s=now_s - self._last_s,
                        queued=self._device.waiting,
                        resident_bytes=resident_bytes(),
                        tasks=len(asyncio.all_tasks()),
                        host=platform.node(),
                        pool=self._pool,
                        changes=self._device.take_changes(),
                        replica=self._successor.replica,
                    )
                )
                self._last_s = now_s
                self._device.obey(
                    orders.effects, self._device.in_use, self._knowledge.catalog.versions
                )
                self._successor.on_orders(orders)
            except Exception as error:  # noqa: BLE001  (serving goes on without a control loop)
                self._successor.on_failure(error)
                logger.warning("the control loop did not answer: %s", error)
            await self._pace.pause(EXCHANGE_S if state.instances else 0.1)

    def _on_knowledge(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._tasks_by_name.update(knowledge.catalog.tasks)
