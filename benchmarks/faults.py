"""A cluster to be broken: brought up by the command line, its processes found, faults injected.

What ``recovery.py`` and ``soak.py`` share. Linux only: processes are found in ``/proc`` by a mark
in their environment, and hung by SIGSTOP.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HANG_S = 10.0
SLOW_S = 10.0
SLOW_PERIOD_S = 0.1
SLOW_SHARE = 0.8
"""Of each period a slowed worker stands still for this share: it takes five times as long."""

ROLES = {
    "gateway": "ServeReplica:modelless:GatewayReplica",
    "worker": ":PoolReplica",
    "haproxy": "/bin/haproxy -",
    "proxy-manager": "ray::HAProxyManager",
    "control": "ray::ControlLoop",
    "serve-controller": "ray::ServeController",
}


@dataclass
class UnderTest:
    """A running modelless.

    Attributes:
        process: the supervisor.
        home, url: its.
        mark: in the environment of everything it started.
        gateways, workers: how many of them it should have.
    """

    process: subprocess.Popen[bytes]
    home: Path
    url: str
    mark: str
    gateways: int
    workers: int
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def processes(self) -> dict[int, str]:
        """Command by process id, without zombies."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if self.mark.encode() not in (folder / "environ").read_bytes():
                    continue
                if (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(folder.name)] = command.strip()
        return found

    def of_role(self, role: str) -> list[int]:
        """Process ids of a role, in order."""
        return sorted(pid for pid, name in self.processes().items() if ROLES[role] in name)

    def any_of(self, role: str) -> int:
        """One process of a role."""
        found = self.of_role(role)
        if not found:
            raise SystemExit(f"no {role} is running")
        return self.chance.choice(found)

    def status(self) -> dict[str, Any]:
        """What ``GET /modelless/status`` says."""
        with urllib.request.urlopen(f"{self.url}/modelless/status", timeout=5) as reply:
            found: dict[str, Any] = json.loads(reply.read())
            return found

    def is_whole(self) -> bool:
        """Whether all gateways and workers are there, and the workers hold something."""
        try:
            members = self.status()["members"]
        except (OSError, KeyError, ValueError):
            return False
        serving = [m for m in members if m["role"] == "worker" and m["loaded"]]
        return (
            sum(m["role"] == "gateway" for m in members) == self.gateways
            and len(serving) == self.workers
            and not any(m.get("quarantine") for m in serving)
        )

    def wait_whole(self, most_s: float = 120.0) -> float:
        """Wait until nothing is missing any more; how long that took, seconds."""
        started_s = time.monotonic()
        while not self.is_whole():
            if time.monotonic() - started_s > most_s:
                raise SystemExit(f"not whole after {most_s:.0f} s: {self.status()['members']}")
            time.sleep(0.2)
        return time.monotonic() - started_s


@contextlib.contextmanager
def running(
    home: Path, port: int, *, gateways: int = 2, workers: int = 2, task: str = "fashion-mnist"
) -> Iterator[UnderTest]:
    """Gateways without devices before a pool of workers, ready, and gone afterwards."""
    mark = f"modelless-bench-{uuid.uuid4().hex}"
    config = home / "recovery.yaml"
    config.write_text(
        f"http: {{port: {port}}}\ntasks: [{task}]\nserve_dominated: true\n"
        f"gateways: {{count: {gateways}, device_class: null}}\n"
        f"pools: [{{device_class: cpu-1, workers: {workers}}}]\n"
    )
    command = [sys.executable, "-m", "modelless.controller.cli", "--home", str(home)]
    command += ["up", "--config", str(config)]
    with (home / "recovery.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, "MODELLESS_BENCH": mark},
            start_new_session=True,
        )
    under_test = UnderTest(process, home, f"http://127.0.0.1:{port}", mark, gateways, workers)
    try:
        while not under_test.is_whole():
            if process.poll() is not None:
                raise SystemExit((home / "recovery.log").read_text())
            time.sleep(0.2)
        time.sleep(3.0)  # Ray is still busy with itself for a while
        yield under_test
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(90)


# -- faults: each returns what ends it, if it does not end by itself -----------------------------

Fault = Callable[[UnderTest], "Callable[[], None] | None"]


def _kill(role: str) -> Fault:
    def kill(cluster: UnderTest) -> None:
        os.kill(cluster.any_of(role), signal.SIGKILL)

    return kill


def _hang(role: str) -> Fault:
    def hang(cluster: UnderTest) -> Callable[[], None]:
        victim = cluster.any_of(role)
        os.kill(victim, signal.SIGSTOP)
        return _after(HANG_S, lambda: _signal(victim, signal.SIGCONT))

    return hang


def _slow(cluster: UnderTest) -> Callable[[], None]:
    victim = cluster.any_of("worker")
    ended = threading.Event()

    def stutter() -> None:
        end_s = time.monotonic() + SLOW_S
        while time.monotonic() < end_s and not ended.is_set():
            _signal(victim, signal.SIGSTOP)
            time.sleep(SLOW_PERIOD_S * SLOW_SHARE)
            _signal(victim, signal.SIGCONT)
            time.sleep(SLOW_PERIOD_S * (1.0 - SLOW_SHARE))

    thread = threading.Thread(target=stutter, daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end


STORE_GONE_S = 60.0


def _store_gone(cluster: UnderTest) -> Callable[[], None]:
    files = [cluster.home / f"store.db{end}" for end in ("", "-wal", "-shm")]
    moved = [(file, file.with_name(f"away-{file.name}")) for file in files if file.exists()]
    for file, away in moved:
        file.rename(away)

    def back() -> None:
        for file, away in moved:
            file.unlink(missing_ok=True)  # whoever made a new, empty one must not win
            shutil.move(away, file)

    return _after(STORE_GONE_S, back)


def _after(delay_s: float, act: Callable[[], None]) -> Callable[[], None]:
    """Do it then, or when the returned function is called, whichever comes first; but once."""
    timer = threading.Timer(delay_s, act)
    timer.start()

    def now() -> None:
        if timer.is_alive():
            timer.cancel()
            act()

    return now


def _signal(process_id: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, number)


FAULTS: dict[str, Fault] = {
    "worker-kill": _kill("worker"),
    "gateway-kill": _kill("gateway"),
    "haproxy-kill": _kill("haproxy"),
    "proxy-manager-kill": _kill("proxy-manager"),
    "control-kill": _kill("control"),
    "serve-controller-kill": _kill("serve-controller"),
    "worker-hang": _hang("worker"),
    "gateway-hang": _hang("gateway"),
    "worker-slow": _slow,
    "store-gone": _store_gone,
}


# -- load ----------------------------------------------------------------------------------------

STATUS, LATENCY_MS = 2, 3
"""Where a row of ``modelless.controller.demo.load`` says so; its second says when it was due."""


class OpenLoop:
    """The demo's open-loop client as a process: queries are sent when due, answered or not.

    Args:
        url, folder: of the server; where to put its files.
        steps: (seconds, queries a second).
        latency_ms: deadline of each query.
    """

    def __init__(
        self, url: str, folder: Path, steps: list[tuple[float, float]], latency_ms: float, seed: int
    ) -> None:
        images = folder / "images.npy"
        np.save(images, np.random.default_rng(seed).integers(0, 255, (16, 28, 28), np.uint8))
        kind = {
            "name": "query",
            "task": "fashion-mnist",
            "limits": {"latency_ms": latency_ms, "min_accuracy": 90.0},
            "weight": 1.0,
            "deadline_ms": latency_ms,
            "images": str(images),
            "labels": [],
            "input_name": "image",
            "output_name": "probabilities",
        }
        spec = {
            "url": url,
            "kinds": [kind],
            "steps": [{"seconds": seconds, "per_s": per_s} for seconds, per_s in steps],
            "seed": seed,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        self.rows: list[list[Any]] = []
        self.began_s = 0.0
        self._begun = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "modelless.controller.demo.load", str(folder / "spec.json")],
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not self._begun.is_set():  # it reports a second after its beginning
                self.began_s = time.monotonic() - 1.0
                self._begun.set()
            self.rows += json.loads(line)["rows"]

    def wait_until(self, due_s: float) -> None:
        """Wait until that many seconds after its beginning."""
        if not self._begun.wait(30.0):
            raise SystemExit("the load did not begin")
        time.sleep(max(self.began_s + due_s - time.monotonic(), 0.0))

    def now_s(self) -> float:
        """Seconds since its beginning."""
        return time.monotonic() - self.began_s

    def finish(self) -> list[list[Any]]:
        """Wait for its end; every query's row."""
        if self._process.wait() != 0:
            raise SystemExit("the load has failed")
        self._reader.join()
        return self.rows


def is_in_time(row: list[Any], latency_ms: float) -> bool:
    """Whether the query was answered before its deadline."""
    return bool(row[STATUS] == 200 and row[LATENCY_MS] <= latency_ms)
