"""Sees to it that nothing of a cluster outlives its supervisor, however that ends.

A process of its own that reads a pipe from the supervisor. The pipe's end, which the kernel sees to
even after ``kill -9``, is the signal: what is left of the cluster is given a moment to end by
itself, and then killed. A process is the cluster's if it bears its mark in its environment,
descends from one that does, or has a file open for writing in Ray's folder (a process that sets its
title loses its environment). A process that only reads there, such as ``tail -f``, is not the
cluster's. What cannot be killed is given up, and said. Linux only, by way of ``/proc``. Standard
library only, so that starting it costs little.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

MARK = "MODELLESS_CLUSTER_ID"
GRACE_S = 3.0
PATIENCE_S = 10.0
"""From the first kill on: who waits for a disk or a device ends only when that answers."""


def members(
    cluster_id: str, ray_folder: str, supervisor: int, processes: Path = Path("/proc")
) -> list[int]:
    """The cluster's processes, other than this one, its supervisor and zombies.

    Args:
        ray_folder: where this cluster's Ray, and no other, has its sessions; no link in it.
        supervisor: its process id; it waits for the reaper, and must not be waited for.
    """
    marked: set[int] = set()
    writing: set[int] = set()
    parents: dict[int, int] = {}
    for folder in processes.iterdir():
        if not folder.name.isdigit() or int(folder.name) in (os.getpid(), supervisor):
            continue
        process_id = int(folder.name)
        try:
            state, parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state == b"Z":
                continue
            if _bears(folder, cluster_id):
                marked.add(process_id)
            elif _writes_into(folder, f"{ray_folder}/"):
                writing.add(process_id)
            parents[process_id] = int(parent)
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    while heirs := {pid for pid, parent in parents.items() if parent in marked} - marked:
        marked |= heirs
    return sorted(marked | writing)


def end_all(
    look: Callable[[], list[int]],
    kill: Callable[[int], None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[int]:
    """Wait until ``look`` finds nobody; kill those it finds after the grace.

    Returns:
        Those that were still there when patience ended.
    """
    kill_s = clock() + GRACE_S
    while left := look():
        now_s = clock()
        if now_s > kill_s + PATIENCE_S:
            break
        if now_s > kill_s:
            for process_id in left:
                kill(process_id)
        sleep(0.1)
    return left


def _bears(folder: Path, cluster_id: str) -> bool:
    """Whether the process has the mark in its environment."""
    mark = f"{MARK}={cluster_id}\0".encode()
    return mark in (folder / "environ").read_bytes() + b"\0"


def _writes_into(folder: Path, ray_folder: str) -> bool:
    """Whether the process has a file there open for writing."""
    return any(
        _points_into(fd, ray_folder) and _may_write(folder / "fdinfo" / fd.name)
        for fd in (folder / "fd").iterdir()
    )


def _points_into(link: Path, folder: str) -> bool:
    try:
        return str(link.readlink()).startswith(folder)
    except OSError:
        return False


def _may_write(info: Path) -> bool:
    """Whether the open file of which the kernel says this was opened for writing."""
    try:
        lines = info.read_text().splitlines()
    except OSError:  # it was closed meanwhile
        return False
    flags = [int(line.split()[1], 8) for line in lines if line.startswith("flags:")]
    return any(flag & (os.O_WRONLY | os.O_RDWR) for flag in flags)


def _kill(process_id: int) -> None:
    try:
        os.kill(process_id, signal.SIGKILL)
    except OSError:  # it ended meanwhile
        return


def main() -> None:
    """Wait for the pipe to end, then for the cluster to; kill what has not after the grace."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    (cluster_id, ray_folder), supervisor = sys.argv[1:], os.getppid()
    sys.stdin.read()
    left = end_all(
        lambda: members(cluster_id, ray_folder, supervisor), _kill, time.monotonic, time.sleep
    )
    if left:
        ids = " ".join(map(str, left))
        words = (
            f"these processes of modelless do not end, though killed: {ids}; the kernel or another "
            f"user holds them. 'ps -o pid,user,stat,wchan,args -p {ids.replace(' ', ',')}' says how"
        )
        try:
            os.write(sys.stderr.fileno(), f"warning: {words}\n".encode())
        except OSError:  # whoever would read it has gone
            return


if __name__ == "__main__":
    main()
