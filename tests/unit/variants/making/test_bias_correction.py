"""Biases that take off what rounding adds to a layer's mean output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from modelless.variants.graphs.canonical import read_model
from modelless.variants.making.builder import run_step
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.recipe import parse_step
from modelless.variants.making.session import Session

from .networks import FASHION, made, node, pictures, random_weights, run, write

PLAIN = {"int8-static": {}}
CORRECTED = {"int8-static": {"bias_correction": True}}
OPTIMISED = made("optimise", FASHION)


def means(onnx_bytes: bytes, data: CalibrationData) -> NDArray[np.float64]:
    """Mean of each of the network's outputs over the data: float64 [classes]."""
    session = Session(onnx_bytes)
    (output,) = session.outputs
    answers = np.concatenate([session.run(feed)[output] for feed in data.feeds])
    return answers.mean(axis=0, dtype=np.float64)


def logits(onnx_bytes: bytes) -> bytes:
    """The network without its softmax, whose outputs hide shifts."""
    model = read_model(onnx_bytes)
    softmax = next(each for each in model.graph.node if each.op_type == "Softmax")
    kind = model.graph.output[0].type.tensor_type.elem_type
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(softmax.input[0], kind, None))
    return bytes(model.SerializeToString())


def test_the_means_are_those_of_the_float_network() -> None:
    data = pictures(256)
    wanted = means(logits(OPTIMISED), data)
    shifts = {
        name: np.abs(means(logits(made(step, OPTIMISED, data)), data) - wanted).max()
        for name, step in {"plain": PLAIN, "corrected": CORRECTED}.items()
    }
    assert shifts["corrected"] < 0.005 < 0.02 < shifts["plain"]


def test_it_is_told_how_many_layers_were_corrected() -> None:
    _, notes = run_step(parse_step(CORRECTED), OPTIMISED, pictures())
    assert notes[-1] == "biases corrected in 3 of 3 layers"


@pytest.mark.parametrize("transposed", [0, 1])
def test_layers_without_a_bias_get_one(transposed: int) -> None:
    weights = random_weights(c=(6, 4, 3, 3), g=(5, 6) if transposed else (6, 5))
    nodes = [
        node("Conv", "x c", "conv", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", "conv", "pool"),
        node("Flatten", "pool", "flat"),
        node("Gemm", "flat g", "y", transB=transposed),
    ]
    source = write(nodes, weights, ["N", 4, 8, 8], ["N", 5])
    x = np.random.default_rng(1).gamma(2.0, size=(64, 4, 8, 8)).astype(np.float32)
    data = CalibrationData.of({"x": x})
    result, notes = run_step(parse_step(CORRECTED), source, data)
    assert notes[-1] == "biases corrected in 2 of 2 layers"
    wanted = run(source, x).mean(axis=0)
    before = np.abs(run(made(PLAIN, source, data), x).mean(axis=0) - wanted)
    after = np.abs(run(result, x).mean(axis=0) - wanted)
    assert after.max() < 0.2 * before.max()


def test_a_matrix_product_has_no_bias_to_correct() -> None:
    source = write([node("MatMul", "x w", "y")], random_weights(w=(8, 4)), ["N", 8], ["N", 4])
    data = CalibrationData.of({"x": np.ones((4, 8), np.float32)})
    result, notes = run_step(parse_step(CORRECTED), source, data)
    assert notes[-1] == "biases corrected in 0 of 1 layers"
    assert result == made(PLAIN, source, data)


def test_biases_with_an_axis_of_one_are_taken() -> None:
    """As scikit-learn's networks have them, on which ONNX Runtime's quantiser fails."""
    arrays: dict[str, NDArray[Any]] = random_weights(w=(8, 4), b=(1, 4))
    source = write([node("Gemm", "x w b", "y")], arrays, ["N", 8], ["N", 4])
    x = np.random.default_rng(2).normal(size=(32, 8)).astype(np.float32)
    result = made(PLAIN, source, CalibrationData.of({"x": x}))
    assert np.abs(run(result, x) - run(source, x)).max() < 0.2
    kinds = {
        each.name: numpy_helper.to_array(each).dtype
        for each in read_model(result).graph.initializer
    }
    assert np.dtype(np.int32) in kinds.values()
