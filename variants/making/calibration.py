"""Calibration data: inputs as they will come, to measure activations on and compare outputs by."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import IntegrityError, InvalidInputError
from modelless.common.npz import NPZ_ERRORS, read_arrays

Feed = Mapping[str, NDArray[Any]]
"""One call's inputs by name, items along axis 0."""

_BATCH: Final = 32


@dataclass(frozen=True)
class CalibrationData:
    """Inputs, call by call; calls may differ in shape.

    Attributes:
        feeds: in the order in which they are run.
        answers: what the model that variants are made of answers to each, by output; empty where
            it was not asked. They follow from it and the feeds, so the digest leaves them out.
    """

    feeds: tuple[Feed, ...] = ()
    answers: tuple[Feed, ...] = ()

    @classmethod
    def of(cls, arrays: Feed, batch: int = _BATCH) -> CalibrationData:
        """Arrays cut into calls of ``batch`` items; all must hold as many along axis 0.

        Raises:
            InvalidInputError: no arrays, no items, or different numbers of them.
        """
        counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
        if len(set(counts.values())) != 1 or 0 in counts.values():
            raise InvalidInputError.of(
                "calibration data",
                counts,
                "arrays by input name, each with as many items, 1 or more",
            )
        (count,) = set(counts.values())
        return cls(
            tuple(
                {name: array[start : start + batch] for name, array in arrays.items()}
                for start in range(0, count, batch)
            )
        )

    @cached_property
    def sha256(self) -> str:
        """Hex digest of all names, types, shapes and values, in order."""
        digest = hashlib.sha256()
        for feed in self.feeds:
            digest.update(b"call")
            for name in sorted(feed):
                array = np.ascontiguousarray(feed[name])
                digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
                digest.update(array.tobytes())
        return digest.hexdigest()


def to_npz(data: CalibrationData) -> bytes:
    """The data as an ``.npz`` file's bytes, call by call; ``from_npz`` reads them back."""
    file = io.BytesIO()
    arrays = {
        f"{call}/{name}": array
        for call, feed in enumerate(data.feeds)
        for name, array in feed.items()
    }
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def from_npz(npz_bytes: bytes) -> CalibrationData:
    """Read the bytes that ``to_npz`` wrote.

    Raises:
        IntegrityError: it did not.
    """
    feeds: dict[int, dict[str, NDArray[Any]]] = {}
    try:
        for key, array in read_arrays(io.BytesIO(npz_bytes)).items():
            call, _, name = key.partition("/")
            feeds.setdefault(int(call), {})[name] = array
    except NPZ_ERRORS as error:
        raise IntegrityError(f"calibration data: they are damaged ({error}).") from error
    return CalibrationData(tuple(feeds[call] for call in sorted(feeds)))


def read_calibration(path: Path, batch: int = _BATCH) -> CalibrationData:
    """Calibration data of an ``.npz`` file, an array an input; pickled arrays are refused.

    Raises:
        InvalidInputError: no such file, no such arrays.
    """
    try:
        arrays = read_arrays(path)
    except NPZ_ERRORS as error:
        raise InvalidInputError.of(
            "calibration data", str(path), "an .npz file of plain arrays", f"({error})"
        ) from error
    return CalibrationData.of(arrays, batch)
