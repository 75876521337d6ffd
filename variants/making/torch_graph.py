"""An ONNX graph whose weights PyTorch trains in place: its constants, by the names they have there.

Only what lies between the first weight and the answers runs in PyTorch. What comes before, such as
resizing and scaling a picture, no weight can change: ONNX Runtime computes it as when serving, so
any operator may stand there. Needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.canonical import reads
from modelless.variants.graphs.weights import constants, weights
from modelless.variants.making.calibration import Feed
from modelless.variants.making.session import Session
from modelless.variants.making.torch_operators import OPERATORS, run_node

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
    """What the learning part reads and no weight changes, computed by ONNX Runtime."""

    def __init__(self, model: ModelProto, names: list[str]) -> None:
        inputs = {value.name for value in model.graph.input}
        self._inputs = [name for name in names if name in inputs]
        self._computed = [name for name in names if name not in inputs]
        if not self._computed:
            return
        before = ModelProto()
        before.CopyFrom(model)
        needed = _leading_to(model, self._computed)
        del before.graph.node[:]
        before.graph.node.extend(needed)
        del before.graph.output[:]
        before.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in self._computed)
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
