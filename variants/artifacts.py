"""Content-addressed files: what is stored under a sha256 is what comes out, or nothing does."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any, Final

import fsspec

from modelless.common.errors import IntegrityError, InvalidInputError, StoreError
from modelless.common.files import user_cache, write_whole

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
    _check_content(path, data, sha256)
    return data


def _check_content(name: Path | str, data: bytes, sha256: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise IntegrityError(
            f"The artifact {name} is not the file that was registered: its sha256 is {found}, "
            f"expected {sha256}. It was corrupted or swapped. {_RESTORE}"
        )


def _check_size(name: Path | str, size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise IntegrityError(
            f"The artifact {name} is too large: it has {size_bytes} bytes, allowed: up to "
            f"{max_bytes}. {_RESTORE}"
        )


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
    _check_size(path, status.st_size, max_bytes)


class ArtifactStore:
    """Files named by their sha256, in a folder or behind any fsspec URL.

    Local files are used where they lie. Those of a remote store are copied to ``cache`` first.
    """

    def __init__(
        self, url: str, *, cache: Path | None = None, max_bytes: int = MAX_ARTIFACT_BYTES
    ) -> None:
        """Point at ``url``: a folder's path, ``file://...``, ``s3://bucket/prefix``, ...

        Args:
            url: where the files lie; made by the first ``put``.
            cache: folder for copies of remote files; ``~/.cache/modelless/artifacts`` by default.

        Raises:
            InvalidInputError: no file system of that kind, or its driver is not installed.
        """
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise InvalidInputError.of(
                "artifact store URL", url, f"a folder or a URL that fsspec knows ({error})"
            ) from error
        self.url = url
        self.max_bytes = max_bytes
        local = "file" in _protocols(self._fs)
        self._folder: Path | None = Path(self._root) if local else None
        self._cache = cache or user_cache() / "artifacts"

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
            if self._folder is not None:
                _write_local(_path(self._folder, sha256), data, sha256, self.max_bytes)
            else:
                self._write_remote(data, sha256)
        except OSError as error:
            raise StoreError(
                f"The artifact store {self.url} cannot be written ({error.strerror or error}). "
                "Free some space or make it writable, then repeat; nothing was half-written."
            ) from error
        return sha256

    def fetch(self, sha256: str) -> Path:
        """A local path to the artifact, its hash just checked.

        A later load checks the bytes that it reads (``read_verified``): the file may change.

        Raises:
            InvalidInputError: ``sha256`` is not 64 lowercase hex digits.
            IntegrityError: missing, truncated, corrupt or swapped.
        """
        check_sha256(sha256)
        if self._folder is not None:
            path = _path(self._folder, sha256)
            read_verified(path, sha256, max_bytes=self.max_bytes)
            return path
        path = _path(self._cache, sha256)
        try:
            read_verified(path, sha256, max_bytes=self.max_bytes)
        except IntegrityError:  # not there yet, or damaged: the remote one decides
            _write_local(path, self._download(sha256), sha256, self.max_bytes)
        return path

    def locate(self, sha256: str) -> Path:
        """A local path to the artifact, for readers that check its hash, as every runtime does.

        Reading and hashing it here as well would be a third of loading a variant. A local file that
        is not there is found out by the reader; a remote one is copied, and checked, as in
        ``fetch``, unless a copy is there.

        Raises:
            InvalidInputError: ``sha256`` is not 64 lowercase hex digits.
            IntegrityError: it had to be copied, and is missing, truncated, corrupt or swapped.
        """
        check_sha256(sha256)
        path = _path(self._folder if self._folder is not None else self._cache, sha256)
        return path if self._folder is not None or path.is_file() else self.fetch(sha256)

    def read(self, sha256: str) -> bytes:
        """The artifact's bytes, checked. Raises as ``fetch``."""
        return read_verified(self.fetch(sha256), sha256, max_bytes=self.max_bytes)

    def remove(self, sha256: str) -> int:
        """Remove an artifact, and return its bytes; 0 if it was not there.

        Raises:
            StoreError: it cannot be removed.
        """
        check_sha256(sha256)
        try:
            if self._folder is not None:
                path = _path(self._folder, sha256)
                size_bytes = path.stat().st_size
                path.unlink()
            else:
                size_bytes = int(self._fs.info(self._remote(sha256))["size"])
                self._fs.rm_file(self._remote(sha256))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise StoreError(
                f"The artifact {sha256} cannot be removed from {self.url} "
                f"({error.strerror or error}). Nothing refers to it any more."
            ) from error
        return size_bytes

    def __contains__(self, sha256: str) -> bool:
        """Whether a file of that name is there; its contents are not looked at."""
        check_sha256(sha256)
        if self._folder is not None:
            return _path(self._folder, sha256).is_file()
        return bool(self._fs.exists(self._remote(sha256)))

    def _remote(self, sha256: str) -> str:
        return f"{self._root.rstrip('/')}/{sha256[:2]}/{sha256}"

    def _write_remote(self, data: bytes, sha256: str) -> None:
        target = self._remote(sha256)
        if self._fs.exists(target):
            try:
                self._download(sha256)
            except IntegrityError:
                pass  # replaced below
            else:
                return
        self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
        part = f"{target}.{os.getpid()}.{os.urandom(4).hex()}.part"
        try:
            self._fs.pipe_file(part, data)
            self._fs.mv(part, target)
        finally:
            if self._fs.exists(part):
                self._fs.rm_file(part)

    def _download(self, sha256: str) -> bytes:
        name = f"{self.url.rstrip('/')}/{sha256[:2]}/{sha256}"
        try:
            _check_size(name, int(self._fs.info(self._remote(sha256))["size"]), self.max_bytes)
            data = bytes(self._fs.cat_file(self._remote(sha256)))
        except OSError as error:
            raise IntegrityError(
                f"The artifact {name} cannot be read ({error}). {_RESTORE}"
            ) from error
        _check_content(name, data, sha256)
        return data


def check_sha256(value: str) -> str:
    """Return ``value`` if it is a sha256 in lowercase hex, else raise InvalidInputError."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise InvalidInputError.of("artifact sha256", value, "64 digits of 0-9, a-f")
    return value


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _path(folder: Path, sha256: str) -> Path:
    return folder / sha256[:2] / sha256


def _write_local(path: Path, data: bytes, sha256: str, max_bytes: int) -> None:
    """Write the artifact, unless it is there and undamaged."""
    try:
        read_verified(path, sha256, max_bytes=max_bytes)
    except IntegrityError:
        pass  # missing or damaged
    else:
        return
    write_whole(path, data)
