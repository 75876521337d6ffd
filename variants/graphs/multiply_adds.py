"""Counting a graph's multiply-adds for one item, layer by layer, where the shapes can be told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from onnx import ModelProto, NodeProto

from modelless.variants.graphs.item_graph import (
    ONNX_RUNTIME_DOMAIN,
    STAND_INS,
    STANDARD_DOMAINS,
    ItemGraph,
    has_subgraph,
    read_item_graph,
    whole_attribute,
)

# Operator -> index of its weight among its inputs.
_CONVOLUTIONS: Final[Mapping[str, int]] = {
    "Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "FusedConv": 1, "QLinearConv": 3,
}  # fmt: skip
_PRODUCTS: Final = frozenset(
    {"MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "QGemm", "FusedMatMul", "FusedGemm"}
    | {"DynamicQuantizeMatMul", "MatMulNBits"}
)
_RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})
# Classical models (ai.onnx.ml) -> the attribute whose every number takes part in one multiply-add.
_CLASSICAL: Final[Mapping[str, str]] = {
    "LinearClassifier": "coefficients", "LinearRegressor": "coefficients",
    "SVMClassifier": "support_vectors", "SVMRegressor": "support_vectors",
}  # fmt: skip
_STANDARD_UNCOUNTED: Final = frozenset({"Einsum", "DeformConv", "LinearAttention"})
_CLASSICAL_DOMAIN: Final = "ai.onnx.ml"
_MOST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Layer:
    """A node that multiplies and adds, or may.

    Attributes:
        multiply_adds: for one item; None if unknown.
        is_known: False if it may multiply, and how much is not known.
    """

    node: NodeProto
    multiply_adds: int | None
    is_known: bool


def count_multiply_adds(model: ModelProto) -> int | None:
    """Multiply-adds of all layers for one item; None if unknown: see ``total_multiply_adds``."""
    return total_multiply_adds(layers_of(read_item_graph(model)))


def total_multiply_adds(layers: list[Layer]) -> int | None:
    """The layers' sum; None if that of any is unknown, or it is larger than a store can hold."""
    counts = [layer.multiply_adds for layer in layers]
    known = [count for count in counts if count is not None]
    total = sum(known)
    return total if len(known) == len(counts) and total <= _MOST else None


def layers_of(graph: ItemGraph) -> list[Layer]:
    """Every node that multiplies, or may, in the graph's order."""
    rules = ((node, _rule_of(node)) for node in graph.nodes)
    return [
        Layer(node, rule(node, graph), rule is not _unknown)
        for node, rule in rules
        if rule is not None
    ]


def _rule_of(node: NodeProto) -> Callable[[NodeProto, ItemGraph], int | None] | None:
    """What counts a node's multiply-adds; None if it has none."""
    operator = node.op_type
    if has_subgraph(node):
        return _unknown
    if node.domain == _CLASSICAL_DOMAIN:
        return _of_classical if operator in _CLASSICAL else None
    if node.domain not in STANDARD_DOMAINS and node.domain != ONNX_RUNTIME_DOMAIN:
        return _unknown  # a function of the file that could not be put in its place
    if operator in _CONVOLUTIONS:
        return _of_convolution
    if operator in _PRODUCTS:
        return _of_product
    if node.domain == ONNX_RUNTIME_DOMAIN:
        return None if operator in STAND_INS else _unknown  # those that are left are elementwise
    if operator in _RECURRENT:
        return _of_recurrent
    if operator == "Attention":
        return _of_attention
    return _unknown if operator in _STANDARD_UNCOUNTED else None


def _unknown(node: NodeProto, graph: ItemGraph) -> int | None:
    del node, graph
    return None


def _of_convolution(node: NodeProto, graph: ItemGraph) -> int | None:
    weight = graph.input_of(node, _CONVOLUTIONS[node.op_type]).shape
    transposed = node.op_type == "ConvTranspose"
    slid_over = (graph.input_of(node, 0) if transposed else graph.output_of(node)).elements
    if weight is None or slid_over is None:
        return None
    return slid_over * math.prod(weight[1:])  # channels already divided by the groups


def _of_product(node: NodeProto, graph: ItemGraph) -> int | None:
    elements, left = graph.output_of(node).elements, graph.input_of(node, 0).shape
    if elements is None or not left:
        return None
    transposed = whole_attribute(node, "transA", 0) != 0 and len(left) > 1
    return elements * left[-2 if transposed else -1]


def _of_recurrent(node: NodeProto, graph: ItemGraph) -> int | None:
    """Each step of each sequence multiplies by all of W [D, gates, in] and R [D, gates, hidden]."""
    x, w, r = (graph.input_of(node, index) for index in range(3))
    if x.shape is None or w.elements is None or r.elements is None:
        return None
    return math.prod(x.shape[:-1]) * (w.elements + r.elements)


def _of_attention(node: NodeProto, graph: ItemGraph) -> int | None:
    """Scores, queries by keys; then the weighted sums, what is written by keys."""
    queries, keys = graph.input_of(node, 0).elements, graph.input_of(node, 1).shape
    written = graph.output_of(node).elements
    if queries is None or keys is None or written is None:
        return None
    length = keys[-2]
    if len(node.input) > 4 and node.input[4]:
        past = graph.input_of(node, 4).shape
        if past is None:
            return None
        length += past[-2]
    return (queries + written) * length


def _of_classical(node: NodeProto, graph: ItemGraph) -> int | None:
    shape = graph.input_of(node, 0).shape
    if shape is None:
        return None
    wanted = _CLASSICAL[node.op_type]
    numbers = next((len(each.floats) for each in node.attribute if each.name == wanted), 0)
    return math.prod(shape[:-1]) * numbers
