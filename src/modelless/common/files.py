"""Files and folders: private folders, whole writes, the user's cache."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Final

ZIP_ERRORS: Final = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Errors of reading a zip archive: it is absent, cut off, damaged, encrypted, or packed in
a way that Python does not know."""


def user_cache() -> Path:
    """Where the user's caches of this package lie; each has a folder of its own there."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "modelless"


def make_private_folder(folder: Path) -> None:
    """Make the folder, and those above it that are not there, for this user alone.

    What is there already stays as it is. OSError as the file system says.
    """
    if not folder.is_dir():
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, data: bytes, *, mode: int = 0o444) -> None:
    """Write beside ``path``, flush to the disk, rename: the name appears whole or not at all.

    Folders on the way are made; nobody may write to the file, unless ``mode`` says so. OSError as
    the file system says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
