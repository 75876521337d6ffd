"""Inputs without labels: what to calibrate and to convert with, taken from a set of items."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.making.calibration import CalibrationData, read_calibration
from modelless.variants.validation.measuring import random_order
from modelless.variants.validation.validation_set import ValidationSet

MOST_ITEMS: Final = 256
"""Taken from a validation set. More hardly change a range, and all are kept with the variants."""

_SHARE: Final = 5
_BATCH: Final = 32
_LABELS: Final = frozenset({"labels", "boxes", "box_labels", "box_items"})


def held_out(items: ValidationSet, most: int = MOST_ITEMS) -> tuple[CalibrationData, int]:
    """The last items of the order in which accuracy is measured, and how many others there are.

    Accuracy on items by which a variant was made would flatter it; so it is measured on the others.

    Args:
        items: a validation set.
        most: hold out no more than so many, and no more than a fifth of the set.

    Raises:
        InvalidInputError: too few items to part; or one is broken.
    """
    count = min(most, len(items) // _SHARE)
    if count < 1:
        raise InvalidInputError.of(
            f"{items.name}: items",
            len(items),
            f"{_SHARE} or more, of which a fifth is used to calibrate",
            "Give inputs to calibrate with apart: --calibration.",
        )
    return _taken(items, random_order(len(items))[-count:]), len(items) - count


def first_inputs(items: ValidationSet, most: int = MOST_ITEMS) -> CalibrationData:
    """Up to ``most`` items of a set, in random order; raises as ``ValidationSet.item``."""
    return _taken(items, random_order(len(items))[:most])


def arrays_of(path: Path, most: int = MOST_ITEMS) -> CalibrationData:
    """The inputs in an ``.npz`` file of a task that nobody has described yet: all but the labels.

    Raises:
        InvalidInputError: no such file, or no arrays of equally many items besides the labels.
    """
    if path.suffix != ".npz":
        raise InvalidInputError.of(
            "validation set",
            str(path),
            "an .npz file, where the task is new and the model is not ONNX",
            "Else describe the task in a file: --task-file.",
        )
    try:
        feeds = read_calibration(path, _BATCH).feeds[: -(-most // _BATCH)]
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None
    for feed in feeds:
        for name, array in feed.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InvalidInputError.of(f"{path}: {name}", "nan or infinity", "finite numbers")
    bare = [{name: feed[name] for name in feed if name not in _LABELS} for feed in feeds]
    if not bare[0]:
        raise InvalidInputError.of(f"{path}: arrays", sorted(feeds[0]), "an array an input, too")
    return CalibrationData(tuple(bare))


def _taken(items: ValidationSet, order: list[int]) -> CalibrationData:
    return CalibrationData(
        tuple(
            {name: _plain(array) for name, array in part.inputs.items()}
            for part in items.batches(_BATCH, order)
        )
    )


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """The array; texts in a dtype of their own, as they are written to a file and hashed."""
    return array.astype(np.str_) if array.dtype.kind == "O" else array
