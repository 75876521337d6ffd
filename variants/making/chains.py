"""Where channels can leave a network: along chains, where one path leads from layer to layer.

A chain begins with a Conv or a Gemm, passes only what treats every channel by itself, and ends with
the one Conv or Gemm that reads it. Of a layer that begins no chain, the reason is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from onnx import GraphProto, NodeProto, TensorProto

from modelless.variants.graphs.canonical import reads
from modelless.variants.graphs.weights import attribute, constants, readers

_BY_CHANNEL: Final = frozenset(
    [
        "AveragePool",
        "Clip",
        "Dropout",
        "Elu",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "MaxPool",
        "Relu",
        "Sigmoid",
        "Tanh",
    ]
)
"""Operators that treat every channel alike and by itself, so that nothing of theirs is cut."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A layer, what lies behind it, and the layer that reads it.

    Attributes:
        writes: Conv or Gemm whose output channels may leave.
        between: batch normalisations and depthwise convolutions, whose parameters are cut too.
        reads: Conv or Gemm whose input channels leave with them.
    """

    writes: NodeProto
    between: tuple[NodeProto, ...]
    reads: NodeProto


@dataclass(slots=True)
class Chains:
    """The chains of a graph.

    Attributes:
        found: chains, in the order of their layers.
        refused: by layer, why it begins none.
    """

    found: list[Chain] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def find_chains(graph: GraphProto) -> Chains:
    """Every chain of ``graph``, and why the other layers begin none."""
    held = {
        name: tensor
        for name, tensor in constants(graph).items()
        if tensor.data_type == TensorProto.FLOAT
    }
    counts = readers(graph)
    following: dict[str, NodeProto] = {}
    for node in graph.node:
        for name in reads(node):
            following[name] = node
    outputs = {value.name for value in graph.output}
    result = Chains()
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm") or node.input[1] not in held:
            continue
        walk = _Walk(held, counts, following, outputs)
        try:
            result.found.append(walk.from_layer(node))
        except _NoChain as error:
            result.refused[node.name] = str(error)
    return result


class _NoChain(Exception):
    """Why a layer begins no chain."""


@dataclass(frozen=True, slots=True)
class _Walk:
    held: Mapping[str, TensorProto]
    counts: Mapping[str, int]
    following: Mapping[str, NodeProto]
    outputs: set[str]

    def from_layer(self, layer: NodeProto) -> Chain:
        if layer.op_type == "Conv" and attribute(layer, "group", 1) != 1:
            raise _NoChain("its convolution is grouped")
        self._own(layer, layer.input[1:])
        between: list[NodeProto] = []
        name, flat = layer.output[0], layer.op_type == "Gemm"
        while True:
            if name in self.outputs:
                raise _NoChain("its output is an output of the model")
            if self.counts[name] != 1:
                raise _NoChain(f"its output is read {self.counts[name]} times")
            node = self.following[name]
            if node.op_type in _BY_CHANNEL and node.input[0] == name:
                pass
            elif node.op_type == "Flatten" and attribute(node, "axis", 1) == 1:
                flat = True
            elif node.op_type == "BatchNormalization" or (not flat and self._is_depthwise(node)):
                if flat and layer.op_type == "Conv":
                    raise _NoChain(f"{node.op_type} {node.name} follows its Flatten")
                self._own(node, node.input[1:])
                between.append(node)
            elif self._ends(node, name, flat):
                self._own(node, node.input[1:])
                return Chain(layer, tuple(between), node)
            else:
                raise _NoChain(f"{node.op_type} {node.name} reads it")
            name = node.output[0]

    def _ends(self, node: NodeProto, name: str, flat: bool) -> bool:
        if node.input[0] != name or len(node.input) < 2 or node.input[1] not in self.held:
            return False
        if node.op_type == "Conv":
            return not flat and attribute(node, "group", 1) == 1
        plain = not attribute(node, "transA", 0) and attribute(node, "beta", 1.0) != 0
        return flat and node.op_type == "Gemm" and plain

    def _is_depthwise(self, node: NodeProto) -> bool:
        if node.op_type != "Conv" or node.input[1] not in self.held:
            return False
        out, per_group = self.held[node.input[1]].dims[:2]
        return bool(per_group == 1 and attribute(node, "group", 1) == out)

    def _own(self, node: NodeProto, names: Sequence[str]) -> None:
        for name in names:
            if name and (name not in self.held or self.counts[name] != 1):
                raise _NoChain(f"{node.op_type} {node.name} shares or computes {name}")
