"""Reads and writes protobuf's wire format: fields are views of a message, numbers become arrays.

These functions read only the fields that their caller asks for, and generated classes all of them:
60 MB of empty inputs cost those 6.0 s and 2.7 GB before anything can be checked, and these 2 ms and
no memory. 16 MiB of packed numbers, which become 128 MiB, take 0.13 s and 131 MB here, and there
0.21 s and 359 MB. A query with a raw tensor of 150 kB takes 23 us here with all checks, and there
6 us without; one of 3 MB 23 us here, and there 240 (protobuf 7.36 with upb, measured).

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.controller.api.v2_errors import Words, invalid

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types."""

MOST_TEXT_BYTES: Final = 4096
"""The longest name, id or text of a parameter."""

_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4}
_MOST_VARINT_BYTES: Final = 10
_SLICE: Final = 1 << 16
_DOUBLE: Final = Struct("<d")
_BYTES: Final = [bytes([number]) for number in range(0x80)]


class WireField(NamedTuple):
    """A field of a message.

    Attributes:
        number: of the field.
        wire_type: of its value.
        value: the bytes of its value, without its length.
    """

    number: int
    wire_type: int
    value: memoryview


def read_fields(path: str, message: memoryview, most: int) -> Iterator[WireField]:
    """Yield the fields of a message.

    Args:
        path: the message's name, for errors.
        message: its bytes.
        most: how many fields it may have.

    Raises:
        InvalidInputError: the message is cut off or malformed, or has more fields.
    """
    position, end, count = 0, len(message), 0
    while position < end:
        count += 1
        if count > most:
            raise invalid(path, Words("a message of more fields"), f"up to {most}")
        key, position = _read_varint(path, message, position)
        wire_type = key & 7
        if wire_type == LENGTH:
            size, begin = _read_varint(path, message, position)
            position = begin + size
        elif wire_type == VARINT:
            begin = position
            _, position = _read_varint(path, message, position)
        elif wire_type in _FIXED_BYTES:
            begin = position
            position += _FIXED_BYTES[wire_type]
        else:
            raise _malformed(path)
        if position > end:
            raise _malformed(path)
        yield WireField(key >> 3, wire_type, message[begin:position])


def read_number(path: str, field: WireField) -> int:
    """Return the unsigned number of a field."""
    if field.wire_type != VARINT:
        raise _malformed(path)
    return _read_varint(path, field.value, 0)[0]


def read_signed(path: str, field: WireField) -> int:
    """Return the signed number of a field."""
    return _signed(read_number(path, field))


def read_few(path: str, data: memoryview, most: int) -> list[int]:
    """Return the first packed signed numbers in ``data``, up to ``most``."""
    found: list[int] = []
    position = 0
    while position < len(data) and len(found) < most:
        number, position = _read_varint(path, data, position)
        found.append(_signed(number))
    return found


def read_double(path: str, field: WireField) -> float:
    """Return the double of a field."""
    if field.wire_type != FIXED64:
        raise _malformed(path)
    number: float = _DOUBLE.unpack(field.value)[0]
    return number


def read_part(path: str, field: WireField) -> memoryview:
    """Return the bytes of a field: a message inside the message, or bytes."""
    if field.wire_type != LENGTH:
        raise _malformed(path)
    return field.value


def read_text(path: str, field: WireField) -> str:
    """Return the text of a field: a name, an id or a parameter."""
    data = read_part(path, field)
    if len(data) > MOST_TEXT_BYTES:
        raise invalid(path, Words(f"{len(data)} bytes"), f"up to {MOST_TEXT_BYTES}")
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise invalid(path, Words("bytes that are not UTF-8"), "text") from None


def read_integers(path: str, data: memoryview, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return the ``count`` packed integers in ``data`` as an array of a dtype that all must fit.

    It reads a slice at a time, so that it takes little more memory than the array.
    """
    raw = np.frombuffer(data, np.uint8)
    found = np.empty(count, dtype)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    filled = begin = 0
    while begin < raw.size:
        piece = raw[begin : begin + _SLICE]
        ends = np.flatnonzero(piece < 0x80)
        if not ends.size:
            raise _malformed(path)
        begin += int(ends[-1]) + 1
        if filled + ends.size > count:
            raise invalid(path, Words("more elements"), f"{count}, as the shape says")
        lengths = np.diff(ends, prepend=-1)
        longest = int(lengths.max())
        if longest > _MOST_VARINT_BYTES:
            raise _malformed(path)
        starts = ends - lengths + 1
        values = np.zeros(ends.size, np.uint64)
        for place in range(longest):
            has = lengths > place
            bits = (piece[starts[has] + place] & 0x7F).astype(np.uint64)
            values[has] |= bits << np.uint64(7 * place)
        numbers = values.view(np.int64) if dtype.kind == "i" else values
        if numbers.min() < low or numbers.max() > high:
            odd = int(numbers.min() if numbers.min() < low else numbers.max())
            raise invalid(path, odd, f"numbers from {low} to {high}")
        found[filled : filled + ends.size] = numbers
        filled += ends.size
    if filled != count:
        raise invalid(path, Words(f"{filled} elements"), f"{count}, as the shape says")
    return found


def write_varint(number: int) -> bytes:
    """Return a number as a varint; a negative one as the 64 bits of its two's complement."""
    if 0 <= number < 0x80:  # nearly all are
        return _BYTES[number]
    number &= (1 << 64) - 1
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def write_number(field: int, number: int) -> bytes:
    """Return a field with a number."""
    return write_varint(field << 3 | VARINT) + write_varint(number)


def write_double(field: int, number: float) -> bytes:
    """Return a field with a double."""
    return write_varint(field << 3 | FIXED64) + _DOUBLE.pack(number)


def write_part(field: int, data: bytes) -> bytes:
    """Return a field with a message or bytes."""
    return write_length(field, len(data)) + data


def write_length(field: int, size: int) -> bytes:
    """Return the head of a field with ``size`` bytes, which follow it."""
    return write_varint(field << 3 | LENGTH) + write_varint(size)


def write_text(field: int, text: str) -> bytes:
    """Return a field with a text."""
    return write_part(field, text.encode("utf-8", "replace"))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _read_varint(path: str, data: memoryview, position: int) -> tuple[int, int]:
    """Return the number at a position, and where it ends."""
    if position < len(data) and (byte := data[position]) < 0x80:  # nearly all are
        return byte, position + 1
    number = shift = 0
    for byte in data[position : position + _MOST_VARINT_BYTES]:
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (1 << 64) - 1, position
        shift += 7
    raise _malformed(path)


def _malformed(path: str) -> Exception:
    return invalid(path, Words("a malformed protobuf message"), "a message of the service")
