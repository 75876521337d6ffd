"""EfficientNet-Lite from its weights to both graphs, on real photos."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import shape_inference
from PIL import Image

from modelless.common.errors import EnvironmentUnfitError, IntegrityError
from modelless.variants.graphs.canonical import write_model
from modelless.variants.graphs.multiply_adds import count_multiply_adds
from modelless.variants.making.session import Session
from modelless.variants.zoo.efficientnet_lite import (
    ARCHITECTURES,
    OUTPUT,
    Architecture,
    Network,
    fold,
    load_network,
    write_graph,
)
from modelless.variants.zoo.imagenet import FLOAT_LAYERS, class_names, quantised
from modelless.variants.zoo.photos import LABELLED, UNLABELLED, crops

LITE0 = ARCHITECTURES[0]
PHOTOS = {photo.name: photo for photo in LABELLED}
CLEAR = ("camera", "chelsea", "coffee", "china", "hopper", "motorcycle", "rocket")


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(LITE0)


@pytest.fixture(scope="module")
def fp32(network: Network) -> bytes:
    return bytes(write_graph(network, 224).SerializeToString())


@pytest.fixture(scope="module")
def int8(network: Network) -> bytes:
    return write_model(quantised(network, _calibration_pixels()))


def _calibration_pixels() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(1)
    return [crop.pixels for crop in crops(rng, len(UNLABELLED), UNLABELLED)]


def _probabilities(onnx_bytes: bytes, image: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _run(onnx_bytes, OUTPUT, image)


def _run(onnx_bytes: bytes, output: str, image: NDArray[np.uint8]) -> NDArray[Any]:
    session = Session(onnx_bytes)
    return session.run({session.inputs[0]: image}, [output])[output]


@pytest.mark.parametrize(
    ("architecture", "count", "millions", "published_millions"),
    list(zip(ARCHITECTURES, (16, 21, 21), (385, 600, 860), (407, 631, 899), strict=True)),
)
def test_each_size_is_as_large_as_published(
    architecture: Architecture, count: int, millions: int, published_millions: int
) -> None:
    network = load_network(architecture)
    assert sum(layer.groups > 1 for layer in network.convolutions) == count
    # TensorFlow counts batch normalisation and activations as well, which folding leaves out.
    counted = count_multiply_adds(write_graph(network, architecture.native_px))
    assert round((counted or 0) / 1e6) == millions
    assert 0.93 < millions / published_millions < 1.0


def test_folding_is_batch_normalisation(network: Network) -> None:
    layer = network.convolutions[2]  # the first 1x1: a matrix
    rng = np.random.default_rng(0)
    state = _state(network, rng)
    folded = fold(LITE0, state).convolutions[2]
    prefix = "_blocks.0._bn2"
    x = rng.normal(size=32)
    y = state["_blocks.0._project_conv.weight"][:, :, 0, 0] @ x
    deviation = np.sqrt(state[f"{prefix}.running_var"] + 1e-3)
    y = (y - state[f"{prefix}.running_mean"]) / deviation
    y = y * state[f"{prefix}.weight"] + state[f"{prefix}.bias"]
    np.testing.assert_allclose(folded.weight[:, :, 0, 0] @ x + folded.bias, y, rtol=1e-5)
    assert folded.weight.shape == layer.weight.shape
    assert folded.weight.dtype == folded.bias.dtype == np.float32


def _state(network: Network, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """A state dict of lite0's shapes with random numbers in it."""
    state: dict[str, NDArray[Any]] = {}
    norms = {"expand_conv": "_bn0", "depthwise_conv": "_bn1", "project_conv": "_bn2"}
    for layer in network.convolutions:
        *path, kind = layer.name.split("/")
        prefix = f"_blocks.{path[1]}." if path else ""
        norm = norms.get(kind, "_bn0" if kind == "conv_stem" else "_bn1")
        state[f"{prefix}_{kind}.weight"] = rng.normal(size=layer.weight.shape)
        for part in ("weight", "bias", "running_mean", "running_var"):
            state[f"{prefix}{norm}.{part}"] = rng.uniform(0.5, 1.5, layer.bias.shape)
    state["_fc.weight"] = rng.normal(size=network.linear_weight.shape)
    state["_fc.bias"] = rng.normal(size=network.linear_bias.shape)
    return {name: array.astype(np.float32) for name, array in state.items()}


def test_missing_and_swapped_packages_say_what_to_do() -> None:
    with pytest.raises(EnvironmentUnfitError, match=r"pip install 'modelless\[demo\]'"):
        load_network(replace(LITE0, package="no_such_package"))
    with pytest.raises(IntegrityError, match="sha256"):
        load_network(replace(LITE0, sha256=LITE0.sha256[:-1]))


@pytest.mark.parametrize("side", [128, 224, 260])
def test_the_graph_has_the_tasks_signature_and_no_external_data(
    network: Network, side: int
) -> None:
    model = write_graph(network, side)
    (image,), (probabilities,) = model.graph.input, model.graph.output
    shape = image.type.tensor_type.shape.dim
    assert image.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [d.dim_param or d.dim_value for d in shape] == ["N", "H", "W", 3]
    shape = probabilities.type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in shape] == ["N", 1000]
    assert all(len(tensor.external_data) == 0 for tensor in model.graph.initializer)
    assert {opset.domain for opset in model.opset_import} == {""}


def test_same_padding_halves_and_rounds_up(network: Network) -> None:
    inferred = shape_inference.infer_shapes(write_graph(network, 260), data_prop=True)
    sides = [
        info.type.tensor_type.shape.dim[-1].dim_value
        for info in inferred.graph.value_info
        if info.name.endswith("project_conv")
    ]
    assert sorted(set(sides), reverse=True) == [130, 65, 33, 17, 9]


def test_any_photo_size_and_batch(fp32: bytes) -> None:
    rng = np.random.default_rng(3)
    for shape in ((3, 31, 57, 3), (1, 700, 40, 3), (2, 224, 224, 3), (1, 1, 1, 3)):
        batch = rng.integers(0, 256, shape, dtype=np.uint8)
        found = _probabilities(fp32, batch)
        assert found.shape == (len(batch), 1000)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)
        alone = np.concatenate([_probabilities(fp32, image[None]) for image in batch])
        np.testing.assert_allclose(found, alone, atol=1e-6)


def test_the_centre_square_is_resized_as_pillow_does(network: Network) -> None:
    model = write_graph(network, 128)
    model.graph.output.append(onnx.helper.make_tensor_value_info("pixels", 2, None))
    onnx_bytes = model.SerializeToString()
    photo = PHOTOS["chelsea"].load()
    square = photo[:, 75:375]
    seen = _run(onnx_bytes, "pixels", photo[None])
    expected = np.asarray(Image.fromarray(square).resize((128, 128), Image.Resampling.BILINEAR))
    assert seen.dtype == np.uint8
    assert np.abs(seen[0].transpose(1, 2, 0).astype(int) - expected).max() <= 2
    # An image that comes at the resolution passes untouched.
    seen = _run(onnx_bytes, "pixels", photo[None, :128, :128])
    np.testing.assert_array_equal(seen[0].transpose(1, 2, 0), photo[:128, :128])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_photos_get_a_label_that_a_person_would_accept(
    request: pytest.FixtureRequest, precision: str
) -> None:
    onnx_bytes = request.getfixturevalue(precision)
    names = class_names()
    wrong = {}
    for name in CLEAR:
        label = names[int(_probabilities(onnx_bytes, PHOTOS[name].load()[None]).argmax())]
        if label not in PHOTOS[name].labels:
            wrong[name] = label
    assert wrong == {}


def test_int8_is_close_to_fp32(fp32: bytes, int8: bytes) -> None:
    found = [crop.pixels[None] for crop in crops(np.random.default_rng(5), 8)]
    exact = np.concatenate([_probabilities(fp32, image) for image in found])
    rounded = np.concatenate([_probabilities(int8, image) for image in found])
    divergence = (exact * np.log((exact + 1e-9) / (rounded + 1e-9))).sum(axis=1)
    assert divergence.mean() < 0.02
    assert (exact.argmax(axis=1) == rounded.argmax(axis=1)).mean() >= 7 / 8
    assert len(int8) < 0.3 * len(fp32)


def test_onnxruntime_fuses_int8_into_integer_kernels(
    network: Network, int8: bytes, tmp_path: Path
) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(int8, options, providers=["CPUExecutionProvider"])
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node)
    residuals = sum(layer.residual_of is not None for layer in network.convolutions)
    assert kinds["QLinearConv"] == len(network.convolutions) - FLOAT_LAYERS
    assert kinds["Conv"] + kinds["FusedConv"] == FLOAT_LAYERS
    assert kinds["QLinearAdd"] == residuals
    assert kinds["QLinearGlobalAveragePool"] == kinds["QGemm"] == 1
    assert (kinds["DequantizeLinear"], kinds["QuantizeLinear"]) == (1, 1)  # pixels; block 0 ends


def test_the_same_bytes_every_time(network: Network, fp32: bytes, int8: bytes) -> None:
    assert write_graph(network, 224).SerializeToString() == fp32
    assert write_model(quantised(network, _calibration_pixels())) == int8
