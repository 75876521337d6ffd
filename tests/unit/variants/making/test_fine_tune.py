"""Fine-tuning: pruned networks answer as their source again, and zeros stay zeros."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto

from modelless.common.errors import EnvironmentUnfitError, IntegrityError, InvalidInputError
from modelless.variants.graphs.canonical import read_model
from modelless.variants.graphs.weights import weights
from modelless.variants.making.builder import (
    Builder,
    MadeVariant,
    RefusedVariant,
    rebuild,
    run_step,
    with_answers,
)
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import build_maker, receive_messages, send_message
from modelless.variants.making.recipe import parse_recipe, parse_step
from modelless.variants.making.session import Session
from modelless.variants.zoo.fashion_mnist import FashionMnist

from .networks import FASHION, Arrays, made, node, pictures, random_weights, run, write

HAS_TORCH = find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")

DATA = pictures(1024)
PRUNED = made({"prune-magnitude": {"sparsity": 0.8}}, FASHION)
QUICK = {"steps": 60}


def tuned(
    pruned: bytes, source: bytes, data: CalibrationData = DATA, **settings: object
) -> tuple[bytes, tuple[str, ...]]:
    step = parse_step({"fine-tune": {**QUICK, **settings}})
    return run_step(step, pruned, with_answers(source, data))


def right_percent(onnx_bytes: bytes) -> float:
    """On test images that none of these learned from."""
    images, labels = FashionMnist().test_split()
    session = Session(onnx_bytes)
    (found,) = session.run({"image": images[2000:4000]}).values()
    return float(100.0 * np.mean(found.argmax(1) == labels[2000:4000]))


def refusal(pruned: bytes, source: bytes, data: CalibrationData = DATA, **settings: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        tuned(pruned, source, data, **settings)
    return str(caught.value)


@pytest.mark.torch
@needs_torch
class TestFashion:
    def test_accuracy_comes_back_and_zeros_stay(self) -> None:
        result, notes = tuned(PRUNED, FASHION)
        before, after = right_percent(PRUNED), right_percent(result)
        assert right_percent(FASHION) - before > 5.0, "there is something to learn back"
        assert after > before + 3.0
        zeros = zip(weights(read_model(PRUNED)), weights(read_model(result)), strict=True)
        for old, new in zeros:
            assert np.array_equal(old.array == 0, new.array == 0)
            assert not np.array_equal(old.array, new.array)
        assert notes[0].startswith(
            "20490 weights learned in 60 steps from 800 items; on 224 others"
        )

    def test_whole_channels_are_learned_without(self) -> None:
        slim = made({"prune-structured": {"share": 0.3}}, FASHION, DATA)
        result, _ = tuned(slim, FASHION)
        assert right_percent(result) > right_percent(slim) + 3.0
        assert len(result) == pytest.approx(len(slim), abs=64)

    def test_it_learns_the_same_each_time_and_can_be_rebuilt(self, tmp_path: Path) -> None:
        recipe = parse_recipe(
            {"variants": {"tuned": [{"prune-magnitude": {"sparsity": 0.8}}, {"fine-tune": QUICK}]}}
        )
        said: list[str] = []
        building = Builder(tmp_path).build(recipe, FASHION, DATA, lambda now, *_: said.append(now))
        (variant,) = building
        assert isinstance(variant, MadeVariant)
        assert variant.lineage.tools.keys() >= {"torch", "onnxruntime"}
        assert "tuned: fine-tune: 50 of 60 steps done" in said
        assert rebuild(variant.lineage, FASHION, DATA) == variant.path.read_bytes()
        other, _ = tuned(PRUNED, FASHION, seed=1)
        assert other != variant.path.read_bytes()
        with pytest.raises(IntegrityError, match="calibration_sha256"):
            rebuild(variant.lineage, FASHION, pictures(512))

    def test_what_does_not_help_is_refused(self) -> None:
        words = refusal(PRUNED, FASHION, learning_rate=0.9)
        assert "fine-tune: answers after it: got " in words
        assert "a smaller learning rate may help" in words

    def test_integers_are_refused(self) -> None:
        assert "Fine-tune before quantising" in refusal(made("int8-static", FASHION, DATA), FASHION)

    def test_one_call_is_too_few_to_judge_by(self) -> None:
        assert "33 items or more" in refusal(PRUNED, FASHION, pictures(32))


def behind_weights(nodes: list[NodeProto], output: list[object], more: Arrays) -> bytes:
    """A network ``x [N, 3, 8, 8]`` whose convolution these nodes follow, from ``h`` to ``y``."""
    held = random_weights(w=(4, 3, 3, 3), b=(4,)) | more
    conv = node("Conv", "x w b", "h", pads=[1, 1, 1, 1])
    return write([conv, *nodes], held, ["N", 3, 8, 8], output, opset=20)


FLOAT4 = np.linspace(0.5, 1.5, 4, dtype=np.float32)
DEPTHWISE = random_weights(v=(4, 1, 3, 3))["v"]
FORMS: dict[str, tuple[list[NodeProto], list[object], Arrays]] = {
    "same": (
        [node("Conv", "h v", "y", auto_pad="SAME_UPPER", strides=[3, 2], group=4)],
        ["N", 4, 3, 4],
        {"v": DEPTHWISE},
    ),
    "same-lower": (
        [node("MaxPool", "h", "y", auto_pad="SAME_LOWER", kernel_shape=[2, 2])],
        ["N", 4, 8, 8],
        {},
    ),
    "uneven": (
        [node("Conv", "h v", "y", pads=[2, 0, 1, 3], dilations=[2, 1], group=4)],
        ["N", 4, 7, 9],
        {"v": DEPTHWISE},
    ),
    "average": (
        [node("AveragePool", "h", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])],
        ["N", 4, 4, 4],
        {},
    ),
    "normalised": (
        [node("BatchNormalization", "h s t m v", "a"), node("HardSwish", "a", "y")],
        ["N", 4, 8, 8],
        {"s": FLOAT4, "t": -FLOAT4, "m": 0.1 * FLOAT4, "v": 2 * FLOAT4},
    ),
    "clipped": (
        [node("Clip", "h low high", "a"), node("LeakyRelu", "a", "y", alpha=0.3)],
        ["N", 4, 8, 8],
        {"low": np.array(-1, np.float32), "high": np.array(1.5, np.float32)},
    ),
    "gated": (
        [
            node("ReduceMean", "h axes", "a"),
            node("HardSigmoid", "a", "b2", alpha=0.3),
            node("Mul", "h b2", "c"),
            node("Elu", "c", "y"),
        ],
        ["N", 4, 8, 8],
        {"axes": np.array([2, 3])},
    ),
    "reshaped": (
        [
            node("GlobalAveragePool", "h", "a"),
            node("Squeeze", "a axes", "b2"),
            node("Unsqueeze", "b2 first", "c"),
            node("Transpose", "c", "d", perm=[1, 0, 2]),
            node("Reshape", "d shape", "y"),
        ],
        ["N", 2, 2],
        {"axes": np.array([2, 3]), "first": np.array([0]), "shape": np.array([0, 2, 2])},
    ),
    "sized": (
        [
            node("Shape", "h", "a", end=1),
            node("Concat", "a rest", "b2", axis=0),
            node("Reshape", "h b2", "c"),
            node("Sigmoid", "c", "y"),
        ],
        ["N", 256],
        {"rest": np.array([-1])},
    ),
    "transformed": (
        [
            node("Flatten", "h", "a"),
            node("MatMul", "a v", "b2"),
            node("LayerNormalization", "b2 s t", "c", epsilon=1e-3),
            node("Gelu", "c", "d", approximate="tanh"),
            node("Gemm", "d u", "e", transB=1, alpha=0.5),
            node("Softmax", "e", "y"),
        ],
        ["N", 3],
        {**random_weights(v=(256, 4), u=(3, 4)), "s": FLOAT4, "t": -FLOAT4},
    ),
}


@pytest.mark.torch
@needs_torch
class TestOperators:
    @pytest.mark.parametrize("form", FORMS)
    def test_mean_the_same_in_pytorch(self, form: str) -> None:
        from modelless.variants.making.torch_graph import TorchGraph

        nodes, output, held = FORMS[form]
        source = behind_weights(nodes, output, held)
        x = np.random.default_rng(0).normal(size=(5, 3, 8, 8)).astype(np.float32)
        graph = TorchGraph(read_model(source), "y")
        found = graph({"x": x})
        assert found.detach().numpy() == pytest.approx(run(source, x), rel=1e-4, abs=1e-5)
        found.sum().backward()
        assert all(each.grad is not None for each in graph.parameters.values())

    def test_values_are_learned_by_their_squared_error(self) -> None:
        source = write(
            [node("MatMul", "x w", "a"), node("Relu", "a", "b"), node("MatMul", "b v", "y")],
            random_weights(w=(16, 32), v=(32, 3)),
            ["N", 16],
            ["N", 3],
        )
        x = np.random.default_rng(0).normal(size=(512, 16)).astype(np.float32)
        data = CalibrationData.of({"x": x})
        pruned = made({"prune-magnitude": {"sparsity": 0.5}}, source)
        result, _ = tuned(pruned, source, data, steps=200, learning_rate=0.01)
        before, after = (np.mean((run(m, x) - run(source, x)) ** 2) for m in (pruned, result))
        assert after < 0.5 * before

    def test_one_that_is_not_known_is_named(self) -> None:
        source = write(
            [node("MatMul", "x w", "a"), node("Selu", "a", "y")],
            random_weights(w=(4, 4)),
            ["N", 4],
            ["N", 4],
        )
        data = CalibrationData.of({"x": np.ones((64, 4), np.float32)})
        assert "got 'Selu (y)'; allowed: Add, AveragePool, " in refusal(source, source, data)

    def test_any_may_stand_before_the_weights(self) -> None:
        source = write(
            [node("Selu", "x", "a"), node("MatMul", "a w", "y")],
            random_weights(w=(8, 4)),
            ["N", 8],
            ["N", 4],
        )
        rng = np.random.default_rng(0)
        x = (rng.normal(size=(512, 2)) @ rng.normal(size=(2, 8))).astype(np.float32)
        pruned = made({"prune-magnitude": {"sparsity": 0.4}}, source)
        result, _ = tuned(pruned, source, CalibrationData.of({"x": x}), learning_rate=0.05)
        assert np.mean((run(result, x) - run(source, x)) ** 2) < np.mean(
            (run(pruned, x) - run(source, x)) ** 2
        )


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_without_pytorch_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match=r"fine-tune needs torch.*pip install torch"):
        tuned(PRUNED, FASHION)
    recipe = parse_recipe({"variants": {"tuned": ["prune-magnitude", "fine-tune"], "as-is": []}})
    refused, other = Builder(tmp_path).build(recipe, FASHION, pictures(64))
    assert isinstance(refused, RefusedVariant)
    assert "pip install torch" in refused.reason
    assert isinstance(other, MadeVariant)


def test_without_the_answers_of_the_source_it_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="fine-tune: the source's answers: got 0"):
        made({"fine-tune": QUICK}, PRUNED, DATA)


@pytest.mark.parametrize("settings", [{"steps": 0}, {"learning_rate": 0.0}, {"temperature": 200.0}])
def test_settings_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        build_maker("fine-tune", settings)


def test_nobody_needs_to_listen() -> None:
    send_message("into the void")
    heard: list[str] = []
    with receive_messages(heard.append):
        send_message("now")
    send_message("and no more")
    assert heard == ["now"]
