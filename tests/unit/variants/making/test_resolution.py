"""Resolutions: of a resize that is there, and of one that is put in front."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, TensorProto

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.inspection import inspect_onnx

from .networks import Arrays, made, node, random_weights, run, write

TO_6 = {"resolution": {"px": 6}}


def weights_and(**more: np.ndarray) -> Arrays:
    return random_weights(w=(4, 3, 3, 3)) | more


def resizing(sizes: list[int], **attributes: object) -> bytes:
    """Resize, Conv, GlobalAveragePool, Flatten."""
    nodes = [
        node("Resize", "x", "resized", mode="linear", **attributes),
        node("Conv", "resized w", "conv"),
        node("GlobalAveragePool", "conv", "pool"),
        node("Flatten", "pool", "y"),
    ]
    nodes[0].input.extend(["", "", "sizes"])
    held = weights_and(sizes=np.array(sizes, np.int64))
    return write(nodes, held, ["N", 3, "H", "W"], ["N", 4])


@pytest.mark.parametrize(
    "source",
    [
        resizing([9, 9], axes=[2, 3]),
        resizing([1, 3, 9, 9]),
        resizing([1, 3, 9, 9], axes=[0, 1, 2, 3]),
    ],
    ids=["axes", "all sizes", "all axes"],
)
def test_its_own_resize_is_set(source: bytes) -> None:
    result = made(TO_6, source)
    small = np.random.default_rng(0).random((1, 3, 6, 6), np.float32)
    plain = run(write(_without_resize(), weights_and(), ["N", 3, "H", "W"], ["N", 4]), small)
    assert run(result, small) == pytest.approx(plain, abs=1e-5)
    assert inspect_onnx(result).inputs == inspect_onnx(source).inputs
    assert run(source, small) != pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("opset", [13, 18])
def test_one_is_put_in_front_of_free_sizes(opset: int) -> None:
    source = write(_without_resize(), weights_and(), ["N", 3, "H", "W"], ["N", 4], opset=opset)
    result = made(TO_6, source)
    rng = np.random.default_rng(0)
    fits, larger = rng.random((2, 3, 6, 6), np.float32), rng.random((2, 3, 12, 9), np.float32)
    assert run(result, fits) == pytest.approx(run(source, fits), abs=1e-5)
    assert run(result, larger).shape == (2, 4)
    assert inspect_onnx(result).inputs == inspect_onnx(source).inputs


def test_raw_pixels_with_channels_last() -> None:
    nodes = [
        node("Cast", "x", "real", to=TensorProto.FLOAT),
        node("Transpose", "real", "planes", perm=[0, 3, 1, 2]),
        node("Conv", "planes w", "conv"),
        node("GlobalAveragePool", "conv", "pool"),
        node("Flatten", "pool", "y"),
    ]
    shape = ["N", "H", "W", 3]
    source = write(nodes, weights_and(), shape, ["N", 4], kind=TensorProto.UINT8)
    even = np.full((1, 12, 10, 3), 77, np.uint8)
    assert run(made(TO_6, source), even) == pytest.approx(run(source, even[:, :6, :6]), rel=1e-5)


def test_a_fixed_size_is_refused() -> None:
    source = write(_without_resize(), weights_and(), ["N", 3, 9, 9], ["N", 4])
    with pytest.raises(InvalidInputError, match=r"'x': \['N', 3, 9, 9\].*only these, are free"):
        made(TO_6, source)


def _without_resize() -> list[NodeProto]:
    return [
        node("Conv", "x w", "conv"),
        node("GlobalAveragePool", "conv", "pool"),
        node("Flatten", "pool", "y"),
    ]
