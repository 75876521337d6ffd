"""Tensors in and out of bytes and JSON: the datatypes of the protocol as NumPy knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.controller.api.v2_errors import PayloadTooLargeError, Words, invalid

NUMBERS: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""Datatype to dtype, for those of a fixed size. Binary tensors are little-endian, row-major."""

BYTES = "BYTES"
BF16 = "BF16"
"""The upper half of FP32. NumPy has no such type: it is read as FP32, and only from binary data."""
DATATYPES = (*NUMBERS, BF16, BYTES)

_NAMES: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in NUMBERS.items()}
_JSON_KINDS: Mapping[str, tuple[frozenset[type], str]] = {
    "b": (frozenset({bool}), "true and false"),
    "u": (frozenset({int}), "whole numbers"),
    "i": (frozenset({int}), "whole numbers"),
    "f": (frozenset({int, float}), "numbers"),
}
MOST_TEXT_BYTES = 4 << 20
"""Of all BYTES tensors of a query: each string is copied in one call, which holds the interpreter,
and may take four times its bytes as text."""

_LENGTH = Struct("<I")
_SLICE = 1 << 14
_IN_BINARY = "Send it as binary data."


def datatype_of(array: NDArray[Any]) -> str | None:
    """The protocol's name of the array's dtype; None if it has none."""
    name = _NAMES.get(array.dtype)
    if name is not None:
        return name
    if array.dtype.kind in "OSU":
        return BYTES
    return _NAMES.get(array.dtype.newbyteorder("<"))


def item_bytes(datatype: str) -> int | None:
    """Return the bytes of an element in binary; None if they differ."""
    if datatype == BF16:
        return 2
    dtype = NUMBERS.get(datatype)
    return dtype.itemsize if dtype is not None else None


def widened_bytes(datatype: str, count: int) -> int:
    """Return the bytes that ``count`` elements in binary take as an array besides their own."""
    return 4 * count if datatype == BF16 else 0


def from_binary(
    field: str, body: bytes | memoryview, offset: int, size: int, datatype: str, shape: list[int]
) -> NDArray[Any]:
    """The tensor in ``body[offset : offset + size]``, of shape ``shape``.

    A read-only view of ``body``; a copy only where an item of several bytes would lie across
    its own alignment (native code may not read it there), or the datatype is BYTES or BF16.
    ``size`` must already be known to fit shape and body, except for BYTES.
    """
    if datatype == BF16:
        halves = np.frombuffer(body, "<u2", size // 2, offset)
        wide: NDArray[Any] = np.left_shift(halves, 16, dtype="<u4").view("<f4")
        return wide.reshape(shape)
    dtype = NUMBERS.get(datatype)
    if dtype is None:
        return _bytes_from_binary(field, body[offset : offset + size], shape)
    if size == 0:
        return np.empty(shape, dtype)
    array = np.frombuffer(body, dtype, size // dtype.itemsize, offset).reshape(shape)
    if dtype.itemsize > 1:
        return array if array.flags.aligned else array.copy()
    if dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise invalid(field, int(array.view(np.uint8).max()), "bytes 0 (false) and 1 (true)")
    return array


def from_json(
    field: str, data: object, datatype: str, shape: list[int], count: int
) -> NDArray[Any]:
    """The tensor of ``shape`` and ``count`` elements in ``data``, flat or nested as the shape says.

    JSON types must be the datatype's own: no rounding, no wrapping round, no reading of strings.
    """
    if datatype == BF16:
        raise invalid(field, Words("BF16 in JSON"), "binary data for this datatype", _IN_BINARY)
    flat = _flatten(field, data, shape, count)
    if datatype == BYTES:
        return _bytes_from_json(field, flat, shape)
    dtype = NUMBERS[datatype]
    kinds, called = _JSON_KINDS[dtype.kind]
    for begin in range(0, count, _SLICE):  # each of these calls holds the interpreter
        part = flat[begin : begin + _SLICE]
        if not kinds.issuperset(map(type, part)):
            odd = next(value for value in part if type(value) not in kinds)
            raise invalid(field, odd, f"{called} only, as {datatype} is")
    array = np.empty(count, dtype)
    try:
        with np.errstate(over="ignore"):
            for begin in range(0, count, _SLICE):
                array[begin : begin + _SLICE] = np.array(flat[begin : begin + _SLICE], dtype)
        if dtype.kind != "f" or np.isfinite(array).all():
            return array.reshape(shape)
    except OverflowError:
        pass
    low, high = _range(dtype)
    odd = next(value for value in flat if not low <= value <= high)
    raise invalid(field, odd, f"numbers that fit {datatype}")


def to_binary(array: NDArray[Any]) -> bytes | NDArray[Any]:
    """The array's bytes as the protocol wants them: the array itself where they already are."""
    if array.dtype.kind in "OSU":
        parts: list[bytes] = []
        for value in array.ravel().tolist():
            raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
            parts += (_LENGTH.pack(len(raw)), raw)
        return b"".join(parts)
    if array.dtype not in _NAMES:
        array = array.astype(array.dtype.newbyteorder("<"))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def to_json(field: str, array: NDArray[Any]) -> list[Any]:
    """The array's elements as a flat list for JSON, row-major."""
    values: list[Any] = array.ravel().tolist()
    if array.dtype.kind not in "OSU":
        return values
    try:
        return [v.decode() if isinstance(v, bytes) else str(v) for v in values]
    except UnicodeDecodeError:
        raise invalid(
            field, Words("bytes that are not UTF-8"), "text in a JSON reply", "Ask for binary_data."
        ) from None


def _range(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _flatten(field: str, data: object, shape: Sequence[int], count: int) -> list[Any]:
    if type(data) is not list:
        raise invalid(field, data, "a list of numbers or strings, flat or nested", _IN_BINARY)
    if data and type(data[0]) is list and len(shape) > 1:
        level: list[Any] = [data]
        for axis, size in enumerate(shape):
            if axis and set(map(type, level)) - {list}:
                raise invalid(
                    field, Words("lists of differing depth"), f"nested as shape {shape} says"
                )
            lengths = set(map(len, level))
            if lengths - {size}:
                odd = next(iter(lengths - {size}))
                raise invalid(field, Words(f"{odd} items on axis {axis}"), f"{size}, as shape says")
            level = list(chain.from_iterable(level))
        return level
    if len(data) != count:
        raise invalid(field, Words(f"{len(data)} items"), f"{count}, as shape {shape} says")
    return data


def check_text_bytes(field: str, size: int) -> None:
    """Raise PayloadTooLargeError if the strings of BYTES tensors have more bytes than is read."""
    if size > MOST_TEXT_BYTES:
        allowed = f"up to {MOST_TEXT_BYTES} bytes of strings in a query"
        raise PayloadTooLargeError.of(field, Words(f"{size} bytes"), allowed, "Send fewer items.")


def _bytes_from_json(field: str, flat: list[Any], shape: list[int]) -> NDArray[Any]:
    array = np.empty(len(flat), np.object_)
    for index, value in enumerate(flat):
        if type(value) is not str:
            raise invalid(field, value, "strings only, as BYTES is", _IN_BINARY)
        try:
            array[index] = value.encode()
        except UnicodeEncodeError:
            raise invalid(field, value, "text with no lone surrogate", _IN_BINARY) from None
    return array.reshape(shape)


def _bytes_from_binary(field: str, raw: bytes | memoryview, shape: list[int]) -> NDArray[Any]:
    count = math.prod(shape)
    check_text_bytes(field, len(raw) - 4 * count)
    if 4 * count > len(raw):
        raise invalid(field, Words(f"{len(raw)} bytes"), f"4 or more for each of {count} elements")
    raw, size = bytes(raw), len(raw)
    unpack = _LENGTH.unpack_from
    found: list[bytes] = []
    offset = 0
    for index in range(count):
        begin = offset + 4
        if begin > size:
            raise invalid(field, Words(f"{index} elements"), f"{count}, as shape {shape} says")
        (length,) = unpack(raw, offset)
        offset = begin + length
        if offset > size:
            raise invalid(
                field, Words(f"element {index} of {length} bytes"), f"up to {size - begin}"
            )
        found.append(raw[begin:offset])
    if offset != size:
        raise invalid(field, Words(f"{size - offset} bytes more"), f"{count} elements and no more")
    array = np.empty(count, np.object_)
    array[:] = found
    return array.reshape(shape)
