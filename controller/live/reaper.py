"""Sees to it that nothing of a cluster outlives its supervisor, however that ends.

A process of its own that reads a pipe from the supervisor. The pipe's end, which the kernel sees to
even after ``kill -9``, is the signal: what is left of the cluster is given a moment to end by
itself, and then killed. A process is the cluster's if it bears its mark in its environment or has a
file open in its Ray session's folder, which the supervisor says through the pipe (a process that
sets its title loses its environment). Linux only, by way of ``/proc``. Standard library only, so
that starting it costs little.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

MARK = "MODELLESS_CLUSTER_ID"
GRACE_S = 3.0


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
    mark = f"{MARK}={cluster_id}\0".encode()
    found = []
    for folder in processes.iterdir():
        if not folder.name.isdigit() or int(folder.name) in (os.getpid(), supervisor):
            continue
        try:
            belongs = mark in (folder / "environ").read_bytes() + b"\0" or (
                bool(session) and any(_points_into(fd, session) for fd in (folder / "fd").iterdir())
            )
            if belongs and (folder / "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z":
                found.append(int(folder.name))
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    return found


def _points_into(link: Path, folder: str) -> bool:
    try:
        return str(link.readlink()).startswith(folder)
    except OSError:
        return False


def main() -> None:
    """Wait for the pipe to end, then for the cluster to; kill what has not after the grace."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    cluster_id, supervisor = sys.argv[1], os.getppid()
    session = sys.stdin.buffer.read().decode().strip()
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
