"""How near a made model's outputs are to those of its source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.decoding import decode_texts
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.session import Session
from modelless.variants.vocabulary import Task

Outputs = Mapping[str, NDArray[Any]]

_EXACT_DB: Final = 200.0
_VALUES_AT_ONCE: Final = 1 << 20

NOTHING_ALIKE_DB: Final = -_EXACT_DB
"""The ``sqnr_db`` of answers that are no numbers, are infinite where the source's are not, or are
other than zero where the source's are."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Outputs compared over all calls; a made model's accuracy is measured elsewhere.

    Attributes:
        max_abs: largest difference of two real values; 0 where no output holds any.
        sqnr_db: signal-to-quantisation-noise ratio, ``10 log10(sum x^2 / sum (x - y)^2)``, of the
            output of real values where it is lowest; at most 200, which stands for equal. None
            where no output holds real values: a difference of class numbers is no noise.
        top_1_agreement: share of items for which both answer the same class: the one they put
            first, by the first output FP [items, classes]; else its number, by the first of whole
            numbers [items] or [items, 1]; None if there is neither.
        items: how many were compared.
        text_agreement: share of items for which both answer the same text; None where answers are
            no texts.
    """

    max_abs: float
    sqnr_db: float | None
    top_1_agreement: float | None
    items: int
    text_agreement: float | None = None

    @property
    def same_answers(self) -> float | None:
        """The share of items to which both give the same answer, a text or a class; or None."""
        return self.top_1_agreement if self.text_agreement is None else self.text_agreement

    @property
    def nearness(self) -> float:
        """More is nearer: the SQNR, dB; per cent of same answers where no output is real."""
        return 100.0 * (self.same_answers or 0.0) if self.sqnr_db is None else self.sqnr_db


def run_all(session: Session, calibration: CalibrationData) -> list[Outputs]:
    """The outputs of each call, by name."""
    return [session.run(feed) for feed in calibration.feeds]


def compare(
    source: Iterable[Outputs], made: Iterable[Outputs], task: Task | None = None
) -> Fidelity:
    """``made`` against ``source``, call by call; outputs are matched by name.

    Args:
        source: what the source answers to each call.
        made: what the made model answers.
        task: says whether answers are texts; if it is None, they are not.

    Raises:
        InvalidInputError: other names or shapes, or nothing to compare.
    """
    largest, items, agreed, classified, same_texts = 0.0, 0, 0, 0, 0
    decoding, labels = (None, ()) if task is None else (task.decoding, task.labels)
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    calls = 0
    for call, (wanted, found) in enumerate(zip_longest(source, made)):
        calls = call + 1
        if wanted is None or found is None:
            raise InvalidInputError.of(
                "calls of the made model", f"{call} or more", "as many as of its source"
            )
        _check_shapes(call, wanted, found)
        items += len(np.atleast_1d(next(iter(wanted.values()))))
        classes = _classes(wanted)
        if classes is not None:
            x, y = _first(wanted[classes]), _first(found[classes])
            agreed, classified = agreed + int((x == y).sum()), classified + len(x)
        if decoding is not None:
            texts = [
                decode_texts(each[decoding.output], decoding, labels) for each in (wanted, found)
            ]
            same_texts += sum(one == other for one, other in zip(*texts, strict=True))
        for name, array in wanted.items():
            if array.dtype.kind != "f":
                continue
            flat, others = array.reshape(-1), found[name].reshape(-1)
            for start in range(0, max(1, flat.size), _VALUES_AT_ONCE):
                x = flat[start : start + _VALUES_AT_ONCE].astype(np.float64)
                y = others[start : start + _VALUES_AT_ONCE]
                error = np.subtract(x, y, out=np.zeros_like(x), where=x != y)  # inf equals inf
                largest = max(largest, float(np.max(np.abs(error), initial=0.0)))
                signal[name] = signal.get(name, 0.0) + float((x[np.isfinite(x)] ** 2).sum())
                noise[name] = noise.get(name, 0.0) + float((error**2).sum())
    if not calls:
        raise InvalidInputError.of("calls of the made model", calls, "1 or more")
    return Fidelity(
        max_abs=largest,
        sqnr_db=min((_ratio_db(signal[name], noise[name]) for name in signal), default=None),
        top_1_agreement=agreed / classified if classified else None,
        items=items,
        text_agreement=None if decoding is None else same_texts / items,
    )


def _check_shapes(call: int, wanted: Outputs, found: Outputs) -> None:
    shapes = {name: array.shape for name, array in wanted.items()}
    others = {name: array.shape for name, array in found.items()}
    if shapes != others or not shapes:
        raise InvalidInputError.of(
            f"outputs of the made model, call {call}", others, f"{shapes}, as its source"
        )


def _classes(outputs: Outputs) -> str | None:
    """The first output of scores [items, classes], else the first of whole numbers [items]."""
    scores = (n for n, a in outputs.items() if a.dtype.kind == "f" and _is_wide(a))
    numbers = (n for n, a in outputs.items() if a.dtype.kind in "iub" and a.size == len(a))
    return next(scores, next(numbers, None))


def _is_wide(array: NDArray[Any]) -> bool:
    return array.ndim == 2 and array.shape[1] > 1


def _first(array: NDArray[Any]) -> NDArray[Any]:
    """The class of each item."""
    return array.argmax(axis=1) if _is_wide(array) else array.reshape(-1)


def _ratio_db(signal: float, noise: float) -> float:
    if not (math.isfinite(noise) and math.isfinite(signal)):
        return NOTHING_ALIKE_DB
    if noise <= 0.0:
        return _EXACT_DB
    if signal <= 0.0:
        return NOTHING_ALIKE_DB
    return min(_EXACT_DB, 10.0 * math.log10(signal / noise))
