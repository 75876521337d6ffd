"""Reads the PyTorch state dict of a weight package without PyTorch.

The packages hold the container that ``torch.save`` wrote before 1.6: three small pickles (magic
number, protocol version, byte order), the state dict's pickle in which each tensor refers to a
storage by key, the pickled list of keys, and then each storage as a little-endian int64 count
followed by its elements.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_NAMES: Final = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "FloatStorage"): "<f4",
    ("torch", "LongStorage"): "<i8",
    # Each tensor of these files is the whole of its storage, perhaps transposed.
    ("torch._utils", "_rebuild_tensor_v2"): lambda *arguments: arguments,
}


class _StateDictUnpickler(pickle.Unpickler):
    """Builds ordered dicts and descriptions of tensors; any other name is an error."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return _NAMES[module_name, global_name]

    def persistent_load(self, pid: Any) -> Any:
        _kind, dtype, key, *_ = pid
        return key, dtype


def read_state_dict(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a pickled PyTorch state dict, by name, in the file's order.

    Args:
        path: a file whose hash is known, as ``torch.save`` wrote it before PyTorch 1.6.
    """
    file = io.BytesIO(path.read_bytes())
    _magic, _version, _system, state, keys = (_StateDictUnpickler(file).load() for _ in range(5))
    dtypes = {key: np.dtype(dtype) for (key, dtype), *_ in state.values()}
    storages = {}
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        storages[key] = np.frombuffer(file.read(count * dtypes[key].itemsize), dtypes[key])
    return {
        name: np.lib.stride_tricks.as_strided(
            storages[key], shape, [step * dtypes[key].itemsize for step in strides]
        ).copy(order="C")
        for name, ((key, _), _, shape, strides, *_) in state.items()
    }
