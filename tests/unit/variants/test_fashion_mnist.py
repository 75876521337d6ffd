"""The task fashion-mnist: the shipped files are what the manifest says, and as good as it says."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from benchmarks.profiling import fashion_mnist_training as training

from modelless.common.errors import IntegrityError
from modelless.variants.vocabulary import Engine, Precision, Provenance
from modelless.variants.zoo.fashion_mnist import (
    DATA,
    TASK,
    TEST_IMAGES,
    FashionMnist,
)

MANIFEST = json.loads((DATA / "manifest.json").read_text())
CONSTANTS = {"channel_axis", "pixel_scale", "pixel_zero"}


def named(model: str, precision: str) -> training.Record:
    found = {(each["model"], each["precision"]): each for each in MANIFEST["variants"]}
    return found[model, precision]


def quietly(*_: object) -> None: ...


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The manifest and the two smallest models, to be spoilt."""
    for name in ("manifest.json", "cnn-xs-fp32.onnx", "cnn-xs-int8.onnx"):
        shutil.copyfile(DATA / name, tmp_path / name)
    return tmp_path


def test_the_manifest_lists_exactly_the_shipped_models() -> None:
    expected = {f"cnn-{size}-{p}.onnx" for size in training.RECIPES for p in ("fp32", "int8")}
    assert {record["file"] for record in MANIFEST["variants"]} == expected
    assert {path.name for path in DATA.glob("*.onnx")} == expected


def test_the_manifest_tells_the_recipes_of_the_script() -> None:
    assert MANIFEST["training"] == list(training.TRAINING)
    for size, recipe in training.RECIPES.items():
        record = MANIFEST["models"][f"cnn-{size}"]
        assert record["layers"][:-2] == [str(layer) for layer in recipe.layers]
        assert (record["epochs"], record["learning_rate"]) == (recipe.epochs, recipe.learning_rate)
        assert (record["weight_decay"], record["seed"]) == (recipe.weight_decay, recipe.seed)
        macs = {v["multiply_adds"] for v in MANIFEST["variants"] if v["model"] == f"cnn-{size}"}
        assert macs == {training.multiply_adds(recipe.layers)}


def test_build_yields_ten_measured_variants() -> None:
    heard: list[tuple[str, int, int]] = []
    built = list(FashionMnist().build(lambda what, done, total: heard.append((what, done, total))))
    assert [(b.model.name, b.name) for b in built] == [
        (f"cnn-{size}", f"{precision}-28")
        for size in ("xs", "s", "m", "l", "xl")
        for precision in ("fp32", "int8")
    ]
    assert heard[0] == ("cnn-xs/fp32-28", 1, 10)
    assert heard[-1] == ("cnn-xl/int8-28", 10, 10)
    for variant in built:
        accuracy = variant.accuracy
        assert variant.model.task == TASK.name
        assert (variant.resolution_px, variant.engine) == (28, Engine.ONNXRUNTIME_CPU)
        assert (accuracy.provenance, accuracy.sample_count) == (Provenance.MEASURED, 10_000)
        assert TEST_IMAGES in accuracy.source
        assert accuracy.low_percent is not None
        assert accuracy.high_percent is not None
        assert accuracy.low_percent < accuracy.percent < accuracy.high_percent


def test_the_intervals_are_wilsons() -> None:
    # 95 % score interval of 8 in 10: 49.0 to 94.3 %.
    assert training.wilson_percent(8, 10) == pytest.approx((49.016, 94.332), abs=1e-3)
    for record in MANIFEST["variants"]:
        correct = round(record["accuracy"]["percent"] * record["accuracy"]["sample_count"] / 100)
        low, high = training.wilson_percent(correct, record["accuracy"]["sample_count"])
        assert (
            record["accuracy"]["low_percent"],
            record["accuracy"]["high_percent"],
        ) == pytest.approx((low, high), abs=1e-3)


def test_the_test_split_has_a_thousand_images_of_each_class() -> None:
    images, labels = FashionMnist().test_split()
    assert (images.shape, images.dtype) == ((10_000, 28, 28), np.uint8)
    assert (labels.shape, labels.dtype) == ((10_000,), np.uint8)
    assert np.bincount(labels).tolist() == [1_000] * len(TASK.labels)


@pytest.mark.parametrize("model", ["cnn-xs", "cnn-s"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_measuring_again_gives_the_recorded_accuracy(model: str, precision: str) -> None:
    record = named(model, precision)
    images, labels = FashionMnist().test_split()
    correct = training.count_correct((DATA / record["file"]).read_bytes(), images, labels)
    # Ten images' leeway: another processor adds in another order, and near ties may change.
    assert 100 * correct / len(labels) == pytest.approx(record["accuracy"]["percent"], abs=0.1)


@pytest.mark.parametrize("record", MANIFEST["variants"], ids=lambda record: str(record["file"]))
def test_signature_and_free_batch(record: training.Record) -> None:
    content = (DATA / record["file"]).read_bytes()
    model = onnx.load_from_string(content)
    (given,), (result,) = model.graph.input, model.graph.output
    assert (given.name, given.type.tensor_type.elem_type) == ("image", onnx.TensorProto.UINT8)
    assert (result.name, result.type.tensor_type.elem_type) == (
        "probabilities",
        onnx.TensorProto.FLOAT,
    )
    images, _ = FashionMnist().test_split()
    together = training.predict(content, images[:3])
    alone = training.predict(content, images[2:3])
    assert (together.shape, together.dtype) == ((3, 10), np.float32)
    np.testing.assert_allclose(together.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(together[2:], alone, atol=1e-5)


@pytest.mark.parametrize("size", training.RECIPES)
def test_the_parameters_are_those_of_the_graph(size: str) -> None:
    record = named(f"cnn-{size}", "fp32")
    model = onnx.load(DATA / record["file"])
    held = (tensor for tensor in model.graph.initializer if tensor.name not in CONSTANTS)
    assert sum(math.prod(tensor.dims) for tensor in held) == record["parameter_count"]
    assert named(f"cnn-{size}", "int8")["parameter_count"] == record["parameter_count"]


@pytest.mark.parametrize("size", training.RECIPES)
def test_int8_folds_into_integer_operators(size: str, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # it warns that an optimised file fits this machine only
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    path = DATA / named(f"cnn-{size}", "int8")["file"]
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    convolutions = sum(isinstance(layer, training.Conv) for layer in training.RECIPES[size].layers)
    assert kinds.count("QLinearConv") == convolutions
    assert kinds.count("QGemm") == 1
    assert not {"Conv", "Gemm", "QuantizeLinear", "DequantizeLinear"} & set(kinds)


@pytest.mark.parametrize("size", training.RECIPES)
def test_int8_weights_leave_room_for_16_bit_sums(size: str) -> None:
    model = onnx.load(DATA / named(f"cnn-{size}", "int8")["file"])
    weights = [
        onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) > 1
    ]
    assert weights
    assert all(np.abs(weight.astype(np.int16)).max() <= 64 for weight in weights)


def test_a_tampered_model_is_refused(copy: Path) -> None:
    path = copy / "cnn-xs-fp32.onnx"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"cnn-xs-fp32\.onnx: is not the file"):
        next(FashionMnist(copy).build(quietly))


def test_a_missing_model_is_refused_after_those_that_are_there(copy: Path) -> None:
    building = FashionMnist(copy).build(quietly)
    assert [next(building).precision, next(building).precision] == [Precision.FP32, Precision.INT8]
    with pytest.raises(IntegrityError, match=r"cnn-s-fp32\.onnx: cannot be read"):
        next(building)


def test_a_missing_test_split_is_refused(copy: Path) -> None:
    with pytest.raises(IntegrityError, match="t10k-images"):
        FashionMnist(copy).test_split()


def test_folding_a_batch_norm_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(4, 2, 3, 3)).astype(np.float32)
    gamma, beta, mean, variance = rng.uniform(0.5, 2.0, (4, 4)).astype(np.float32)
    patch = rng.normal(size=(2, 3, 3)).astype(np.float32)
    before = (kernel * patch).sum(axis=(1, 2, 3))
    expected = gamma * (before - mean) / np.sqrt(variance + 1e-5) + beta
    folded, bias = training.fold_batch_norm(kernel, gamma, beta, mean, variance, 1e-5)
    np.testing.assert_allclose((folded * patch).sum(axis=(1, 2, 3)) + bias, expected, rtol=1e-4)


def made(record: training.Record) -> training.Made:
    return training.Made(record["model"], MANIFEST["models"][record["model"]], ((b"", record),))


def test_check_wants_identical_files_on_the_same_platform_only() -> None:
    record = named("cnn-xs", "fp32")
    other = {**record, "artifact": training.file_record(b"")}
    worse = {**other, "accuracy": {"percent": 80.0}}
    assert training.same(made(record), MANIFEST, same_platform=True)
    assert not training.same(made(other), MANIFEST, same_platform=True)
    assert training.same(made(other), MANIFEST, same_platform=False)
    assert not training.same(made(worse), MANIFEST, same_platform=False)
