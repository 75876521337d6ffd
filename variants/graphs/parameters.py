"""The numbers that a graph has learned: how many, and in which format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

from modelless.variants.graphs import traversal as onnx_graphs
from modelless.variants.graphs.item_graph import whole_attribute
from modelless.variants.vocabulary import Precision

# Operator -> which of its inputs are scales and zero points.
_SCALES: Final[Mapping[str, tuple[int, ...]]] = {
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "MatMulNBits": (2, 3),
    "QGemm": (1, 2, 4, 5, 7, 8),
    **dict.fromkeys(
        ("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), (1, 2, 4, 5, 6, 7)
    ),
}
_HALF_BYTE: Final = frozenset({TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1})
_PRECISIONS: Final[Mapping[int, Precision]] = {
    TensorProto.FLOAT: Precision.FP32,
    TensorProto.FLOAT16: Precision.FP16,
    TensorProto.BFLOAT16: Precision.BF16,
    TensorProto.INT8: Precision.INT8,
    TensorProto.UINT8: Precision.INT8,
    TensorProto.INT4: Precision.INT4,
    TensorProto.UINT4: Precision.INT4,
}
_CLASSICAL_DOMAIN: Final = "ai.onnx.ml"
_PACKED: Final = {4: Precision.INT4, 8: Precision.INT8}


def count_parameters(model: ModelProto) -> int:
    """Elements of the weights, quantisation scales and shape constants left out."""
    packed = {node.input[1]: _unpacked(node) for node in _packing(model)}
    scales = {
        name
        for node in onnx_graphs.nodes(model)
        for index, name in enumerate(node.input)
        if index in _SCALES.get(node.op_type, ())
    }
    in_tensors = sum(
        # A byte holds no more than 8 numbers, whatever the node says.
        min(packed.get(tensor.name, stored := math.prod(map(int, tensor.dims))), 8 * stored)
        for tensor in _initializers(model)
        if tensor.data_type != TensorProto.INT64 and tensor.name not in scales
    )
    return in_tensors + sum(len(each.floats) for each in _learned_attributes(model))


def weights_precision(model: ModelProto) -> Precision | None:
    """The format that most weights have; None without weights of a format we have a name for.

    A weight counts in the format in which it is multiplied: one that the graph itself quantises
    (float32, then QuantizeLinear) as quantised.
    """
    types = {tensor.name: tensor.data_type for tensor in _initializers(model)}
    quantised = {
        node.input[0]: _quantised_as(node, types)
        for node in onnx_graphs.nodes(model)
        if node.op_type == "QuantizeLinear"
    }
    packed = {
        node.input[1]: (_PACKED.get(whole_attribute(node, "bits", 4)), _unpacked(node))
        for node in _packing(model)
    }
    found: Counter[Precision] = Counter()
    for tensor in _initializers(model):
        precision = quantised.get(tensor.name, _PRECISIONS.get(tensor.data_type))
        precision, elements = packed.get(tensor.name, (precision, math.prod(tensor.dims)))
        if precision is not None:
            found[precision] += elements
    found[Precision.FP32] += sum(len(each.floats) for each in _learned_attributes(model))
    best, elements = found.most_common(1)[0]
    return best if elements else None


def stored_bytes(elements: int, element_type: int) -> int:
    """Size of so many elements; ValueError or KeyError for a type of no fixed size."""
    if element_type in _HALF_BYTE:
        return (elements + 1) // 2
    return elements * int(helper.tensor_dtype_to_np_dtype(element_type).itemsize)


def _initializers(model: ModelProto) -> Iterator[TensorProto]:
    for graph in onnx_graphs.graphs(model):
        yield from graph.initializer


def _learned_attributes(model: ModelProto) -> Iterator[AttributeProto]:
    """Classical models hold what they learned in lists of floats, beside lists of indices."""
    for node in onnx_graphs.nodes(model):
        if node.domain == _CLASSICAL_DOMAIN:
            yield from node.attribute


def _packing(model: ModelProto) -> Iterator[NodeProto]:
    """Products whose weight lies packed, several numbers a byte: B, its scales, its zero points."""
    return (
        node
        for node in onnx_graphs.nodes(model)
        if node.op_type == "MatMulNBits" and len(node.input) > 2
    )


def _unpacked(node: NodeProto) -> int:
    return whole_attribute(node, "K", 0) * whole_attribute(node, "N", 0)


def _quantised_as(node: NodeProto, types: Mapping[str, int]) -> Precision | None:
    """The format of what a QuantizeLinear writes: its zero point's, ONNX's uint8 without one."""
    zero_point = types.get(node.input[2]) if len(node.input) > 2 else TensorProto.UINT8
    return None if zero_point is None else _PRECISIONS.get(zero_point)
