"""Train the Fashion-MNIST networks, write their ONNX files and measure them.

    python benchmarks/profiling/fashion_mnist_training.py --data DIR --out DIR [--check]

``--data`` holds the four ``*-ubyte.gz`` files (Debian: ``dataset-fashion-mnist``, under
``/usr/share/datasets/fashion-mnist``). Needs PyTorch and ONNX Runtime and, on one core, about ten
minutes. ``--check`` writes nothing: it trains again and compares with what is in ``--out``; on the
platform the manifest names, files must be bit-identical, elsewhere accuracies must agree within
``TOLERANCE_POINTS``. ``--check --sizes xs,s`` takes a minute.

The test split is touched only to measure; settings were chosen on held-out training images.

Both graphs take raw pixels and return probabilities, so nothing is normalised outside of them::

    image UINT8 [N, 28, 28] -> Unsqueeze -> DequantizeLinear(1/255) -> convolutions, dense layer
    -> Softmax -> probabilities FP32 [N, 10]

In the int8 graph that DequantizeLinear feeds the first convolution directly, so an engine fuses the
two: the first quantised operator reads the client's bytes as they came.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import logging
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, ModellessError
from modelless.common.intervals import wilson_percent
from modelless.variants.making.session import Session
from modelless.variants.vocabulary import Precision
from modelless.variants.zoo import fashion_mnist as shipped

log = logging.getLogger("fashion-mnist")

Images = NDArray[np.uint8]
Record = dict[str, Any]
"""A part of the manifest."""

SIDE_PX = shipped.SIDE_PX
OPSET = 17
IR_VERSION = 8
CLASSES = len(shipped.TASK.labels)
PIXEL_SCALE = np.float32(1.0 / 255.0)


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

    def __init__(self, images: Images) -> None:
        self._calls = iter(np.array_split(images[:, None].astype(np.float32) * PIXEL_SCALE, 10))

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """The next batch FP32 [n, 1, 28, 28], or None at the end."""
        batch = next(self._calls, None)
        return None if batch is None else {"pixels": batch}


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


TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TRAIN_LABELS = "train-labels-idx1-ubyte.gz"
TRAIN_COUNT = 60_000
HELD_OUT = 5_000
CALIBRATION_COUNT = 1_000
BATCH = 128
TOLERANCE_POINTS = 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """One network and how to train it.

    Attributes:
        layers: what comes before the dense layer.
        epochs: passes over the 55,000 images that are not held out.
        learning_rate: the peak of the one-cycle schedule.
        weight_decay: AdamW's.
        seed: of the weights, the order of the images and the mirroring.
    """

    layers: tuple[Layer, ...]
    epochs: int
    learning_rate: float
    weight_decay: float = 0.05
    seed: int = 20_170_825


RECIPES: dict[str, Recipe] = {
    "xs": Recipe((Conv(8, 2), Conv(16, 2), Pool()), 8, 1e-2, 1e-2),
    "s": Recipe((Conv(16, 2), Conv(32, 2)), 6, 6e-3),
    "m": Recipe((Conv(16), Pool(), Conv(32), Pool(), Conv(64), Pool()), 4, 6e-3),
    "l": Recipe((Conv(32, 2), Conv(64), Pool(), Conv(128), Pool()), 4, 5e-3),
    "xl": Recipe((Conv(32), Pool(), Conv(64), Conv(64), Pool(), Conv(128), Pool()), 4, 5e-3),
}

TRAINING = (
    f"first {TRAIN_COUNT - HELD_OUT} training images; the last {HELD_OUT} held out for validation",
    "AdamW, one-cycle schedule rising for 20 % of the steps, cross-entropy",
    "each image mirrored left to right with probability 1/2",
    "one thread, deterministic algorithms; the last epoch's weights are taken",
    f"int8: static QDQ per channel, uint8 activations, 7-bit weights, min-max ranges of the first "
    f"{CALIBRATION_COUNT} training images",
    "accuracy: ONNX Runtime on CPU, all 10000 test images, Wilson 95 % interval",
)


@dataclass(frozen=True, slots=True)
class Data:
    """Fashion-MNIST: images UINT8 [count, 28, 28], labels UINT8 [count], and the files' hashes."""

    train_images: Images
    train_labels: NDArray[np.uint8]
    test_images: Images
    test_labels: NDArray[np.uint8]
    files: dict[str, Record]


@dataclass(frozen=True, slots=True)
class Made:
    """One trained network: its record, and a file's name, bytes and record for each precision."""

    model: str
    record: Record
    variants: tuple[tuple[bytes, Record], ...]


def file_record(content: bytes) -> Record:
    """Hash and length of ``content``."""
    return {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}


def load_data(folder: Path) -> Data:
    """Read both splits from ``folder``."""
    files: dict[str, Record] = {}

    def read(name: str, *shape: int) -> NDArray[np.uint8]:
        path = folder / name
        if not path.is_file():
            raise InvalidInputError.of(
                "--data", str(folder), f"a folder with {name}", "apt install dataset-fashion-mnist"
            )
        content = path.read_bytes()
        files[name] = file_record(content)
        header = bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)
        unpacked = gzip.decompress(content)
        if not unpacked.startswith(header):
            raise InvalidInputError.of(name, unpacked[:16], f"an IDX file of shape {shape}")
        return np.frombuffer(unpacked, np.uint8, offset=len(header)).reshape(shape)

    return Data(
        read(TRAIN_IMAGES, TRAIN_COUNT, SIDE_PX, SIDE_PX),
        read(TRAIN_LABELS, TRAIN_COUNT),
        read(shipped.TEST_IMAGES, shipped.TEST_COUNT, SIDE_PX, SIDE_PX),
        read(shipped.TEST_LABELS, shipped.TEST_COUNT),
        files,
    )


def predict(onnx_bytes: bytes, images: Images) -> NDArray[np.float32]:
    """Probabilities FP32 [count, 10] of ``images`` UINT8 [count, 28, 28], on one thread."""
    session = Session(onnx_bytes)
    parts = [
        session.run({"image": images[start : start + 250]})["probabilities"]
        for start in range(0, len(images), 250)
    ]
    return np.concatenate(parts)


def count_correct(onnx_bytes: bytes, images: Images, labels: NDArray[np.uint8]) -> int:
    """How many of ``images`` UINT8 [count, 28, 28] the model assigns to their label."""
    return int(np.count_nonzero(predict(onnx_bytes, images).argmax(axis=1) == labels))


def _network(torch: Any, layers: Sequence[Layer]) -> Any:
    nn = torch.nn
    parts: list[Any] = []
    channels = 1
    for layer in layers:
        if isinstance(layer, Pool):
            parts.append(nn.MaxPool2d(2))
        else:
            parts += [
                nn.Conv2d(channels, layer.channels, 3, layer.stride, 1, bias=False),
                nn.BatchNorm2d(layer.channels),
                nn.ReLU(),
            ]
            channels = layer.channels
    features = channels * side_after(layers) ** 2
    network = nn.Sequential(*parts, nn.Flatten(), nn.Linear(features, CLASSES))
    return network.to(memory_format=torch.channels_last)


def _fit(torch: Any, recipe: Recipe, images: Images, labels: NDArray[np.uint8]) -> Any:
    """Train a network on ``images`` UINT8 [count, 28, 28] and return it in evaluation mode."""
    torch.manual_seed(recipe.seed)
    network = _network(torch, recipe.layers)
    order = torch.Generator().manual_seed(recipe.seed + 1)
    pixels = torch.from_numpy(images.copy()).unsqueeze(1)
    targets = torch.from_numpy(labels.astype(np.int64))
    steps = len(images) // BATCH
    optimiser = torch.optim.AdamW(
        network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.learning_rate, total_steps=steps * recipe.epochs, pct_start=0.2
    )
    for _ in range(recipe.epochs):
        shuffled = torch.randperm(len(images), generator=order)
        for step in range(steps):
            chosen = shuffled[step * BATCH : (step + 1) * BATCH]
            batch = pixels[chosen].float() * float(PIXEL_SCALE)
            mirror = torch.rand(BATCH, generator=order) < 0.5
            batch = torch.where(mirror[:, None, None, None], batch.flip(3), batch)
            batch = batch.contiguous(memory_format=torch.channels_last)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(batch), targets[chosen]).backward()
            optimiser.step()
            schedule.step()
    return network.eval()


def _fold(torch: Any, network: Any) -> Folded:
    def array(tensor: Any) -> NDArray[np.float32]:
        return np.ascontiguousarray(tensor.detach().numpy(), dtype=np.float32)

    kernels: list[NDArray[np.float32]] = []
    biases: list[NDArray[np.float32]] = []
    parts = list(network)
    for part, following in pairwise(parts):
        if isinstance(part, torch.nn.Conv2d):
            kernel, bias = fold_batch_norm(
                array(part.weight),
                gamma=array(following.weight),
                beta=array(following.bias),
                mean=array(following.running_mean),
                variance=array(following.running_var),
                epsilon=following.eps,
            )
            kernels.append(kernel)
            biases.append(bias)
    return Folded(tuple(kernels), tuple(biases), array(parts[-1].weight), array(parts[-1].bias))


def _check_parity(torch: Any, network: Any, onnx_bytes: bytes, images: Images) -> None:
    with torch.no_grad():
        planes = torch.from_numpy(images.copy()).unsqueeze(1).float() * float(PIXEL_SCALE)
        expected = torch.softmax(network(planes), dim=1).numpy()
    worst = float(np.abs(expected - predict(onnx_bytes, images)).max())
    if not worst < 1e-4:
        raise ArithmeticError(f"the exported graph differs from the network by {worst:.2g}")


def make(size: str, recipe: Recipe, data: Data) -> Made:
    """Train one size, export it in both precisions and measure both on the test split."""
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"PyTorch is not installed ({error}): pip install torch"
        ) from error
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model, fit_count = f"cnn-{size}", TRAIN_COUNT - HELD_OUT
    begun_s = time.process_time()
    network = _fit(torch, recipe, data.train_images[:fit_count], data.train_labels[:fit_count])
    cpu_s = time.process_time() - begun_s
    weights = _fold(torch, network)
    contents = {
        Precision.FP32: fp32_graph(f"{model}-fp32", recipe.layers, weights),
        Precision.INT8: int8_graph(
            f"{model}-int8", recipe.layers, weights, data.train_images[:CALIBRATION_COUNT]
        ),
    }
    _check_parity(torch, network, contents[Precision.FP32], data.train_images[:100])
    held_images, held_labels = data.train_images[fit_count:], data.train_labels[fit_count:]
    validation = {
        precision: 100 * count_correct(content, held_images, held_labels) / HELD_OUT
        for precision, content in contents.items()
    }
    log.info("%s: %.0f CPU s; held-out accuracy %s", model, cpu_s, validation)
    record = {
        "layers": [*map(str, recipe.layers), f"dense, {CLASSES}", "softmax"],
        "epochs": recipe.epochs,
        "batch_size": BATCH,
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "seed": recipe.seed,
        "validation_percent": validation[Precision.FP32],
        "training_cpu_s": round(cpu_s, 1),
    }
    variants = []
    for precision, content in contents.items():
        correct = count_correct(content, data.test_images, data.test_labels)
        low, high = wilson_percent(correct, shipped.TEST_COUNT)
        variant = {
            "model": model,
            "precision": precision.value,
            "file": f"{model}-{precision.value}.onnx",
            "artifact": file_record(content),
            "accuracy": {
                "percent": 100 * correct / shipped.TEST_COUNT,
                "low_percent": round(low, 3),
                "high_percent": round(high, 3),
                "sample_count": shipped.TEST_COUNT,
            },
            "parameter_count": weights.parameter_count,
            "multiply_adds": multiply_adds(recipe.layers),
        }
        measured = f"{100 * correct / shipped.TEST_COUNT:.2f} % ({low:.2f} to {high:.2f})"
        log.info("%s: %s, %d bytes", variant["file"], measured, len(content))
        variants.append((content, variant))
    return Made(model, record, tuple(variants))


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    if not facts.is_file():
        return platform.processor() or platform.machine()
    first = facts.read_text().partition("\n\n")[0]
    fields = (line.partition(":") for line in first.splitlines())
    pairs = {key.strip(): value.strip() for key, _, value in fields}
    named = ("model name", "cpu family", "model", "stepping")
    return ", ".join(f"{name} {pairs[name]}" for name in named if name in pairs)


def _tools() -> dict[str, str]:
    named = {name: version(name) for name in ("torch", "onnx", "onnxruntime", "numpy")}
    system = f"{platform.system()} {platform.machine()}"
    return {**named, "system": system, "processor": _processor()}


def write(made: Sequence[Made], data: Data, source: Path, out: Path) -> None:
    """Write the ONNX files, the test split and the manifest into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    for one in made:
        for content, variant in one.variants:
            (out / variant["file"]).write_bytes(content)
    for name in (shipped.TEST_IMAGES, shipped.TEST_LABELS):
        shutil.copyfile(source / name, out / name)
    manifest = {
        "task": shipped.TASK.name,
        "data_source": "Fashion-MNIST, Debian package dataset-fashion-mnist "
        "0.0~git20200523.55506a9-1",
        "data_licence": "MIT; see LICENSE-fashion-mnist.txt",
        "data_files": data.files,
        "training": TRAINING,
        "tools": _tools(),
        "models": {one.model: one.record for one in made},
        "variants": [variant for one in made for _, variant in one.variants],
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def same(made: Made, manifest: Record, same_platform: bool) -> bool:
    """Whether a network made anew is the one of ``manifest``; says how it differs."""
    known = {record["file"]: record for record in manifest["variants"]}
    agree = True
    for _, new in made.variants:
        old = known[new["file"]]
        apart = abs(new["accuracy"]["percent"] - old["accuracy"]["percent"])
        identical = new["artifact"] == old["artifact"]
        fine = identical if same_platform else identical or apart <= TOLERANCE_POINTS
        agree = agree and fine
        verdict = "reproduced" if fine else "NOT reproduced"
        how = "bit-identical" if identical else f"bytes differ, accuracy {apart:.2f} points apart"
        log.info("%s: %s (%s)", new["file"], verdict, how)
    return agree


def run(arguments: Sequence[str] | None = None) -> int:
    """Train, or with ``--check`` compare; the process's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the *-ubyte.gz files")
    parser.add_argument("--out", type=Path, required=True, help="folder of the manifest")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--sizes", default=",".join(RECIPES), help="with --check: e.g. xs,s")
    given = parser.parse_args(arguments)
    sizes = given.sizes.split(",")
    if unknown := [size for size in sizes if size not in RECIPES]:
        raise InvalidInputError.of("--sizes", unknown[0], ", ".join(RECIPES))
    if not given.check and sizes != list(RECIPES):
        raise InvalidInputError.of("--sizes", given.sizes, "all of them", "Or add --check.")
    data = load_data(given.data)
    if not given.check:
        made = [make(size, RECIPES[size], data) for size in sizes]
        write(made, data, given.data, given.out)
        return 0
    manifest = json.loads((given.out / "manifest.json").read_text())
    if manifest["data_files"] != data.files:
        raise InvalidInputError.of("--data", str(given.data), "the files the manifest lists")
    same_platform = manifest["tools"] == _tools()
    log.info("platform %s the manifest's", "is" if same_platform else "is not")
    results = [same(make(size, RECIPES[size], data), manifest, same_platform) for size in sizes]
    return 0 if all(results) else 1


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        sys.exit(run())
    except ModellessError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)
