"""A Ray of modelless's own, without what nothing here uses: its processes, imports and memory.

Measured with Ray 2.60: 2.9 s of processor time less per start, and 330 MiB. Where Ray has changed,
it starts what it wants, and the log says so.
"""

from __future__ import annotations

import logging
import sys
import threading
from functools import wraps
from typing import Any

from modelless.controller.live.cluster import ray_agent
from modelless.controller.live.control.ray_metrics import METRICS

logger = logging.getLogger(__name__)

ENVIRONMENT = {
    # Ray's worker processes call this first.
    "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": f"{__name__}.prepare_worker",
    # GET /metrics has ours; what would export Ray's own is not started.
    METRICS: "0",
    # Each of a process's many threads would keep an arena of glibc's, of what it freed.
    "MALLOC_ARENA_MAX": "2",
}
QUICK_S, QUICKLY_FOR_S = 0.1, 30.0
"""Serve's controller looks so often in its first seconds, and once it is told to delete something:
a start, a recovery and a stop wait for several of its looks. Else as ``loopback`` has it."""
_PROCESSES = (
    "start_api_server",  # the dashboard's: it asks the metadata services of clouds where it runs
    "start_monitor",  # the autoscaler's: there is one node
    "start_log_monitor",  # prints the logs of workers at the driver, which does not want them
)
_PYTHON = "_build_python_executable_command_memory_profileable"


def start_less() -> None:
    """Have the Ray that this process starts do without those processes, and Serve without pandas.

    Called before Serve is imported.
    """
    from ray._private import ray_constants as kinds
    from ray._private import services
    from ray._private.node import Node

    for name in _PROCESSES:
        _replace(Node, name, _nothing)
    agents = (kinds.PROCESS_TYPE_DASHBOARD_AGENT, kinds.PROCESS_TYPE_RUNTIME_ENV_AGENT)
    python = getattr(services, _PYTHON, None)

    def command(component: str, *arguments: Any, **named: Any) -> list[str]:
        if component in agents:
            return [sys.executable, "-I", "-S", ray_agent.__file__]
        words: list[str] = python(component, *arguments, **named)  # type: ignore[misc]
        return words

    _replace(services, _PYTHON, command)
    import_serve()
    from ray.serve._private import client

    _replace(client, "CLIENT_POLLING_INTERVAL_S", QUICK_S)  # whether an application runs
    # Whether HAProxy runs, after each deployment: whoever starts this asks for an answer anyway.
    _replace(client.ServeControllerClient, "wait_for_proxies_serving", _nothing)


def import_serve() -> None:
    """Import Serve without pandas, which it only knows how to encode: 40 MiB a process, 0.4 s."""
    if "pandas" in sys.modules:
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        import ray.serve  # noqa: F401
    finally:
        del sys.modules["pandas"]


def prepare_worker() -> None:
    """In each worker process of Ray, before it learns what it is to run."""
    import_serve()
    from ray.serve._private import controller
    from ray.serve._private.proxy_state import ProxyStateManager

    interval = "CONTROL_LOOP_INTERVAL_S"
    usual_s = getattr(controller, interval, QUICK_S)

    def look_quickly() -> None:
        _replace(controller, interval, QUICK_S)
        usual = threading.Timer(QUICKLY_FOR_S, setattr, (controller, interval, usual_s))
        usual.daemon = True
        usual.start()

    look_quickly()
    delete = getattr(controller.ServeController, "delete_apps", _nothing)

    @wraps(delete)
    def delete_quickly(self: Any, names: Any) -> None:
        look_quickly()
        delete(self, names)

    _replace(controller.ServeController, "delete_apps", delete_quickly)
    # A Python proxy beside HAProxy, for applications without replicas: HAProxy is not told of it.
    _replace(ProxyStateManager, "_start_fallback_proxy_if_needed", _nothing)


def _replace(owner: Any, name: str, value: Any) -> None:
    if hasattr(owner, name):
        setattr(owner, name, value)
    else:
        logger.warning("Ray has changed, and starts more than it need: no %s in %s", name, owner)


def _nothing(*_: Any, **__: Any) -> None:
    """In place of what is not started."""
