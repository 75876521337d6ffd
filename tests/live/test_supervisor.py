"""The death of Ray's own daemons ends nothing when a supervisor watches, and clients wait."""

from __future__ import annotations

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from modelless.controller.live.cluster.supervisor import read_note

from .clients import PINNED, ask, wait_until
from .running import Running, modelless, start, wait_ready


def is_new(running: Running, cluster_pid: int) -> bool:
    """Whether another process has the cluster, and serves."""
    note = read_note(running.home)
    return has_another(running, cluster_pid) and note is not None and note.state == "serving"


def has_another(running: Running, cluster_pid: int) -> bool:
    """Whether another process has the cluster; the old cluster is gone by then."""
    return cluster_of(running) not in (0, cluster_pid)


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
            wait_until(partial(has_another, running, before), 30.0)
            with ThreadPoolExecutor(32) as pool:  # they wait while nobody accepts: none is refused
                waiting = [pool.submit(ask, running, PINNED, 90.0, 5000.0) for _ in range(32)]
                for each in waiting:
                    each.result()
            wait_until(partial(is_new, running, before), 60.0)
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
