"""Helping ONNX's shape inference over what it does not follow: sizes that a graph reckons with.

A graph may ask a picture for its size and cut its middle out by it. Inference follows some such
arithmetic on shapes but not all of it, and forgets even the axes that a cut leaves alone. Here the
arithmetic is worked out by ONNX's reference evaluator, and those axes are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

_MOST_ELEMENTS: Final = 1024  # of a tensor that can be a shape
# What graphs reckon sizes with; anything else is left to run when the graph runs.
_ARITHMETIC: Final = frozenset(
    {"Abs", "Add", "Cast", "Ceil", "Concat", "Constant", "Div", "Equal", "Floor", "Gather"}
    | {"Greater", "Identity", "Less", "Max", "Min", "Mod", "Mul", "Neg", "ReduceMax", "ReduceMin"}
    | {"ReduceProd", "ReduceSum", "Reshape", "Shape", "Size", "Slice", "Squeeze", "Sub"}
    | {"Unsqueeze", "Where"}
)


def shapes_in(graph: GraphProto) -> dict[str, tuple[int | None, ...]]:
    """Sizes of the tensors a graph declares, by name; a size that is not known is None."""
    return {
        value.name: tuple(
            size.dim_value if size.HasField("dim_value") else None
            for size in value.type.tensor_type.shape.dim
        )
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }


def work_out_sizes(model: ModelProto, inferred: GraphProto) -> bool:
    """Put into ``model`` what it helps inference to know; whether there was anything.

    Args:
        model: changed in place: arithmetic on known shapes becomes constants, and a tensor of
            which some sizes are known is declared with those.
        inferred: ``model``'s graph with the shapes that inference found.
    """
    shapes = shapes_in(inferred)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    return _fold(model, shapes, constants) | _keep_axes(model.graph, shapes, constants)


def _fold(
    model: ModelProto,
    shapes: Mapping[str, tuple[int | None, ...]],
    constants: Mapping[str, TensorProto],
) -> bool:
    known = {name for name, each in constants.items() if math.prod(each.dims) <= _MOST_ELEMENTS}
    asked, foldable = False, []
    for node in model.graph.node:
        if node.op_type not in _ARITHMETIC or node.op_type == "Constant":
            continue
        if node.op_type in ("Shape", "Size"):
            sizes = shapes.get(node.input[0], (None,))
            if None in sizes:
                continue
            asked = True
        elif not all(name in known for name in node.input if name):
            continue
        foldable.append(node)
        known.update(node.output)
    if not asked:
        return False
    values = _evaluate(model, foldable, shapes, constants)
    for node, value in values:
        del node.input[:]
        del node.attribute[:]
        node.op_type = "Constant"
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(value)))
    return bool(values)


def _evaluate(
    model: ModelProto,
    nodes: list[NodeProto],
    shapes: Mapping[str, tuple[int | None, ...]],
    constants: Mapping[str, TensorProto],
) -> list[tuple[NodeProto, NDArray[Any]]]:
    """The value of each of ``nodes``; none if they cannot be worked out."""
    import numpy as np
    from onnx.reference import ReferenceEvaluator  # slow to import, and few graphs need it

    wanted = {name for node in nodes for name in node.input if name}
    measured = {node.input[0] for node in nodes if node.op_type in ("Shape", "Size")}
    graph = GraphProto(name="sizes")
    graph.node.extend(nodes)
    graph.input.extend(helper.make_empty_tensor_value_info(name) for name in measured)
    graph.output.extend(helper.make_empty_tensor_value_info(node.output[0]) for node in nodes)
    graph.initializer.extend(
        _named(constants[name], name) for name in wanted - measured if name in constants
    )
    opsets = {each.domain: each.version for each in model.opset_import}
    try:
        feeds = {
            # A tensor of the right shape that takes no memory.
            name: np.broadcast_to(np.float32(0.0), [size or 0 for size in shapes[name]])
            for name in measured
        }
        values = ReferenceEvaluator(graph, opsets=opsets).run(None, feeds)
    except Exception:  # noqa: BLE001 (whatever is odd about the graph, its sizes stay unknown)
        return []
    return list(zip(nodes, map(np.asarray, values), strict=True))


def _named(tensor: TensorProto, name: str) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def _keep_axes(
    graph: GraphProto,
    shapes: Mapping[str, tuple[int | None, ...]],
    constants: Mapping[str, TensorProto],
) -> bool:
    """Declare what a Slice between sizes that are not known leaves as it was."""
    learned = False
    for node in graph.node:
        if node.op_type != "Slice" or len(node.input) < 4 or node.input[3] not in constants:
            continue
        before, after = shapes.get(node.input[0], ()), shapes.get(node.output[0], ())
        cut = _axes(constants[node.input[3]], len(before))
        kept = [None if axis in cut else size for axis, size in enumerate(before)]
        if len(after) == len(kept) and any(
            size is not None and was is None for size, was in zip(kept, after, strict=True)
        ):
            graph.value_info.append(
                helper.make_tensor_value_info(node.output[0], TensorProto.UNDEFINED, kept)
            )
            learned = True
    return learned


def _axes(tensor: TensorProto, rank: int) -> set[int]:
    """The axes that a constant names, counted from the front; all of them if it cannot be read."""
    try:
        return {int(axis) % rank for axis in numpy_helper.to_array(tensor).flat}
    except Exception:  # noqa: BLE001 (damaged, or in another file)
        return set(range(rank))
