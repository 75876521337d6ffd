"""The ONNX graphs of the Fashion-MNIST networks: folded weights in, an fp32 or int8 model out.

Both graphs take raw pixels and return probabilities, so nothing is normalised outside of them:

    image UINT8 [N, 28, 28] -> Unsqueeze -> DequantizeLinear(1/255) -> convolutions, dense layer
    -> Softmax -> probabilities FP32 [N, 10]

In the int8 graph that DequantizeLinear feeds the first convolution directly, so an engine fuses
the two: the network's first quantised operator reads the client's bytes as they came.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
SIDE_PX = 28
CLASSES = 10
PIXEL_SCALE = np.float32(1.0 / 255.0)
CALIBRATION_BATCH = 100


@dataclass(frozen=True, slots=True)
class Conv:
    """A 3x3 convolution with padding 1, then batch normalisation and ReLU.

    Attributes:
        channels: output channels.
        stride: 1 or 2 in both directions.
    """

    channels: int
    stride: int = 1

    def __str__(self) -> str:
        return f"conv 3x3, {self.channels} channels, stride {self.stride}"


@dataclass(frozen=True, slots=True)
class Pool:
    """A 2x2 max pooling with stride 2."""

    def __str__(self) -> str:
        return "max pool 2x2"


Layer = Conv | Pool


@dataclass(frozen=True, slots=True)
class Folded:
    """Trained weights with batch normalisation folded in.

    Attributes:
        kernels: FP32 [out, in, 3, 3] for each convolution, in order.
        biases: FP32 [out] for each convolution, in order.
        dense: FP32 [10, features].
        dense_bias: FP32 [10].
    """

    kernels: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    dense: NDArray[np.float32]
    dense_bias: NDArray[np.float32]

    @property
    def parameter_count(self) -> int:
        """Weights and biases of the folded network."""
        arrays = (*self.kernels, *self.biases, self.dense, self.dense_bias)
        return sum(array.size for array in arrays)


def fold_batch_norm(
    kernel: NDArray[np.float32],
    gamma: NDArray[np.float32],
    beta: NDArray[np.float32],
    mean: NDArray[np.float32],
    variance: NDArray[np.float32],
    epsilon: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Fold an inference-time batch normalisation into the bias-free convolution before it.

    Args:
        kernel: FP32 [out, in, 3, 3]; the other arrays are FP32 [out].
        gamma, beta, mean, variance: of the batch normalisation.
        epsilon: what it adds to the variance.

    Returns:
        FP32 kernel [out, in, 3, 3] and FP32 bias [out]; the sums are done in FP64.
    """
    factor = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    folded = kernel.astype(np.float64) * factor[:, None, None, None]
    bias = beta.astype(np.float64) - mean.astype(np.float64) * factor
    return folded.astype(np.float32), bias.astype(np.float32)


def side_after(layers: Sequence[Layer]) -> int:
    """Side, in px, of the square feature map after ``layers``."""
    side = SIDE_PX
    for layer in layers:
        side = side // 2 if isinstance(layer, Pool) else -(-side // layer.stride)
    return side


def multiply_adds(layers: Sequence[Layer]) -> int:
    """Multiply-adds of one image's way through ``layers`` and the dense layer after them."""
    total, channels = 0, 1
    for index, layer in enumerate(layers):
        if isinstance(layer, Conv):
            side = side_after(layers[: index + 1])
            total += side * side * layer.channels * channels * 9
            channels = layer.channels
    return total + side_after(layers) ** 2 * channels * CLASSES


def _body(layers: Sequence[Layer], weights: Folded) -> onnx.ModelProto:
    """``pixels`` FP32 [N, 1, 28, 28], 0 to 1 -> ``probabilities`` FP32 [N, 10]."""
    nodes: list[onnx.NodeProto] = []
    initializers: list[onnx.TensorProto] = []
    flow, conv, pool = "pixels", 0, 0
    for layer in layers:
        if isinstance(layer, Pool):
            pool += 1
            name = f"pool{pool}"
            nodes.append(
                helper.make_node(
                    "MaxPool", [flow], [name], name=name, kernel_shape=[2, 2], strides=[2, 2]
                )
            )
        else:
            conv += 1
            name = f"relu{conv}"
            kernel, bias = weights.kernels[conv - 1], weights.biases[conv - 1]
            initializers.append(numpy_helper.from_array(kernel, f"conv{conv}.weight"))
            initializers.append(numpy_helper.from_array(bias, f"conv{conv}.bias"))
            nodes.append(
                helper.make_node(
                    "Conv",
                    [flow, f"conv{conv}.weight", f"conv{conv}.bias"],
                    [f"conv{conv}"],
                    name=f"conv{conv}",
                    kernel_shape=[3, 3],
                    pads=[1, 1, 1, 1],
                    strides=[layer.stride, layer.stride],
                )
            )
            nodes.append(helper.make_node("Relu", [f"conv{conv}"], [name], name=name))
        flow = name
    initializers.append(numpy_helper.from_array(weights.dense, "dense.weight"))
    initializers.append(numpy_helper.from_array(weights.dense_bias, "dense.bias"))
    nodes += [
        helper.make_node("Flatten", [flow], ["features"], name="flatten", axis=1),
        helper.make_node(
            "Gemm",
            ["features", "dense.weight", "dense.bias"],
            ["logits"],
            name="dense",
            transB=1,
        ),
        helper.make_node("Softmax", ["logits"], ["probabilities"], name="softmax", axis=1),
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["N", 1, SIDE_PX, SIDE_PX])
    return _model("body", nodes, initializers, pixels)


def _model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto],
    given: onnx.ValueInfoProto,
) -> onnx.ModelProto:
    result = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", CLASSES])
    return helper.make_model(
        helper.make_graph(list(nodes), name, [given], [result], list(initializers)),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="modelless",
    )


def _with_raw_input(name: str, body: onnx.ModelProto) -> bytes:
    """Put ``image`` UINT8 [N, 28, 28] and the normalisation before ``body``, and tidy the whole."""
    body_nodes, ahead = list(body.graph.node), "pixels"
    (first,) = (node for node in body_nodes if "pixels" in node.input)
    if first.op_type == "QuantizeLinear":
        # The quantiser's own pair around the input: the bytes already are what it would compute.
        _check_pixel_scale(body, first)
        (restore,) = (node for node in body_nodes if first.output[0] in node.input)
        ahead = restore.output[0]
        body_nodes = [node for node in body_nodes if node.name not in (first.name, restore.name)]
    nodes = [
        helper.make_node("Unsqueeze", ["image", "channel_axis"], ["planes"], name="planes"),
        helper.make_node(
            "DequantizeLinear", ["planes", "pixel_scale", "pixel_zero"], [ahead], name="pixels"
        ),
        *body_nodes,
    ]
    used = {name for node in nodes for name in node.input}
    initializers = [
        numpy_helper.from_array(np.array([1], np.int64), "channel_axis"),
        numpy_helper.from_array(np.array(PIXEL_SCALE), "pixel_scale"),
        numpy_helper.from_array(np.array(0, np.uint8), "pixel_zero"),
        *(tensor for tensor in body.graph.initializer if tensor.name in used),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", SIDE_PX, SIDE_PX])
    model = _model(name, nodes, initializers, image)
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _check_pixel_scale(body: onnx.ModelProto, node: onnx.NodeProto) -> None:
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in body.graph.initializer}
    scale, zero = held[node.input[1]], held[node.input[2]]
    if zero.dtype != np.uint8 or int(zero) != 0 or not np.isclose(scale, PIXEL_SCALE, rtol=1e-5):
        raise ValueError(f"pixels quantised with scale {scale}, zero {zero}; 1/255 and 0 expected")


def fp32_graph(name: str, layers: Sequence[Layer], weights: Folded) -> bytes:
    """The fp32 model: UINT8 [N, 28, 28] -> FP32 [N, 10]."""
    return _with_raw_input(name, _body(layers, weights))


class _Calibration:
    """Feeds images UINT8 [count, 28, 28] to the quantiser as ``pixels``."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        self._batches: Iterator[NDArray[np.uint8]] = iter(
            images[start : start + CALIBRATION_BATCH]
            for start in range(0, len(images), CALIBRATION_BATCH)
        )

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """The next batch FP32 [n, 1, 28, 28], or None at the end."""
        batch = next(self._batches, None)
        return (
            None if batch is None else {"pixels": batch[:, None].astype(np.float32) * PIXEL_SCALE}
        )


def int8_graph(
    name: str, layers: Sequence[Layer], weights: Folded, calibration: NDArray[np.uint8]
) -> bytes:
    """The int8 model: static QDQ, per channel, unsigned activations and 7-bit signed weights.

    Seven bits because eight-bit weights can overflow the 16-bit sums of x86 cores without VNNI, and
    then the accuracy would depend on the machine; 64 * 255 * 2 does not.

    Args:
        name: of the graph.
        layers, weights: the trained network.
        calibration: training images UINT8 [count, 28, 28] from which the ranges are read.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_static(
            _body(layers, weights),
            path,
            _Calibration(calibration),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Relu", "MaxPool", "Flatten", "Gemm"],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm"]},
        )
        body = onnx.load(path)
    return _with_raw_input(name, body)
