"""Writes a network as an ONNX graph that takes raw photos: crop, resize, normalise, classify.

Both precisions are written by the same walk, so they cannot drift apart. In int8 every activation
passes a pair of QuantizeLinear and DequantizeLinear and every weight a DequantizeLinear (the QDQ
form), which ONNX Runtime fuses into integer kernels. ReLU6 costs nothing there: the quantised range
ends where ReLU6 clips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelless.variants.zoo.efficientnet_lite import Convolution, Float, Network

INPUT = "image"
OUTPUT = "probabilities"
PIXELS = "normalised"
FEATURES = "features"

# The stem and the first block stay float32 in an int8 graph. Their filters take differences of
# neighbouring pixels and amplify them up to fifty times, and 8 bits of brightness are too coarse
# for that: with these three layers in int8, the divergence (Kullback-Leibler) from the float model
# was two to four times as large. Nor was int8 any faster: with so few channels the float kernels
# are as quick.
FLOAT_LAYERS = 3

_OPSET = 18  # the first whose Resize can antialias; nothing here needs a later one
_IR_VERSION = 9
_MEAN, _SCALE = 127, 1.0 / 128.0
_BIAS_LIMIT = 2**30  # half of int32: the rest is room for the sum
_SMALLEST_SCALE = 1e-9  # products of smaller ones are denormal numbers, with which a CPU is slow


@dataclass(frozen=True, slots=True)
class Range:
    """What a tensor's uint8 codes stand for: ``(code - zero_point) * scale``; 0 has a code."""

    scale: float
    zero_point: int

    @classmethod
    def of(cls, low: float, high: float) -> Range:
        """The range that holds ``low``, ``high`` and 0."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = float(np.float32(max((high - low) / 255.0, _SMALLEST_SCALE)))
        return cls(scale, round(-low / scale))


Ranges = Mapping[str, Range]


def write_graph(
    network: Network, resolution_px: int, ranges: Ranges | None = None
) -> onnx.ModelProto:
    """The network behind its preprocessing, as one checked ONNX model without external data.

    Input ``image``: uint8 [N, H, W, 3], RGB, any H and W.
    Output ``probabilities``: float32 [N, classes].

    The centre square of a photo is resized (bilinear, antialiased) to ``resolution_px``. ImageNet's
    usual evaluation takes only about the middle 88 % of that square. Here all of it is taken: a
    caller who has cropped already is not cropped twice, an image that comes at ``resolution_px``
    passes untouched, and what is near a border still counts.

    Args:
        network: folded weights.
        resolution_px: side of the network's own input.
        ranges: the activations' ranges by name, from ``quantise.calibrate``, to write int8; None
            writes float32.
    """
    writer = _Float()
    _preprocess(writer, resolution_px)
    x = writer.normalise("pixels")
    for layer in network.convolutions[:FLOAT_LAYERS]:
        x = writer.convolution(layer, x)
    if ranges is not None:
        writer = _Int8(writer, ranges)
        x = writer.quantise(x, name=f"{x}/rounded", ranged_as=x)
    for layer in network.convolutions[FLOAT_LAYERS:]:
        x = writer.convolution(layer, x)
    writer.classify(network, x)
    return writer.model(f"{network.architecture.name}-{resolution_px}", len(network.linear_bias))


def activation_names(layer: Convolution) -> tuple[str, ...]:
    """The tensors that ``layer`` writes, each with its own range; the last one is handed on."""
    return (layer.name,) if layer.residual_of is None else (f"{layer.name}/branch", layer.name)


def _preprocess(writer: _Float, resolution_px: int) -> None:
    """uint8 [N, H, W, 3] to uint8 [N, 3, side, side], named ``pixels``."""
    two = writer.constant("preprocess/two", np.array([2], np.int64))
    axes = writer.constant("preprocess/axes", np.array([1, 2], np.int64))
    sizes = writer.constant("preprocess/sizes", np.array([resolution_px] * 2, np.int64))
    writer.node("Shape", [INPUT], "preprocess/height_width", start=1, end=3)
    writer.node("ReduceMin", ["preprocess/height_width"], "preprocess/side", keepdims=1)
    writer.node("Sub", ["preprocess/height_width", "preprocess/side"], "preprocess/surplus")
    writer.node("Div", ["preprocess/surplus", two], "preprocess/starts")
    writer.node("Add", ["preprocess/starts", "preprocess/side"], "preprocess/ends")
    writer.node("Slice", [INPUT, "preprocess/starts", "preprocess/ends", axes], "preprocess/square")
    writer.node(
        "Resize",
        ["preprocess/square", "", "", sizes],
        "preprocess/resized",
        mode="linear",
        coordinate_transformation_mode="half_pixel",
        antialias=1,
        axes=[1, 2],
    )
    writer.node("Transpose", ["preprocess/resized"], "pixels", perm=[0, 3, 1, 2])


@dataclass(slots=True)
class _Float:
    """Collects nodes and constants; writes layers in float32."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, array: NDArray[Any]) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def normalise(self, pixels: str) -> str:
        """(pixel - 127) / 128, which is what a DequantizeLinear does."""
        scale = self.constant("pixels/scale", np.array(_SCALE, np.float32))
        zero_point = self.constant("pixels/zero_point", np.array(_MEAN, np.uint8))
        return self.node("DequantizeLinear", [pixels, scale, zero_point], PIXELS)

    def convolution(self, layer: Convolution, x: str) -> str:
        kernel = layer.weight.shape[-1]
        first, *summed = activation_names(layer)
        y = self.activation(
            "Conv",
            [x, *self.parameters(layer.name, layer.weight, layer.bias, x)],
            first,
            relu6=layer.relu6,
            kernel_shape=[kernel, kernel],
            strides=[layer.stride, layer.stride],
            group=layer.groups,
            auto_pad="SAME_UPPER",  # TensorFlow's SAME: an odd row goes below, an odd column right
        )
        if layer.residual_of is None:
            return y
        return self.activation("Add", [y, layer.residual_of], *summed)

    def classify(self, network: Network, x: str) -> None:
        # Both ends of Flatten are activations, for only then does an integer Gemm follow it.
        mean = self.activation("GlobalAveragePool", [x], "mean", ranged_as=FEATURES)
        features = self.activation("Flatten", [mean], FEATURES, axis=1)
        parameters = self.parameters("linear", network.linear_weight, network.linear_bias, features)
        self.node("Gemm", [features, *parameters], "logits", transB=1)
        self.node("Softmax", ["logits"], OUTPUT, axis=-1)

    def parameters(self, name: str, weight: Float, bias: Float, x: str) -> list[str]:
        """Names of a layer's weight and bias, to be used beside the activation ``x``."""
        del x
        return [self.constant(f"{name}/weight", weight), self.constant(f"{name}/bias", bias)]

    def activation(
        self,
        kind: str,
        inputs: list[str],
        name: str,
        *,
        relu6: bool = False,
        ranged_as: str = "",
        **attributes: Any,
    ) -> str:
        """A node and whatever follows each in this precision. The result is called ``name``."""
        del ranged_as
        if not relu6:
            return self.node(kind, inputs, name, **attributes)
        y = self.node(kind, inputs, f"{name}/linear", **attributes)
        low = self.constant("relu6/low", np.array(0, np.float32))
        high = self.constant("relu6/high", np.array(6, np.float32))
        return self.node("Clip", [y, low, high], name)

    def model(self, name: str, classes: int) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["N", "H", "W", 3])],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["N", classes])],
            list(self.constants.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
            producer_name="modelless",
        )
        onnx.checker.check_model(model, full_check=True)
        return model


class _Int8(_Float):
    """Goes on in the QDQ form: uint8 activations, symmetric int8 weights by channel."""

    def __init__(self, before: _Float, ranges: Ranges) -> None:
        super().__init__(before.nodes, before.constants)
        self._ranges = ranges
        self._scales: dict[str, float] = {}

    def quantise(self, x: str, *, name: str, ranged_as: str) -> str:
        """``x`` rounded to uint8 codes and back, called ``name``."""
        numbers = self._ranges[ranged_as]
        self._scales[name] = numbers.scale
        scale = self.constant(f"{name}/scale", np.array(numbers.scale, np.float32))
        zero_point = self.constant(f"{name}/zero_point", np.array(numbers.zero_point, np.uint8))
        codes = self.node("QuantizeLinear", [x, scale, zero_point], f"{name}/codes")
        return self.node("DequantizeLinear", [codes, scale, zero_point], name)

    def activation(
        self,
        kind: str,
        inputs: list[str],
        name: str,
        *,
        relu6: bool = False,
        ranged_as: str = "",
        **attributes: Any,
    ) -> str:
        del relu6  # its range lies within 0..6 and quantising saturates
        y = self.node(kind, inputs, f"{name}/exact", **attributes)
        return self.quantise(y, name=name, ranged_as=ranged_as or name)

    def parameters(self, name: str, weight: Float, bias: Float, x: str) -> list[str]:
        at_least = np.abs(bias) / (self._scales[x] * _BIAS_LIMIT)
        codes, scale = quantise_weight(weight, at_least)
        bias_scale = (scale * np.float64(self._scales[x])).astype(np.float32)
        bias_codes = np.rint(bias / bias_scale.astype(np.float64)).astype(np.int32)
        return [
            self._dequantised(f"{name}/weight", codes, scale),
            self._dequantised(f"{name}/bias", bias_codes, bias_scale),
        ]

    def _dequantised(self, name: str, codes: NDArray[Any], scale: Float) -> str:
        inputs = [
            self.constant(f"{name}/codes", codes),
            self.constant(f"{name}/scale", scale),
            self.constant(f"{name}/zero_point", np.zeros(scale.shape, codes.dtype)),
        ]
        return self.node("DequantizeLinear", inputs, name, axis=0)


def quantise_weight(
    weight: Float, at_least: NDArray[np.floating[Any]] | float = 0.0
) -> tuple[NDArray[np.int8], Float]:
    """``weight`` as int8 codes of its shape and float32 scales [out], symmetric, one a channel.

    Args:
        at_least: the smallest scale, a number or one a channel. A pruned channel's weights are zero
            but its bias need not be, and the bias is counted in units of the weights' scale.
    """
    largest = np.abs(weight.reshape(len(weight), -1)).max(axis=1)
    scale = np.maximum(np.maximum(largest / 127.0, at_least), _SMALLEST_SCALE).astype(np.float32)
    codes = np.rint(weight / scale.reshape(-1, *[1] * (weight.ndim - 1)))
    return codes.astype(np.int8), scale
