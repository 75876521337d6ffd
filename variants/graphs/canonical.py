"""One way to write a model down, so that equal models are equal bytes.

Protocol buffers may serialise a map in any order, tools leave nodes unsorted and unnamed, shapes
inferred on the way, constants that nobody reads, domains that nobody uses, and their own name.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, version_converter

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs import traversal as onnx_graphs
from modelless.variants.graphs.inspection import inspect_onnx, parse_onnx

_PRODUCER: Final = "modelless"
_INITIALIZERS_APART: Final = 4
"""The first IR version whose initializers need not be inputs."""


def read_model(onnx_bytes: bytes) -> ModelProto:
    """The model in ``onnx_bytes``, looked at first, as makers like it.

    Every node has a unique name and no absent inputs at its end, constants are initializers rather
    than nodes, and initializers are not listed among the inputs, as files before IR version 4 must.

    Raises:
        IntegrityError: it is no ONNX model, or one that must not run; see ``inspection``.
    """
    inspect_onnx(onnx_bytes)
    model = parse_onnx(onnx_bytes)
    model.ir_version = max(model.ir_version, _INITIALIZERS_APART)
    _lift_constants(model.graph)
    for node in model.graph.node:
        while node.input and not node.input[-1]:
            del node.input[-1]
    name_nodes(model.graph)
    return model


def write_model(model: ModelProto) -> bytes:
    """``model`` in its canonical form, looked at before it is handed on.

    Raises:
        IntegrityError: it is not a valid ONNX model.
    """
    tidy = ModelProto()
    tidy.CopyFrom(model)
    graph = tidy.graph
    nodes = _sorted(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    name_nodes(graph)
    drop_unread(graph)
    del graph.value_info[:]
    del tidy.metadata_props[:]
    tidy.producer_name, tidy.producer_version, tidy.doc_string = _PRODUCER, "", ""
    domains = {node.domain for node in onnx_graphs.nodes(tidy)} | {""}
    opsets = sorted(
        {(each.domain, each.version) for each in tidy.opset_import if each.domain in domains}
    )
    del tidy.opset_import[:]
    for domain, version in opsets:
        tidy.opset_import.add(domain=domain, version=version)
    onnx_bytes = bytes(tidy.SerializeToString(deterministic=True))
    inspect_onnx(onnx_bytes)
    return onnx_bytes


def name_nodes(graph: GraphProto) -> None:
    """Give every node of ``graph`` a name of its own; those that have one keep it."""
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}#{index}"
        taken.add(node.name)


def drop_unread(graph: GraphProto) -> None:
    """Remove constants that neither a node nor the graph's outputs read."""
    read = {name for node in graph.node for name in reads(node)}
    read |= {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def reads(node: NodeProto) -> Iterator[str]:
    """Every tensor that ``node`` reads, those that only its subgraphs read included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from reads(inner)


def _lift_constants(graph: GraphProto) -> None:
    kept = []
    for node in graph.node:
        values = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        if node.op_type == "Constant" and values:
            values[0].name = node.output[0]
            graph.initializer.append(values[0])
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    held = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in held]
    del graph.input[:]
    graph.input.extend(inputs)


def _sorted(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Each node after those whose results it reads; else in the order given (Kahn, 1962)."""
    by = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    waits = [
        {by[name] for name in reads(node) if name in by and by[name] != index}
        for index, node in enumerate(nodes)
    ]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, needed in enumerate(waits):
        for other in needed:
            readers[other].append(index)
    ready = [index for index, needed in enumerate(waits) if not needed]
    result = []
    while ready:
        index = heapq.heappop(ready)
        result.append(nodes[index])
        for reader in readers[index]:
            waits[reader].discard(index)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return result


def at_least_opset(model: ModelProto, wanted: int) -> ModelProto:
    """``model``, or its form for opset ``wanted`` if it was written for an older one.

    Raises:
        InvalidInputError: onnx's converter does not know how.
    """
    found = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if found >= wanted:
        return model
    try:
        return version_converter.convert_version(model, wanted)
    except Exception as error:  # the converter raises RuntimeError and kinds of its own
        raise InvalidInputError.of(
            "model: opset", found, f"{wanted} or more", f"It cannot be converted: {error}"
        ) from error
