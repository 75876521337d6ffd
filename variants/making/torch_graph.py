"""An ONNX graph whose weights PyTorch trains in place: its constants, by the names they have there.

Only the nodes between the first weight and the answers run in PyTorch. No weight changes the nodes
before them, which resize and scale a picture, for example: ONNX Runtime runs those as when serving,
so any operator may stand there. Needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch.nn import functional

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.canonical import reads, refill
from modelless.variants.graphs.weights import attribute, constants, weights
from modelless.variants.making.calibration import Feed
from modelless.variants.making.session import Session

# -- operators ------------------------------------------------------------------------------------
#
# ONNX operators in PyTorch: https://onnx.ai/onnx/operators. Dropout and running means do what they
# do when served. The whole graph is compared with ONNX Runtime before it is trained, so an
# operator's rarer forms may be missing here, but none differs unseen.


def _conv(node: NodeProto, x: Any, weight: Any, bias: Any = None) -> Any:
    sides = x.ndim - 2
    strides, dilations = _sizes(node, "strides", sides), _sizes(node, "dilations", sides)
    pads = _pads(node, x.shape[2:], weight.shape[2:], strides, dilations)
    return getattr(functional, f"conv{sides}d")(
        _padded(x, pads, 0.0), weight, bias, strides, 0, dilations, attribute(node, "group", 1)
    )


def _max_pool(node: NodeProto, x: Any) -> Any:
    sides, kernel = x.ndim - 2, list(attribute(node, "kernel_shape", []))
    strides, dilations = _sizes(node, "strides", sides), _sizes(node, "dilations", sides)
    pads = _pads(node, x.shape[2:], kernel, strides, dilations)
    return getattr(functional, f"max_pool{sides}d")(
        _padded(x, pads, -float("inf")),
        kernel,
        strides,
        0,
        dilations,
        bool(attribute(node, "ceil_mode", 0)),
    )


def _average_pool(node: NodeProto, x: Any) -> Any:
    sides, kernel = x.ndim - 2, list(attribute(node, "kernel_shape", []))
    strides = _sizes(node, "strides", sides)
    pads = _pads(node, x.shape[2:], kernel, strides, [1] * sides)
    if any(before != after for before, after in pads):
        raise InvalidInputError.of(
            f"fine-tune: pads of {node.name}", pads, "as many before as behind"
        )
    return getattr(functional, f"avg_pool{sides}d")(
        x,
        kernel,
        strides,
        [before for before, _ in pads],
        bool(attribute(node, "ceil_mode", 0)),
        bool(attribute(node, "count_include_pad", 0)),
    )


def _gemm(node: NodeProto, a: Any, b: Any, c: Any = None) -> Any:
    a = a.transpose(0, 1) if attribute(node, "transA", 0) else a
    b = b.transpose(0, 1) if attribute(node, "transB", 0) else b
    product = attribute(node, "alpha", 1.0) * (a @ b)
    return product if c is None else product + attribute(node, "beta", 1.0) * c


def _batch_normalization(
    node: NodeProto, x: Any, scale: Any, shift: Any, mean: Any, variance: Any
) -> Any:
    return functional.batch_norm(
        x, mean, variance, scale, shift, False, 0.0, attribute(node, "epsilon", 1e-5)
    )


def _layer_normalization(node: NodeProto, x: Any, scale: Any, shift: Any = None) -> Any:
    sizes = x.shape[attribute(node, "axis", -1) % x.ndim :]
    return functional.layer_norm(x, sizes, scale, shift, attribute(node, "epsilon", 1e-5))


def _clip(node: NodeProto, x: Any, low: Any = None, high: Any = None) -> Any:
    low = attribute(node, "min", None) if low is None else low
    high = attribute(node, "max", None) if high is None else high
    return x if low is None and high is None else torch.clamp(x, low, high)


def _reshape(node: NodeProto, x: Any, shape: Any) -> Any:
    sizes = shape.tolist()
    if not attribute(node, "allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(node: NodeProto, x: Any) -> Any:
    axis = attribute(node, "axis", 1)
    before = 1
    for size in x.shape[:axis]:
        before *= size
    return x.reshape(before, -1)


def _squeeze(node: NodeProto, x: Any, axes: Any = None) -> Any:
    found = _axes(node, axes)
    return x.squeeze() if found is None else x.squeeze(found)


def _unsqueeze(node: NodeProto, x: Any, axes: Any = None) -> Any:
    found = _axes(node, axes) or ()
    for axis in sorted(axis % (x.ndim + len(found)) for axis in found):
        x = x.unsqueeze(axis)
    return x


def _transpose(node: NodeProto, x: Any) -> Any:
    return x.permute(list(attribute(node, "perm", range(x.ndim - 1, -1, -1))))


def _reduce_mean(node: NodeProto, x: Any, axes: Any = None) -> Any:
    found = _axes(node, axes)
    if found is None and attribute(node, "noop_with_empty_axes", 0):
        return x
    return x.mean(found, bool(attribute(node, "keepdims", 1)))


def _shape(node: NodeProto, x: Any) -> Any:
    sizes = list(x.shape)
    return torch.tensor(sizes[attribute(node, "start", 0) : attribute(node, "end", len(sizes))])


def _global_average_pool(_node: NodeProto, x: Any) -> Any:
    return x.mean(tuple(range(2, x.ndim)), True)


def _identity(_node: NodeProto, x: Any, *_others: Any) -> Any:
    return x


def _gelu(node: NodeProto, x: Any) -> Any:
    kind = attribute(node, "approximate", b"none").decode()
    return functional.gelu(x, approximate=kind)


def _hard_sigmoid(node: NodeProto, x: Any) -> Any:
    alpha, beta = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    return torch.clamp(alpha * x + beta, 0.0, 1.0)


_BY_INPUTS: Final[Mapping[str, Callable[..., Any]]] = {
    "Add": torch.add,
    "Div": torch.div,
    "Erf": torch.erf,
    "HardSwish": functional.hardswish,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sub": torch.sub,
    "Tanh": torch.tanh,
}
"""Operators without attributes."""

_BY_NODE: Final[Mapping[str, Callable[..., Any]]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Clip": _clip,
    "Concat": lambda node, *inputs: torch.cat(inputs, attribute(node, "axis", 0)),
    "Conv": _conv,
    "Dropout": _identity,
    "Elu": lambda node, x: functional.elu(x, attribute(node, "alpha", 1.0)),
    "Flatten": _flatten,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "HardSigmoid": _hard_sigmoid,
    "Identity": _identity,
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": lambda node, x: functional.leaky_relu(x, attribute(node, "alpha", 0.01)),
    "MaxPool": _max_pool,
    "ReduceMean": _reduce_mean,
    "Reshape": _reshape,
    "Shape": _shape,
    "Softmax": lambda node, x: torch.softmax(x, attribute(node, "axis", -1)),
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Operators that are called with their node as well."""

OPERATORS: Final = tuple(sorted((*_BY_INPUTS, *_BY_NODE)))
"""The operators, all of the standard's domain."""


def run_node(node: NodeProto, inputs: Sequence[Any]) -> Any:
    """The first output of a node.

    Args:
        node: of one of ``OPERATORS``.
        inputs: tensors; None where one is left out.

    Raises:
        InvalidInputError: a form of the operator that PyTorch does not have.
    """
    if node.op_type in _BY_INPUTS:
        return _BY_INPUTS[node.op_type](*inputs)
    return _BY_NODE[node.op_type](node, *inputs)


def _sizes(node: NodeProto, name: str, sides: int) -> list[int]:
    return list(attribute(node, name, [1] * sides))


def _axes(node: NodeProto, axes: Any) -> tuple[int, ...] | None:
    """An input since opset 13 or 18, an attribute before; None if there are none."""
    found = attribute(node, "axes", None) if axes is None else axes.tolist()
    return None if found is None else tuple(found)


def _pads(
    node: NodeProto,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """Before and behind, side by side; ``SAME`` pads so that the output is size over stride."""
    automatic = attribute(node, "auto_pad", b"NOTSET").decode()
    given = list(attribute(node, "pads", [0] * (2 * len(kernel))))
    if not automatic.startswith("SAME"):
        return list(zip(given[: len(kernel)], given[len(kernel) :], strict=True))
    found = []
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        covered = (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1
        total = max(covered - size, 0)
        less, more = total // 2, total - total // 2
        found.append((less, more) if automatic == "SAME_UPPER" else (more, less))
    return found


def _padded(x: Any, pads: Sequence[tuple[int, int]], value: float) -> Any:
    flat = [each for pair in reversed(pads) for each in pair]  # PyTorch begins with the last side
    return functional.pad(x, flat, value=value) if any(flat) else x


_LEARNED_INPUTS: Final = {"BatchNormalization": (1, 2), "Conv": (2,), "Gemm": (2,)}
"""Inputs that are learned besides the weights: biases, and what normalisation multiplies by."""


class TorchGraph:
    """The part of a graph that learns.

    Attributes:
        parameters: the weights' tensors, by the constants' names. A weight that is zero stays so.
    """

    def __init__(self, model: ModelProto, target: str) -> None:
        """Take over the weights of ``model``.

        Args:
            model: float32; not changed.
            target: the tensor that the graph is to compute.

        Raises:
            InvalidInputError: no float32 weight leads to it, or an operator between them is not
                known; names it.
        """
        self._target = target
        held = constants(model.graph)
        layers = {weight.name for weight in weights(model)}
        learned = layers | {
            node.input[index]
            for node in model.graph.node
            for index in _LEARNED_INPUTS.get(node.op_type, ())
            if index < len(node.input) and _is_float(held.get(node.input[index]))
        }
        self._nodes = _between(model, learned, target)
        if not self._nodes:
            raise InvalidInputError.of(
                "fine-tune: model",
                "no float32 weights that its output depends on",
                "a convolution or a matrix product of constants",
                "Fine-tune before quantising.",
            )
        unknown = sorted({f"{n.op_type} ({n.name})" for n in self._nodes if not _is_known(n)})
        if unknown:
            raise InvalidInputError.of(
                "fine-tune: operators between the first weight and the answers",
                ", ".join(unknown),
                ", ".join(OPERATORS),
            )
        read = {name for node in self._nodes for name in node.input if name}
        written = {name for node in self._nodes for name in node.output}
        tensors = {
            name: torch.from_numpy(np.array(numpy_helper.to_array(held[name])))
            for name in sorted(read & held.keys())
        }
        self.parameters: dict[str, Any] = {
            name: tensor.requires_grad_() for name, tensor in tensors.items() if name in learned
        }
        self._masks = {
            name: (tensor != 0).detach() for name, tensor in tensors.items() if name in layers
        }
        self._constants = {name: t for name, t in tensors.items() if name not in learned}
        self._before = _Before(model, sorted(read - written - held.keys()))

    def __call__(self, feed: Feed) -> Any:
        """The target of one call, a tensor to learn by."""
        values: dict[str, Any] = {
            name: torch.from_numpy(np.array(array)) for name, array in self._before(feed).items()
        }
        values |= self._constants
        for name, parameter in self.parameters.items():
            mask = self._masks.get(name)
            # A weight multiplied by zero has no gradient either, so it never moves.
            values[name] = parameter if mask is None else parameter * mask
        for node in self._nodes:
            inputs = [values[name] if name else None for name in node.input]
            values[node.output[0]] = run_node(node, inputs)
        return values[self._target]

    def learned(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """The constants' names and their new values, float32 of their shape."""
        for name, parameter in self.parameters.items():
            array = parameter.detach().numpy()
            mask = self._masks.get(name)
            yield name, array if mask is None else np.where(mask.numpy(), array, np.float32(0))


class _Before:
    """The inputs of the trained part that no weight changes, computed by ONNX Runtime."""

    def __init__(self, model: ModelProto, names: list[str]) -> None:
        inputs = {value.name for value in model.graph.input}
        self._inputs = [name for name in names if name in inputs]
        self._computed = [name for name in names if name not in inputs]
        if not self._computed:
            return
        before = deepcopy(model)
        refill(before.graph.node, _leading_to(model, self._computed))
        outputs = [helper.make_empty_tensor_value_info(name) for name in self._computed]
        refill(before.graph.output, outputs)
        self._session = Session(before.SerializeToString())

    def __call__(self, feed: Feed) -> Feed:
        found = {name: feed[name] for name in self._inputs}
        if self._computed:
            given = {name: feed[name] for name in self._session.inputs}
            found |= self._session.run(given, self._computed)
        return found


def _between(model: ModelProto, learned: set[str], target: str) -> list[NodeProto]:
    """Nodes that a learned constant leads to and that lead to the target, in order."""
    moved = set(learned)
    found = []
    for node in model.graph.node:
        if moved.intersection(reads(node)):
            moved.update(node.output)
            found.append(node)
    leading = {node.name for node in _leading_to(model, [target])}
    return [node for node in found if node.name in leading]


def _leading_to(model: ModelProto, names: list[str]) -> list[NodeProto]:
    wanted, found = set(names), []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            wanted.update(reads(node))
            found.append(node)
    return found[::-1]


def _is_known(node: NodeProto) -> bool:
    return node.op_type in OPERATORS and node.domain in ("", "ai.onnx")


def _is_float(tensor: TensorProto | None) -> bool:
    return tensor is not None and tensor.data_type == TensorProto.FLOAT
