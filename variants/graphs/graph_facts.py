"""Facts of a graph for a cost model: its computation and its traffic, read without running it.

The facts are those that papers on latency prediction found to matter: multiply-adds, and
activations, which say more of latency than multiply-adds do ("Designing Network Design Spaces",
CVPR 2020, section 3.3).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from onnx import ModelProto, NodeProto

from modelless.variants.graphs.item_graph import (
    UNKNOWN,
    ItemGraph,
    Tensor,
    has_subgraph,
    read_item_graph,
)
from modelless.variants.graphs.multiply_adds import Layer, layers_of, total_multiply_adds
from modelless.variants.graphs.parameters import count_parameters, stored_bytes, weights_precision
from modelless.variants.vocabulary import Precision

READER: Final = 2
"""Rises when facts come to mean something else; facts of another reader are read anew."""
_READING_SIZES: Final = frozenset({"Shape", "Size"})
_VIEWS: Final = frozenset(
    {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
    # Engines fuse these with their neighbours, whose tensors then lie in the quantised format.
    | {"QuantizeLinear", "DequantizeLinear"}
)


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Facts of a graph for one item. A fact that cannot be told for certain is None.

    Attributes:
        activation_bytes: what all compute nodes write, an engine's fusing aside. A tensor that is
            quantised at once, or dequantised to be read, counts in the quantised format, as engines
            fuse it.
        activation_count: elements that layers write ("mactivations", in millions, elsewhere).
        layers: number of nodes that multiply.
        precision: the format of most weights.
        resolution_px: side of what the first convolution reads (of the square of the same area).
    """

    multiply_adds: int | None
    parameter_count: int
    activation_bytes: int | None
    activation_count: int | None
    layers: int | None
    precision: Precision | None
    resolution_px: int | None

    def document(self) -> dict[str, Any]:
        return {"reader": READER, **asdict(self)}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> GraphFacts | None:
        """The facts that a document holds; None if another reader wrote it."""
        if document.get("reader") != READER:
            return None
        fields = {name: value for name, value in document.items() if name != "reader"}
        precision = fields["precision"]
        fields["precision"] = None if precision is None else Precision(precision)
        return cls(**fields)


def read_graph_facts(model: ModelProto, *, resolution_px: int | None = None) -> GraphFacts:
    """Read the facts of ``model`` for one item. Never fails on a valid graph: see ``GraphFacts``.

    Args:
        model: with or without its external data, of which only the shapes are read.
        resolution_px: height and width of pictures where the graph leaves both free. What a graph
            does before it resizes a picture to a size of its own depends on it, the rest does not.
    """
    graph = read_item_graph(model, resolution_px=resolution_px)
    layers = layers_of(graph)
    is_whole = not any(has_subgraph(node) for node in graph.nodes)
    return GraphFacts(
        multiply_adds=total_multiply_adds(layers),
        parameter_count=count_parameters(model),
        activation_bytes=_activation_bytes(graph) if is_whole else None,
        activation_count=_activation_count(layers, graph) if is_whole else None,
        layers=len(layers) if all(layer.is_known for layer in layers) else None,
        precision=weights_precision(model),
        resolution_px=_resolution(graph),
    )


def _activation_bytes(graph: ItemGraph) -> int | None:
    """Bytes that all compute nodes write; None if any of it is unknown."""
    producers = {name: node for node in graph.nodes for name in node.output if name}
    consumers: dict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.nodes:
        for name in node.input:
            consumers[name].append(node)
    total = 0
    for node in _compute_nodes(graph):
        for name in filter(None, node.output):
            stored = graph.tensors.get(name, UNKNOWN)
            producer, readers = producers[name], consumers[name]
            if producer.op_type == "DequantizeLinear":
                stored = Tensor(stored.shape, graph.input_of(producer, 0).element_type)
            elif readers and all(each.op_type == "QuantizeLinear" for each in readers):
                stored = Tensor(stored.shape, graph.output_of(readers[0]).element_type)
            if stored.elements is None:
                return None
            try:
                total += stored_bytes(stored.elements, stored.element_type)
            except (KeyError, TypeError, ValueError):  # of unknown type, or text
                return None
    return total


def _compute_nodes(graph: ItemGraph) -> Iterator[NodeProto]:
    """The nodes that compute on what a caller hands in.

    Left out are views, quantisation, and whatever follows from constants and sizes alone.
    """
    reached = set(graph.inputs)
    for node in graph.nodes:
        if node.op_type not in _READING_SIZES and reached.intersection(node.input):
            reached.update(node.output)
            if node.op_type not in _VIEWS:
                yield node


def _activation_count(layers: Sequence[Layer], graph: ItemGraph) -> int | None:
    counts = [graph.output_of(layer.node).elements for layer in layers]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _resolution(graph: ItemGraph) -> int | None:
    for node in graph.nodes:
        if node.op_type in ("Conv", "FusedConv", "ConvInteger", "QLinearConv"):
            shape = graph.input_of(node, 0).shape
            return round(math.sqrt(shape[2] * shape[3])) if shape and len(shape) == 4 else None
    return None
