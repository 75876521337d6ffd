"""An ONNX graph for one item: its nodes in order, and every tensor's shape that can be told.

Shapes come from ONNX's own inference. It knows nothing of the operators that ONNX Runtime brings
along (domain ``com.microsoft``), so for its sake each of those is replaced by a standard operator
that writes the same shape. The nodes that are handed out are the file's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import chain
from typing import Any, Final

from numpy.typing import NDArray
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    inliner,
    numpy_helper,
    shape_inference,
)

from modelless.variants.graphs.traversal import graphs, nodes_in

# Helping ONNX's shape inference over what it does not follow: sizes that a graph reckons with.
#
# A graph may ask a picture for its size and cut its middle out by it. Inference follows some such
# arithmetic on shapes but not all of it, and forgets even the axes that a cut leaves alone. The
# reference evaluator of ONNX works out that arithmetic here, and those axes are kept.

_MOST_ELEMENTS: Final = 1024  # of a constant that can be a shape, which inference must see
_MOST_WORK: Final = 1 << 22  # elements that may be written in all
_MEASURING: Final = frozenset({"Shape", "Size"})
# The operators that compute sizes; all others run only when the graph runs.
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
        if node.op_type in _MEASURING:
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
    found = _evaluate(model, foldable, shapes, constants)
    for node, value in found:
        del node.input[:]
        del node.attribute[:]
        node.op_type = "Constant"
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(value)))
    return bool(found)


def _evaluate(
    model: ModelProto,
    nodes: list[NodeProto],
    shapes: Mapping[str, tuple[int | None, ...]],
    constants: Mapping[str, TensorProto],
) -> list[tuple[NodeProto, NDArray[Any]]]:
    """The values of those of ``nodes`` that can be worked out and may be a shape."""
    import numpy as np
    from onnx.reference import ReferenceEvaluator  # slow to import, and few graphs need it

    opsets = {each.domain: each.version for each in model.opset_import}
    values: dict[str, NDArray[Any]] = {}
    found = []
    left = _MOST_WORK
    for node in nodes:
        names = [name for name in node.input if name]
        try:
            if node.op_type in _MEASURING:
                # A tensor of the right shape that takes no memory.
                sizes = [size or 0 for size in shapes[names[0]]]
                feeds = {names[0]: np.broadcast_to(np.float32(0.0), sizes)}
            else:
                for name in set(names) - set(values):
                    values[name] = numpy_helper.to_array(constants[name])
                feeds = {name: values[name] for name in names}
                # Nothing in _ARITHMETIC writes more than its inputs' sizes multiplied. A size of 0
                # counts as 1, as a sum over it leaves the other sizes.
                each = [math.prod(max(1, size) for size in feeds[name].shape) for name in names]
                work = sum(each) if node.op_type == "Concat" else math.prod(each)
                if work > left:
                    continue
            graph = GraphProto(name="sizes", node=[node])
            graph.input.extend(helper.make_empty_tensor_value_info(name) for name in feeds)
            graph.output.append(helper.make_empty_tensor_value_info(node.output[0]))
            (value,) = map(np.asarray, ReferenceEvaluator(graph, opsets=opsets).run(None, feeds))
        except Exception:  # noqa: BLE001, S112 (whatever is odd about it, its size stays unknown)
            continue
        left -= value.size
        # Texts grow with each sum, whatever their number.
        if value.dtype.kind in "biuf" and value.size <= _MOST_ELEMENTS:
            values[node.output[0]] = value
            found.append((node, value))
    return found


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


ONNX_RUNTIME_DOMAIN: Final = "com.microsoft"
STANDARD_DOMAINS: Final = frozenset({"", "ai.onnx"})

_MOST_INLINED_BYTES: Final = 1 << 28
_MOST_AXES: Final = 16  # of a tensor, as a rule
_NODE_BYTES: Final = 1 << 10  # of memory, besides what a node takes in a file
_PASSES: Final = 8  # sizes that are reckoned from sizes that were reckoned, and so on

_FIRST: Final = slice(0, 1)
_FIRST_TWO: Final = slice(0, 2)
_QUANTISED_PAIR: Final = slice(0, 4, 3)  # a, scale, zero point, b, scale, zero point, ...
# Operator of ONNX Runtime -> a standard one of the same output shape, and which inputs it takes.
STAND_INS: Final[Mapping[str, tuple[str, slice]]] = {
    "BiasGelu": ("Identity", _FIRST),
    "DequantizeLinear": ("DequantizeLinear", slice(0, 3)),
    "DynamicQuantizeMatMul": ("MatMul", _FIRST_TWO),
    "FastGelu": ("Identity", _FIRST),
    "FusedConv": ("Conv", _FIRST_TWO),
    "FusedGemm": ("Gemm", _FIRST_TWO),
    "Gelu": ("Identity", _FIRST),
    "MatMulNBits": ("MatMul", _FIRST),  # its packed weight's shape is put in as a second input
    "QGemm": ("Gemm", _QUANTISED_PAIR),
    "QLinearAdd": ("Add", _QUANTISED_PAIR),
    "QLinearAveragePool": ("AveragePool", _FIRST),
    "QLinearConcat": ("Concat", slice(2, None, 3)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", _FIRST),
    "QLinearLeakyRelu": ("Identity", _FIRST),
    "QLinearMul": ("Mul", _QUANTISED_PAIR),
    "QLinearSigmoid": ("Identity", _FIRST),
    "QLinearSoftmax": ("Identity", _FIRST),
    "QuantizeLinear": ("QuantizeLinear", slice(0, 3)),
    "QuickGelu": ("Identity", _FIRST),
    "SimplifiedLayerNormalization": ("Identity", _FIRST),
    "SkipLayerNormalization": ("Identity", _FIRST),
    "SkipSimplifiedLayerNormalization": ("Identity", _FIRST),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """Facts about a tensor, with one item in the batch.

    Attributes:
        shape: its sizes; None where one of them is not known.
        element_type: a ``TensorProto.DataType``; 0 where not known.
    """

    shape: tuple[int, ...] | None
    element_type: int

    @property
    def elements(self) -> int | None:
        """How many elements it has; None where that is not known."""
        return None if self.shape is None else math.prod(self.shape)


UNKNOWN: Final = Tensor(None, TensorProto.UNDEFINED)


@dataclass(frozen=True, slots=True)
class ItemGraph:
    """A graph's nodes, in the order in which they can run, and its tensors.

    Attributes:
        nodes: those of the main graph, functions of the file put in where they are called.
        inputs, outputs: names of the tensors that a caller hands in and gets, without weights.
        tensors: by name; a name that is missing is of an unknown shape.
    """

    nodes: tuple[NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, Tensor]

    def input_of(self, node: NodeProto, index: int) -> Tensor:
        """The tensor that is ``node``'s input number ``index``; UNKNOWN if it has none."""
        name = node.input[index] if index < len(node.input) else ""
        return self.tensors.get(name, UNKNOWN)

    def output_of(self, node: NodeProto) -> Tensor:
        return self.tensors.get(node.output[0], UNKNOWN) if node.output else UNKNOWN


def read_item_graph(model: ModelProto, *, resolution_px: int | None = None) -> ItemGraph:
    """The graph for one item; whatever is odd about it, its nodes and what can be told of shapes.

    A free first axis of an input counts items, so it is taken as one; a fixed one is taken as part
    of the item.

    Args:
        model: with or without its weights' data, of which only the shapes are read.
        resolution_px: height and width of pictures: of inputs with two free sizes besides the
            first axis. Left out, such sizes stay free unless the graph fixes them, as a resize to a
            constant size does.
    """
    lean = _inlined(_without_weights(model, resolution_px))
    shapes = {tensor.name: _tensor(tensor) for tensor in model.graph.initializer}
    graph = _inferred(lean)
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.name not in shapes and value.type.HasField("tensor_type"):
            kind = value.type.tensor_type
            sizes = [
                size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim
            ]
            known = kind.HasField("shape") and -1 not in sizes
            shapes[value.name] = Tensor(tuple(sizes) if known else None, kind.elem_type)
    for node in lean.graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    shapes[node.output[0]] = _tensor(attribute.t)
    weights = {tensor.name for tensor in model.graph.initializer}
    return ItemGraph(
        nodes=tuple(lean.graph.node),
        inputs=tuple(each.name for each in model.graph.input if each.name not in weights),
        outputs=tuple(each.name for each in model.graph.output),
        tensors=shapes,
    )


def whole_attribute(node: NodeProto, name: str, default: int) -> int:
    """A node's attribute that is a whole number."""
    return next((int(each.i) for each in node.attribute if each.name == name), default)


def has_subgraph(node: NodeProto) -> bool:
    """Whether it runs a graph of its own, any number of times: ``If``, ``Loop``, ``Scan``."""
    return any(each.HasField("g") or each.graphs for each in node.attribute)


def _tensor(tensor: TensorProto) -> Tensor:
    return Tensor(tuple(tensor.dims), tensor.data_type)


def _inlined(lean: ModelProto) -> ModelProto:
    if not lean.functions:
        return lean
    try:
        if _inlined_bytes(lean) <= _MOST_INLINED_BYTES:
            return inliner.inline_local_functions(lean)
    except Exception:  # noqa: BLE001, S110 (it raises its own kinds)
        pass
    del lean.functions[:]  # calls stay, of unknown meaning; inference would follow each of them
    return lean


def _inlined_bytes(lean: ModelProto) -> int:
    """A bound of the memory that takes what stands for the calls: functions may double each other.

    Raises:
        CycleError: a function calls itself.
    """
    functions = {(each.domain, each.name, each.overload): each for each in lean.functions}
    bodies = {key: tuple(nodes_in(function)) for key, function in functions.items()}
    calls = {
        key: {_called(node) for node in body}.intersection(functions)
        for key, body in bodies.items()
    }
    main = [node for node in nodes_in(lean.graph) if _called(node) in functions]
    handed = [each for function in lean.functions for each in function.attribute_proto]
    for node in (*main, *chain.from_iterable(bodies.values())):
        if _called(node) in functions:
            handed += node.attribute
    if any(each.HasField("g") or each.graphs for each in handed):
        return _MOST_INLINED_BYTES + 1  # such calls hide in others' attributes
    heaviest = max((each.ByteSize() for each in handed), default=0)
    sizes: dict[tuple[str, str, str], int] = {}
    for key in TopologicalSorter(calls).static_order():
        size = sum(
            sizes.get(_called(node), 0)
            + _NODE_BYTES
            + node.ByteSize()
            + heaviest * sum(bool(each.ref_attr_name) for each in node.attribute)
            for node in bodies[key]
        )
        sizes[key] = min(size, _MOST_INLINED_BYTES + 1)
    return sum(sizes[_called(node)] for node in main)


def _called(node: NodeProto) -> tuple[str, str, str]:
    return (node.domain, node.op_type, node.overload)


def _inferred(lean: ModelProto) -> GraphProto:
    """The graph with every shape that inference finds."""
    understood = deepcopy(lean)
    for node in understood.graph.node:
        if node.domain == ONNX_RUNTIME_DOMAIN and node.op_type in STAND_INS:
            _stand_in(node, understood.graph)
    graph = _infer(understood)
    for _ in range(_PASSES):
        if not work_out_sizes(understood, graph):
            break
        graph = _infer(understood)
    return graph


def _infer(model: ModelProto) -> GraphProto:
    follows = _propagated(model) <= _MOST_WORK
    try:
        return shape_inference.infer_shapes(model, data_prop=follows).graph
    except Exception:  # noqa: BLE001 (it raises its own kinds; an unknown count harms nothing)
        return GraphProto()


def _propagated(model: ModelProto) -> int:
    """About how many sizes inference keeps: each ``Concat`` of a tensor with itself doubles it."""
    lengths: dict[str, int] = {}
    total = 0
    for graph in graphs(model):
        lengths |= {each.name: _length(each) for each in graph.initializer}
        for node in graph.node:
            if not node.output:
                continue
            if node.op_type == "Constant":
                length = max((_length(each.t) for each in node.attribute), default=0)
            elif node.op_type == "Shape":
                length = _MOST_AXES
            elif node.op_type in _ARITHMETIC:
                together = sum if node.op_type == "Concat" else max
                length = together([0, *(lengths.get(name, 0) for name in node.input)])
            else:
                continue
            lengths[node.output[0]] = length
            total += length
    return total


def _length(tensor: TensorProto) -> int:
    """Of a constant that can be a shape."""
    is_whole = tensor.data_type in (TensorProto.INT32, TensorProto.INT64)
    return math.prod(tensor.dims) if is_whole and len(tensor.dims) < 2 else 0


def _stand_in(node: NodeProto, graph: GraphProto) -> None:
    """Replace, in place, an operator that inference does not know."""
    if whole_attribute(node, "channels_last", 0) or any(
        whole_attribute(node, name, 0) for name in ("transBatchA", "transBatchB")
    ):
        return
    operator, taken = STAND_INS[node.op_type]
    inputs = list(node.input[taken])
    if node.op_type == "MatMulNBits":
        rows, columns = (whole_attribute(node, name, 0) for name in "KN")
        inputs.append(f"{node.output[0]}/unpacked")
        graph.input.append(
            helper.make_tensor_value_info(inputs[-1], TensorProto.FLOAT, [rows, columns])
        )
    node.op_type, node.domain = operator, ""
    node.input[:] = inputs
    del node.output[1:]


def _without_weights(model: ModelProto, resolution_px: int | None) -> ModelProto:
    """A copy for one item, large initializers reduced to their shapes: quick to infer on."""
    lean = ModelProto(ir_version=model.ir_version, functions=model.functions)
    lean.opset_import.extend(model.opset_import)
    graph = lean.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    declared = {value.name for value in graph.input}
    initialized = {tensor.name for tensor in model.graph.initializer}
    for value in graph.input:
        sizes = value.type.tensor_type.shape.dim
        if value.name in initialized or not sizes:
            continue
        if not sizes[0].HasField("dim_value"):
            sizes[0].dim_value = 1
        free = [size for size in sizes if not size.HasField("dim_value")]
        if resolution_px is not None and len(free) == 2:
            for size in free:
                size.dim_value = resolution_px
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _MOST_ELEMENTS:
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            kind = tensor.data_type or TensorProto.FLOAT
            graph.input.append(helper.make_tensor_value_info(tensor.name, kind, tensor.dims))
    return lean
