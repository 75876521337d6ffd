"""One way to write a model down, so that equal models are equal bytes.

Protocol buffers may serialise a map in any order, tools leave nodes unsorted and unnamed, shapes
inferred on the way, constants that nobody reads, domains that nobody uses, and their own name.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

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
    tidy = deepcopy(model)
    graph = tidy.graph
    refill(graph.node, _sorted(graph.node))
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


def refill(field: Any, values: Sequence[Any]) -> None:
    """Put messages in the place of those in a repeated field, which may be some of them."""
    del field[:]
    field.extend(values)


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
    refill(graph.initializer, [each for each in graph.initializer if each.name in read])


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
    refill(graph.node, kept)
    held = {tensor.name for tensor in graph.initializer}
    refill(graph.input, [value for value in graph.input if value.name not in held])


def _sorted(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Each node after those whose results it reads; else in the order given."""
    by = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    order = TopologicalSorter(
        {
            index: {by[name] for name in reads(node) if by.get(name, index) != index}
            for index, node in enumerate(nodes)
        }
    )
    with suppress(CycleError):  # of a cycle nothing is ever ready: inspection refuses the rest
        order.prepare()
    ready = sorted(order.get_ready())
    result = []
    while ready:
        index = heapq.heappop(ready)
        result.append(nodes[index])
        order.done(index)
        for following in order.get_ready():
            heapq.heappush(ready, following)
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
