"""What int8 needs to know of a float network: its activations' ranges, and better biases.

Rounding the weights moves the mean of a layer's output, and in a thin network such shifts add up.
The mean shift is known as soon as the mean input is, so it is taken off the bias: Nagel et al.,
"Data-Free Quantization Through Weight Equalization and Bias Correction" (2019),
https://arxiv.org/abs/1906.04721, section 4.2, with measured means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from modelless.variants.making.session import Session
from modelless.variants.zoo.efficientnet_lite import Float, Network
from modelless.variants.zoo.graph import (
    FEATURES,
    FLOAT_LAYERS,
    Range,
    activation_names,
    quantise_weight,
    write_graph,
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a float network's activations are like on photos.

    Attributes:
        ranges: by activation, from the smallest to the largest value seen.
        means: by activation, float64 [channels].
    """

    ranges: Mapping[str, Range]
    means: Mapping[str, NDArray[np.float64]]


def calibrate(network: Network, photos: Iterable[NDArray[np.uint8]]) -> Calibration:
    """Run the float network at its native resolution and note what its activations do.

    The result serves the network's other resolutions too: what a filter answers hardly depends on
    how many places it is asked at.

    Args:
        photos: uint8 [H, W, 3] RGB, of any sizes.
    """
    model = write_graph(network, network.architecture.native_px)
    # From the last float layer on, for its output is the first to be rounded.
    layers = network.convolutions[FLOAT_LAYERS - 1 :]
    names = [name for layer in layers for name in activation_names(layer)] + [FEATURES]
    for name in names:
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    session = Session(model.SerializeToString())
    (image,) = session.inputs
    lowest = dict.fromkeys(names, np.inf)
    highest = dict.fromkeys(names, -np.inf)
    sums: dict[str, Any] = dict.fromkeys(names, 0.0)
    count = 0
    for photo in photos:
        count += 1
        for name, values in session.run({image: photo[None]}, names).items():
            lowest[name] = min(lowest[name], float(values.min()))
            highest[name] = max(highest[name], float(values.max()))
            by_channel = values.reshape(values.shape[1], -1)
            sums[name] = sums[name] + by_channel.mean(axis=1, dtype=np.float64)
    return Calibration(
        ranges={name: Range.of(lowest[name], highest[name]) for name in names},
        means={name: sums[name] / count for name in names},
    )


def correct_biases(network: Network, means: Mapping[str, NDArray[np.float64]]) -> Network:
    """The network with biases that make up for what int8 weights add to each layer's mean output.

    Borders, where padding stands in for some inputs, are neglected.

    Args:
        means: by activation, as ``calibrate`` gives them.
    """
    layers = list(network.convolutions[:FLOAT_LAYERS])
    for layer in network.convolutions[FLOAT_LAYERS:]:
        error = _rounding_error(layer.weight).sum(axis=(2, 3))
        mean = means[layers[-1].name]
        shift = error[:, 0] * mean if layer.groups > 1 else error @ mean
        layers.append(replace(layer, bias=(layer.bias - shift).astype(np.float32)))
    linear_shift = _rounding_error(network.linear_weight) @ means[FEATURES]
    return replace(
        network,
        convolutions=tuple(layers),
        linear_bias=(network.linear_bias - linear_shift).astype(np.float32),
    )


def _rounding_error(weight: Float) -> NDArray[np.float64]:
    codes, scale = quantise_weight(weight)
    exact: NDArray[np.float64] = weight.astype(np.float64)
    return codes * scale.reshape(-1, *[1] * (weight.ndim - 1)).astype(np.float64) - exact
