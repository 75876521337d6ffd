"""Structured pruning: removes whole channels, so that the dense model is smaller and quicker.

It removes the channels whose removal disturbs the next layer least, and adds their mean to the bias
of that layer. The error of a removed channel is then its variance times the squared norm of the
weights that read it; channels are removed in ascending order of this error: An et al.,
"Fluctuation-based Adaptive Structured Pruning for Large Language Models", AAAI 2024,
https://arxiv.org/abs/2312.11983, here for convolutions. It does not retrain, so accuracy falls
quickly with the share; ``fine-tune`` may follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from pydantic import Field

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.canonical import reads
from modelless.variants.graphs.weights import add_constant, attribute, constants, readers, replace
from modelless.variants.making.activation_ranges import activations
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker

# -- where channels can leave a network: along chains, where one path leads from layer to layer ---
#
# A chain begins with a Conv or a Gemm, passes only operators that treat every channel by itself,
# and ends with the one Conv or Gemm that reads it.

_BY_CHANNEL: Final = frozenset(
    {"AveragePool", "Clip", "Dropout", "Elu", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid"}
    | {"HardSwish", "Identity", "LeakyRelu", "MaxPool", "Relu", "Sigmoid", "Tanh"}
)
"""Operators that treat every channel alike and by itself, so that nothing of theirs is cut."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A layer, what lies behind it, and the layer that reads it.

    Attributes:
        writes: Conv or Gemm whose output channels may leave.
        between: batch normalisations and depthwise convolutions, whose parameters are cut too.
        reads: Conv or Gemm whose input channels leave with them.
    """

    writes: NodeProto
    between: tuple[NodeProto, ...]
    reads: NodeProto


def find_chains(graph: GraphProto) -> tuple[list[Chain], dict[str, str]]:
    """Every chain of ``graph`` in the layers' order, and why other layers begin none, by layer."""
    held = {
        name: tensor
        for name, tensor in constants(graph).items()
        if tensor.data_type == TensorProto.FLOAT
    }
    counts = readers(graph)
    following: dict[str, NodeProto] = {}
    for node in graph.node:
        for name in reads(node):
            following[name] = node
    outputs = {value.name for value in graph.output}
    found: list[Chain] = []
    refused: dict[str, str] = {}
    walk = _Walk(held, counts, following, outputs)
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm") or node.input[1] not in held:
            continue
        try:
            found.append(walk.from_layer(node))
        except _NoChain as error:
            refused[node.name] = str(error)
    return found, refused


class _NoChain(Exception):
    """Why a layer begins no chain."""


@dataclass(frozen=True, slots=True)
class _Walk:
    held: Mapping[str, TensorProto]
    counts: Mapping[str, int]
    following: Mapping[str, NodeProto]
    outputs: set[str]

    def from_layer(self, layer: NodeProto) -> Chain:
        if layer.op_type == "Conv" and attribute(layer, "group", 1) != 1:
            raise _NoChain("its convolution is grouped")
        self._own(layer, layer.input[1:])
        between: list[NodeProto] = []
        name, flat = layer.output[0], layer.op_type == "Gemm"
        while True:
            if name in self.outputs:
                raise _NoChain("its output is an output of the model")
            if self.counts[name] != 1:
                raise _NoChain(f"its output is read {self.counts[name]} times")
            node = self.following[name]
            if node.op_type in _BY_CHANNEL and node.input[0] == name:
                pass
            elif node.op_type == "Flatten" and attribute(node, "axis", 1) == 1:
                flat = True
            elif node.op_type == "BatchNormalization" or (not flat and self._is_depthwise(node)):
                if flat and layer.op_type == "Conv":
                    raise _NoChain(f"{node.op_type} {node.name} follows its Flatten")
                self._own(node, node.input[1:])
                between.append(node)
            elif self._ends(node, name, flat):
                self._own(node, node.input[1:])
                return Chain(layer, tuple(between), node)
            else:
                raise _NoChain(f"{node.op_type} {node.name} reads it")
            name = node.output[0]

    def _ends(self, node: NodeProto, name: str, flat: bool) -> bool:
        if node.input[0] != name or len(node.input) < 2 or node.input[1] not in self.held:
            return False
        if node.op_type == "Conv":
            return not flat and attribute(node, "group", 1) == 1
        plain = not attribute(node, "transA", 0) and attribute(node, "beta", 1.0) != 0
        return flat and node.op_type == "Gemm" and plain

    def _is_depthwise(self, node: NodeProto) -> bool:
        if node.op_type != "Conv" or node.input[1] not in self.held:
            return False
        out, per_group = self.held[node.input[1]].dims[:2]
        return bool(per_group == 1 and attribute(node, "group", 1) == out)

    def _own(self, node: NodeProto, names: Sequence[str]) -> None:
        for name in names:
            if name and (name not in self.held or self.counts[name] != 1):
                raise _NoChain(f"{node.op_type} {node.name} shares or computes {name}")


# -- removing the channels ------------------------------------------------------------------------

Moments = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Mean and variance by feature, float64 [features]."""


class PruneStructured(Maker):
    """The weakest channels of plain chains leave, and the layers get smaller."""

    name: ClassVar[str] = "prune-structured"
    needs_calibration: ClassVar[bool] = True
    tools: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "numpy")

    share: float = Field(0.25, gt=0, lt=1, description="share of each chain's channels to remove")
    multiple_of: int = Field(
        8,
        ge=1,
        le=64,
        description="the remaining channels are a multiple of this, for vector kernels",
    )

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        graph = model.graph
        chains, refused = find_chains(graph)
        if not chains:
            reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
            raise InvalidInputError.of(
                "prune-structured: model",
                reasons or "no layers with constant float32 weights",
                "a Conv or Gemm followed by nothing but activations, pooling, batch normalisation "
                "or depthwise Conv up to the next Conv or Gemm",
            )
        moments = _moments(model, {chain.reads.input[0] for chain in chains}, calibration)
        removed = total = 0
        for chain in chains:
            losses = _losses(graph, chain, moments[chain.reads.input[0]])
            kept = self._kept(losses)
            total += len(losses)
            removed += len(losses) - len(kept)
            if len(kept) < len(losses):
                _cut(graph, chain, kept, moments)
        if not removed:
            raise InvalidInputError.of(
                "prune-structured.multiple_of",
                self.multiple_of,
                "less, or a larger share: no chain has channels enough to lose so many",
            )
        notes = [f"{removed} of {total} channels of {len(chains)} chains removed"]
        if refused:
            name, why = next(iter(refused.items()))
            notes.append(f"{len(refused)} layers keep all of theirs, e.g. {name}: {why}")
        return Made(model, tuple(notes))

    def _kept(self, losses: NDArray[np.float64]) -> NDArray[np.int64]:
        """The channels that stay, in order: those of largest loss; of equals, the first."""
        wanted = len(losses) * (1.0 - self.share)
        count = min(len(losses), self.multiple_of * max(1, round(wanted / self.multiple_of)))
        return np.sort(np.argsort(-losses, kind="stable")[:count])


def _moments(
    model: ModelProto, names: set[str], calibration: CalibrationData
) -> dict[str, Moments]:
    """Of each named tensor [items, features, ...], over items and places."""
    sums: dict[str, Any] = dict.fromkeys(names, 0.0)
    squares: dict[str, Any] = dict.fromkeys(names, 0.0)
    counts = dict.fromkeys(names, 0)
    for name, values in activations(model, names, calibration):
        by_feature = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1).astype(np.float64)
        sums[name] = sums[name] + by_feature.sum(axis=1)
        squares[name] = squares[name] + (by_feature**2).sum(axis=1)
        counts[name] += by_feature.shape[1]
    means = {name: sums[name] / counts[name] for name in names}
    return {
        name: (means[name], np.maximum(squares[name] / counts[name] - means[name] ** 2, 0.0))
        for name in names
    }


def _losses(graph: GraphProto, chain: Chain, moments: Moments) -> NDArray[np.float64]:
    """The loss by removing each channel of the chain: variance x squared weights, [channels]."""
    _, variance = moments
    weight = np.moveaxis(_array(graph, chain.reads.input[1]), _input_axis(chain.reads), 0)
    norms = (weight.astype(np.float64) ** 2).reshape(len(weight), -1).sum(axis=1)
    channels = _array(graph, chain.writes.input[1]).shape[_output_axis(chain.writes)]
    by_channel: NDArray[np.float64] = (variance * norms).reshape(channels, -1)
    losses: NDArray[np.float64] = by_channel.sum(axis=1)
    return losses


def _cut(
    graph: GraphProto, chain: Chain, kept: NDArray[np.int64], moments: dict[str, Moments]
) -> None:
    held = constants(graph)
    channels = held[chain.writes.input[1]].dims[_output_axis(chain.writes)]
    for name, axis in _parameters(chain):
        array = numpy_helper.to_array(held[name])
        # Biases of one number stand for all channels.
        if array.ndim and array.shape[axis] > 1:
            replace(held[name], np.take(array, kept, axis=axis))
    for node in chain.between:
        for each in node.attribute:
            if each.name == "group":
                each.i = len(kept)
    weight = held[chain.reads.input[1]]
    axis = _input_axis(chain.reads)
    array = numpy_helper.to_array(weight)
    # Behind a Flatten, each channel is as many inputs as it has places, one after the other.
    places = array.shape[axis] // channels
    inputs = (kept[:, None] * places + np.arange(places)).ravel()
    mean, _ = moments[chain.reads.input[0]]
    gone = np.setdiff1d(np.arange(array.shape[axis]), inputs)
    by_input = np.moveaxis(array, axis, 0)[gone].astype(np.float64)
    if chain.reads.op_type == "Conv":
        by_input = by_input.sum(axis=(2, 3))  # [gone, out]; at borders, padding is neglected
    # No matrix product: its sums, and so the last bit, would depend on the number of threads.
    _add_to_bias(graph, chain.reads, (mean[gone, None] * by_input).sum(axis=0))
    replace(weight, np.take(array, inputs, axis=axis))


def _add_to_bias(graph: GraphProto, node: NodeProto, shift: NDArray[np.float64]) -> None:
    if node.op_type == "Gemm":
        shift = shift * attribute(node, "alpha", 1.0) / attribute(node, "beta", 1.0)
    if len(node.input) > 2 and node.input[2]:
        bias = constants(graph)[node.input[2]]
        replace(bias, (numpy_helper.to_array(bias) + shift).astype(np.float32))
    else:
        name = add_constant(graph, f"{node.name}/bias", shift.astype(np.float32))
        del node.input[2:]
        node.input.append(name)


def _parameters(chain: Chain) -> Iterator[tuple[str, int]]:
    """Constants with an axis of output channels, and that axis."""
    yield chain.writes.input[1], _output_axis(chain.writes)
    for name in chain.writes.input[2:]:
        if name:
            yield name, -1
    for node in chain.between:
        for name in node.input[1:]:
            if name:
                yield name, 0


def _output_axis(node: NodeProto) -> int:
    return 0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1


def _input_axis(node: NodeProto) -> int:
    return 1 if node.op_type == "Conv" or attribute(node, "transB", 0) else 0


def _array(graph: GraphProto, name: str) -> NDArray[Any]:
    return numpy_helper.to_array(constants(graph)[name])
