"""Messages and the values in them as JSON and back.

A message (an event, an effect, or an order in one) is a list of its type's name and its fields.
Other named tuples and data classes are lists of their fields. A mapping whose keys are not text is
a list of pairs.

Floats keep every bit (JSON has the shortest decimal that reads back the same); what is not finite
stands as ``Infinity`` or ``NaN``, as Python's ``json`` writes and reads it.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from modelless.common.errors import InvalidInputError


def encode(value: object) -> str:
    """Return the value as one line of JSON, without the line's end.

    Raises:
        TypeError: the value is or contains something other than plain values.
    """
    try:
        return _encode(value)
    except TypeError:  # ``json`` offers no hook for keys, and few values have any but text
        return _encode(_with_pairs(value))


def message(value: Any) -> list[Any]:
    """Return an event or effect as ``encode`` takes it: its type's name, then its fields."""
    parts = _fields(value)
    for place in _places_of_messages(value.__class__):
        parts[place] = [message(each) for each in parts[place]]
    return [type(value).__name__, *parts]


def encode_item(now_s: float, event: object, effects: Sequence[object]) -> str:
    """Return one item of a tape as JSON: the time, the event and its effects."""
    return encode((now_s, message(event), [message(effect) for effect in effects]))


def decode(kind: Any, data: Any) -> Any:
    """Return the value of type ``kind`` that ``data``, parsed JSON, stands for.

    Args:
        kind: a type; of a union of several, the message names one.
        data: parsed JSON.

    Raises:
        InvalidInputError: ``data`` is a message of none of a union's types.
        TypeError, ValueError, KeyError: ``data`` does not stand for such a value.
    """
    if data is None or kind in (Any, Hashable, object):
        return _hashable(data)
    origin, arguments = get_origin(kind), get_args(kind)
    either = _alternatives(kind)
    if len(either) > 1:
        return _decode_message(either, data)
    if either:
        return decode(either[0], data)
    if origin is tuple and Ellipsis not in arguments:
        return tuple(decode(each, part) for each, part in zip(arguments, data, strict=True))
    if origin in (tuple, Sequence, Collection, list):
        return tuple(decode(arguments[0], part) for part in data)
    if origin is frozenset:
        return frozenset(decode(arguments[0], part) for part in data)
    if origin in (Mapping, dict):
        items = data.items() if isinstance(data, dict) else data
        return {decode(arguments[0], k): decode(arguments[1], v) for k, v in items}
    fields = _types_of(kind)
    if fields is not None:  # fields that a newer version has added keep their defaults
        return kind(**{name: decode(each, part) for (name, each), part in zip(fields, data)})  # noqa: B905
    if kind is datetime:
        return datetime.fromisoformat(data)
    return kind(data)


def _decode_message(kinds: Sequence[type], data: Sequence[Any]) -> Any:
    by_name = {kind.__name__: kind for kind in kinds}
    if data[0] not in by_name:
        raise InvalidInputError.of(
            "recording: message", data[0], "one of " + ", ".join(by_name),
            "Replay it with the version that recorded it.",
        )  # fmt: skip
    return decode(by_name[data[0]], data[1:])


@cache
def _alternatives(kind: Any) -> list[type]:
    """Return the types of a union, without that of None; none if it is no union."""
    if get_origin(kind) not in (Union, types.UnionType):
        return []
    return [each for each in get_args(kind) if each is not type(None)]


@cache
def _places_of_messages(kind: Any) -> list[int]:
    """Return the places of the fields that are sequences of messages of several types."""
    return [
        place
        for place, (_, each) in enumerate(_types_of(kind) or ())
        if any(len(_alternatives(argument)) > 1 for argument in get_args(each))
    ]


def _fields(value: Any) -> list[Any]:
    names = _init_fields(value.__class__)
    return list(value) if names is None else [getattr(value, name) for name in names]


@cache
def _init_fields(kind: Any) -> tuple[str, ...] | None:
    """Return the names of a data class's fields; None for any other type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


@cache
def _types_of(kind: Any) -> list[tuple[str, Any]] | None:
    """Return the fields of a named tuple or data class with their types; else None."""
    names = getattr(kind, "_fields", _init_fields(kind))
    if names is None:
        return None
    hints = get_type_hints(kind)
    return [(name, hints[name]) for name in names]


def _with_pairs(value: Any) -> Any:
    """Return the value with lists of pairs for mappings whose keys are not text."""
    if dataclasses.is_dataclass(value):
        value = _fields(value)
    if isinstance(value, (list, tuple)):
        return [_with_pairs(part) for part in value]
    if isinstance(value, Mapping):
        pairs = [(_with_pairs(key), _with_pairs(each)) for key, each in value.items()]
        return dict(pairs) if all(isinstance(key, str) for key in value) else pairs
    return value


def _hashable(data: Any) -> Any:
    return tuple(_hashable(part) for part in data) if isinstance(data, list) else data


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} cannot be recorded")


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode
