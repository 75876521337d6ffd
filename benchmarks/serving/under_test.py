"""A modelless to be broken: brought up by the command line, its processes found.

Linux only: processes are found in ``/proc`` by a mark in their environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from open_loop import TASK

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.live.nodes import Nodes, ray_nodes  # noqa: E402
from tests.live.running import processes_marked  # noqa: E402

ROLES = {
    "gateway": "ServeReplica:modelless:GatewayReplica",
    "worker": ":PoolReplica",
    "haproxy": "/bin/haproxy -",
    "proxy-manager": "ray::HAProxyManager",
    "control": "ray::ControlLoop",
    "serve-controller": "ray::ServeController",
}
STAND_IN = "/stand-in.cfg"
"""In the command of a HAProxy that stands in for Serve's; see ``live/haproxy/keeper``."""
WHOLE_S = 150.0
"""A cluster that is not whole again after so long never will be: the benchmark gives up."""

_POOL_OF_TWO = """gateways: {count: 2, device_class: null}
pools: [{device_class: cpu-1, workers: 2}]"""

SITES = ("edge", "core")
"""Of the nodes besides the head, where pools are; see ``tests/live/ray_nodes.py``."""


class Seen(NamedTuple):
    """The processes that were there at one moment.

    Attributes:
        at_s: when, seconds since the epoch.
        proxies: process ids of HAProxies that Serve started.
    """

    at_s: float
    members: frozenset[str]
    processes: dict[str, int]
    proxies: frozenset[int]


@dataclass
class UnderTest:
    """A running modelless.

    Attributes:
        mark: in the environment of everything it started, or of the Ray cluster that it joined.
        gateways, workers: how many of them it should have.
        nodes: of the Ray cluster that it joined; None for one of its own.
    """

    home: Path
    url: str
    mark: str
    gateways: int
    workers: int
    command: list[str]
    environment: dict[str, str]
    nodes: Nodes | None = None
    process: subprocess.Popen[bytes] = field(init=False)
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def start(self) -> None:
        with (self.home / "recovery.log").open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(90)

    def stall_file(self) -> Path:
        """While it exists no load ends; see ``stalled_loads``."""
        return Path(self.environment["MODELLESS_BENCH_STALL"])

    def processes(self) -> dict[int, str]:
        return processes_marked(self.mark)

    def of_role(self, role: str) -> list[int]:
        """Process ids of a role, in order."""
        return sorted(pid for pid, name in self.processes().items() if ROLES[role] in name)

    def any_of(self, role: str) -> int:
        found = self.of_role(role)
        if not found:
            raise SystemExit(f"no {role} is running")
        return self.chance.choice(found)

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/modelless/status", timeout=5) as reply:
            found: dict[str, Any] = json.loads(reply.read())
            return found

    def seen(self) -> Seen:
        found = self.processes()
        commands = found.values()
        counts = {role: sum(word in name for name in commands) for role, word in ROLES.items()}
        members = frozenset(member["id"] for member in self.status()["members"])
        proxies = [pid for pid in self.of_role("haproxy") if STAND_IN not in found.get(pid, "")]
        return Seen(time.time(), members, counts, frozenset(proxies))

    def is_whole(self, before: Seen | None = None) -> bool:
        """Whether all gateways and workers are there, sound, and the workers hold something.

        Args:
            before: as many processes of each role as then have to be there.
        """
        try:
            members = self.status()["members"]
            now = self.seen()
        except (OSError, KeyError, ValueError):
            return False
        serving = [m for m in members if m["role"] == "worker" and m["loaded"]]
        return (
            sum(m["role"] == "gateway" for m in members) == self.gateways
            and len(serving) == self.workers == sum(m["role"] == "worker" for m in members)
            and not any(m.get("quarantine") for m in serving)
            and (
                before is None
                or all(now.processes[role] >= count for role, count in before.processes.items())
            )
        )

    def wait_whole(self, most_s: float = WHOLE_S) -> None:
        """Wait until nothing is missing any more.

        Raises:
            SystemExit: that has taken too long, or the supervisor has ended.
        """
        end_s = time.monotonic() + most_s
        while not self.is_whole():
            if self.process.poll() is not None:
                raise SystemExit((self.home / "recovery.log").read_text())
            if time.monotonic() > end_s:
                raise SystemExit(f"not whole after {most_s:.0f} s: {self.status()['members']}")
            time.sleep(0.2)


@contextlib.contextmanager
def running(home: Path, port: int) -> Iterator[UnderTest]:
    """Two gateways without devices before a pool of two workers, on a Ray of its own."""
    mark = f"modelless-bench-{uuid.uuid4().hex}"
    with _up(home, port, _POOL_OF_TWO, mark, gateways=2) as cluster:
        yield cluster


@contextlib.contextmanager
def running_on_nodes(home: Path, port: int) -> Iterator[UnderTest]:
    """A gateway on the head of a Ray cluster, and a worker on each of its two other nodes."""
    config = """gateways: {count: 1, device_class: null, labels: {site: head}}
pools:
- {device_class: cpu-1, workers: 1, labels: {site: edge}}
- {device_class: cpu-2, workers: 1, labels: {site: core}}
"""
    with (
        ray_nodes() as nodes,
        _up(home, port, config, nodes.marker, gateways=1, nodes=nodes) as cluster,
    ):
        yield cluster


@contextlib.contextmanager
def _up(
    home: Path, port: int, config: str, mark: str, gateways: int, nodes: Nodes | None = None
) -> Iterator[UnderTest]:
    options = [] if nodes is None else ["--address", nodes.address]
    cluster = _configured(home, port, config, mark, gateways, options, nodes)
    cluster.start()
    try:
        cluster.wait_whole()
        time.sleep(3.0)  # Ray is still busy with itself for a while
        yield cluster
    finally:
        cluster.stop()


def configured(home: Path, port: int, options: list[str]) -> UnderTest:
    """As ``running``, not started yet; with more options of ``modelless up``."""
    mark = f"modelless-bench-{uuid.uuid4().hex}"
    return _configured(home, port, _POOL_OF_TWO, mark, 2, options)


def _configured(
    home: Path,
    port: int,
    config: str,
    mark: str,
    gateways: int,
    options: list[str],
    nodes: Nodes | None = None,
) -> UnderTest:
    file = home / "recovery.yaml"
    file.write_text(f"http: {{port: {port}}}\ntasks: [{TASK}]\nserve_dominated: true\n{config}")
    command = [sys.executable, "-m", "modelless.controller.cli", "--home", str(home)]
    command += ["up", "--config", str(file), *options]
    stalled = str(Path(__file__).with_name("stalled_loads"))
    environment = {
        **os.environ,
        "MODELLESS_BENCH": mark,
        "MODELLESS_BENCH_STALL": str(home / "stall-loads"),
        "PYTHONPATH": os.pathsep.join(filter(None, [stalled, os.environ.get("PYTHONPATH")])),
    }
    url = f"http://127.0.0.1:{port}"
    cluster = UnderTest(home, url, mark, gateways, 2, command, environment, nodes)
    cluster.stall_file().unlink(missing_ok=True)
    return cluster
