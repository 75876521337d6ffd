"""Writes a network as an ONNX graph that takes raw photos: crop, resize, normalise, classify."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelless.variants.zoo.efficientnet_lite import Convolution, Float, Network

INPUT = "image"
OUTPUT = "probabilities"

_OPSET = 18  # the first whose Resize can antialias; nothing here needs a later one
_IR_VERSION = 9
_MEAN, _SCALE = 127, 1.0 / 128.0


def write_graph(network: Network, resolution_px: int) -> onnx.ModelProto:
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
    """
    writer = _Writer()
    _preprocess(writer, resolution_px)
    x = writer.normalise("pixels")
    for layer in network.convolutions:
        x = writer.convolution(layer, x)
    writer.classify(network, x)
    return writer.model(f"{network.architecture.name}-{resolution_px}", len(network.linear_bias))


def _preprocess(writer: _Writer, resolution_px: int) -> None:
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
class _Writer:
    """Collects the nodes and constants of a float32 graph."""

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
        return self.node("DequantizeLinear", [pixels, scale, zero_point], "normalised")

    def convolution(self, layer: Convolution, x: str) -> str:
        """The layer with its ReLU6 and its residual; the result bears the layer's name."""
        kernel = layer.weight.shape[-1]
        is_last = not layer.relu6 and layer.residual_of is None
        y = self.node(
            "Conv",
            [x, *self.parameters(layer.name, layer.weight, layer.bias)],
            layer.name if is_last else f"{layer.name}/convolution",
            kernel_shape=[kernel, kernel],
            strides=[layer.stride, layer.stride],
            group=layer.groups,
            auto_pad="SAME_UPPER",  # TensorFlow's SAME: an odd row goes below, an odd column right
        )
        if layer.relu6:
            low = self.constant("relu6/low", np.array(0, np.float32))
            high = self.constant("relu6/high", np.array(6, np.float32))
            y = self.node("Clip", [y, low, high], layer.name)
        if layer.residual_of is not None:
            y = self.node("Add", [y, layer.residual_of], layer.name)
        return y

    def classify(self, network: Network, x: str) -> None:
        """The mean over space, the linear layer and Softmax."""
        mean = self.node("GlobalAveragePool", [x], "mean")
        features = self.node("Flatten", [mean], "features", axis=1)
        parameters = self.parameters("linear", network.linear_weight, network.linear_bias)
        self.node("Gemm", [features, *parameters], "logits", transB=1)
        self.node("Softmax", ["logits"], OUTPUT, axis=-1)

    def parameters(self, name: str, weight: Float, bias: Float) -> list[str]:
        """Names of a layer's weight and bias."""
        return [self.constant(f"{name}/weight", weight), self.constant(f"{name}/bias", bias)]

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
