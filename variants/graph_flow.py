"""How data flows through a graph: which nodes compute, how deep, and what they read and write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from onnx import NodeProto

from modelless.variants.item_graph import UNKNOWN, ItemGraph, Tensor
from modelless.variants.parameters import stored_bytes

_READING_SIZES: Final = frozenset({"Shape", "Size"})
_VIEWS: Final = frozenset(
    {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
    # Engines fuse these with their neighbours, whose tensors then lie in the quantised format.
    | {"QuantizeLinear", "DequantizeLinear"}
)


class GraphFlow:
    """The nodes that compute on what a caller hands in, and the bytes they move.

    Attributes:
        compute: those nodes. Left out are views, quantisation, and whatever follows from constants
            and sizes alone.
        depth: how many of them lie on the longest way.
        has_unknown_sizes: whether the size of anything they read or write is unknown.
    """

    def __init__(self, graph: ItemGraph) -> None:
        self._graph = graph
        self._producers = {name: node for node in graph.nodes for name in node.output if name}
        self._consumers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in graph.nodes:
            for name in node.input:
                self._consumers[name].append(node)
        self.compute: list[NodeProto] = []
        depths = dict.fromkeys(graph.inputs, 0)
        for node in graph.nodes:
            before = [depths[name] for name in node.input if name in depths]
            if not before or node.op_type in _READING_SIZES:
                continue
            computes = node.op_type not in _VIEWS
            if computes:
                self.compute.append(node)
            depths.update(dict.fromkeys(node.output, max(before) + computes))
        self.depth = max(depths.values(), default=0)
        self.has_unknown_sizes = any(
            graph.tensors.get(name, UNKNOWN).shape is None for name in depths if name
        )

    def written_bytes(self) -> int | None:
        """What all compute nodes write; None if any of it is unknown."""
        return _sum(self._bytes_of(name) for node in self.compute for name in node.output if name)

    def moved_bytes(self, node: NodeProto) -> int | None:
        """What ``node`` reads, weights included, and writes; None if any of it is unknown."""
        names = {name for name in (*node.input, *node.output) if name}
        return _sum(self._bytes_of(name) for name in names)

    def _bytes_of(self, name: str) -> int | None:
        """Size of a tensor in the format in which it lies in memory."""
        stored = self._stored(name)
        if stored.elements is None:
            return None
        try:
            return stored_bytes(stored.elements, stored.element_type)
        except (KeyError, TypeError, ValueError):  # of unknown type, or text
            return None

    def _stored(self, name: str) -> Tensor:
        tensor = self._graph.tensors.get(name, UNKNOWN)
        producer = self._producers.get(name)
        if producer is not None and producer.op_type == "DequantizeLinear":
            return Tensor(tensor.shape, self._graph.input_of(producer, 0).element_type)
        readers = self._consumers.get(name, [])
        if readers and all(node.op_type == "QuantizeLinear" for node in readers):
            return Tensor(tensor.shape, self._graph.output_of(readers[0]).element_type)
        return tensor


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total
