"""Facts of a graph for a cost model: its computation and its traffic, read without running it.

The facts are those that papers on latency prediction found to matter: multiply-adds by kind of
layer, since kinds run at different speeds (nn-Meter, MobiSys 2021); activations, which say more of
latency than multiply-adds do ("Designing Network Design Spaces", CVPR 2020, section 3.3); and
arithmetic intensity, which says whether a layer waits for arithmetic or for memory (Williams,
Waterman and Patterson, "Roofline", CACM 2009).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from onnx import ModelProto, NodeProto
from pydantic import TypeAdapter

from modelless.variants.graphs import traversal as onnx_graphs
from modelless.variants.graphs.item_graph import (
    STANDARD_DOMAINS,
    UNKNOWN,
    ItemGraph,
    Tensor,
    has_subgraph,
    read_item_graph,
)
from modelless.variants.graphs.multiply_adds import Layer, LayerKind, layers_of, total_multiply_adds
from modelless.variants.graphs.parameters import (
    count_parameters,
    stored_bytes,
    weight_bytes,
    weights_precision,
)
from modelless.variants.vocabulary import Precision

# How data flows through a graph: which nodes compute, how deep, and what they read and write.

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
        """Bytes that all compute nodes write; None if any of it is unknown."""
        return _sum(self._bytes_of(name) for node in self.compute for name in node.output if name)

    def moved_bytes(self, node: NodeProto) -> int | None:
        """Bytes that ``node`` reads, weights included, and writes; None if any is unknown."""
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


READER: Final = 1
"""Rises when facts come to mean something else; facts of another reader are read anew."""

LARGEST_LAYERS: Final = 8
INTENSITIES: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Where the bands of arithmetic intensity begin, multiply-adds a byte."""


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One layer, an item.

    Attributes:
        moved_bytes: inputs, weights and outputs, each once, as they lie in memory.
    """

    kind: LayerKind
    multiply_adds: int
    moved_bytes: int

    @property
    def intensity(self) -> float:
        """Multiply-adds a byte moved."""
        return self.multiply_adds / self.moved_bytes if self.moved_bytes else 0.0


@dataclass(frozen=True, slots=True)
class IntensityBand:
    """All layers of an intensity from ``from_intensity`` to the next band's, taken together.

    With the bands a roofline can be drawn for any device whose balance of arithmetic and memory is
    that of a band's beginning: below it layers take as long as their bytes, above as their
    multiply-adds.
    """

    from_intensity: float
    multiply_adds: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Facts of a graph for one item. A fact that cannot be told for certain is None.

    Attributes:
        multiply_adds_by_kind: by ``LayerKind``; kinds that are absent are left out.
        weight_bytes: size of all constants, as the file holds them.
        activation_bytes: what all compute nodes write, an engine's fusing aside. What is quantised
            at once, or dequantised to be read, counts in the quantised format, as engines fuse it.
        activation_count: elements that layers write ("mactivations", in millions, elsewhere).
        operators: uses of each operator, ``QLinearAdd (com.microsoft)`` outside the standard.
        depth: compute nodes on the longest way from an input to an output. Nodes that only view,
            quantise or dequantise, or reckon with constants and sizes, do not count.
        largest_layers: those of most multiply-adds, most first, up to ``LARGEST_LAYERS``.
        bands: the layers by arithmetic intensity, a band for each of ``INTENSITIES``.
        precision: the format of most weights.
        resolution_px: side of what the first convolution reads (of the square of the same area).
        has_unknown_sizes: whether some size depends on the input, or is out of reach of inference.
    """

    multiply_adds: int | None
    multiply_adds_by_kind: Mapping[str, int] | None
    parameter_count: int
    weight_bytes: int
    activation_bytes: int | None
    activation_count: int | None
    operators: Mapping[str, int]
    depth: int | None
    compute_nodes: int | None
    layers: int | None
    largest_layers: tuple[LayerFacts, ...] | None
    bands: tuple[IntensityBand, ...] | None
    precision: Precision | None
    resolution_px: int | None
    has_unknown_sizes: bool

    def share_below(self, intensity: float) -> float | None:
        """Share of the multiply-adds in layers of less than ``intensity`` multiply-adds a byte.

        Exact where a band begins; in between, a band counts when it begins below.
        """
        if self.bands is None or not self.multiply_adds:
            return None
        below = sum(band.multiply_adds for band in self.bands if band.from_intensity < intensity)
        return below / self.multiply_adds

    def document(self) -> dict[str, Any]:
        return {"reader": READER, **dataclasses.asdict(self)}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> GraphFacts | None:
        """The facts that a document holds; None if another reader wrote it."""
        if document.get("reader") != READER:
            return None
        return _adapter().validate_python(document)


@cache
def _adapter() -> TypeAdapter[GraphFacts]:
    return TypeAdapter(GraphFacts)


def read_graph_facts(model: ModelProto, *, resolution_px: int | None = None) -> GraphFacts:
    """Read the facts of ``model`` for one item. Never fails on a valid graph: see ``GraphFacts``.

    Args:
        model: with or without its external data, of which only the shapes are read.
        resolution_px: height and width of pictures where the graph leaves both free. What a graph
            does before it resizes a picture to a size of its own depends on it, the rest does not.
    """
    graph = read_item_graph(model, resolution_px=resolution_px)
    layers = layers_of(graph)
    flow = GraphFlow(graph)
    is_whole = not any(has_subgraph(node) for node in graph.nodes)
    sizes = _layer_facts(layers, flow)
    total = total_multiply_adds(layers)
    return GraphFacts(
        multiply_adds=total,
        multiply_adds_by_kind=None if total is None else _by_kind(layers),
        parameter_count=count_parameters(model),
        weight_bytes=weight_bytes(model),
        activation_bytes=flow.written_bytes() if is_whole else None,
        activation_count=_activation_count(layers, graph) if is_whole else None,
        operators=count_operators(model),
        depth=flow.depth if is_whole else None,
        compute_nodes=len(flow.compute) if is_whole else None,
        layers=len(layers) if all(e.kind is not LayerKind.UNKNOWN for e in layers) else None,
        largest_layers=None if sizes is None else _largest(sizes),
        bands=None if sizes is None else _bands(sizes),
        precision=weights_precision(model),
        resolution_px=_resolution(graph),
        has_unknown_sizes=flow.has_unknown_sizes,
    )


def count_operators(model: ModelProto) -> dict[str, int]:
    """Uses of each operator in all graphs and functions, by name."""
    found = Counter(
        node.op_type if node.domain in STANDARD_DOMAINS else f"{node.op_type} ({node.domain})"
        for node in onnx_graphs.nodes(model)
    )
    return dict(sorted(found.items()))


def _by_kind(layers: Sequence[Layer]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for layer in layers:
        found[layer.kind.value] += layer.multiply_adds or 0
    return dict(sorted(found.items()))


def _activation_count(layers: Sequence[Layer], graph: ItemGraph) -> int | None:
    counts = [graph.output_of(layer.node).elements for layer in layers]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _layer_facts(layers: Sequence[Layer], flow: GraphFlow) -> list[LayerFacts] | None:
    found = []
    for layer in layers:
        moved_bytes = flow.moved_bytes(layer.node)
        if layer.multiply_adds is None or moved_bytes is None:
            return None
        found.append(LayerFacts(layer.kind, layer.multiply_adds, moved_bytes))
    return found


def _largest(layers: Sequence[LayerFacts]) -> tuple[LayerFacts, ...]:
    ordered = sorted(layers, key=lambda layer: (-layer.multiply_adds, layer.moved_bytes))
    return tuple(ordered[:LARGEST_LAYERS])


def _bands(layers: Sequence[LayerFacts]) -> tuple[IntensityBand, ...]:
    ends = (*INTENSITIES[1:], math.inf)
    bands = []
    for low, high in zip(INTENSITIES, ends, strict=True):
        inside = [layer for layer in layers if low <= layer.intensity < high]
        bands.append(
            IntensityBand(
                low,
                sum(layer.multiply_adds for layer in inside),
                sum(layer.moved_bytes for layer in inside),
            )
        )
    return tuple(bands)


def _resolution(graph: ItemGraph) -> int | None:
    for node in graph.nodes:
        if node.op_type in ("Conv", "FusedConv", "ConvInteger", "QLinearConv"):
            shape = graph.input_of(node, 0).shape
            return round(math.sqrt(shape[2] * shape[3])) if shape and len(shape) == 4 else None
    return None
