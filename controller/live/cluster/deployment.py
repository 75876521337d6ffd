"""What runs inside a Ray cluster, put there: the control loop, and the size of the pools.

``modelless up`` and the application builders of a Serve config file both come through here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.config import PoolSettings, Settings
from modelless.controller.control.messages import ScalePool
from modelless.controller.live.cluster.release import release_of
from modelless.controller.live.cluster.serve_app import (
    GATEWAY_APP,
    POOL_DEPLOYMENT,
    POOL_HEAD,
    gateway_app,
    pool_app,
    pool_app_name,
)
from modelless.controller.live.cluster.start_failures import FAILED, start_error
from modelless.controller.live.control.control_link import CONTROL_NAME, NAMESPACE
from modelless.controller.live.control.control_loop import ControlLoop
from modelless.controller.live.control.ray_metrics import RayMetrics

logger = logging.getLogger(__name__)

PATIENCE_S = 60.0
CLOSE_S = 5.0
_TRIES = 10


def begin_serve(host: str, port: int) -> None:
    """Start Ray Serve, which is to listen there, and wait for its controller alone.

    Its proxies come meanwhile, and the controller replaces one that fails.
    """
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    started: Future[None] = Future()

    def start() -> None:
        try:
            serve.start(
                http_options={"host": host, "port": port},
                logging_config={"log_level": "WARNING", "enable_access_log": False},
            )
            started.set_result(None)
        except BaseException as error:
            started.set_exception(error)
            logger.debug("Serve's proxies are not there yet", exc_info=True)

    threading.Thread(target=start, name="serve-start", daemon=True).start()
    while not started.done():
        with suppress(ValueError):  # it has not begun yet
            ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
            return
        time.sleep(0.01)
    started.result()


def start_control(home: Path, settings: Settings) -> None:
    """Have a control loop of this release with these settings; another one is replaced.

    Nothing is lost with the old one: it holds only what the members report anew each second.

    Raises:
        EnvironmentUnfitError: it does not start.
    """
    problem: Exception | None = None
    release = release_of(settings)
    for _ in range(_TRIES):
        handle = begin_control(home, settings)
        try:
            if ray.get(handle.is_for.remote(home, settings, release), timeout=PATIENCE_S):
                return
        except RayTaskError:  # one of a release that is asked otherwise
            logger.debug("the control loop is of another release", exc_info=True)
        except (RayActorError, GetTimeoutError) as error:
            if problem is not None:  # the first may have been another's that was dying
                raise EnvironmentUnfitError(f"the control loop does not start: {error}") from error
            problem = error
        _end(handle)
        time.sleep(0.2)  # its name is free a moment later
    raise EnvironmentUnfitError(
        f"whenever {CONTROL_NAME!r} is replaced, another comes back: is modelless being deployed "
        "twice into this Ray cluster?"
    )


def begin_control(home: Path, settings: Settings) -> Any:
    """The control loop that is there, else a new one; ``start_control`` waits for it."""
    return (
        ray.remote(ControlLoop)
        .options(
            name=CONTROL_NAME,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",  # nobody here keeps its handle
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            max_concurrency=1024,
        )
        .remote(home, settings, scale_pool, RayMetrics().tell)
    )


def begin_serving(home: Path, settings: Settings, sockets: Path | None, count: int) -> None:
    """Have the pools and the gateways started, all of them at the same time; see ``await_app``.

    Their processes come when there is room for them.

    Args:
        sockets, count: see ``gateway_app``.
    """
    targets = [_pool_target(pool, pool_app(home, settings, pool)) for pool in settings.pools]
    gateways = serve.RunTarget(gateway_app(home, settings, sockets, count), GATEWAY_APP, "/")
    serve.run_many([gateways, *targets], wait_for_applications_running=False)
    for pool in settings.pools:
        trim_pool(pool, pool.workers)


def await_app(name: str, what: str) -> None:
    """Wait until an application of Serve runs.

    Args:
        what: its processes, for people.

    Raises:
        EnvironmentUnfitError: they do not start.
    """
    while (application := serve.status().applications[name]).status != "RUNNING":
        if application.status in FAILED:
            raise start_error(what, application.deployments)
        time.sleep(0.1)


def deploy_pool(
    home: Path, settings: Settings, pool: PoolSettings, count: int, *, surge: bool
) -> None:
    """Have Serve replace a pool's workers, which takes its time; then ``trim_pool``."""
    app = pool_app(home, settings, pool, count, surge=surge)
    serve.run_many([_pool_target(pool, app)], wait_for_applications_running=False)


def trim_pool(pool: PoolSettings, count: int) -> None:
    """Take away of a pool what was started only because Serve begins with one."""
    name = pool_app_name(pool.device_class)
    _scale(name, POOL_HEAD, 0)
    if count == 0:
        _scale(name, POOL_DEPLOYMENT, 0)


def deploy_gateways(
    home: Path, settings: Settings, sockets: Path | None, count: int, *, surge: bool
) -> None:
    """Have Serve replace the gateways, which takes its time."""
    app = gateway_app(home, settings, sockets, count, surge=surge)
    target = serve.RunTarget(app, GATEWAY_APP, "/")
    serve.run_many([target], wait_for_applications_running=False)


def _pool_target(pool: PoolSettings, app: Any) -> serve.RunTarget:
    return serve.RunTarget(
        app, pool_app_name(pool.device_class), route_prefix=None, external_scaler_enabled=True
    )


def control_status() -> dict[str, Any]:
    """What the control loop says, as plain data; empty while there is none."""
    try:
        handle = ray.get_actor(CONTROL_NAME, namespace=NAMESPACE)
        status: dict[str, Any] = ray.get(handle.status.remote(), timeout=PATIENCE_S)
    except (ValueError, RayActorError):
        return {}
    return status


def end_control() -> None:
    """End the control loop, if there is one; what it records is written to its end before."""
    try:
        handle = ray.get_actor(CONTROL_NAME, namespace=NAMESPACE)
    except ValueError:  # there is none
        return
    _end(handle)


def _end(handle: Any) -> None:
    try:
        ray.get(handle.close.remote(), timeout=CLOSE_S)
    except (AttributeError, RayError) as error:  # another release's, dead already, or hanging
        logger.debug("the control loop did not close: %s", error)
    ray.kill(handle)


def take_away(pools: Iterable[PoolSettings]) -> None:
    """Take everything of modelless out of a Ray cluster that goes on without it."""
    serve.delete(GATEWAY_APP)
    for pool in pools:
        serve.delete(pool_app_name(pool.device_class))
    end_control()


def scale_pool(effect: ScalePool) -> None:
    """Bring a pool to a number of workers, in the control process that has its name.

    Members ask the process of that name, too: one that another has replaced is not obeyed.
    """
    try:
        named = ray.get_actor(CONTROL_NAME, namespace=NAMESPACE)
    except ValueError:  # it is being taken down
        return
    if named._actor_id.hex() != ray.get_runtime_context().get_actor_id():
        logger.warning("%s is not scaled: another control process decides", effect.device_class)
        return
    _scale(pool_app_name(effect.device_class), POOL_DEPLOYMENT, effect.workers)


def _scale(app: str, deployment: str, replicas: int) -> None:
    """Set a number of replicas through Serve's external scaler, which has no public Python call."""
    from ray.serve._private.common import DeploymentID
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    controller.update_deployment_replicas.remote(DeploymentID(deployment, app), replicas)
