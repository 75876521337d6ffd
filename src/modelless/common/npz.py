"""Reading ``.npz`` files that nobody vouches for: no pickles, and no more memory than they hold."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from modelless.common.files import ZIP_ERRORS

MOST_UNPACKED_BYTES: Final = 16 << 30
"""Of an ``.npz`` file, checked before anything is unpacked."""

NPZ_ERRORS: Final = (ValueError, TypeError, AttributeError, *ZIP_ERRORS)
"""Errors of ``read_arrays`` for a file that is damaged or of another kind."""

_HEADERS: Final[Mapping[tuple[int, int], Callable[..., Any]]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


def read_arrays(
    file: Path | IO[bytes], most_bytes: int = MOST_UNPACKED_BYTES
) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file, by name.

    NumPy makes room for as much as an array's header says before it reads anything, so headers are
    held against what the archive says that it holds; of that, ``zipfile`` reads no more.

    Args:
        file: its path, or the file itself, opened for reading.

    Raises:
        NPZ_ERRORS: no such archive, too large, not what its headers say, or arrays of Python
            objects.
    """
    with zipfile.ZipFile(file) as packed:
        members = packed.infolist()
        unpacked_bytes = sum(member.file_size for member in members)
        if unpacked_bytes > most_bytes:
            raise ValueError(f"it has {unpacked_bytes} bytes unpacked; allowed: up to {most_bytes}")
        for member in members:
            _check_header(packed, member)
    if not isinstance(file, Path):
        file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return {str(name): arrays[name] for name in arrays.files}


def _check_header(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    with packed.open(member) as file:
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{member.filename} is of version {version} of the format")
        shape, _, dtype = _HEADERS[version](file)
        array_bytes = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and array_bytes > member.file_size:
            raise ValueError(
                f"{member.filename} says that it is {array_bytes} bytes large, and holds "
                f"{member.file_size}"
            )
