"""How near a made model's outputs are to those of its source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.session import Session

Outputs = Mapping[str, NDArray[Any]]

_EXACT_DB: Final = 200.0

NOTHING_ALIKE_DB: Final = -_EXACT_DB
"""The ``sqnr_db`` of answers that are no numbers, or are other than zero where the source's are."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Outputs compared over all calls; a made model's accuracy is measured elsewhere.

    Attributes:
        max_abs: largest difference of two values.
        sqnr_db: signal-to-quantisation-noise ratio, ``10 log10(sum x^2 / sum (x - y)^2)``, of the
            output where it is lowest; at most 200, which stands for equal.
        top_1_agreement: share of items for which both put the same class first, by the first
            output of shape [items, classes]; None if there is none.
        items: how many were compared.
    """

    max_abs: float
    sqnr_db: float
    top_1_agreement: float | None
    items: int


def run_all(session: Session, calibration: CalibrationData) -> list[Outputs]:
    """The outputs of each call, by name."""
    return [session.run(feed) for feed in calibration.feeds]


def compare(source: Sequence[Outputs], made: Sequence[Outputs]) -> Fidelity:
    """``made`` against ``source``, call by call; outputs are matched by name.

    Raises:
        InvalidInputError: other names or shapes, or nothing to compare.
    """
    if not source or len(source) != len(made):
        raise InvalidInputError.of(
            "calls of the made model", len(made), f"{len(source)}, 1 or more"
        )
    largest, items, agreed, classified = 0.0, 0, 0, 0
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    for call, (wanted, found) in enumerate(zip(source, made, strict=True)):
        _check_shapes(call, wanted, found)
        items += len(np.atleast_1d(next(iter(wanted.values()))))
        classes = _classes(wanted)
        for name, array in wanted.items():
            if array.dtype.kind not in "fiub":
                continue
            x, y = array.astype(np.float64), found[name].astype(np.float64)
            largest = max(largest, float(np.max(np.abs(x - y), initial=0.0)))
            signal[name] = signal.get(name, 0.0) + float((x**2).sum())
            noise[name] = noise.get(name, 0.0) + float(((x - y) ** 2).sum())
            if name == classes:
                agreed += int((x.argmax(axis=1) == y.argmax(axis=1)).sum())
                classified += len(x)
    return Fidelity(
        max_abs=largest,
        sqnr_db=min((_ratio_db(signal[name], noise[name]) for name in signal), default=_EXACT_DB),
        top_1_agreement=agreed / classified if classified else None,
        items=items,
    )


def _check_shapes(call: int, wanted: Outputs, found: Outputs) -> None:
    shapes = {name: array.shape for name, array in wanted.items()}
    others = {name: array.shape for name, array in found.items()}
    if shapes != others or not shapes:
        raise InvalidInputError.of(
            f"outputs of the made model, call {call}", others, f"{shapes}, as its source"
        )


def _classes(outputs: Outputs) -> str | None:
    """The first output of shape [items, classes], if there is one."""
    for name, array in outputs.items():
        if array.dtype.kind == "f" and array.ndim == 2 and array.shape[1] > 1:
            return name
    return None


def _ratio_db(signal: float, noise: float) -> float:
    if math.isnan(noise):
        return NOTHING_ALIKE_DB
    if noise <= 0.0:
        return _EXACT_DB
    if signal <= 0.0:
        return NOTHING_ALIKE_DB
    return min(_EXACT_DB, 10.0 * math.log10(signal / noise))
