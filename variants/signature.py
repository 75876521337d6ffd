"""Holding tensors against a task's signature, on the hot path: no copy where nothing is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.vocabulary import Task, TensorSpec

MAX_ITEMS: Final = 1024
"""Most items that one query may carry, by default."""

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
"""Open Inference Protocol datatype -> numpy dtype. Elements of BYTES are texts, ``str``."""

DATATYPES: Final[Mapping[np.dtype[Any], str]] = {dtype: name for name, dtype in DTYPES.items()}
"""The same, the other way round."""

TEXT: Final = "BYTES"
"""The datatype whose elements are texts."""

_SLICE: Final = 1 << 16
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})


def dtype_of(datatype: str) -> np.dtype[Any]:
    """The numpy dtype of an Open Inference Protocol datatype; InvalidInputError if it has none."""
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise InvalidInputError.of("datatype", datatype, f"one of {', '.join(DTYPES)}")
    return dtype


_SIZES_PER_DOUBLING: Final = 16


def item_size(task: Task, tensors: Mapping[str, NDArray[Any]]) -> int:
    """Return the numbers in an item of these checked tensors, rounded; 0 if no size is free."""
    if not has_free_sizes(task):
        return 0
    return round_size(sum([math.prod(array.shape[1:]) for array in tensors.values()]))


def has_free_sizes(task: Task) -> bool:
    """Return whether the task leaves any size of an item free."""
    return any(-1 in spec.shape[1:] for spec in task.inputs)


@lru_cache(maxsize=4096)
def round_size(size: int) -> int:
    """Return the nearest of 16 sizes in each doubling; it differs by 2.2 % at most.

    So estimates for few sizes serve all.
    """
    step = round(_SIZES_PER_DOUBLING * math.log2(size))
    rounded: float = 2.0 ** (step / _SIZES_PER_DOUBLING)
    return round(rounded)


def check_inputs(
    task: Task, tensors: Mapping[str, NDArray[Any]], *, max_items: int = MAX_ITEMS
) -> tuple[dict[str, NDArray[Any]], int]:
    """The tensors as a variant of ``task`` takes them, and how many items they hold.

    A tensor that fits is passed on as it is. Where the task says how, free sizes are padded to the
    next of four in each doubling, so that items share few sizes. FP32 is taken for UINT8 if every
    value lies within 0 to 255; it is rounded to the nearest whole number, a half to the even one.

    Args:
        tensors: arrays by name, items along axis 0.
        max_items: most items allowed.

    Returns:
        C-contiguous arrays of the task's dtypes and shapes, by name, and the number of items.

    Raises:
        InvalidInputError: names the tensor, what it was and what is allowed.
    """
    specs = task.inputs
    if len(tensors) != len(specs) or any(spec.name not in tensors for spec in specs):
        raise _wrong_names(specs, tensors)
    clean: dict[str, NDArray[Any]] = {}
    items = -1
    for spec in specs:
        array = tensors[spec.name]
        shape = array.shape
        if len(shape) != len(spec.shape):
            raise _wrong_shape(spec, shape)
        for wanted, size in zip(spec.shape, shape, strict=True):
            if (wanted != size and wanted != -1) or size == 0:
                raise _wrong_shape(spec, shape)
        if items != shape[0]:
            if items != -1:
                raise InvalidInputError.of(
                    f"inputs.{spec.name}: items along axis 0",
                    shape[0],
                    f"{items}, as many as the other inputs hold",
                )
            items = shape[0]
            if items > max_items:
                raise InvalidInputError.of(
                    f"inputs.{spec.name}: items along axis 0",
                    items,
                    f"1 to {max_items}",
                    "Send them in several queries.",
                )
        found = _clean(spec, array)
        clean[spec.name] = pad(spec, found)
    return clean, items


def _clean(spec: TensorSpec, array: NDArray[Any]) -> NDArray[Any]:
    if spec.datatype == TEXT and array.dtype.kind in "OSU":
        return as_texts(f"inputs.{spec.name}", array)
    wanted = dtype_of(spec.datatype)
    if array.dtype != wanted:
        if spec.datatype == "UINT8" and array.dtype == np.float32:
            return _as_uint8(spec, array)
        found = DATATYPES.get(array.dtype, str(array.dtype))
        also = " (or FP32 with values of 0 to 255)" if spec.datatype == "UINT8" else ""
        raise InvalidInputError.of(f"inputs.{spec.name}: datatype", found, spec.datatype + also)
    # The minimum of an array that holds a NaN is NaN: one pass, no temporary array.
    if spec.datatype in _FLOATS and np.isnan(array.min()):
        _refuse_bad(spec, array, np.isnan, "any number, but not NaN")
    return np.ascontiguousarray(array)


def as_texts(field: str, array: NDArray[Any]) -> NDArray[Any]:
    """An array of ``str`` with the texts of an array of texts, or of bytes in UTF-8.

    Raises:
        InvalidInputError: an element is neither; names the first one.
    """
    elements = array.ravel().tolist()
    found: list[str] = []
    try:
        found.extend(map(_text, elements))
    except ValueError:
        index = [int(axis) for axis in np.unravel_index(len(found), array.shape)]
        wrong = elements[len(found)]
        shown = wrong[:40] if isinstance(wrong, (bytes, str)) else wrong
        raise InvalidInputError.of(f"{field}{index}", shown, "a text in UTF-8") from None
    texts = np.empty(len(found), np.object_)
    texts[:] = found
    return texts.reshape(array.shape)


def _text(element: object) -> str:
    if isinstance(element, bytes):
        return str(element, "utf-8")
    if not isinstance(element, str):
        raise ValueError("neither text nor bytes")
    element.encode()  # refuses lone surrogates, which no engine takes
    return element


def pad(spec: TensorSpec, array: NDArray[Any]) -> NDArray[Any]:
    """Items, along axis 0, whose free sizes are padded as the task's input says."""
    if spec.padding is None:
        return array
    widths = [
        (0, padded_size(size) - size if wanted == -1 else 0)
        for wanted, size in zip(spec.shape[1:], array.shape[1:], strict=True)
    ]
    if not any(after for _, after in widths):
        return array
    if spec.padding == "edge":
        return np.pad(array, [(0, 0), *widths], mode="edge")
    value = array.dtype.type(spec.padding)
    return np.pad(array, [(0, 0), *widths], constant_values=value)


def padded_size(size: int) -> int:
    """Return the next of four sizes in each doubling: 64, 80, 96, 112, 128, 160 and so on."""
    step = 1 << max(size.bit_length() - 3, 0)
    return -(-size // step) * step


def _as_uint8(spec: TensorSpec, array: NDArray[Any]) -> NDArray[Any]:
    allowed = "0 to 255, as the task takes UINT8"
    largest = array.max()
    if not (array.min() >= 0.0 and largest <= 255.0):  # NaN makes both comparisons false
        _refuse_bad(spec, array, lambda part: ~((part >= 0.0) & (part <= 255.0)), allowed)
    if largest <= 1.0:  # fractions would be black when rounded
        allowed += "; multiply 0 to 1 by 255"
        _refuse_bad(spec, array, lambda part: part != np.rint(part), allowed)
    rounded = np.empty(array.shape, np.uint8)
    np.rint(array, out=rounded, casting="unsafe")  # no temporary array
    return rounded


def _refuse_bad(
    spec: TensorSpec,
    array: NDArray[Any],
    is_bad: Callable[[NDArray[Any]], NDArray[np.bool_]],
    allowed: str,
) -> None:
    """Raise an error that names the first bad element, if there is one; in slices, to be small."""
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _SLICE):
        bad = is_bad(flat[begin : begin + _SLICE])
        if bad.any():
            place = np.unravel_index(begin + int(np.argmax(bad)), array.shape)
            index = [int(axis) for axis in place]
            raise InvalidInputError.of(f"inputs.{spec.name}{index}", float(array[place]), allowed)


def _wrong_names(
    specs: tuple[TensorSpec, ...], tensors: Mapping[str, NDArray[Any]]
) -> InvalidInputError:
    known = {spec.name for spec in specs}
    missing = sorted(known - set(tensors))
    extra = sorted(set(tensors) - known)
    hint = " ".join(
        f"{what}: {', '.join(names)}."
        for what, names in (("Missing", missing), ("Unknown", extra))
        if names
    )
    allowed = ", ".join(f"{spec.name} ({spec.datatype} {list(spec.shape)})" for spec in specs)
    return InvalidInputError.of("inputs", sorted(tensors), allowed, hint)


def _wrong_shape(spec: TensorSpec, shape: tuple[int, ...]) -> InvalidInputError:
    return InvalidInputError.of(
        f"inputs.{spec.name}: shape", list(shape), f"{list(spec.shape)}, where -1 is 1 or more"
    )
