"""Published peak rates of common devices, found by the loose names in tables and drivers.

The rates state the best that a device can do, for devices without measurements; ``microbenchmark``
measures the rates of an own device. The figures and their sources are in ``known_devices.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

_TABLE: Final = Path(__file__).with_name("known_devices.yaml")

# Parts of names that do not distinguish devices.
_NOISE: Final = re.compile(
    r"\((?:r|tm|c|proxy)\)|[®™]|@\s*[\d.]+\s*ghz|\b\d+(?:st|nd|rd|th) gen\b|\b\d+-core\b"
    r"|\brev [\d.]+|\bw(?:/|ith) radeon.*"
)
_VENDORS: Final = frozenset({"nvidia", "intel", "amd", "google", "qualcomm", "aws", "apple"})
_FILLERS: Final = (_VENDORS - {"apple"}) | {
    *("geforce", "tesla", "instinct", "core", "cpu", "gpu", "npu", "processor")
}


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """The published figures of a device; None where the vendor publishes none.

    Attributes:
        kind: ``cpu``, ``gpu`` or ``npu``.
        derived: how figures follow from published ones, by name of the figure.
        cores: a processor's cores, a graphics card's CUDA cores or stream processors.
        fp16_operations_per_s: peak in fp16 or bf16, matrix units included, dense.
        memory_bytes: size of its memory, where it comes in one size.
    """

    name: str
    kind: str
    source: str
    derived: Mapping[str, str] = field(default_factory=dict)
    year: int | None = None
    cores: int | None = None
    fp32_operations_per_s: float | None = None
    fp16_operations_per_s: float | None = None
    int8_operations_per_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    memory_bytes: int | None = None


# Key in the table -> field, and the factor from the key's unit to the field's.
_FIGURES: Final = {
    "fp32_tflops": ("fp32_operations_per_s", 1e12),
    "fp16_tflops": ("fp16_operations_per_s", 1e12),
    "int8_tops": ("int8_operations_per_s", 1e12),
    "bandwidth_gb_per_s": ("bandwidth_bytes_per_s", 1e9),
    "memory_gib": ("memory_bytes", 1 << 30),
}


def find_known_device(name: str, kind: str | None = None) -> KnownDevice | None:
    """Returns the device with that name; None if it is unknown or ambiguous.

    Case, punctuation and uninformative words (a vendor's name, "CPU", a clock rate) do not matter.
    All other words do: a ``3090 Ti``, a laptop's 4090 and a slice of an H100 are other devices. A
    name that several boards share (``V100``) has the figures that they have in common.

    Args:
        name: ``rtx4090``, ``NVIDIA GeForce RTX 4090``, ``QCS8550 (Proxy)``, ...
        kind: ``cpu``, ``gpu`` or ``npu``, where only such a device is meant; the table has one kind
            of unit of each chip.
    """
    key, vendors = _key(name)
    found = _by_key().get(key)
    if found is None or (kind is not None and found.kind != kind):
        return None
    is_theirs = not vendors or found.name.lower().split()[0] in vendors
    return found if is_theirs else None


@cache
def known_devices() -> tuple[KnownDevice, ...]:
    """Returns every device of the table, in its order."""
    return tuple(_device(row) for row in _rows())


def _device(row: Mapping[str, Any]) -> KnownDevice:
    fields = {key: value for key, value in row.items() if key != "also" and key not in _FIGURES}
    for key, (name, scale) in _FIGURES.items():
        if key in row:
            fields[name] = row[key] * scale
    derived = row.get("derived", {})
    fields["derived"] = {_FIGURES[key][0]: how for key, how in derived.items()}
    return KnownDevice(**fields)


@cache
def _rows() -> tuple[Mapping[str, Any], ...]:
    import yaml  # slow to import

    return tuple(yaml.safe_load(_TABLE.read_text(encoding="utf-8")))


@cache
def _by_key() -> Mapping[str, KnownDevice]:
    found: dict[str, KnownDevice] = {}
    for row, device in zip(_rows(), known_devices(), strict=True):
        for name in (row["name"], *row.get("also", ())):
            key, _ = _key(name)
            if found.setdefault(key, device) is not device:
                raise ValueError(f"{_TABLE.name}: {name!r} names two devices")
    return found


def _key(name: str) -> tuple[str, frozenset[str]]:
    """Returns the distinguishing part of a name, without spaces, and the vendors it names."""
    words = re.findall(r"[a-z]+|[\d.]+|\+", _NOISE.sub(" ", name.lower()))
    kept = [word for word in words if word not in _FILLERS]
    return "".join(kept), _VENDORS.intersection(words)
