"""Keras models become ONNX and answer as before."""

from __future__ import annotations

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.variants.conversion.converted import convert
from modelless.variants.graphs.inspection import inspect_onnx
from modelless.variants.making.calibration import CalibrationData

from . import models

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytest.importorskip("tf2onnx", reason="tf2onnx is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

HERE = f"{models.__name__}:"
RNG = np.random.default_rng(0)


def test_a_sequential_network() -> None:
    pictures = CalibrationData.of({"image": RNG.random((4, 16, 16, 3), np.float32)}, 2)
    facts = inspect_onnx(convert("tensorflow", HERE + "sequential", pictures).onnx_bytes)
    assert [(each.name, each.shape) for each in facts.inputs] == [("image", (-1, 16, 16, 3))]
    assert [(each.name, each.shape) for each in facts.outputs] == [("output", (-1, 4))]


def test_several_inputs_and_outputs() -> None:
    rows = {"a": RNG.random((4, 5), np.float32), "b": RNG.random((4, 3), np.float32)}
    result = convert("tensorflow", HERE + "two_headed", CalibrationData.of(rows))
    facts = inspect_onnx(result.onnx_bytes)
    assert [each.name for each in facts.inputs] == ["a", "b"]
    assert [(each.name, each.shape) for each in facts.outputs] == [
        ("output_0", (-1, 2)),
        ("output_1", (-1, 3)),
    ]


def test_something_else_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="Model or a function"):
        convert("tensorflow", HERE + "NO_MODEL", CalibrationData.of({"a": np.zeros((2, 5))}))
