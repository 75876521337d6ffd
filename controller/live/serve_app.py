"""The Serve applications: gateways as the ingress, and one application for each pool.

Pools are applications of their own because adding a deployment to a running application restarts
its siblings.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import serve

from modelless.controller.api.v2_reply import Reply, render_error
from modelless.controller.config import PoolSettings, Settings, parse_settings
from modelless.controller.live.door import DoorConnection, Frontend, open_door
from modelless.controller.live.gateway import Gateway, door_path
from modelless.controller.live.knowledge import read_knowledge
from modelless.controller.live.logs import log_to
from modelless.controller.live.loopback import hold_replica_ports
from modelless.controller.live.messages import Orders, Report
from modelless.controller.live.pool import PinnedRouter, PoolWorker
from modelless.controller.live.remote import RemoteWorkers
from modelless.variants.errors import ModellessError

logger = logging.getLogger(__name__)

NAMESPACE = "modelless"
CONTROL_NAME = "modelless-control"
GATEWAY_APP = "modelless"
POOL_DEPLOYMENT = "PoolReplica"
POOL_HEAD = "PoolHead"
DRAIN_S = 5.0

_here: dict[str, Frontend] = {}
"""The frontend of this process: a replica has a process to itself."""


def pool_app_name(device_class: str) -> str:
    """The Serve application of a pool."""
    return f"modelless-pool-{device_class}"


def _control_caller() -> Callable[[Report], Awaitable[Orders]]:
    """Calls the control loop, and finds it anew after it was restarted under another handle."""
    handle: Any = None

    async def exchange(report: Report) -> Orders:
        nonlocal handle
        if handle is None:
            handle = ray.get_actor(CONTROL_NAME, namespace=NAMESPACE)
        try:
            orders: Orders = await asyncio.wait_for(handle.exchange.remote(report), 5.0)
        except Exception:
            handle = None
            raise
        return orders

    return exchange


async def _asgi(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
    """The way in through Serve's own HTTP server: the same frontend, for where there is no door."""
    if scope["type"] != "http":
        return
    frontend = _here["frontend"]
    loop = asyncio.get_running_loop()
    arrival_s = time.monotonic()
    body = bytearray()
    answered: asyncio.Future[Reply] = loop.create_future()

    def respond(reply: Reply) -> None:
        if not answered.done():
            answered.set_result(reply)

    query_id: int | None = None
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            frontend.limits.check_body_bytes(len(body))
            if not message.get("more_body"):
                break
        raw_path = scope.get("raw_path") or scope["path"].encode()
        query_id = frontend.on_request(
            scope["method"], raw_path, list(scope["headers"]), memoryview(body), arrival_s, respond
        )
        reply = await answered
    except ModellessError as error:
        reply = render_error(error)
    finally:
        if query_id is not None and not answered.done():
            frontend.on_abandoned(query_id)
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    await send({"type": "http.response.body", "body": reply.body})


@serve.deployment
@serve.ingress(lambda: _asgi)
class GatewayReplica:
    """A gateway in a Serve replica."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, home: str, settings: Mapping[str, Any], doors: str, pools: Mapping[str, Any]
    ) -> None:
        checked = parse_settings(settings)
        hold_replica_ports(checked.http.host)
        context = serve.get_replica_context()
        replica_id = context.replica_id.unique_id
        log_to(Path(home), replica_id)
        knowledge = await asyncio.to_thread(read_knowledge, Path(home), checked)
        self._gateway = Gateway(
            replica_id,
            checked,
            knowledge,
            RemoteWorkers(pools),
            _control_caller(),
            rank=context.rank.rank if context.rank is not None else None,
            count=context.world_size,
        )
        _here["frontend"] = self._gateway.frontend
        self._door = door_path(Path(doors), replica_id)
        self._server, self._connections = await open_door(
            self._gateway.frontend,
            str(self._door),
            checked.limits.max_connections,
            max(checked.limits.max_bodies_bytes, checked.http.max_body_bytes),
        )
        self._gateway.start()

    def check_health(self) -> None:
        """Serve asks regularly; raising takes this replica out and starts another."""
        self._gateway.check_health()

    async def __del__(self) -> None:
        if not hasattr(self, "_server"):
            return
        self._server.close()
        self._door.unlink(missing_ok=True)
        await self._gateway.drain(DRAIN_S)
        for connection in tuple[DoorConnection, ...](self._connections):
            connection.close()


@serve.deployment
class PoolReplica:
    """A pool's worker in a Serve replica."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, home: str, settings: Mapping[str, Any], device_class: str
    ) -> None:
        checked = parse_settings(settings)
        hold_replica_ports(checked.http.host)
        replica_id = serve.get_replica_context().replica_id.unique_id
        log_to(Path(home), replica_id)
        knowledge = await asyncio.to_thread(read_knowledge, Path(home), checked)
        self._worker = PoolWorker(replica_id, device_class, knowledge, _control_caller())

    async def run_batch(
        self, variant_id: str, inputs: Any, expected_s: float, patience_s: float, worker_id: str
    ) -> Any:
        """See ``PoolWorker.run_batch``."""
        return await self._worker.run_batch(variant_id, inputs, expected_s, patience_s, worker_id)


@serve.deployment
class PoolHead:
    """The root that Serve wants of an application: under HAProxy a root cannot have a router of
    its own, so the workers hang below it. It does nothing, and is scaled to nothing once it is up.
    """

    def __init__(self, workers: Any) -> None:
        del workers


def gateway_app(
    home: Path, settings: Settings, doors: Path, count: int, pools: Mapping[str, Any]
) -> Any:
    """The ingress application: ``count`` gateways."""
    return GatewayReplica.options(  # type: ignore[attr-defined]
        num_replicas=count,
        max_ongoing_requests=settings.limits.max_connections,
        health_check_period_s=1,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=DRAIN_S + 5.0,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options={"num_cpus": 0.01},
    ).bind(str(home), settings.model_dump(mode="json"), str(doors), dict(pools))


def pool_app(home: Path, settings: Settings, pool: PoolSettings) -> Any:
    """The application of one pool."""
    workers = PoolReplica.options(  # type: ignore[attr-defined]
        num_replicas=pool.workers,
        max_ongoing_requests=16,
        health_check_period_s=1,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=DRAIN_S + 5.0,
        graceful_shutdown_wait_loop_s=0.5,
        request_router_config={"request_router_class": PinnedRouter},
        ray_actor_options={"num_cpus": 0.01, **pool.actor_options()},
    ).bind(str(home), settings.model_dump(mode="json"), pool.device_class)
    head = PoolHead.options(ray_actor_options={"num_cpus": 0.01})  # type: ignore[attr-defined]
    return head.bind(workers)
