"""Channels leave where they may, their means stay, and the rest is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.canonical import read_model
from modelless.variants.graphs.inspection import inspect_onnx
from modelless.variants.graphs.weights import weights
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.makers.prune_structured import find_chains

from .networks import Arrays, made, node, random_weights, run, write

HALF = {"prune-structured": {"share": 0.5, "multiple_of": 1}}
PICTURES = np.random.default_rng(0).random((4, 3, 6, 6), np.float32)
ROWS = np.random.default_rng(0).random((16, 5), np.float32)


def constant_half(weight: np.ndarray, axis: int = 0) -> None:
    """Let every other output depend on nothing."""
    np.moveaxis(weight, axis, 0)[::2] = 0.0


def convolutions() -> bytes:
    """Conv, BatchNormalization, Relu, Conv without a bias."""
    held = random_weights(w=(8, 3, 3, 3), b=(8,), v=(5, 8, 1, 1), scale=(8,), shift=(8,), mean=(8,))
    held["variance"] = np.linspace(0.5, 2.0, 8, dtype=np.float32)
    constant_half(held["w"])
    nodes = [
        node("Conv", "x w b", "conv"),
        node("BatchNormalization", "conv scale shift mean variance", "norm"),
        node("Relu", "norm", "relu"),
        node("Conv", "relu v", "y"),
    ]
    return write(nodes, held, ["N", 3, 6, 6], ["N", 5, 4, 4])


def depthwise() -> bytes:
    """As an inverted residual has it: 1x1, depthwise 3x3, 1x1."""
    held = random_weights(w=(8, 3, 1, 1), b=(8,), d=(8, 1, 3, 3), c=(8,), v=(4, 8, 1, 1), e=(4,))
    constant_half(held["w"])
    nodes = [
        node("Conv", "x w b", "wide"),
        node("Relu", "wide", "relu"),
        node("Conv", "relu d c", "depthwise", group=8),
        node("Conv", "depthwise v e", "y"),
    ]
    return write(nodes, held, ["N", 3, 6, 6], ["N", 4, 4, 4])


def flattened() -> bytes:
    """Conv, MaxPool, Flatten, Gemm: a channel is several inputs."""
    held = random_weights(w=(8, 3, 3, 3), b=(8,), v=(4, 32), e=(4,))
    constant_half(held["w"])
    nodes = [
        node("Conv", "x w b", "conv"),
        node("MaxPool", "conv", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "pool", "flat", axis=1),
        node("Gemm", "flat v e", "y", transB=1),
    ]
    return write(nodes, held, ["N", 3, 6, 6], ["N", 4])


def products() -> bytes:
    """Two Gemms, one of them transposed and scaled."""
    held = random_weights(w=(5, 8), b=(8,), v=(4, 8), e=(4,))
    constant_half(held["w"], axis=1)
    nodes = [
        node("Gemm", "x w b", "hidden"),
        node("Relu", "hidden", "relu"),
        node("Gemm", "relu v e", "y", transB=1, alpha=2.0, beta=0.5),
    ]
    return write(nodes, held, ["N", 5], ["N", 4])


@pytest.mark.parametrize(
    ("network", "x"),
    [(convolutions, PICTURES), (depthwise, PICTURES), (flattened, PICTURES), (products, ROWS)],
)
def test_constant_channels_leave_and_nothing_changes(
    network: Callable[[], bytes], x: np.ndarray
) -> None:
    source = network()
    result = made(HALF, source, CalibrationData.of({"x": x}))
    assert run(result, x) == pytest.approx(run(source, x), rel=1e-4, abs=1e-4)
    before, after = inspect_onnx(source).parameter_count, inspect_onnx(result).parameter_count
    assert after < 0.62 * before
    first = weights(read_model(result))[0].array.shape
    assert first in [(4, 3, 3, 3), (4, 3, 1, 1), (5, 4)]


def test_those_leave_that_matter_least() -> None:
    held = random_weights(w=(5, 8), v=(8, 4))
    nodes = [node("Gemm", "x w", "hidden"), node("Gemm", "hidden v", "y")]
    source = write(nodes, held, ["N", 5], ["N", 4])
    losses = (ROWS @ held["w"]).var(axis=0) * (held["v"] ** 2).sum(axis=1)
    stay = np.sort(np.argsort(losses)[2:])
    step = {"prune-structured": {"share": 0.25, "multiple_of": 1}}
    result = read_model(made(step, source, CalibrationData.of({"x": ROWS})))
    kept = {each.node.name: each.array for each in weights(result)}
    assert np.array_equal(kept["hidden"], held["w"][:, stay])
    assert np.array_equal(kept["y"], held["v"][stay])


def data() -> CalibrationData:
    return CalibrationData.of({"x": PICTURES})


def refusal(nodes: list[Any], held: Arrays, output: list[Any]) -> str:
    with pytest.raises(InvalidInputError) as caught:
        made(HALF, write(nodes, held, ["N", 3, 6, 6], output), data())
    return str(caught.value)


class TestRefusals:
    def test_a_residual_network_is_told_why(self) -> None:
        held = random_weights(w=(3, 3, 1, 1), v=(4, 3, 1, 1))
        nodes = [
            node("Conv", "x w", "conv"),
            node("Add", "conv x", "sum"),
            node("Conv", "sum v", "y"),
        ]
        words = refusal(nodes, held, ["N", 4, 6, 6])
        assert "conv: Add sum reads it" in words
        assert "y: its output is an output of the model" in words

    def test_a_branch_is_told(self) -> None:
        held = random_weights(w=(8, 3, 1, 1), v=(4, 8, 1, 1))
        nodes = [
            node("Conv", "x w", "conv"),
            node("Conv", "conv v", "left"),
            node("Conv", "conv v", "right"),
            node("Add", "left right", "y"),
        ]
        assert "conv: its output is read 2 times" in refusal(nodes, held, ["N", 4, 6, 6])

    def test_a_weight_of_two_layers_is_told(self) -> None:
        held = random_weights(w=(3, 3, 1, 1))
        nodes = [node("Conv", "x w", "first"), node("Conv", "first w", "y")]
        words = refusal(nodes, held, ["N", 3, 6, 6])
        assert "first: Conv first shares or computes w" in words

    def test_too_few_channels_to_lose_eight(self) -> None:
        with pytest.raises(InvalidInputError, match="multiple_of: got 8"):
            made({"prune-structured": {"share": 0.1}}, convolutions(), data())


def test_reasons_are_by_layer() -> None:
    chains, refused = find_chains(read_model(depthwise()).graph)
    assert [(c.writes.name, [b.name for b in c.between], c.reads.name) for c in chains] == [
        ("wide", ["depthwise"], "y")
    ]
    assert refused == {
        "depthwise": "its convolution is grouped",
        "y": "its output is an output of the model",
    }


def test_a_layer_that_only_a_branch_reads_begins_no_chain() -> None:
    branches = {
        name: helper.make_graph(
            [node(kind, read, name)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4])],
        )
        for name, kind, read in (("then", "Relu", "wide"), ("else", "Neg", "x"))
    }
    choice = node("If", "yes", "y", then_branch=branches["then"], else_branch=branches["else"])
    held = random_weights(w=(4, 4)) | {"yes": np.array(True)}
    source = write([node("Gemm", "x w", "wide"), choice], held, ["N", 4], ["N", 4])
    assert find_chains(read_model(source).graph) == ([], {"wide": "If y reads it"})
