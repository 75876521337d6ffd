"""The modelless that runs from a home: its note, its processes, its health and its end.

Standard library and small modules only: commands that ask or end it take as long as their imports.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.live.cluster.deployed import read_deployed
from modelless.controller.live.cluster.run_folder import cluster_members

LEFT_OVER_S = 4.0
"""What processes that are killed have to end."""

ANSWER_S = 2.0
"""The deadline of a health check."""


@dataclass(frozen=True, slots=True)
class UpState:
    """What ``run/up.json`` says of a running modelless.

    Attributes:
        started_at: seconds since the epoch.
        began_ticks: when the process began, as the kernel counts: process ids are used again; 0
            where it does not say.
        awaits: nodes that have room for what, if not every task is served for want of it.
        operators_url: where operators go; empty if that is ``url``.
    """

    pid: int
    url: str
    started_at: float
    began_ticks: int = 0
    awaits: str = ""
    operators_url: str = ""


def read_state(home: Path) -> UpState | None:
    """The running modelless of this home, or None."""
    try:
        state = UpState(**json.loads((home / "run" / "up.json").read_text()))
        os.kill(state.pid, 0)
    except (OSError, ValueError, TypeError):
        return None
    is_another = state.began_ticks and began_ticks(state.pid) not in (0, state.began_ticks)
    return None if is_another else state


def began_ticks(process_id: int) -> int:
    """When the process began, in the kernel's ticks since it booted; 0 where it does not say.

    -1 for one that has ended, and whose parent has not asked how.
    """
    state, ticks = process_state(process_id)
    return -1 if state == b"Z" else ticks


def process_state(process_id: int) -> tuple[bytes, int]:
    """The kernel's letter for the process's state, and its ticks; empty and 0 if it has none."""
    try:
        status = Path(f"/proc/{process_id}/stat").read_bytes()
    except OSError:
        return b"", 0
    fields = status.rpartition(b")")[2].split()
    return fields[0], int(fields[19])


def answers(url: str, health: str) -> bool:
    """Whether the cluster there says within ``ANSWER_S`` that it is ``live`` or ``ready``."""
    try:
        asked = f"{url}/v2/health/{health}"
        with urllib.request.urlopen(asked, timeout=ANSWER_S) as reply:  # noqa: S310
            return bool(reply.status == 200)
    except (OSError, HTTPException):
        return False


def send_signal(process_ids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each of the processes that is still there."""
    for process_id in process_ids:
        with suppress(ProcessLookupError):
            os.kill(process_id, number)


def end_left_over(
    home: Path, most_s: float, sleep: Callable[[float], object] = time.sleep
) -> list[int]:
    """Kill what is left of this home's last cluster of its own, now that nobody has it.

    Returns:
        Processes that were still there after ``most_s``.
    """
    end_s = time.monotonic() + most_s
    while (left := cluster_members(home / "run")) and time.monotonic() < end_s:
        send_signal(left, signal.SIGKILL)
        sleep(0.05)
    return left


def take_down(
    home: Path, pid: int, most_s: float = 20.0, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Ask the process that has the cluster, or supervises it, to stop, and wait for it.

    A cluster of this home's own is killed shortly before ``most_s``, if it has not ended.

    Raises:
        EnvironmentUnfitError: it did not stop in time.
    """
    deployed = read_deployed(home)
    is_own = deployed is None or deployed.is_own
    if not is_own:
        most_s = 60.0  # to leave a cluster that goes on takes longer, and must not be cut short
    end_s = time.monotonic() + most_s
    state = read_state(home)
    send_signal([pid], signal.SIGTERM)
    while began_ticks(pid) > 0 and time.monotonic() < end_s - LEFT_OVER_S:
        sleep(0.05)
    if is_own:
        known = {pid, state.pid if state is not None else pid}
        send_signal((each for each in known if began_ticks(each) > 0), signal.SIGKILL)
        end_left_over(home, max(end_s - time.monotonic(), 1.0), sleep)
        (home / "run" / "up.json").unlink(missing_ok=True)
    left = [process_id for process_id in (pid, *cluster_members(home / "run"))
            if began_ticks(process_id) > 0]  # fmt: skip
    if left:
        raise EnvironmentUnfitError(
            f"these processes did not stop within {most_s:.0f} s: {' '.join(map(str, left))}; "
            "'kill -9' ends those that the kernel does not hold"
        )
