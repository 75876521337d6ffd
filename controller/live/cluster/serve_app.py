"""The Serve applications: gateways as the ingress, and one application for each pool.

Pools are applications of their own because adding a deployment to a running application restarts
its siblings.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.schema import ReplicaRank

from modelless.controller.config import PoolSettings, Settings, label_options, parse_settings
from modelless.controller.live.cluster.loopback import hold_replica_ports
from modelless.controller.live.cluster.node_room import REPLICA_CPUS
from modelless.controller.live.cluster.release import release_of
from modelless.controller.live.control.control_link import ControlLink
from modelless.controller.live.front.asgi import answer_with, asgi_app
from modelless.controller.live.front.gateway import Gateway
from modelless.controller.live.front.http_server import SocketConnection, open_socket, socket_path
from modelless.controller.live.front.receipt_log import ReceiptLog
from modelless.controller.live.front.remote_workers import RemoteWorkers
from modelless.controller.live.front.spans import open_spans
from modelless.controller.live.key_file import KeyFollower
from modelless.controller.live.knowledge import Rereader, read_knowledge
from modelless.controller.live.logs import log_to
from modelless.controller.live.settings_revisions import latest_revision
from modelless.controller.live.successor import Successor
from modelless.controller.live.worker.pool import PinnedRouter, PoolWorker

logger = logging.getLogger(__name__)

GATEWAY_APP = "modelless"
POOL_DEPLOYMENT = "PoolReplica"
POOL_HEAD = "PoolHead"
DRAIN_S = 5.0
_SURGE_PERCENT = 1
"""In a rolling update one replica more than usual: Serve rounds up."""
_WATCHED = {
    "health_check_period_s": 1,
    "health_check_timeout_s": 10,
    "graceful_shutdown_timeout_s": DRAIN_S + 5.0,
    "graceful_shutdown_wait_loop_s": 0.5,
}
"""How Serve looks after a replica, and lets it end."""


def pool_app_name(device_class: str) -> str:
    """The Serve application of a pool."""
    return f"modelless-pool-{device_class}"


def pool_handle(pool: PoolSettings) -> Any:
    """A Serve handle to a pool's workers, whether or not they are there yet."""
    return serve.get_deployment_handle(
        POOL_DEPLOYMENT, app_name=pool_app_name(pool.device_class), _check_exists=False
    )


@serve.deployment
@serve.ingress(lambda: asgi_app)
class GatewayReplica:
    """A gateway in a Serve replica."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, home: str, settings: Mapping[str, Any], sockets: str | None, rollout: str
    ) -> None:
        checked = parse_settings(settings)
        hold_replica_ports()
        context = serve.get_replica_context()
        replica_id = context.replica_id.unique_id
        log_to(Path(home), replica_id)
        knowledge = await asyncio.to_thread(read_knowledge, Path(home), checked)
        successor = Successor(release_of(checked), rollout)
        self._gateway = Gateway(
            replica_id,
            checked,
            knowledge,
            RemoteWorkers({pool.device_class: pool_handle(pool) for pool in checked.pools}),
            ControlLink(),
            Rereader(Path(home), checked),
            rank=context.rank.rank if context.rank is not None else None,
            count=context.world_size,
            receipt_log=ReceiptLog(Path(home), replica_id, checked.history),
            successor=successor,
            keys=KeyFollower(Path(home)),
            spans=open_spans(replica_id),
            home=Path(home),
        )
        latest = await asyncio.to_thread(latest_revision, Path(home))
        self._gateway.change_settings(latest.number, latest.changes)
        answer_with(self._gateway.frontend)
        self._gateway.start()
        await successor.wait(lambda: self._gateway.frontend.is_ready)
        self._socket_path = socket_path(Path(sockets), replica_id) if sockets is not None else None
        if self._socket_path is not None:
            self._server, self._connections = await open_socket(
                self._gateway.frontend, str(self._socket_path), checked.limits.max_connections
            )

    def reconfigure(self, user_config: object, rank: ReplicaRank) -> None:
        """Serve numbers the replicas anew, as after a rolling update."""
        del user_config
        self._gateway.take_rank(rank.rank, serve.get_replica_context().world_size)

    async def check_health(self) -> None:
        """Serve asks regularly; raising takes this replica out and starts another.

        (It is async because Serve starts a thread for one that is not.)
        """
        self._gateway.check_health()

    async def __del__(self) -> None:
        if not hasattr(self, "_socket_path"):
            return
        if self._socket_path is not None:
            self._server.close()
            self._socket_path.unlink(missing_ok=True)
        await self._gateway.drain(DRAIN_S)
        if self._socket_path is not None:
            for connection in tuple[SocketConnection, ...](self._connections):
                connection.close()


@serve.deployment
class PoolReplica:
    """A pool's worker in a Serve replica."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, home: str, settings: Mapping[str, Any], device_class: str, rollout: str
    ) -> None:
        checked = parse_settings(settings)
        hold_replica_ports()
        replica_id = serve.get_replica_context().replica_id.unique_id
        log_to(Path(home), replica_id)
        knowledge = await asyncio.to_thread(read_knowledge, Path(home), checked)
        (pool,) = [pool for pool in checked.pools if pool.device_class == device_class]
        successor = Successor(release_of(checked), rollout)
        self._worker = PoolWorker(
            replica_id,
            device_class,
            knowledge,
            ControlLink(),
            Rereader(Path(home), checked),
            pool.budget_bytes(knowledge.device_class(device_class).memory_bytes),
            pool.sizes,
            checked.residency.pinned,
            checked.limits.max_batch,
            successor,
            checked.record,
        )
        await successor.wait()

    async def run_batch(
        self, variant_id: str, inputs: Any, expected_s: float, patience_s: float, worker_id: str
    ) -> Any:
        return await self._worker.run_batch(variant_id, inputs, expected_s, patience_s, worker_id)

    async def __del__(self) -> None:
        if hasattr(self, "_worker"):
            await self._worker.leave()

    async def check_health(self) -> None:
        """Serve asks regularly; raising takes this replica out and starts another.

        (It is async because Serve starts a thread for one that is not.)
        """
        self._worker.check_health()


@serve.deployment
class PoolHead:
    """The root that Serve wants of an application: under HAProxy a root cannot have a router of
    its own, so the workers hang below it. It does nothing, and is scaled to nothing once it is up.
    """

    def __init__(self, workers: Any) -> None:
        del workers


def gateway_app(
    home: Path, settings: Settings, sockets: Path | None, count: int, *, surge: bool = True
) -> Any:
    """The ingress application: ``count`` gateways.

    Args:
        sockets: folder for the gateways' sockets, on the machine they share with HAProxy; None if
            they are reached through Serve's own ports alone.
        surge: whether there is room for a new one beside the old ones while they are replaced.
    """
    return GatewayReplica.options(  # type: ignore[attr-defined]
        num_replicas=count,
        max_surge_percent=_SURGE_PERCENT if surge else 0,
        max_ongoing_requests=settings.limits.max_connections,
        **_WATCHED,
        ray_actor_options={"num_cpus": REPLICA_CPUS, **label_options(settings.gateways.labels)},
    ).bind(
        str(home),
        settings.model_dump(mode="json"),
        str(sockets) if sockets else None,
        _new_rollout(),
    )


def pool_app(
    home: Path,
    settings: Settings,
    pool: PoolSettings,
    count: int | None = None,
    *,
    surge: bool = True,
) -> Any:
    """The application of one pool; ``count`` workers, where that is not what is configured."""
    workers = PoolReplica.options(  # type: ignore[attr-defined]
        # Serve begins with one; see ``deployment.begin_serving``
        num_replicas=max(pool.workers if count is None else count, 1),
        max_surge_percent=_SURGE_PERCENT if surge else 0,
        max_ongoing_requests=16,
        **_WATCHED,
        request_router_config={"request_router_class": PinnedRouter},
        ray_actor_options={"num_cpus": REPLICA_CPUS, **pool.actor_options()},
    ).bind(str(home), settings.model_dump(mode="json"), pool.device_class, _new_rollout())
    head = PoolHead.options(ray_actor_options={"num_cpus": REPLICA_CPUS})  # type: ignore[attr-defined]
    return head.bind(workers)


def _new_rollout() -> str:
    """A name that tells the processes of this deployment from those before it."""
    return uuid.uuid4().hex[:8]
