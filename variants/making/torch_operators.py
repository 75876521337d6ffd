"""ONNX operators in PyTorch: those between the weights of common networks and their answers.

https://onnx.ai/onnx/operators. What they leave to chance or to training (dropout, running
means) is treated as when serving. The whole is held against ONNX Runtime before it is trained, so
an operator's rarer forms may be missing here, but never differ unseen. Needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from onnx import NodeProto
from torch.nn import functional

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.weights import attribute


def _conv(node: NodeProto, x: Any, weight: Any, bias: Any = None) -> Any:
    sides = x.ndim - 2
    strides, dilations = _sizes(node, "strides", sides), _sizes(node, "dilations", sides)
    pads = _pads(node, x.shape[2:], weight.shape[2:], strides, dilations)
    return getattr(functional, f"conv{sides}d")(
        _padded(x, pads, 0.0),
        weight,
        bias,
        strides,
        0,
        dilations,
        attribute(node, "group", 1),
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
"""What there is, of the standard's domain."""


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
