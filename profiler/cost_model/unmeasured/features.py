"""Points of any profile as columns of numbers, the input of the learned model.

A point is a model at a resolution, on a device with an engine and a precision, at a batch size and
a concurrency. Sizes are logarithms that fixed constants bring to about unit scale, so a feature
means the same whatever table it comes from. An unknown size is 0, the middle of the scale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.unmeasured.roofline import (
    Roofline,
    measured_unit_ms,
    published_speed,
)
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

if TYPE_CHECKING:
    from modelless.profiler.devices.microbenchmark import DeviceRates

IntArray = NDArray[np.intp]
RatesByDevice = Mapping[tuple[str, str], "DeviceRates"]
NO_RATES: RatesByDevice = {}

LEVELS = ("all", "kind", "precision", "engine", "source", "device", "setting")
"""The groups of points that share an effect: all points, those of a device kind, of a kind and a
precision, of a source's engine on a kind, of a source, of a device, and of a device with engine and
precision."""

# The centre and the scale of each feature's natural logarithm.
_SCALES = {
    "gmacs": (0.5, 2.0),
    "mactivations_per_mac": (1.5, 1.0),
    "params_per_mac": (2.5, 1.0),
    "params_m": (2.5, 1.5),
    "layers": (5.5, 1.0),
    "resolution_px": (5.5, 0.5),
    "batch": (0.0, 2.0),
    "concurrency": (0.0, 2.0),
}
_NUMBERS_KEPT = 8  # of a model's name
_MOST_NUMBER = 1e18  # a larger number in a name is a hash or a date, not a size

MOST_LOG = 60.0
"""The largest absolute log latency that is predicted; extrapolations are clipped to it."""
_PRECISIONS = {
    "float": "fp32",
    "float32": "fp32",
    "amp": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "w8a8": "int8",
}


class NameCodes:
    """Integer codes for names, shared by all points that are compared with each other."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def code(self, name: Hashable) -> int:
        """Returns the code of ``name``; a new name gets the next code."""
        return self._codes.setdefault(name, len(self._codes))


@dataclass(frozen=True, slots=True)
class Points:
    """n points as columns: all that is known of a point without running it.

    Attributes:
        features: shape (n, 8).
        shares: each component's share of the roofline's time, shape (n, 4).
        roofline_log: log of the roofline's milliseconds an item, shape (n,).
        name_numbers: logs of the numbers in the model's name, shape (n, 8).
        levels: codes of ``LEVELS``, shape (n, 7).
        family, model, item, skeleton: codes, shape (n,). An item is a model at a resolution; a
            skeleton is a model's name without its numbers.
        item_effect: how the item deviates on other devices, shape (n,); see ``item_effects``.
        has_item_effect: 1 where ``item_effect`` is known, else 0, shape (n,).
        is_benchmarked: 1 where the rates of the device were measured, else 0, shape (n,).
    """

    features: FloatArray
    shares: FloatArray
    roofline_log: FloatArray
    name_numbers: FloatArray
    levels: IntArray
    family: IntArray
    model: IntArray
    item: IntArray
    skeleton: IntArray
    item_effect: FloatArray
    has_item_effect: FloatArray
    is_benchmarked: FloatArray

    def __len__(self) -> int:
        return len(self.roofline_log)

    def select(self, rows: IntArray | Sequence[int]) -> Points:
        """Returns the points at these rows."""
        index = np.asarray(rows, dtype=np.intp)
        return Points(*(getattr(self, one.name)[index] for one in fields(self)))

    def level(self, name: str) -> IntArray:
        """Returns the codes of one of ``LEVELS``, shape (n,)."""
        return self.levels[:, LEVELS.index(name)]


def encode(
    rows: Sequence[TableRow],
    names: NameCodes,
    roofline: Roofline,
    rates: RatesByDevice = NO_RATES,
) -> Points:
    """Returns the points of ``rows``; their latencies are not used.

    Args:
        rows: n rows of any source.
        names: codes of names; new names are added.
        roofline: the analytical estimate.
        rates: measured rates of devices by name and engine, in place of the roofline's constants.
    """
    sizes = {
        name: np.array([_nan_if_none(getattr(row, name)) for row in rows])
        for name in ("gmacs", "mactivations_m", "params_m", "layers", "resolution_px")
    }
    sizes["batch"] = np.array([float(row.batch) for row in rows])
    sizes["concurrency"] = np.array([float(row.concurrency or 1) for row in rows])
    measured_ms = [
        measured_unit_ms(known, normalise_precision(row.precision))
        if (known := rates.get((row.device, row.engine)))
        else None
        for row in rows
    ]
    unit_ms = [
        _published_unit_ms(row, roofline) if known is None else known
        for row, known in zip(rows, measured_ms, strict=True)
    ]
    roofline_log, shares = roofline.estimate(unit_ms, sizes)
    numbers = np.zeros((len(rows), _NUMBERS_KEPT))
    for position, row in enumerate(rows):
        found = re.findall(r"\d+", row.model)[:_NUMBERS_KEPT]
        numbers[position, : len(found)] = [
            math.log1p(min(float(text), _MOST_NUMBER)) for text in found
        ]

    def codes(*keys: Hashable) -> IntArray:
        return np.array([names.code(key) for key in keys], dtype=np.intp)

    level_keys = [_level_keys(row) for row in rows]
    return Points(
        features=_features(sizes),
        shares=shares,
        roofline_log=roofline_log,
        name_numbers=numbers,
        levels=np.array(
            [[names.code(key) for key in keys] for keys in level_keys], dtype=np.intp
        ).reshape(len(rows), len(LEVELS)),
        family=codes(*(("family", row.source, row.family or row.model) for row in rows)),
        model=codes(*(("model", row.source, row.task, row.model) for row in rows)),
        item=codes(*(("item", row.source, row.task, row.model, row.resolution_px) for row in rows)),
        skeleton=codes(*(("skeleton", row.source, re.sub(r"\d+", "#", row.model)) for row in rows)),
        item_effect=np.zeros(len(rows)),
        has_item_effect=np.zeros(len(rows)),
        is_benchmarked=np.array([float(known is not None) for known in measured_ms]),
    )


def item_latency_log(rows: Sequence[TableRow]) -> FloatArray:
    """Returns the log of each row's milliseconds an item, the predicted quantity, shape (n,)."""
    return np.array([math.log(row.latency_ms / row.batch) for row in rows])


def sort_rows(rows: Sequence[TableRow]) -> list[TableRow]:
    """Returns the distinct rows sorted, so that draws do not depend on the order of the input."""
    return sorted(dict.fromkeys(rows), key=lambda row: (*map(str, row.key), row.latency_ms))


def normalise_precision(name: str) -> str:
    """Returns one name for a precision that sources name differently.

    ``amp`` and ``FP16`` are ``fp16``.
    """
    lowered = name.lower()
    return _PRECISIONS.get(lowered, lowered)


def _published_unit_ms(row: TableRow, roofline: Roofline) -> FloatArray:
    precision = normalise_precision(row.precision)
    return roofline.unit_ms(
        row.device_kind, published_speed(row.device, row.device_kind, precision)
    )


def _level_keys(row: TableRow) -> tuple[Hashable, ...]:
    kind, precision = row.device_kind, normalise_precision(row.precision)
    device = (row.source, row.device)
    return (
        "all",
        ("kind", kind),
        ("precision", kind, precision),
        ("engine", row.source, kind, row.engine),
        ("source", row.source),
        ("device", *device),
        ("setting", *device, row.engine, row.precision),
    )


def _features(sizes: dict[str, FloatArray]) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = {name: np.log(size) for name, size in sizes.items()}
        macs_log = logs["gmacs"]
        columns = {
            **logs,
            "mactivations_per_mac": logs["mactivations_m"] - macs_log,
            "params_per_mac": logs["params_m"] - macs_log,
            "params_m": np.where(np.isfinite(macs_log), np.nan, logs["params_m"]),
        }
    scaled = [(columns[name] - centre) / scale for name, (centre, scale) in _SCALES.items()]
    return np.nan_to_num(np.stack(scaled, axis=1), nan=0.0, posinf=0.0, neginf=0.0)


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else float(value)
