"""How near a made model's outputs are to those of its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.variants.errors import InvalidInputError
from modelless.variants.making.calibration import CalibrationData, concatenated
from modelless.variants.making.session import Session

Outputs = Mapping[str, NDArray[Any]]

_EXACT_DB: Final = 200.0


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


def run_all(session: Session, calibration: CalibrationData) -> Outputs:
    """The outputs of all calls, joined along axis 0, by name."""
    found = [session.run(feed) for feed in calibration.feeds]
    return {name: concatenated(each[name] for each in found) for name in session.outputs}


def compare(source: Outputs, made: Outputs) -> Fidelity:
    """``made`` against ``source``; outputs are matched by name.

    Raises:
        InvalidInputError: other names or shapes, or nothing to compare.
    """
    shapes = {name: array.shape for name, array in source.items()}
    others = {name: array.shape for name, array in made.items()}
    if shapes != others or not shapes:
        raise InvalidInputError.of("outputs of the made model", others, f"{shapes}, as its source")
    largest, lowest_db, agreement = 0.0, _EXACT_DB, None
    for name, array in source.items():
        if array.dtype.kind not in "fiub":
            continue
        wanted, found = array.astype(np.float64), made[name].astype(np.float64)
        noise = wanted - found
        largest = max(largest, float(np.max(np.abs(noise), initial=0.0)))
        lowest_db = min(lowest_db, _ratio_db(float((wanted**2).sum()), float((noise**2).sum())))
        if agreement is None and array.ndim == 2 and array.shape[1] > 1:
            agreement = float((wanted.argmax(axis=1) == found.argmax(axis=1)).mean())
    items = len(next(iter(source.values())))
    return Fidelity(largest, lowest_db, agreement, items)


def _ratio_db(signal: float, noise: float) -> float:
    if math.isnan(noise):
        return -_EXACT_DB
    if noise <= 0.0:
        return _EXACT_DB
    if signal <= 0.0:
        return -_EXACT_DB
    return min(_EXACT_DB, 10.0 * math.log10(signal / noise))
