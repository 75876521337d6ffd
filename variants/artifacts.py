"""Content-addressed files: what is stored under a sha256 is what comes out, or nothing does."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Final

from modelless.common.errors import IntegrityError, InvalidInputError, StoreError
from modelless.common.files import write_whole

MAX_ARTIFACT_BYTES: Final = 2 * 2**30
"""Default bound of one artifact: 2 GiB, which is also the most that one ONNX file can hold."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_RESTORE: Final = "Put it back with: modelless zoo add ... --force; or register the original again."


def read_verified(
    path: Path, sha256: str, *, size_bytes: int | None = None, max_bytes: int = MAX_ARTIFACT_BYTES
) -> bytes:
    """Read a file once and return exactly the bytes whose hash was checked.

    Args:
        sha256: hex digest that its bytes must have.
        size_bytes: size it must have, for a better message; None if unknown.

    Raises:
        IntegrityError: missing, unreadable, truncated, corrupt, swapped, too large.
    """
    try:
        # Non-blocking, so that a pipe put in the file's place cannot hang the open.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_status(path, os.fstat(descriptor), size_bytes, max_bytes)
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(max_bytes + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise IntegrityError(
            f"The artifact {path} cannot be read ({error.strerror}). {_RESTORE}"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise IntegrityError(
            f"The artifact {path} is not the file that was registered: its sha256 is {found}, "
            f"expected {sha256}. It was corrupted or swapped. {_RESTORE}"
        )
    return data


def _check_status(
    path: Path, status: os.stat_result, size_bytes: int | None, max_bytes: int
) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise IntegrityError(f"The artifact {path} is not a regular file. {_RESTORE}")
    if size_bytes is not None and status.st_size != size_bytes:
        how = "truncated" if status.st_size < size_bytes else "swapped"
        raise IntegrityError(
            f"The artifact {path} is {how}: it has {status.st_size} bytes, expected {size_bytes}. "
            f"{_RESTORE}"
        )
    if status.st_size > max_bytes:
        raise IntegrityError(
            f"The artifact {path} is too large: it has {status.st_size} bytes, allowed: up to "
            f"{max_bytes}. {_RESTORE}"
        )


class ArtifactStore:
    """Files named by their sha256, in a folder that the first ``put`` makes.

    Attributes:
        folder: where they lie.
        max_bytes: most that one file may have.
    """

    def __init__(self, folder: Path, *, max_bytes: int = MAX_ARTIFACT_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes

    def put(self, data: bytes) -> str:
        """Store ``data`` and return its sha256. A damaged file of that name is replaced.

        Raises:
            InvalidInputError: empty, or larger than ``max_bytes``.
            StoreError: it cannot be written; nothing half-written stays under its name.
        """
        if not 0 < len(data) <= self.max_bytes:
            raise InvalidInputError.of("artifact size (bytes)", len(data), f"1 to {self.max_bytes}")
        sha256 = hashlib.sha256(data).hexdigest()
        try:
            self.fetch(sha256)
        except IntegrityError:  # missing or damaged
            try:
                write_whole(self.locate(sha256), data)
            except OSError as error:
                raise StoreError(
                    f"The artifact store {self.folder} cannot be written "
                    f"({error.strerror or error}). "
                    "Free some space or make it writable, then repeat; nothing was half-written."
                ) from error
        return sha256

    def locate(self, sha256: str) -> Path:
        """The path to the artifact, for readers that check its hash, as every runtime does.

        Reading and hashing it here as well would be a third of loading a variant. A file that is
        not there is found out by the reader.

        Raises:
            InvalidInputError: ``sha256`` is not 64 lowercase hex digits.
        """
        return self.folder / check_sha256(sha256)[:2] / sha256

    def fetch(self, sha256: str) -> Path:
        """The path to the artifact, its hash just checked.

        A later load checks the bytes that it reads (``read_verified``): the file may change.

        Raises:
            InvalidInputError: ``sha256`` is not 64 lowercase hex digits.
            IntegrityError: missing, truncated, corrupt or swapped.
        """
        self.read(sha256)
        return self.locate(sha256)

    def read(self, sha256: str) -> bytes:
        """The artifact's bytes, checked. Raises as ``fetch``."""
        return read_verified(self.locate(sha256), sha256, max_bytes=self.max_bytes)

    def remove(self, sha256: str) -> int:
        """Remove an artifact, and return its bytes; 0 if it was not there.

        Raises:
            StoreError: it cannot be removed.
        """
        path = self.locate(sha256)
        try:
            size_bytes = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise StoreError(
                f"The artifact {sha256} cannot be removed from {self.folder} "
                f"({error.strerror or error}). Nothing refers to it any more."
            ) from error
        return size_bytes


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(value: str) -> str:
    """Return ``value`` if it is a sha256 in lowercase hex, else raise InvalidInputError."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise InvalidInputError.of("artifact sha256", value, "64 digits of 0-9, a-f")
    return value
