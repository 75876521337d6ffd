"""Walking everything an ONNX file holds: subgraphs, local functions and tensors in any corner."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto


def graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Every graph: the main one, those of training info, and those inside nodes, however deep."""
    pending = [model.graph]
    for training in model.training_info:
        pending += [training.initialization, training.algorithm]
    for function in model.functions:
        pending.extend(_subgraphs(function))
    while pending:
        graph = pending.pop()
        yield graph
        pending.extend(_subgraphs(graph))


def nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of every graph and of every model-local function."""
    for graph in graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor that the file holds or refers to: initializers and nodes' attributes."""
    for graph in graphs(model):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
    for node in nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield attribute.sparse_tensor.values
                yield attribute.sparse_tensor.indices
            for sparse in attribute.sparse_tensors:
                yield sparse.values
                yield sparse.indices
    for function in model.functions:
        for attribute in function.attribute_proto:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _subgraphs(owner: GraphProto | FunctionProto) -> Iterator[GraphProto]:
    for node in owner.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs
