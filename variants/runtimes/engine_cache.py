"""Compiled engines on disk, so that a card's compiler runs once an artifact, not once a load.

A compiled engine is native code: whoever can write it can run what he likes in the process that
loads it. So the folder is the user's alone, and a file that is not what was written is built anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from modelless.common.errors import EnvironmentUnfitError
from modelless.common.files import user_cache, write_whole

MAX_BYTES: Final = 4 * 2**30
"""Default bound of all compiled engines together."""

_PLAN: Final = "plan"
_DIGEST_BYTES: Final = 32
_OTHERS_MAY_WRITE: Final = 0o022


@dataclass(frozen=True, slots=True)
class EngineKey:
    """Everything a compiled engine depends on; with any other value it is another one.

    Attributes:
        compiler: name and version, e.g. ``tensorrt-10.13.0``.
        profile: shapes it was compiled for, in words.
    """

    artifact_sha256: str
    device_name: str
    compute_capability: str
    compiler: str
    precision: str
    profile: str

    @property
    def digest(self) -> str:
        """The folder's name."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class EngineCache:
    """A folder for each key, the least recently used ones removed when they are too large."""

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        """Point at ``folder``; ``engines`` in the user's cache folder by default."""
        self._folder = folder or user_cache() / "engines"
        self._max_bytes = max_bytes

    def folder(self, key: EngineKey) -> Path:
        """The key's own folder, made if need be and marked as used now.

        Raises:
            EnvironmentUnfitError: it cannot be made, or others may write there.
        """
        path = self._folder / key.digest
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            for each in (self._folder, path):
                status = each.stat()
                if status.st_uid != os.getuid() or status.st_mode & _OTHERS_MAY_WRITE:
                    raise EnvironmentUnfitError(
                        f"The engine cache {each} can be written by others, who could run code "
                        f"here by it: chmod go-w {each}, or name another in XDG_CACHE_HOME."
                    )
            os.utime(path)
        except OSError as error:
            raise EnvironmentUnfitError(
                f"The engine cache {path} cannot be made ({error.strerror}). "
                "Make it writable, or name another in XDG_CACHE_HOME."
            ) from error
        return path

    def read(self, key: EngineKey) -> bytes | None:
        """The compiled engine; None if there is none, or it is not what was written."""
        try:
            data = (self.folder(key) / _PLAN).read_bytes()
        except OSError:
            return None
        digest, plan = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return plan if hashlib.sha256(plan).digest() == digest else None

    def write(self, key: EngineKey, plan: bytes) -> None:
        """Keep a compiled engine; the name appears whole or not at all."""
        folder = self.folder(key)
        try:
            write_whole(folder / _PLAN, hashlib.sha256(plan).digest() + plan)
        except OSError as error:
            raise EnvironmentUnfitError(
                f"The engine cache {folder} cannot be written ({error.strerror}). "
                "Free some space, or name another in XDG_CACHE_HOME."
            ) from error
        self.trim(key)

    def trim(self, keep: EngineKey) -> None:
        """Remove the least recently used engines beyond the bound, but for ``keep``."""
        found = []
        for path in self._folder.iterdir():
            try:
                size_bytes = sum(file.stat().st_size for file in path.rglob("*"))
                found.append((path.stat().st_mtime_ns, size_bytes, path))
            except OSError:  # another process removes it just now
                continue
        total_bytes = sum(size_bytes for _, size_bytes, _ in found)
        for _, size_bytes, path in sorted(found):
            if total_bytes <= self._max_bytes:
                return
            if path.name != keep.digest:
                shutil.rmtree(path, ignore_errors=True)
                total_bytes -= size_bytes
