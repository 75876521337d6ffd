"""Walking everything an ONNX file holds: subgraphs, local functions and tensors in any corner."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto


def graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Every graph: the main one, those of training info, and those in attributes, however deep."""
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


def nodes_in(owner: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """The nodes of a graph or function, those of the graphs in it included."""
    pending = [owner]
    while pending:
        owner = pending.pop()
        yield from owner.node
        pending.extend(_subgraphs(owner))


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor that the file holds or refers to: initializers, and those in attributes."""
    for graph in graphs(model):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
    for owner in (*graphs(model), *model.functions):
        for attribute in _attributes(owner):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield attribute.sparse_tensor.values
                yield attribute.sparse_tensor.indices
            for sparse in attribute.sparse_tensors:
                yield sparse.values
                yield sparse.indices


def _subgraphs(owner: GraphProto | FunctionProto) -> Iterator[GraphProto]:
    for attribute in _attributes(owner):
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _attributes(owner: GraphProto | FunctionProto) -> Iterator[AttributeProto]:
    """Those of its nodes; of a function also the values that a call need not give."""
    if isinstance(owner, FunctionProto):
        yield from owner.attribute_proto
    for node in owner.node:
        yield from node.attribute
