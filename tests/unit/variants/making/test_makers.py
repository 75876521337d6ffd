"""What all makers promise, and what each is for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.variants.graphs.canonical import read_model
from modelless.variants.graphs.inspection import inspect_onnx, parse_onnx
from modelless.variants.graphs.weights import weights
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.fidelity import Fidelity, compare, run_all
from modelless.variants.making.maker import MAKERS, Maker, build_maker, find_maker
from modelless.variants.making.makers.prune_magnitude import lamp_scores
from modelless.variants.making.session import Session

from .networks import FASHION, made, node, pictures, random_weights, run, write

STEPS: dict[str, object] = {
    "bf16": "bf16",
    "fp16": "fp16",
    "int4-weights": "int4-weights",
    "int8-dynamic": "int8-dynamic",
    "int8-static": {"int8-static": {"calibration": "percentile", "keep_worst": 1}},
    "optimise": {"optimise": {"level": "extended"}},
    "prune-magnitude": {"prune-magnitude": {"sparsity": 0.2}},
    "prune-structured": {"prune-structured": {"share": 0.1, "multiple_of": 1}},
}


def step(name: str) -> object:
    if name == "int4-weights":
        pytest.importorskip("onnx_ir")
    return STEPS[name]


def kinds(onnx_bytes: bytes) -> Counter[str]:
    return Counter(each.op_type for each in read_model(onnx_bytes).graph.node)


def fidelity(onnx_bytes: bytes) -> Fidelity:
    data = pictures(512)
    return compare(run_all(Session(FASHION), data), run_all(Session(onnx_bytes), data))


def error_of(step: object, source: bytes) -> str:
    with pytest.raises(InvalidInputError) as caught:
        made(step, source, pictures())
    return str(caught.value)


class TestEveryMaker:
    def test_is_known_by_its_own_name(self) -> None:
        assert all(find_maker(name).name == name for name in MAKERS.built_in)
        # The network's pictures are fixed, and what learns needs PyTorch.
        assert MAKERS.built_in.keys() - STEPS.keys() == {"distil", "fine-tune", "resolution"}

    @pytest.mark.parametrize("name", MAKERS.built_in)
    def test_cites_its_source(self, name: str) -> None:
        assert "https://" in (sys.modules[find_maker(name).__module__].__doc__ or "")
        assert all(field.description for field in find_maker(name).model_fields.values())

    @pytest.mark.parametrize("name", STEPS)
    def test_keeps_signature_and_answers(self, name: str) -> None:
        result = made(step(name), FASHION, pictures())
        before, after = inspect_onnx(FASHION), inspect_onnx(result)
        assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
        found = fidelity(result)
        assert found.items == 512
        assert found.top_1_agreement is not None
        assert found.top_1_agreement > 0.9
        assert found.sqnr_db > (80.0 if find_maker(name).lossless else 10.0)

    def test_gives_the_same_bytes_in_any_process(self) -> None:
        names = [name for name in STEPS if name != "int4-weights"]
        code = (
            "import hashlib\n"
            "from tests.unit.variants.making.networks import FASHION, made, pictures\n"
            f"for step in {[STEPS[name] for name in names]!r}:\n"
            "    print(hashlib.sha256(made(step, FASHION, pictures())).hexdigest())\n"
        )
        seeds = ("1", "2")
        printed = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONHASHSEED": seed},
                cwd=Path(__file__).parents[4],
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            ).stdout
            for seed in seeds
        }
        assert len(printed) == 1
        assert len(printed.pop().split()) == len(names)


class TestFinding:
    def test_a_near_name_is_told(self) -> None:
        with pytest.raises(NotFoundError, match="Did you mean 'int8-static'"):
            find_maker("int8-statik")

    def test_something_else_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="derived from Maker"):
            find_maker("pathlib:Path")

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"px": 0}, "px: got 0"),
            ({"px": "192"}, "px: got '192'"),
            ({"px": 192, "pz": 1}, "pz: got 1; .*; resolution has the settings px"),
            ({}, "px: "),
        ],
    )
    def test_settings_are_checked(self, settings: dict[str, object], words: str) -> None:
        with pytest.raises(InvalidInputError, match=words):
            build_maker("resolution", settings)

    def test_makers_are_frozen(self) -> None:
        assert issubclass(find_maker("fp16"), Maker)
        with pytest.raises(ValueError, match="frozen"):
            build_maker("resolution", {"px": 192}).px = 8  # type: ignore[attr-defined]


class TestOptimise:
    NETWORK = write(
        [
            node("Conv", "x w", "conv"),
            node("BatchNormalization", "conv scale shift mean variance", "norm"),
            node("Relu", "norm", "y"),
        ],
        random_weights(w=(4, 3, 1, 1), scale=(4,), shift=(4,), mean=(4,))
        | {"variance": np.ones(4, np.float32)},
        ["N", 3, "H", "W"],
        ["N", 4, "H", "W"],
    )

    def test_basic_folds_and_stays_standard(self) -> None:
        result = made("optimise", self.NETWORK)
        assert kinds(result) == {"Conv": 1, "Relu": 1}
        assert {each.domain for each in read_model(result).opset_import} == {""}
        x = np.random.default_rng(0).random((2, 3, 5, 4), np.float32)
        assert run(result, x) == pytest.approx(run(self.NETWORK, x), abs=1e-5)

    def test_extended_fuses(self) -> None:
        assert kinds(made({"optimise": {"level": "extended"}}, self.NETWORK)) == {"FusedConv": 1}

    def test_sizes_are_fixed(self) -> None:
        result = made({"optimise": {"sizes": {"N": 1, "H": 6}}}, self.NETWORK)
        facts = inspect_onnx(result)
        assert facts.inputs[0].shape == (1, 3, 6, -1)
        assert facts.outputs[0].shape == (1, 4, 6, -1)

    def test_an_unknown_size_is_refused(self) -> None:
        assert "got 'Z'; allowed: H, N, W" in error_of(
            {"optimise": {"sizes": {"Z": 1}}}, self.NETWORK
        )

    def test_a_level_that_depends_on_the_machine_is_not_offered(self) -> None:
        with pytest.raises(InvalidInputError, match="'basic' or 'extended'"):
            build_maker("optimise", {"level": "all"})


class TestHalves:
    def test_fp16_computes_in_halves_between_float32_ends(self) -> None:
        model = read_model(made("fp16", FASHION))
        held = {each.name: each.data_type for each in model.graph.initializer}
        assert {held[name] for name in held if "weight" in name} == {TensorProto.FLOAT16}
        assert held["pixel_scale"] == TensorProto.FLOAT  # the normalisation stays exact

    def test_bf16_rounds_the_weights_and_nothing_else(self) -> None:
        before = {each.name: each.array for each in weights(read_model(FASHION))}
        model = read_model(made("bf16", FASHION))
        held = {each.name: each for each in model.graph.initializer}
        assert before
        for name, array in before.items():
            rounded = numpy_helper.to_array(held[f"{name}/bf16"])
            assert rounded.dtype == ml_dtypes.bfloat16
            assert np.array_equal(rounded, array.astype(ml_dtypes.bfloat16))
        biases = [name for name in held if name.endswith("bias")]
        assert {held[name].data_type for name in biases} == {TensorProto.FLOAT}

    @pytest.mark.parametrize("name", ["fp16", "bf16", "prune-magnitude", "int8-static"])
    def test_a_model_without_weights_is_refused(self, name: str) -> None:
        source = write([node("Relu", "x", "y")], {}, ["N", 3], ["N", 3])
        assert "no float32 weights" in error_of(name, source)


class TestInt8Static:
    @pytest.mark.parametrize("calibration", ["min-max", "percentile", "entropy"])
    @pytest.mark.parametrize("per_channel", [True, False])
    def test_is_near_the_source(self, calibration: str, per_channel: bool) -> None:
        settings = {"calibration": calibration, "per_channel": per_channel}
        found = fidelity(made({"int8-static": settings}, FASHION, pictures()))
        assert found.sqnr_db > 20.0
        assert found.top_1_agreement is not None
        assert found.top_1_agreement > 0.95

    def test_weights_are_integers_and_logits_are_not(self) -> None:
        model = read_model(made("int8-static", FASHION, pictures()))
        assert weights(model) == []
        held = {each.name: each for each in model.graph.initializer}
        codes = [t for t in held.values() if t.data_type == TensorProto.INT8 and len(t.dims) > 1]
        assert len(codes) == len(weights(read_model(FASHION)))
        (softmax,) = (each for each in model.graph.node if each.op_type == "Softmax")
        (writer,) = (each for each in model.graph.node if softmax.input[0] in each.output)
        assert writer.op_type == "Gemm"

    def test_reduced_weights_have_seven_bits(self) -> None:
        model = read_model(made({"int8-static": {"reduce_range": True}}, FASHION, pictures()))
        codes = [
            numpy_helper.to_array(each)
            for each in model.graph.initializer
            if each.data_type == TensorProto.INT8 and len(each.dims) > 1
        ]
        assert max(int(np.abs(each.astype(int)).max()) for each in codes) == 64

    def test_the_worst_layer_stays_float(self) -> None:
        constants = random_weights(w=(8, 8), v=(8, 4))
        constants["w"][0] = 1000.0  # read by nothing but zeros, it takes all codes to itself
        source = write(
            [node("MatMul", "x w", "a"), node("Relu", "a", "b"), node("MatMul", "b v", "y")],
            constants,
            ["N", 8],
            ["N", 4],
        )
        x = np.random.default_rng(0).random((64, 8), np.float32)
        x[:, 0] = 0.0
        data = CalibrationData.of({"x": x})
        without = made("int8-static", source, data)
        result = made({"int8-static": {"keep_worst": 1}}, source, data)
        assert [each.name for each in weights(read_model(result))] == ["w"]
        error, error_without = (
            np.abs(run(each, x) - run(source, x)).max() for each in (result, without)
        )
        assert error < 0.1 * error_without

    def test_all_layers_cannot_stay_float(self) -> None:
        assert "keep_worst: got 9; allowed: less than" in error_of(
            {"int8-static": {"keep_worst": 9}}, FASHION
        )

    def test_an_old_model_is_brought_up_to_date(self) -> None:
        constants = random_weights(w=(4, 3, 1, 1))
        source = write(
            [node("Conv", "x w", "y")], constants, ["N", 3, 4, 4], ["N", 4, 4, 4], opset=11
        )
        x = np.random.default_rng(0).random((2, 3, 4, 4), np.float32)
        result = made("int8-static", source, CalibrationData.of({"x": x}))
        assert parse_onnx(result).opset_import[0].version == 13
        assert run(result, x) == pytest.approx(run(source, x), abs=0.1)

    def test_without_data_it_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="calibration data: got 'none'"):
            made("int8-static", FASHION)

    def test_the_second_time_it_is_refused(self) -> None:
        result = made("int8-static", FASHION, pictures())
        assert "A model is quantised once" in error_of("int8-static", result)


class TestMatrixProducts:
    CONVOLUTION = write(
        [node("Conv", "x w", "y")],
        random_weights(w=(4, 3, 1, 1)),
        ["N", 3, "H", "W"],
        ["N", 4, "H", "W"],
    )

    def test_dynamic_leaves_convolutions(self) -> None:
        before, after = kinds(FASHION), kinds(made("int8-dynamic", FASHION))
        assert after["Conv"] == before["Conv"]
        assert after["MatMulInteger"] == 1

    def test_4_bits(self) -> None:
        pytest.importorskip("onnx_ir")
        result = made("int4-weights", FASHION)
        assert kinds(result)["MatMulNBits"] == 1
        assert len(result) < 0.9 * len(FASHION)

    def test_without_one_both_refuse(self) -> None:
        assert "int8-static takes convolutions" in error_of("int8-dynamic", self.CONVOLUTION)
        pytest.importorskip("onnx_ir")
        assert "int8-static takes them" in error_of("int4-weights", self.CONVOLUTION)


class TestPruneMagnitude:
    @pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9])
    def test_that_share_is_zero(self, sparsity: float) -> None:
        result = read_model(made({"prune-magnitude": {"sparsity": sparsity}}, FASHION))
        pooled = np.concatenate([each.array.ravel() for each in weights(result)])
        assert (pooled == 0).mean() == pytest.approx(sparsity, abs=0.001)

    def test_scores_are_of_the_definition_and_of_no_scale(self) -> None:
        weight = np.array([[3.0, -1.0], [2.0, 0.0]], np.float32)
        assert lamp_scores(weight) == pytest.approx(
            np.array([[1.0, 1 / 14], [4 / 13, 0.0]]), abs=1e-12
        )
        assert lamp_scores(1000 * weight) == pytest.approx(lamp_scores(weight), abs=1e-12)

    def test_it_says_that_it_is_not_quicker(self) -> None:
        notes = build_maker("prune-magnitude", {}).make(read_model(FASHION), pictures()).notes
        assert any("takes the time and the memory of the dense model" in note for note in notes)
