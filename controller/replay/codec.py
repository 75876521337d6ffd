"""The cores' plain values as JSON and back: named tuples and data classes are lists of fields.

Floats keep every bit (JSON has the shortest decimal that reads back the same); what is not finite
stands as ``Infinity`` or ``NaN``, as Python's ``json`` writes and reads it.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints


def encode(value: object) -> str:
    """One line of JSON, without the line's end.

    Raises:
        TypeError: a kind of value that the cores do not speak of.
    """
    return _encode(value)


def encode_item(name: str, inputs: Sequence[Any], answer: object) -> str:
    """An input of a core with its arguments, and what the core answered.

    Each effect has its name before its fields; what is text stays so.
    """
    if isinstance(answer, list):
        answer = [e if isinstance(e, str) else (type(e).__name__, *_fields(e)) for e in answer]
    return _encode((name, inputs, answer))


def pairs(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """A mapping whose keys are not text, as JSON can hold it; ``decode`` reads it back."""
    return list(mapping.items())


def decode(kind: Any, data: Any) -> Any:
    """The value of type ``kind`` that ``data``, parsed JSON, stands for.

    Raises:
        TypeError, ValueError, KeyError: it stands for none.
    """
    if data is None or kind in (Any, Hashable, object):
        return _hashable(data)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (other,) = [each for each in arguments if each is not type(None)]
        return decode(other, data)
    if origin is tuple and Ellipsis not in arguments:
        return tuple(decode(each, part) for each, part in zip(arguments, data, strict=True))
    if origin in (tuple, Sequence, list):
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


def _fields(value: Any) -> list[Any]:
    names = _init_fields(value.__class__)
    return list(value) if names is None else [getattr(value, name) for name in names]


@cache
def _init_fields(kind: Any) -> tuple[str, ...] | None:
    """What a data class is made of; None for anything else."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


@cache
def _types_of(kind: Any) -> list[tuple[str, Any]] | None:
    """The fields of a named tuple or a data class with their types; None for anything else."""
    names = getattr(kind, "_fields", None) or _init_fields(kind)
    if names is None:
        return None
    hints = get_type_hints(kind)
    return [(name, hints[name]) for name in names]


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
