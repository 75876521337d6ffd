"""Points of any profile as columns of numbers: what the learned model sees of them.

A point is a model at a resolution, on a device with an engine and a precision, at a batch and a
concurrency. Sizes are logarithms, brought to about unit scale by fixed constants, so that a
feature means the same whatever table it came from. What is not known is 0 there, the middle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.device_speed import speed_of
from modelless.profiler.cost_model.learned.own_speed import unit_ms_of
from modelless.profiler.cost_model.learned.roofline import Roofline
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

if TYPE_CHECKING:
    from modelless.profiler.devices.microbenchmark import DeviceRates

IntArray = NDArray[np.intp]

LEVELS = ("all", "kind", "precision", "engine", "source", "device", "setting")
"""How far a finding carries: to every point, to those of a device kind, of that and a precision,
of a source's engine on a kind, of a source, of a device, of a device with engine and precision."""

# Feature: centre and scale of its natural logarithm.
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
_MOST_NUMBER = 1e18  # there: no size, but a hash or a date

MOST_LOG = 60.0
"""Of a predicted log latency: what an extrapolation gone wild is held to."""
_PRECISIONS = {
    "float": "fp32",
    "float32": "fp32",
    "amp": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "w8a8": "int8",
}


class Vocabulary:
    """Numbers for names, the same for all points that are to be compared."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def code(self, name: Hashable) -> int:
        """The number of ``name``."""
        return self._codes.setdefault(name, len(self._codes))


@dataclass(frozen=True, slots=True)
class Points:
    """n points as columns; everything that can be known of a point without running it.

    Attributes:
        features: shape (n, 8).
        shares: shape (n, 4), of the roofline's time by component.
        roofline_log: shape (n,), log of the roofline's milliseconds an item.
        name_numbers: shape (n, 8), logs of the numbers in the model's name.
        levels: shape (n, 7), codes of ``LEVELS``.
        family, model, item, skeleton: codes, shape (n,); an item is a model at a resolution, a
            skeleton a model's name without its numbers.
        elsewhere: shape (n,), how the item fares on other devices; see ``elsewhere``.
        is_known_elsewhere: shape (n,), 1 where that is known, else 0.
        is_rated: shape (n,), 1 where the device was itself measured (``own_speed``), else 0.
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
    elsewhere: FloatArray = field(default_factory=lambda: np.empty(0))
    is_known_elsewhere: FloatArray = field(default_factory=lambda: np.empty(0))
    is_rated: FloatArray = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.roofline_log)

    def take(self, rows: IntArray | Sequence[int]) -> Points:
        """Some of the points."""
        index = np.asarray(rows, dtype=np.intp)
        return Points(*(getattr(self, one.name)[index] for one in fields(self)))

    def level(self, name: str) -> IntArray:
        """Codes of one of ``LEVELS``, shape (n,)."""
        return self.levels[:, LEVELS.index(name)]


def encode(
    rows: Sequence[TableRow],
    vocabulary: Vocabulary,
    roofline: Roofline,
    rates: Sequence[DeviceRates | None] = (),
) -> Points:
    """The points of ``rows``; their latencies are not looked at.

    Args:
        rows: of any source.
        vocabulary: grows by what is new.
        roofline: the analytical estimate.
        rates: what the device of each row was measured to do, n of them; none where nothing was.
    """
    sizes = {
        name: np.array([_or_nan(getattr(row, name)) for row in rows])
        for name in ("gmacs", "mactivations_m", "params_m", "layers", "resolution_px")
    }
    sizes["batch"] = np.array([float(row.batch) for row in rows])
    sizes["concurrency"] = np.array([float(row.concurrency or 1) for row in rows])
    own = [
        None if each is None else unit_ms_of(each, canonical_precision(row.precision))
        for row, each in zip(rows, rates or [None] * len(rows), strict=True)
    ]
    unit_ms = [
        _published(row, roofline) if known is None else known
        for row, known in zip(rows, own, strict=True)
    ]
    roofline_log, shares = roofline.estimate(unit_ms, sizes)
    names = [re.findall(r"\d+", row.model)[:_NUMBERS_KEPT] for row in rows]
    numbers = np.zeros((len(rows), _NUMBERS_KEPT))
    for position, found in enumerate(names):
        numbers[position, : len(found)] = [
            math.log1p(min(float(text), _MOST_NUMBER)) for text in found
        ]

    def codes(*keys: Hashable) -> IntArray:
        return np.array([vocabulary.code(key) for key in keys], dtype=np.intp)

    level_keys = [_level_keys(row) for row in rows]
    return Points(
        features=_features(sizes),
        shares=shares,
        roofline_log=roofline_log,
        name_numbers=numbers,
        levels=np.array(
            [[vocabulary.code(key) for key in keys] for keys in level_keys], dtype=np.intp
        ).reshape(len(rows), len(LEVELS)),
        family=codes(*(("family", row.source, row.family or row.model) for row in rows)),
        model=codes(*(("model", row.source, row.task, row.model) for row in rows)),
        item=codes(*(("item", row.source, row.task, row.model, row.resolution_px) for row in rows)),
        skeleton=codes(*(("skeleton", row.source, re.sub(r"\d+", "#", row.model)) for row in rows)),
        elsewhere=np.zeros(len(rows)),
        is_known_elsewhere=np.zeros(len(rows)),
        is_rated=np.array([float(known is not None) for known in own]),
    )


def latency_log(rows: Sequence[TableRow]) -> FloatArray:
    """What is predicted: log of milliseconds an item, shape (n,)."""
    return np.array([math.log(row.latency_ms / row.batch) for row in rows])


def in_order(rows: Sequence[TableRow]) -> list[TableRow]:
    """Sorted, so that draws do not depend on the order of rows and tables; equal rows once."""
    return sorted(dict.fromkeys(rows), key=lambda row: (*map(str, row.key), row.latency_ms))


def canonical_precision(name: str) -> str:
    """One name for what sources call differently: ``amp`` and ``FP16`` are ``fp16``."""
    lowered = name.lower()
    return _PRECISIONS.get(lowered, lowered)


def _published(row: TableRow, roofline: Roofline) -> FloatArray:
    speed = speed_of(row.device, row.device_kind, canonical_precision(row.precision))
    return roofline.unit_ms(row.device_kind, speed)


def _level_keys(row: TableRow) -> tuple[Hashable, ...]:
    kind, precision = row.device_kind, canonical_precision(row.precision)
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


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
