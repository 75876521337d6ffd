"""Networks to make variants of: one that was trained, and small ones written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from modelless.variants.making.builder import run_step
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.recipe import parse_step
from modelless.variants.making.session import Session
from modelless.variants.zoo.fashion_mnist import DATA, FashionMnist

Arrays = dict[str, NDArray[Any]]

FASHION = (DATA / "cnn-s-fp32.onnx").read_bytes()
"""Two convolutions, two poolings and a linear layer, trained on Fashion-MNIST."""


def pictures(count: int = 64) -> CalibrationData:
    """Fashion-MNIST's first test images, in calls of 32."""
    images, _ = FashionMnist().test_split()
    return CalibrationData.of({"image": images[:count]}, 32)


def made(step: object, source: bytes, calibration: CalibrationData | None = None) -> bytes:
    """What one step, written as in a recipe, makes of ``source``."""
    return run_step(parse_step(step), source, calibration or CalibrationData())[0]


def write(
    nodes: list[NodeProto],
    constants: Arrays,
    shape: list[Any],
    output: list[Any],
    *,
    kind: int = TensorProto.FLOAT,
    opset: int = 18,
) -> bytes:
    """A model from ``x`` to float32 ``y`` with these nodes and float constants."""
    graph = helper.make_graph(
        nodes,
        "written",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(model.SerializeToString())


def random_weights(**shapes: tuple[int, ...]) -> Arrays:
    """Float32 normal arrays by name; equal names and shapes give equal values."""
    rng = np.random.default_rng(7)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def node(kind: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    """A node called as its output; inputs are separated by blanks."""
    return helper.make_node(kind, inputs.split(), [output], name=output, **attributes)


def run(onnx_bytes: bytes, x: NDArray[Any]) -> NDArray[Any]:
    """``y`` of a written model."""
    return Session(onnx_bytes).run({"x": x})["y"]
