"""Weights of matrix products in 4 bits per block; activations and arithmetic stay float.

Rounds to nearest within blocks of one column, each with its own scale, as ONNX Runtime's
``MatMulNBits`` takes them,
https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html. Weight-only
quantisation pays if reading weights takes most of the time, as with large matrices at batch 1:
Frantar et al., "GPTQ", ICLR 2023, https://arxiv.org/abs/2210.17323, section 1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper
from pydantic import Field

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.variants.graphs.canonical import refill
from modelless.variants.graphs.weights import add_constant, attribute, constants, weights
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker
from modelless.variants.making.session import import_onnxruntime
from modelless.variants.vocabulary import Precision


class Int4Weights(Maker):
    """4-bit weights by block for matrix products; convolutions stay as they are."""

    name: ClassVar[str] = "int4-weights"
    precision: ClassVar[Precision | None] = Precision.INT4
    tools: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "onnx_ir", "numpy")

    block_size: Literal[16, 32, 64, 128, 256] = Field(32, description="weights that share a scale")
    symmetric: bool = Field(False, description="no zero points: one constant less per block")

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        quantizer = _quantizer()
        _gemm_to_matmul(model)
        products = [weight for weight in weights(model) if weight.node.op_type == "MatMul"]
        if not products:
            raise InvalidInputError.of(
                "int4-weights: model",
                "no matrix product with a constant float32 weight",
                "one MatMul or Gemm at least",
                "Convolutions have no 4-bit form here; int8-static takes them.",
            )
        share = sum(weight.array.size for weight in products) / sum(
            weight.array.size for weight in weights(model)
        )
        process = quantizer(model, bits=4, block_size=self.block_size, is_symmetric=self.symmetric)
        process.process()
        return Made(
            process.model.model,
            (
                f"{share:.0%} of the weights are 4-bit, in {len(products)} matrix products",
                "its MatMulNBits is an operator of ONNX Runtime alone",
            ),
        )


def _quantizer() -> type:
    import_onnxruntime()
    try:
        with _logging_kept():  # its import sets up logging for the whole process
            from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"int4-weights: {error}: pip install 'modelless[making]'"
        ) from error
    found: type = MatMulNBitsQuantizer
    return found


@contextmanager
def _logging_kept() -> Iterator[None]:
    """The root logger's handlers and level as they were, whatever an import sets up meanwhile."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def _gemm_to_matmul(model: ModelProto) -> None:
    """Write each ``Gemm`` that is a plain linear layer as MatMul and Add; the others stay."""
    graph = model.graph
    held = constants(graph)
    linear = {weight.name for weight in weights(model)}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type != "Gemm" or node.input[1] not in linear or not _is_plain(node):
            nodes.append(node)
            continue
        array = numpy_helper.to_array(held[node.input[1]])
        if attribute(node, "transB", 0):
            array = array.T
        name = add_constant(graph, f"{node.input[1]}/columns", np.asarray(array))
        biased = len(node.input) > 2
        product = f"{node.output[0]}/product" if biased else node.output[0]
        nodes.append(
            helper.make_node(
                "MatMul", [node.input[0], name], [product], name=f"{node.name}/product"
            )
        )
        if biased:
            nodes.append(
                helper.make_node("Add", [product, node.input[2]], [*node.output], name=node.name)
            )
    refill(graph.node, nodes)


def _is_plain(node: NodeProto) -> bool:
    return (
        attribute(node, "alpha", 1.0) == 1.0
        and attribute(node, "beta", 1.0) == 1.0
        and not attribute(node, "transA", 0)
    )
