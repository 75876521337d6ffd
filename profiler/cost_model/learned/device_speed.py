"""How fast a device is by what its vendor publishes, beside the typical device of its kind."""

from __future__ import annotations

import statistics
from functools import cache
from typing import NamedTuple

from modelless.profiler.devices.known_devices import KnownDevice, find_known_device, known_devices

_BANDWIDTH = "bandwidth_bytes_per_s"
# Peak of a precision, and what it falls back to where that is not published.
_ARITHMETIC = {
    "int8": ("int8_operations_per_s", "fp16_operations_per_s", "fp32_operations_per_s"),
    "fp16": ("fp16_operations_per_s", "fp32_operations_per_s"),
    "fp32": ("fp32_operations_per_s", "fp16_operations_per_s"),
}


class Speed(NamedTuple):
    """Multiples of the typical device's: peak arithmetic of a precision, memory bandwidth."""

    arithmetic: float
    memory: float


@cache
def speed_of(device: str, kind: str, precision: str) -> Speed:
    """The speed of a device by name; 1 and 1 where nothing is published of it.

    Args:
        device: as tables and drivers call it.
        kind: ``cpu``, ``gpu`` or ``npu``.
        precision: ``fp32``, ``fp16`` or ``int8``; any other is taken as the last.
    """
    known = find_known_device(device, kind)
    if known is None:
        return Speed(1.0, 1.0)
    memory = _relative(known, _BANDWIDTH)
    names = _ARITHMETIC.get(precision, _ARITHMETIC["int8"])
    arithmetic = next((found for name in names if (found := _relative(known, name))), None)
    # What is not published is taken to be as much better or worse as what is.
    either = arithmetic or memory or 1.0
    return Speed(arithmetic or either, memory or either)


def _relative(known: KnownDevice, name: str) -> float | None:
    value: float | None = getattr(known, name)
    return None if value is None else float(value / _typical(known.kind, name))


@cache
def _typical(kind: str, name: str) -> float:
    values = [getattr(known, name) for known in known_devices() if known.kind == kind]
    return float(statistics.median([value for value in values if value is not None]))
