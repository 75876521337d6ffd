"""One process at a time: a lock on a file that ends with its holder, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelless.common.errors import EnvironmentUnfitError
from modelless.common.files import make_private_folder

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
