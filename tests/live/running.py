"""Starting a real cluster the way a user does: by the command line, in a process of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

START_S = 180.0


def modelless(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [sys.executable, "-m", "modelless.controller.cli", "--home", str(home), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def free_port() -> int:
    """A port that nobody listens on just now.

    Not one of those that the system gives to whoever asks for any: a Ray that runs already, and
    whose Serve is to listen there later, asks for dozens.
    """
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    pytest.fail("no port between 20000 and 30000 is free")


def own_environment(marker: str) -> dict[str, str]:
    """Of a cluster's processes: marked, and with ports of HAProxy's that no other cluster has."""
    names = ("RAY_SERVE_HAPROXY_METRICS_PORT", "RAY_SERVE_HAPROXY_STATS_PORT")
    ports = {name: str(free_port()) for name in names}
    return {**os.environ, **ports, "MODELLESS_TEST_MARKER": marker}


@dataclass
class Running:
    """A cluster under test.

    Attributes:
        process: the supervisor, ``modelless up``.
        home: its home.
        url: where it answers.
        marker: in the environment of every process it started.
    """

    process: subprocess.Popen[bytes]
    home: Path
    url: str
    marker: str

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as reply:
            return json.loads(reply.read() or b"null")

    def processes(self) -> dict[int, str]:
        """What this cluster has running: command by process id."""
        return processes_marked(self.marker)


def processes_marked(marker: str) -> dict[int, str]:
    """Processes whose environment bears ``marker``; zombies do not count."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if marker.encode() not in (folder / "environ").read_bytes():
                continue
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
        if state != "Z":
            found[int(folder.name)] = command
    return found


def start(
    home: Path,
    *,
    config: str,
    marker: str,
    arguments: Sequence[str] = (),
    port: int | None = None,
) -> Running:
    """``modelless up`` with this configuration; returns at once.

    All variants are served: which are dominated is a matter of how quiet the machine was.
    """
    port = port or free_port()
    marker = f"{marker}-{uuid.uuid4().hex[:8]}"
    file = home / f"{marker}.yaml"
    file.write_text(f"http: {{port: {port}}}\nserve_dominated: true\n{config}")
    command = [sys.executable, "-m", "modelless.controller.cli", "--home", str(home)]
    command += ["up", "--config", str(file), *arguments]
    with (home / f"{marker}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=own_environment(marker),
            start_new_session=True,
            preexec_fn=_as_in_the_foreground,
        )
    return Running(process, home, f"http://127.0.0.1:{port}", marker)


def _as_in_the_foreground() -> None:
    """A shell's background job would be started with Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_ready(running: Running) -> None:
    """Until every task is served; fails with the supervisor's own words if it ends before."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        if running.process.poll() is not None:
            break
        try:
            running.get("/v2/health/ready")
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail((running.home / f"{running.marker}.log").read_text()[-4000:])


def stop(running: Running) -> None:
    """Ctrl-C, and everything must be gone."""
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
    running.process.wait(90)
    end_s = time.monotonic() + 15.0
    while running.processes() and time.monotonic() < end_s:
        time.sleep(0.1)


@contextmanager
def cluster(
    home: Path,
    *,
    config: str,
    marker: str,
    arguments: Sequence[str] = (),
    port: int | None = None,
) -> Iterator[Running]:
    """A cluster that is ready, and gone afterwards."""
    running = start(home, config=config, marker=marker, arguments=arguments, port=port)
    try:
        wait_ready(running)
        yield running
    finally:
        stop(running)
        for process_id in running.processes():  # whatever the tests say of it, do not leave it
            os.kill(process_id, signal.SIGKILL)
