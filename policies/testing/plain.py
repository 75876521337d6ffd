"""Compares the inputs and the answers of policies, down to the last bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Returns ``value`` as nested tuples that are equal exactly if the values are.

    Arrays compare by type, shape and bytes, NaN equals NaN, mappings compare by their items in
    order. A random generator is left out, because policies draw from it.
    """
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, np.random.Generator):
        return "generator"
    if isinstance(value, float):
        return ("float", repr(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return (type(value).__name__, *(plain(getattr(value, field.name)) for field in fields))
    if isinstance(value, Mapping):
        return ("mapping", *((plain(key), plain(item)) for key, item in value.items()))
    if isinstance(value, Set):
        return ("set", *sorted(map(repr, value)))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return ("sequence", *map(plain, value))
    return value


def freeze(value: Any) -> Any:
    """Make every array in ``value`` read-only, as the arrays of the core are, and return it."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            freeze(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            freeze(item)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in value:
            freeze(item)
    return value
