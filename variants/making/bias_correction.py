"""Biases that make up for what rounding adds to each layer's mean output.

Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019,
https://arxiv.org/abs/1906.04721, section 4.2; the means are measured on data as in its appendix D.
Rounded weights move the mean of a channel, E[y'] - E[y], for all inputs alike; taken off the bias
it costs nothing when served. Layer after layer, so that each is corrected for what is left of the
shifts before it. (Banner et al., "Post training 4-bit quantization of convolutional networks for
rapid-deployment", NeurIPS 2019, https://arxiv.org/abs/1810.05723, put the same shift into weights.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from modelless.variants.graphs.weights import (
    add_constant,
    attribute,
    constants,
    readers,
    replace,
    weights,
)
from modelless.variants.making.activation_ranges import activations
from modelless.variants.making.calibration import CalibrationData

_CHANNEL_AXIS = 1
_INT32 = np.iinfo(np.int32)


def with_biases(model: ModelProto) -> None:
    """Give convolutions and Gemms that have none a bias of zeros, so that there is one to correct.

    Args:
        model: float32; changed.
    """
    for weight in weights(model):
        node = weight.node
        if node.op_type not in ("Conv", "Gemm") or (len(node.input) > 2 and node.input[2]):
            continue
        channels = weight.array.shape[0]
        if node.op_type == "Gemm" and not attribute(node, "transB", 0):
            channels = weight.array.shape[1]
        zeros = np.zeros(channels, np.float32)
        name = add_constant(model.graph, f"{node.name}/bias", zeros)
        node.input[:] = [*node.input[:2], name]


def correct_biases(model: ModelProto, quantised: ModelProto, calibration: CalibrationData) -> int:
    """Correct the integer biases of ``quantised``; it takes one run of the data for each.

    A layer whose bias is not an int32 constant of its own, as a matrix product's is not, stays as
    it is.

    Args:
        model: the float32 model, whose layers bear the same names.
        quantised: its form with pairs of QuantizeLinear and DequantizeLinear; changed.
        calibration: one call at least.

    Returns:
        How many layers were corrected.
    """
    outputs = {weight.node.name: weight.node.output[0] for weight in weights(model)}
    biases = [bias for bias in _biases(quantised.graph) if bias.layer.name in outputs]
    if not biases:
        return 0
    wanted = _means(model, [outputs[bias.layer.name] for bias in biases], calibration)
    for bias in biases:
        name = bias.layer.output[0]
        shift = _means(quantised, [name], calibration)[name] - wanted[outputs[bias.layer.name]]
        codes = numpy_helper.to_array(bias.codes).astype(np.float64) - shift / bias.scale
        replace(bias.codes, np.clip(np.rint(codes), _INT32.min, _INT32.max).astype(np.int32))
    return len(biases)


@dataclass(frozen=True, slots=True)
class _Bias:
    """An integer bias: int32 [channels], worth ``scale`` (float64, one or [channels]) a step."""

    layer: NodeProto
    codes: TensorProto
    scale: NDArray[np.float64]


def _biases(graph: GraphProto) -> list[_Bias]:
    """Of convolutions and Gemms, in the order in which they run."""
    held, counts = constants(graph), readers(graph)
    restored = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    found = []
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3:
            continue
        restore = restored.get(node.input[2])
        if restore is None or counts[node.input[2]] != 1:
            continue
        codes, scale = held.get(restore.input[0]), held.get(restore.input[1])
        if codes is None or scale is None or codes.data_type != TensorProto.INT32:
            continue
        if counts[restore.input[0]] == 1:
            steps = numpy_helper.to_array(scale).astype(np.float64)
            found.append(_Bias(node, codes, steps))
    return found


def _means(
    model: ModelProto, names: list[str], calibration: CalibrationData
) -> dict[str, NDArray[np.float64]]:
    """Means by channel, float64 [channels], of tensors [items, channels, ...]."""
    sums: dict[str, NDArray[np.float64]] = {}
    counts = dict.fromkeys(names, 0)
    for name, values in activations(model, names, calibration):
        others = tuple(axis for axis in range(values.ndim) if axis != _CHANNEL_AXIS)
        total = values.sum(axis=others, dtype=np.float64)
        sums[name] = sums[name] + total if name in sums else total
        counts[name] += values.size // values.shape[_CHANNEL_AXIS]
    return {name: sums[name] / counts[name] for name in sums}
