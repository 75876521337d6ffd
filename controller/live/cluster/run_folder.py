"""The folder ``run/`` of a home: one modelless at a time has it, and begins it anew.

A process that starts Ray makes a folder for it that no other user can enter: Ray's own is open.
``up.json`` there is written when all of it is up; until then only the lock tells of it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import AbstractContextManager, chdir
from pathlib import Path

from modelless.common.files import held, write_whole
from modelless.controller.live.cluster.reaper import members

SOCKET = "s"
"""Name of HAProxy's administration socket: short, since a socket's path must be."""

LONGEST_SOCKET = 95
"""Bytes of that path: Linux takes 107, and HAProxy binds ``PATH.PROCESS.tmp`` before it renames."""

_NODE_DIGITS = 56
"""Of a Ray node's id: Serve puts a folder named after it in between."""

RAY = "ray"
"""Name of the folder where Ray has its sessions: sockets, logs, what its memory spills."""

_TOKEN = "ray-token"  # noqa: S105  (a file's name)
_MARK = "cluster-id"
_SHORT = "short-path"
_TEMPORARY, _PREFIX = Path("/tmp"), "modelless-"  # noqa: S108  (made by mkdtemp: nobody else's)


def only_one(home: Path) -> AbstractContextManager[None]:
    """Have ``run/`` for oneself meanwhile.

    Raises (on entering):
        EnvironmentUnfitError: another process has it, or it cannot be made.
    """
    return held(
        home / "run" / "lock",
        "modelless up",
        f"In {home} modelless is being started, is up or is being taken down, and a home has one "
        "at a time. 'modelless status' shows it once it is up, and 'modelless down' takes it down; "
        "before that wait, or end that process. Another home, by --home, has its own.",
    )


def empty_sockets(run: Path) -> Path:
    """The folder for the gateways' sockets, without what an earlier run left."""
    sockets = run / "sockets"
    sockets.mkdir(mode=0o700, exist_ok=True)
    for left_over in sockets.glob("*.sock"):
        left_over.unlink()
    return sockets


def empty_folder(folder: Path) -> Path:
    """The folder, for this user alone and without what an earlier run left."""
    if folder.is_symlink():
        folder.unlink()
    # Processes left over from a killed run may still write there; their files then stay.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


def current_folder(run: Path) -> AbstractContextManager[None]:
    """Have a folder of ``run`` as the current one meanwhile, while Ray starts or is joined.

    Ray puts the current folder of whoever does so first on the import path of its workers, and what
    it starts begins there.
    """
    folder = run / "cwd"
    folder.mkdir(mode=0o700, exist_ok=True)
    return chdir(folder)


def note_mark(run: Path, cluster_id: str) -> None:
    """Note the mark of the cluster that is about to be started."""
    write_whole(run / _MARK, cluster_id.encode(), mode=0o600)


def cluster_members(run: Path) -> list[int]:
    """Processes of the cluster that was started here last, other than this one."""
    try:
        cluster_id = (run / _MARK).read_text()
    except OSError:
        return []
    return members(cluster_id, str((run / RAY).resolve()), os.getpid())


def token_path(run: Path) -> Path:
    """The file with the token by which a Ray of modelless's own knows its processes."""
    return run / _TOKEN


def close_to_others(run: Path) -> Path:
    """Close ``run`` to all other users and make a new token there, until ``remove_temporary``.

    Returns:
        A path of ``run`` that is short enough for the sockets below it: its own, or that of a link
        in a temporary folder.
    """
    run.chmod(0o700)
    remove_temporary(run)
    write_whole(token_path(run), secrets.token_hex(32).encode(), mode=0o600)
    if fits(run / "serve"):
        return run
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_TEMPORARY))
    (run / _SHORT).write_text(str(folder))
    link = folder / "run"
    link.symlink_to(run)
    return link


def remove_temporary(run: Path) -> None:
    """Remove the token and the link, if there are any."""
    token_path(run).unlink(missing_ok=True)
    note = run / _SHORT
    if not note.exists():
        return
    folder = Path(note.read_text())
    if folder.parent == _TEMPORARY and folder.name.startswith(_PREFIX):  # one of ours
        shutil.rmtree(folder, ignore_errors=True)
    note.unlink()


def fits(folder: Path) -> bool:
    """Whether the path of HAProxy's socket in a node's folder there is short enough.

    Where that fits, Ray's sockets do: ``ray/session_DATE_PROCESS/sockets/plasma_store``.
    """
    path = f"{folder}/{'0' * _NODE_DIGITS}/{SOCKET}"
    return len(os.fsencode(path)) <= LONGEST_SOCKET
