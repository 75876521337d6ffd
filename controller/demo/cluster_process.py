"""The cluster in a process of its own: ``modelless up``, watched, and taken down whatever happens.

Ray changes the environment and the signal handlers of the process that starts it; the demo keeps
both for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from modelless.common.errors import EnvironmentUnfitError, ModellessError
from modelless.common.files import make_private_folder
from modelless.controller.live.cluster.cluster import FirstSignal
from modelless.controller.usecases.client import Client
from modelless.controller.usecases.cluster import last_error

HOST = "127.0.0.1"
STOP_S = 60.0
"""How long ``modelless up`` may take to take everything down before it is killed."""

_PR_SET_PDEATHSIG = 1


def free_port(wanted: int) -> int:
    """``wanted`` if it can be listened on, else one that can."""
    try:
        with socket.create_server((HOST, wanted)) as probe:
            return int(probe.getsockname()[1])
    except OSError:
        if not wanted:
            raise
        return free_port(0)


class ClusterProcess:
    """``modelless up`` as a child. Use as a context manager: leaving it takes the cluster down.

    Args:
        config: settings file; None for the defaults.
        keep: leave it up on leaving without an error, and let it outlive this process.
        on_stage: told what the child says it is doing.

    Attributes:
        stop_s: how long taking it down took, seconds.
    """

    def __init__(
        self,
        home: Path,
        port: int,
        *,
        config: Path | None = None,
        keep: bool = False,
        on_stage: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.url = f"http://{HOST}:{port}"
        self.stop_s = 0.0
        self._keep = keep
        self._signals = FirstSignal()
        self._on_stage = on_stage
        self._log = home / "run" / "up.log"
        self._command = [
            *(sys.executable, "-P", "-m", "modelless.controller.cli"),
            *("--home", str(home), "up", "--port", str(port)),
            *(("--config", str(config)) if config is not None else ()),
        ]

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started_s

    def __enter__(self) -> ClusterProcess:
        make_private_folder(self._log.parent)
        self._started_s = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for the demo, which ends this one in its turn
                preexec_fn=None if self._keep else _end_with_parent,
            )
        self._signals.install()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        started_s = time.monotonic()
        self._signals.mute()  # a second Ctrl-C must not leave half of it behind
        if error is not None or not self._keep:
            self._process.terminate()  # does nothing if it has ended
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._signals.restore()
        self.stop_s = time.monotonic() - started_s

    def wait_ready(self, most_s: float = 180.0) -> None:
        """Wait until every task is served.

        Raises:
            EnvironmentUnfitError: it ended, or takes too long; quotes what it said.
        """
        told = 0
        while self.age_s < most_s:
            said = self._log.read_text(encoding="utf-8", errors="replace")
            for line in said.splitlines()[told:]:
                told += 1
                if line.rstrip().endswith("..."):
                    self._on_stage(line.strip())
            if self._process.poll() is not None:
                raise EnvironmentUnfitError(f"modelless up has ended: {last_error(said)}")
            try:
                with Client(self.url, timeout_s=2.0) as client:
                    client.get("/v2/health/ready")  # anything but 200 raises
                    return
            except ModellessError:
                time.sleep(0.1)
        raise EnvironmentUnfitError(
            f"modelless did not become ready within {most_s:.0f} s; {self._log} says more"
        )


def _end_with_parent() -> None:
    """In the child, before it runs: ask Linux to end it, in order, if the demo itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Inside, SIGTERM is like Ctrl-C: everything comes down before the process ends."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
