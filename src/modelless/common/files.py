"""Files and folders: private folders, whole writes, the user's cache."""

from __future__ import annotations

import fcntl
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError

ZIP_ERRORS: Final = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Errors of reading a zip archive: it is absent, cut off, damaged, encrypted, or packed in
a way that Python does not know."""


def user_cache() -> Path:
    """Where the user's caches of this package lie; each has a folder of its own there."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "modelless"


def expanded(field: str, path: Path) -> Path:
    """The path with its ``~`` or ``~NAME`` replaced; InvalidInputError if there is no such user."""
    try:
        return path.expanduser()
    except RuntimeError:
        allowed = "a path; after ~ nothing, or the name of a user of this machine"
        raise InvalidInputError.of(field, str(path), allowed) from None


def default_home() -> Path:
    """Where the store, the artifacts and the logs live: $MODELLESS_HOME, else ``~/.modelless``.

    InvalidInputError if it begins with ``~`` and no user's name.
    """
    return expanded("home", Path(os.environ.get("MODELLESS_HOME") or "~/.modelless"))


def make_private_folder(folder: Path) -> None:
    """Make the folder, and those above it that are not there, for this user alone.

    Those that are there stay as they are. OSError as the file system says.
    """
    if not folder.is_dir():
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, data: bytes, *, mode: int = 0o444) -> None:
    """Write beside ``path``, flush to the disk, rename: the name appears whole or not at all.

    Folders on the way are made; nobody may write to the file, unless ``mode`` says so and the
    umask of the process lets it. OSError as the file system says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        with open(part, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


_WAIT = "Wait until it has ended, or end it; then the same command goes on from there."


@contextmanager
def held(path: Path, what: str, advice: str = _WAIT) -> Iterator[None]:
    """Hold the lock at ``path`` meanwhile; the operating system lets go of it if the process dies.

    What this process starts meanwhile does not inherit it.

    Args:
        path: a file, made if need be; it stays. It says which process had it last.
        what: is being done, for the error of whoever comes second.
        advice: what whoever comes second can do.

    Raises:
        EnvironmentUnfitError: another process holds it, or the file cannot be made.
    """
    try:
        make_private_folder(path.parent)
        # For this user alone: a process that can open it, even to read, could hold it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EnvironmentUnfitError(
            f"{what}: the lock {path} cannot be made ({error.strerror}). Make its folder writable, "
            "or free some space."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise EnvironmentUnfitError(
                f"{what}: process {holder} is at it already. {advice}"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # lets go of the lock, too
