"""Reading and replacing a graph's constants, and who reads what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.canonical import reads

WEIGHTED: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose second input is a weight, if it is a constant."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A layer's constant weight.

    Attributes:
        array: its values, read-only; a copy of what the graph holds.
    """

    node: NodeProto
    name: str
    array: NDArray[Any]


def constants(graph: GraphProto) -> dict[str, TensorProto]:
    """The graph's constants by name."""
    return {tensor.name: tensor for tensor in graph.initializer}


def weights(model: ModelProto) -> list[Weight]:
    """The float32 weights of convolutions and matrix products, in the nodes' order."""
    held = constants(model.graph)
    return [
        Weight(node, node.input[1], numpy_helper.to_array(held[node.input[1]]))
        for node in model.graph.node
        if node.op_type in WEIGHTED
        and node.input[1] in held
        and held[node.input[1]].data_type == TensorProto.FLOAT
    ]


def require_weights(model: ModelProto, maker: str, hint: str = "") -> list[Weight]:
    """``weights``; InvalidInputError, which names ``maker`` and ends in ``hint``, without any."""
    found = weights(model)
    if not found:
        allowed = "a convolution or a matrix product of constants"
        raise InvalidInputError.of(f"{maker}: model", "no float32 weights", allowed, hint)
    return found


def replace(tensor: TensorProto, array: NDArray[Any]) -> None:
    """Put ``array`` in the place of a constant's value; it keeps its name."""
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def add_constant(graph: GraphProto, name: str, array: NDArray[Any]) -> str:
    """Add a constant under ``name``, or under one made from it that is free; returns the name."""
    taken = {tensor.name for tensor in graph.initializer} | set(_written(graph))
    while name in taken:
        name += "_"
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    return name


def readers(graph: GraphProto) -> Counter[str]:
    """How often each tensor is read, the graph's outputs counted as readings."""
    found = Counter(name for node in graph.node for name in reads(node))
    found.update(value.name for value in graph.output)
    return found


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """The value of a node's attribute, or ``default``."""
    for each in node.attribute:
        if each.name == name:
            return onnx.helper.get_attribute_value(each)
    return default


def _written(graph: GraphProto) -> Iterator[str]:
    for value in graph.input:
        yield value.name
    for node in graph.node:
        yield from node.output
