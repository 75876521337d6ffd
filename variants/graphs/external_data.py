"""Weights that an ONNX file keeps in other files: read only from inside its own folder, or refused.

A location in the file is text that its author chose. Followed blindly, ``../../etc/passwd`` or a
symbolic link would copy any file of this machine into a model. So each part of the path is opened
relative to the folder before it, without following links, and what was opened is what is read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Final

from onnx import ModelProto, TensorProto

from modelless.common.errors import IntegrityError
from modelless.variants.graphs import traversal as onnx_graphs

_EMBED: Final = (
    "Put the weights into the file itself: onnx.save(onnx.load('model.onnx'), 'whole.onnx')."
)
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BYTES_PER_READ: Final = 1 << 24


def external_tensors(model: ModelProto) -> list[TensorProto]:
    """The tensors whose values lie outside the file."""
    return [
        tensor
        for tensor in onnx_graphs.tensors(model)
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data
    ]


def refuse_external_data(model: ModelProto, where: str) -> None:
    """Raise IntegrityError if any tensor lies outside the bytes that ``model`` was read from."""
    found = external_tensors(model)
    if found:
        location = dict(_entries(found[0])).get("location", "")
        raise IntegrityError(
            f"{where}: {len(found)} tensors lie in other files, the first, {found[0].name!r}, in "
            f"{location!r}; allowed: a file that holds all of its weights. {_EMBED}"
        )


def embed_external_data(model: ModelProto, folder: Path, max_bytes: int) -> int:
    """Bring external tensors into ``model``, from files inside ``folder`` only.

    Returns:
        The number of tensors brought in.

    Raises:
        IntegrityError: a location is absolute, climbs out, passes a symbolic link, is no regular
            file or too short; or it all is too large.
    """
    left_bytes = max_bytes
    found = external_tensors(model)
    for tensor in found:
        entries = dict(_entries(tensor))
        location = entries.get("location", "")
        what = f"tensor {tensor.name!r}, external data {location!r}"
        data = _read(
            folder, location, _whole(entries, "offset", what, 0), entries, what, left_bytes
        )
        left_bytes -= len(data)
        tensor.ClearField("external_data")
        tensor.data_location = TensorProto.DEFAULT
        tensor.raw_data = data
    return len(found)


def _entries(tensor: TensorProto) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in tensor.external_data]


def _whole(entries: dict[str, str], key: str, what: str, default: int) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise IntegrityError(f"{what}: {key} is {text!r}; allowed: a whole number, 0 or more.")
    return int(text)


def _read(
    folder: Path, location: str, offset: int, entries: dict[str, str], what: str, left_bytes: int
) -> bytes:
    descriptor = _open_inside(folder, location, what)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError(f"{what}: it is not a regular file. {_EMBED}")
        rest = max(0, status.st_size - offset)
        length = _whole(entries, "length", what, rest)
        if length > rest:
            raise IntegrityError(
                f"{what}: it is truncated: {offset + length} bytes are needed, it has "
                f"{status.st_size}. Copy the model again, with all of its files."
            )
        if length > left_bytes:
            raise IntegrityError(f"{what}: the model and its files are larger than is allowed.")
        parts = []
        while length > 0:
            part = os.pread(descriptor, min(length, _BYTES_PER_READ), offset)
            if not part:
                raise IntegrityError(f"{what}: it shrank while it was read.")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _open_inside(folder: Path, location: str, what: str) -> int:
    """Open ``folder``/``location`` part by part, following no link and never upwards."""
    parts = PurePosixPath(location).parts
    if (
        not parts
        or location.startswith("/")
        or ".." in parts
        or "\\" in location
        or "\0" in location
    ):
        raise IntegrityError(
            f"{what}: it may point outside the model's folder; allowed: a relative path inside the "
            f"folder, without '..'. {_EMBED}"
        )
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, _READ, dir_fd=current)
            os.close(current)
            current = inner
    except OSError as error:
        os.close(current)
        raise IntegrityError(
            f"{what}: it cannot be read ({error.strerror}); allowed: a regular file inside the "
            f"model's folder, not reached through a symbolic link. {_EMBED}"
        ) from error
    return current
