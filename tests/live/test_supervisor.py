"""The death of Ray's own daemons ends nothing when a supervisor watches, and clients wait."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from modelless.controller.live.cluster.supervisor import read_note

from .clients import PINNED, ask, wait_until
from .running import Running, modelless, start, wait_ready


def is_new(running: Running, cluster_pid: int) -> bool:
    """Whether another process has the cluster, and serves; the old cluster is gone by then."""
    note = read_note(running.home)
    return (
        cluster_of(running) not in (0, cluster_pid) and note is not None and note.state == "serving"
    )


def cluster_of(running: Running) -> int:
    """The process that has the cluster."""
    found = [pid for pid, name in running.processes().items() if " up --config " in name]
    return next((pid for pid in found if pid != running.process.pid), 0)


def test_a_dead_daemon_of_ray_is_replaced(live_home: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(live_home, home, ignore=shutil.ignore_patterns("run"))
    config = "gateways: {count: 1}\n"
    running = start(home, config=config, marker="supervised", arguments=["--supervise"])
    try:
        wait_ready(running)
        for daemon in ("/gcs/gcs_server ", "/raylet/raylet "):
            wait_until(lambda: is_new(running, -1), 30.0)  # what dies during a start is found later
            before = cluster_of(running)
            (victim,) = [pid for pid, name in running.processes().items() if daemon in name]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda before=before: cluster_of(running) != before, 30.0)  # type: ignore[misc]
            ask(running, PINNED, patience_s=90.0)  # one that waits while nobody accepts
            wait_until(lambda before=before: is_new(running, before), 60.0)  # type: ignore[misc]
        assert "2 times rebuilt" in modelless(home, "status").stdout
        began_s = time.monotonic()
        assert modelless(home, "down").returncode == 0
        assert time.monotonic() - began_s < 25.0  # the command itself takes a moment to start
        assert running.process.wait(5) == 0
        assert not running.processes()
    finally:
        running.process.kill()
        for process_id in running.processes():
            os.kill(process_id, signal.SIGKILL)
