"""A conversion is taken only if the new model answers as its source does, on real inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.making.calibration import CalibrationData, Feed
from modelless.variants.making.fidelity import Outputs
from modelless.variants.making.session import Session


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a value may be from the source's: ``absolute + relative * |source|``.

    Applies to floating-point outputs; all others, such as labels, must be equal.
    """

    absolute: float = 1e-5
    relative: float = 1e-4


_DEFAULT_TOLERANCE: Final = Tolerance()


def verify_conversion(
    source_run: Callable[[Feed], Outputs],
    onnx_bytes: bytes,
    inputs: CalibrationData,
    tolerance: Tolerance = _DEFAULT_TOLERANCE,
) -> None:
    """Hold a model against its source.

    Args:
        source_run: one call's inputs to the source's outputs, by the ONNX model's output names.
        onnx_bytes: the new model.
        inputs: calls to compare, one at least.
        tolerance: how far apart two values may be.

    Raises:
        InvalidInputError: they differ; names the first output and index, and both values. Or there
            are no inputs.
    """
    if not inputs.feeds:
        raise InvalidInputError.of("inputs to verify with", 0, "one call at least")
    session = Session(onnx_bytes)
    for call, feed in enumerate(inputs.feeds):
        wanted, found = source_run(feed), session.run(feed)
        if set(wanted) != set(found):
            raise InvalidInputError.of(
                "conversion: outputs", sorted(found), ", ".join(sorted(wanted))
            )
        for name in session.outputs:
            _compare(name, call, np.asarray(wanted[name]), found[name], tolerance)


def _compare(
    name: str, call: int, wanted: NDArray[Any], found: NDArray[Any], tolerance: Tolerance
) -> None:
    place = f"conversion: output {name!r} of call {call}"
    if wanted.shape != found.shape:
        raise InvalidInputError.of(f"{place}: shape", found.shape, str(wanted.shape))
    if wanted.dtype.kind == "f":
        same = np.isclose(
            found, wanted, rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True
        )
        within = f" within {tolerance.absolute:g} + {tolerance.relative:g} of its size"
    else:
        same, within = np.asarray(wanted == found), ""
    if not same.all():
        index = tuple(int(axis) for axis in np.argwhere(~same)[0])
        raise InvalidInputError.of(
            f"{place} at {list(index)}",
            found[index].item() if hasattr(found[index], "item") else found[index],
            f"{wanted[index]!s}, the source's,{within}".rstrip(","),
            f"{int((~same).sum())} of {same.size} values differ.",
        )
