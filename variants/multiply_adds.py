"""Counting a graph's multiply-adds for one item, where shape inference can tell the shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, shape_inference

# Operator -> index of its weight among its inputs.
_CONVOLUTIONS: Mapping[str, int] = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "FusedConv": 1}
_PRODUCTS = frozenset(
    {"MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "QGemm", "FusedMatMul", "FusedGemm"}
)
_OTHERS_THAT_MULTIPLY = frozenset(
    {"ConvTranspose", "LSTM", "GRU", "RNN", "Einsum", "DeformConv", "Attention", "QAttention"}
    | {"If", "Loop", "Scan", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulNBits"}
)
_SMALL_ELEMENTS = 1024  # constants up to this size may be shapes, which inference must see


def count_multiply_adds(model: ModelProto) -> int | None:
    """Multiply-adds of the convolutions and matrix products for one item; None if any is unknown.

    A free first axis of an input counts items, so it is taken as one. Other free sizes (a picture's
    height and width) must be fixed by the graph itself, as a resize to a constant size does.
    """
    names = {node.op_type for node in model.graph.node}
    local = {function.name for function in model.functions}
    if names & _OTHERS_THAT_MULTIPLY or names & local:
        return None
    total = 0
    shapes: dict[str, tuple[int, ...] | None] | None = None
    for node in model.graph.node:
        if node.op_type not in _CONVOLUTIONS and node.op_type not in _PRODUCTS:
            continue
        if shapes is None:
            shapes = _shapes(model)
        count = _of_node(node, shapes)
        if count is None:
            return None
        total += count
    return total


def _of_node(node: NodeProto, shapes: Mapping[str, tuple[int, ...] | None]) -> int | None:
    output = shapes.get(node.output[0])
    if output is None:
        return None
    if node.op_type in _CONVOLUTIONS:
        weight = shapes.get(node.input[_CONVOLUTIONS[node.op_type]])
        if weight is None:
            return None
        return math.prod(output) * math.prod(weight[1:])  # channels already divided by the groups
    left = shapes.get(node.input[0])
    if not left:
        return None
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    return math.prod(output) * left[-2 if transposed and len(left) > 1 else -1]


def _shapes(model: ModelProto) -> dict[str, tuple[int, ...] | None]:
    """Shape by name for one item; None where a size is still free."""
    lean = _without_weights(model)
    try:
        graph = shape_inference.infer_shapes(lean, data_prop=True).graph
    except Exception:  # noqa: BLE001 (it raises its own kinds; an unknown count harms nothing)
        return {}
    shapes: dict[str, tuple[int, ...] | None] = {
        tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer
    }
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.name in shapes or not value.type.tensor_type.HasField("shape"):
            continue
        sizes = [
            size.dim_value if size.HasField("dim_value") else -1
            for size in value.type.tensor_type.shape.dim
        ]
        shapes[value.name] = None if -1 in sizes else tuple(sizes)
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    shapes[node.output[0]] = tuple(attribute.t.dims)
    return shapes


def _without_weights(model: ModelProto) -> ModelProto:
    """A copy for one item, large initializers reduced to their shapes: quick to infer on."""
    lean = ModelProto(ir_version=model.ir_version)
    lean.opset_import.extend(model.opset_import)
    lean.graph.CopyFrom(_graph_without_weights(model.graph))
    return lean


def _graph_without_weights(graph: GraphProto) -> GraphProto:
    lean = GraphProto(name=graph.name)
    lean.node.extend(graph.node)
    lean.input.extend(graph.input)
    lean.output.extend(graph.output)
    declared = {value.name for value in graph.input}
    initialized = {tensor.name for tensor in graph.initializer}
    for value in lean.input:
        sizes = value.type.tensor_type.shape.dim
        if value.name not in initialized and sizes and not sizes[0].HasField("dim_value"):
            sizes[0].dim_value = 1
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= _SMALL_ELEMENTS:
            lean.initializer.append(tensor)
        elif tensor.name not in declared:
            value = lean.input.add(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type or TensorProto.FLOAT
            for size in tensor.dims:
                value.type.tensor_type.shape.dim.add(dim_value=size)
    return lean
