"""Sees to it that nothing of a cluster outlives its supervisor, however that ends.

A process of its own that reads a pipe from the supervisor. The pipe's end, which the kernel sees to
even after ``kill -9``, is the signal: what is left of the cluster is given a moment to end by
itself, and then killed. A process is the cluster's if it bears its mark in its environment or has a
file open in its Ray session's folder (a process that sets its title loses its environment). The
supervisor says which that is through the pipe, once Ray is up; until then the marked processes'
open files show it. Linux only, by way of ``/proc``. Standard library only, so that starting it
costs little.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

MARK = "MODELLESS_CLUSTER_ID"
GRACE_S = 3.0
LOOK_EVERY_S = 0.5
SESSIONS = "/tmp/ray/session_"  # noqa: S108  (where Ray puts them, by its own choice)


def members(
    cluster_id: str, session: str, supervisor: int, processes: Path = Path("/proc")
) -> list[int]:
    """The cluster's processes, other than this one, its supervisor and zombies.

    Args:
        cluster_id: the mark.
        session: the Ray session's folder; empty if Ray never came up.
        supervisor: its process id; it waits for the reaper, and must not be waited for.
        processes: where the kernel lists them.
    """
    found = []
    for folder in processes.iterdir():
        if not folder.name.isdigit() or int(folder.name) in (os.getpid(), supervisor):
            continue
        try:
            belongs = _bears(folder, cluster_id) or (
                bool(session) and any(_points_into(fd, session) for fd in (folder / "fd").iterdir())
            )
            if belongs and (folder / "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z":
                found.append(int(folder.name))
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    return found


def session_of(cluster_id: str, processes: Path = Path("/proc")) -> str:
    """The Ray session's folder, as a marked process has a file of it open; empty if none has."""
    for folder in processes.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if _bears(folder, cluster_id):
                for fd in (folder / "fd").iterdir():
                    if _points_into(fd, SESSIONS):
                        return "/".join(str(fd.readlink()).split("/")[:4])
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    return ""


def _bears(folder: Path, cluster_id: str) -> bool:
    """Whether the process has the mark in its environment."""
    mark = f"{MARK}={cluster_id}\0".encode()
    return mark in (folder / "environ").read_bytes() + b"\0"


def _points_into(link: Path, folder: str) -> bool:
    try:
        return str(link.readlink()).startswith(folder)
    except OSError:
        return False


def _listen(cluster_id: str) -> str:
    """Wait for the pipe to end; returns the Ray session's folder, told or seen, if there is one."""
    told, seen = b"", ""
    pipe = sys.stdin.fileno()
    while True:
        if not select.select([pipe], [], [], None if told else LOOK_EVERY_S)[0]:
            seen = seen or session_of(cluster_id)
        elif data := os.read(pipe, 4096):
            told += data
        else:
            return told.decode().strip() or seen or session_of(cluster_id)


def main() -> None:
    """Wait for the pipe to end, then for the cluster to; kill what has not after the grace."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    cluster_id, supervisor = sys.argv[1], os.getppid()
    session = _listen(cluster_id)
    end_s = time.monotonic() + GRACE_S
    while left := members(cluster_id, session, supervisor):
        if time.monotonic() > end_s:
            for process_id in left:
                try:
                    os.kill(process_id, signal.SIGKILL)
                except OSError:
                    continue
        time.sleep(0.1)


if __name__ == "__main__":
    main()
