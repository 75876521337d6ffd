"""Reads a PyTorch state dict without PyTorch and without trusting it.

A pickle may name any callable and have it called. This reader knows four names, and none of them
does more than describe a tensor; whatever else a file asks for is refused.

The weight packages hold the container that ``torch.save`` wrote before 1.6: three small pickles
(magic number, protocol version, byte order), the state dict's pickle in which each tensor refers to
a storage by key, the pickled list of keys, and then each storage as a little-endian int64 count
followed by its elements. The later container is a zip; no package of the zoo has one, so it is
refused like any other stranger.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import IntegrityError

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
_STORAGES = {"FloatStorage": "<f4", "LongStorage": "<i8"}
_MAX_DIMENSIONS = 8
_MALFORMED = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class _Storage:
    """A tensor's memory, still to be read."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A view on a storage. Its claims are checked when it is resolved, not before."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, _gradient: Any, _hooks: Any
) -> _Tensor:
    return _Tensor(storage, offset, shape, strides)


class _StateDictUnpickler(pickle.Unpickler):
    """Builds ordered dicts and descriptions of tensors, nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name == "collections" and global_name == "OrderedDict":
            return OrderedDict
        if module_name == "torch._utils" and global_name == "_rebuild_tensor_v2":
            return _rebuild_tensor
        if module_name == "torch" and global_name in _STORAGES:
            return _STORAGES[global_name]  # a string: there is nothing in it to call
        raise IntegrityError(
            f"the weights ask for {module_name}.{global_name}, which no state dict needs; it was "
            "not run. Reinstall the package from its registry."
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _device, count, view = pid
        if kind != "storage" or dtype not in _STORAGES.values() or view is not None:
            raise ValueError(f"storage {pid!r:.120}")
        if type(key) is not str or type(count) is not int or count < 0:
            raise ValueError(f"storage {pid!r:.120}")
        return _Storage(key, dtype, count)


def read_state_dict(
    path: Path, *, sha256: str | None = None, max_bytes: int = 256 * 2**20
) -> dict[str, NDArray[Any]]:
    """The tensors of a pickled PyTorch state dict, by name, in the file's order.

    Args:
        path: a file as ``torch.save`` wrote it before PyTorch 1.6 (or with
            ``_use_new_zipfile_serialization=False``).
        sha256: hex digest the file must have; it is checked before anything is unpickled.
        max_bytes: a larger file is refused. Tensors never take more memory than the file does.

    Returns:
        C-contiguous float32 and int64 arrays that own their memory.

    Raises:
        IntegrityError: another file, too large, malformed, or one that names more than tensors.
    """
    size = path.stat().st_size
    if size > max_bytes:
        raise IntegrityError(f"{path}: {size} bytes; allowed: up to {max_bytes}.")
    with path.open("rb") as file:
        if sha256 is not None:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256:
                raise IntegrityError(
                    f"{path}: sha256 is {found}; expected {sha256}. Reinstall the package."
                )
            file.seek(0)
        try:
            return _read(file)
        except IntegrityError:
            raise
        except _MALFORMED as error:
            raise IntegrityError(
                f"{path}: not a state dict that can be read here "
                f"({type(error).__name__}: {error!s:.160}). Reinstall the package."
            ) from error


def _read(file: BinaryIO) -> dict[str, NDArray[Any]]:
    magic, version, system = (_StateDictUnpickler(file).load() for _ in range(3))
    if (magic, version, system["little_endian"]) != (_MAGIC_NUMBER, _PROTOCOL_VERSION, True):
        raise ValueError("another container than torch.save wrote before PyTorch 1.6")
    state = _StateDictUnpickler(file).load()
    keys = _StateDictUnpickler(file).load()
    if not isinstance(state, OrderedDict) or type(keys) is not list:
        raise ValueError(f"expected a dict of tensors, found {type(state).__name__}")
    tensors = {name: tensor for name, tensor in state.items() if isinstance(tensor, _Tensor)}
    if len(tensors) != len(state) or not all(isinstance(name, str) for name in tensors):
        raise ValueError("an entry that is not a named tensor")
    storages = _read_storages(file, keys, list(tensors.values()))
    return {name: _resolve(tensor, storages) for name, tensor in tensors.items()}


def _read_storages(
    file: BinaryIO, keys: list[Any], tensors: list[_Tensor]
) -> dict[str, NDArray[Any]]:
    described = {tensor.storage.key: tensor.storage for tensor in tensors}
    if sorted(described) != sorted(keys):
        raise ValueError("storages and tensors do not match")
    left = os.fstat(file.fileno()).st_size - file.tell()
    storages = {}
    for key in keys:
        storage = described[key]
        dtype = np.dtype(storage.dtype)
        count = int.from_bytes(file.read(8), "little", signed=True)
        left -= 8 + count * dtype.itemsize
        if count != storage.count or left < 0:
            raise ValueError(f"storage {key} holds {count} elements, not {storage.count}")
        storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)
    return storages


def _resolve(tensor: _Tensor, storages: dict[str, NDArray[Any]]) -> NDArray[Any]:
    storage = storages[tensor.storage.key]
    shape, strides, offset = tuple(tensor.shape), tuple(tensor.strides), tensor.offset
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"shape {shape!r:.80}, strides {strides!r:.80}")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"shape {shape!r:.80}, strides {strides!r:.80}, offset {offset!r:.20}")
    # Strides of 0 could repeat an element without end: a view is never larger than its storage.
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if prod(shape) > storage.size or (prod(shape) and last >= storage.size):
        raise ValueError(f"a tensor of shape {shape} reaches beyond its storage of {storage.size}")
    if 0 in shape:
        return np.zeros(shape, storage.dtype)
    view = np.lib.stride_tricks.as_strided(
        storage[offset:], shape, tuple(step * storage.itemsize for step in strides), writeable=False
    )
    return view.copy(order="C")
