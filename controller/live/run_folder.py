"""The folder ``run/`` of a home: one modelless at a time has it, and begins it anew.

``up.json`` there is written when all of it is up; until then only the lock tells of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from modelless.variants.locks import held

SOCKET = "s"
"""Name of HAProxy's administration socket: short, since a socket's path must be."""

LONGEST_SOCKET = 95
"""Bytes of that path: Linux takes 107, and HAProxy binds ``PATH.PROCESS.tmp`` before it renames."""

_NODE_DIGITS = 56
"""Of a Ray node's id: Serve puts a folder named after it in between."""

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


def empty_doors(run: Path) -> Path:
    """The folder for the gateways' sockets, without what an earlier run left."""
    doors = run / "doors"
    doors.mkdir(mode=0o700, exist_ok=True)
    for left_over in doors.glob("*.door"):
        left_over.unlink()
    return doors


def empty_serve_folder(run: Path) -> Path:
    """The folder for what Serve writes for HAProxy, without what an earlier run left.

    Nobody but this user can enter it. It is ``run/serve``, or what that links to: a temporary
    folder, where the path of a socket would be too long.
    """
    remove_temporary(run)
    folder = run / "serve"
    if fits(folder):
        # What is left of a run that was killed may still write there: then not all of it goes.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        return folder
    temporary = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_TEMPORARY))
    shutil.rmtree(folder, ignore_errors=True)
    folder.symlink_to(temporary)
    return temporary


def remove_temporary(run: Path) -> None:
    """Remove the temporary folder, if ``run/serve`` is a link to one."""
    link = run / "serve"
    if not link.is_symlink():
        return
    folder = link.readlink()
    if folder.parent == _TEMPORARY and folder.name.startswith(_PREFIX):  # one of ours
        shutil.rmtree(folder, ignore_errors=True)
    link.unlink()


def fits(folder: Path) -> bool:
    """Whether the path of a socket in a node's folder there is short enough."""
    path = f"{folder}/{'0' * _NODE_DIGITS}/{SOCKET}"
    return len(os.fsencode(path)) <= LONGEST_SOCKET
