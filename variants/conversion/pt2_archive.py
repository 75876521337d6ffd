"""A ``.pt2`` archive without its pickles: what would need one is refused, the rest is copied.

``torch.export.load`` unpickles sample inputs, weights and constants that have no plain form, and
loads libraries that AOTInductor compiled; all of these run code of the file's author. Sample inputs
are not needed and left empty. For the rest there is no plain form, so such a file is refused.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any, Final

from modelless.common.errors import IntegrityError, InvalidInputError
from modelless.common.files import ZIP_ERRORS
from modelless.variants.artifacts import MAX_ARTIFACT_BYTES

_PLAIN: Final = (
    ".data/",
    "archive_format",
    "archive_version",
    "byteorder",
    "data/constants/",
    "data/sample_inputs/",
    "data/weights/",
    "models/model.json",
    "version",
)
_CONFIGS: Final = ("data/constants/", "data/weights/")


def without_pickles(source: str) -> io.BytesIO:
    """The archive at ``source``, copied into memory.

    Raises:
        InvalidInputError: it cannot be read, or is no such archive.
        IntegrityError: it holds a pickle that is needed, or anything else that would run.
    """
    copy = io.BytesIO()
    try:
        with zipfile.ZipFile(source) as archive, zipfile.ZipFile(copy, "w") as plain:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_ARTIFACT_BYTES:
                raise IntegrityError(f"{source}: allowed: up to {MAX_ARTIFACT_BYTES} bytes.")
            names = [entry.filename.partition("/")[2] for entry in archive.infolist()]
            if "models/model.json" not in names:
                raise InvalidInputError.of(
                    "conversion: source", source, "a .pt2 file of PyTorch 2.8 or later"
                )
            for entry, name in zip(archive.infolist(), names, strict=True):
                if not name.startswith(_PLAIN):
                    raise _refusal(source, name, "it is no part of a plain exported program")
                content = archive.read(entry)
                if name.startswith(_CONFIGS):
                    _check_payload(source, name, content)
                if name.startswith("data/sample_inputs/"):
                    content = b""
                plain.writestr(entry.filename, content)
    except ZIP_ERRORS as error:
        raise InvalidInputError.of(
            "conversion: source", source, "a .pt2 file", f"({error})"
        ) from error
    copy.seek(0)
    return copy


def _check_payload(source: str, name: str, content: bytes) -> None:
    if name.endswith(".pt"):
        raise _refusal(source, name, "the format of older versions is a pickle")
    if not name.endswith("_config.json"):
        return
    try:
        entries: dict[str, dict[str, Any]] = json.loads(content)["config"]
        pickled = [
            tensor
            for tensor, entry in entries.items()
            if entry["use_pickle"] is not False
            or not str(entry["path_name"]).startswith(("weight_", "tensor_"))
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _refusal(source, name, f"it is damaged ({error!r})") from error
    if pickled:
        raise _refusal(source, name, f"{', '.join(pickled[:5])} would be unpickled")


def _refusal(source: str, name: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{source}: {name}: {why}; allowed: a program whose weights and constants are plain "
        "tensors, without compiled libraries. Name the module as package.module:factory instead."
    )
