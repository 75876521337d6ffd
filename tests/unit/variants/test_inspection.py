"""What ONNX files say of themselves, and which are refused."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from modelless.common.errors import IntegrityError, InvalidInputError
from modelless.variants.graphs.inspection import check_signature, inspect_onnx, read_onnx
from modelless.variants.vocabulary import TensorSpec
from tests.builders import (
    TASK,
    make_model,
    tiny_bytes,
    tiny_model,
    with_custom_operator,
    with_external_weight,
)

WEIGHT = np.arange(12, dtype=np.float32).tobytes()


def refusal(source: Path | bytes | ModelProto, **limits: int) -> str:
    """The words with which a file is refused."""
    if isinstance(source, ModelProto):
        source = source.SerializeToString()
    with pytest.raises(IntegrityError) as caught:
        inspect_onnx(source, **limits)
    return str(caught.value)


def constant(name: str, *shape: int, dtype: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, dtype), name)


def with_default_graph(nodes: list[NodeProto], tensors: list[TensorProto]) -> ModelProto:
    """A model with a function that has a graph of these for an attribute that calls leave out."""
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    default = helper.make_attribute("g", helper.make_graph(nodes, "d", [], [value], tensors))
    inner = helper.make_node("Relu", ["x"], ["y"])
    imports = [helper.make_opsetid("", 17)]
    model = tiny_model()
    model.functions.append(
        helper.make_function(
            "local", "Wrap", ["x"], ["y"], [inner], imports, attribute_protos=[default]
        )
    )
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


class TestFacts:
    def test_a_small_model(self, tmp_path: Path) -> None:
        path = tmp_path / "tiny.onnx"
        path.write_bytes(tiny_bytes())
        facts = inspect_onnx(path)
        assert facts == inspect_onnx(str(path)) == inspect_onnx(tiny_bytes())
        assert facts.inputs == TASK.inputs
        assert facts.outputs == TASK.outputs
        assert (facts.parameter_count, facts.multiply_adds) == (12, 12)

    def test_convolutions_after_a_resize_are_counted_an_item(self) -> None:
        nodes = [
            helper.make_node("Cast", ["image"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Transpose", ["real"], ["planes"], perm=[0, 3, 1, 2]),
            helper.make_node("Shape", ["planes"], ["leading"], start=0, end=2),
            helper.make_node("Concat", ["leading", "side"], ["sizes"], axis=0),
            helper.make_node("Resize", ["planes", "", "", "sizes"], ["small"]),
            helper.make_node("Conv", ["small", "full"], ["a"], strides=[2, 2]),
            helper.make_node("Conv", ["a", "depthwise"], ["b"], group=6, pads=[1, 1, 1, 1]),
            helper.make_node("GlobalAveragePool", ["b"], ["c"]),
            helper.make_node("Flatten", ["c"], ["d"]),
            helper.make_node("Gemm", ["d", "last"], ["scores"], transB=1),
        ]
        weights = [
            numpy_helper.from_array(np.array([9, 9], np.int64), "side"),
            constant("full", 6, 3, 3, 3),
            constant("depthwise", 6, 1, 3, 3),
            constant("last", 4, 6),
        ]
        facts = inspect_onnx(make_model(nodes, weights).SerializeToString())
        assert facts.multiply_adds == 4 * 4 * 6 * 27 + 4 * 4 * 6 * 9 + 24
        assert facts.parameter_count == 6 * 27 + 6 * 9 + 24

    def test_large_weights_need_not_be_copied_to_infer_shapes(self) -> None:
        nodes = list(tiny_model().graph.node)
        nodes[2:] = [
            helper.make_node("MatMul", ["mean", "wide"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "narrow"], ["scores"]),
        ]
        weights = [constant("wide", 3, 2000), constant("narrow", 2000, 4)]
        facts = inspect_onnx(make_model(nodes, weights).SerializeToString())
        assert facts.multiply_adds == 3 * 2000 + 2000 * 4

    def test_free_sizes_make_the_count_unknown(self) -> None:
        nodes = [
            helper.make_node("Cast", ["image"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["real", "weight"], ["wide"]),
            helper.make_node("ReduceMean", ["wide"], ["scores"], axes=[1, 2], keepdims=0),
        ]
        model = make_model(nodes, [constant("weight", 3, 4)])
        assert inspect_onnx(model.SerializeToString()).multiply_adds is None

    def test_quantisation_scales_are_no_parameters(self) -> None:
        nodes = [
            *tiny_model().graph.node[:2],
            helper.make_node("DequantizeLinear", ["weight", "scale", "zero"], ["real_weight"]),
            helper.make_node("MatMul", ["mean", "real_weight"], ["scores"]),
        ]
        weights = [
            constant("weight", 3, 4, dtype=np.int8),
            constant("scale"),
            constant("zero", dtype=np.int8),
        ]
        facts = inspect_onnx(make_model(nodes, weights).SerializeToString())
        assert facts.parameter_count == 12
        assert facts.multiply_adds == 12

    def test_operators_that_onnx_runtime_brings_along_are_allowed(self) -> None:
        model = with_custom_operator("com.microsoft", "FusedMatMul")
        model.graph.node[-1].CopyFrom(
            helper.make_node("Gelu", ["scores"], ["seen"], domain="com.microsoft")
        )
        assert inspect_onnx(model.SerializeToString()).parameter_count == 12


class TestRefusals:
    @pytest.mark.parametrize("data", [b"", b"\0" * 64, b"GIF89a" * 9, tiny_bytes()[:-20]])
    def test_what_is_not_onnx(self, data: bytes, tmp_path: Path) -> None:
        assert "Export it again" in refusal(data)
        (tmp_path / "a.onnx").write_bytes(data)
        assert str(tmp_path / "a.onnx") in refusal(tmp_path / "a.onnx")

    def test_damage_never_gets_past_as_another_error(self) -> None:
        rng = random.Random(7)
        whole = tiny_bytes()
        for _ in range(400):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                inspect_onnx(bytes(data[: rng.randint(len(data) // 2, len(data))]))
            except IntegrityError:
                continue

    def test_damage_that_the_checker_of_onnx_lets_pass(self) -> None:
        model = tiny_model()
        model.graph.initializer[0].data_type = 99
        model.graph.initializer[0].name = "unused"
        model.graph.node[2].input[1] = "mean"
        whole = tiny_bytes().replace(b"tiny", b"t\xffny")
        for data in (model.SerializeToString(), whole):
            assert "Export it again" in refusal(data)

    def test_what_is_too_large(self, tmp_path: Path) -> None:
        (tmp_path / "a.onnx").write_bytes(tiny_bytes())
        for source in (tmp_path / "a.onnx", tiny_bytes()):
            assert "allowed: up to 99" in refusal(source, max_bytes=99)

    @pytest.mark.parametrize("nested", [False, True])
    @pytest.mark.parametrize("domain", ["evil", "com.microsoft.extensions", "ai.onnx.contrib"])
    def test_custom_operators(self, domain: str, nested: bool) -> None:
        said = refusal(with_custom_operator(domain, nested=nested))
        assert f"custom operator Spy ({domain})" in said

    def test_a_custom_operator_inside_a_local_function(self) -> None:
        model = tiny_model()
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("evil", 1)]
        inner = helper.make_node("Spy", ["x"], ["y"], domain="evil")
        model.functions.append(
            helper.make_function("local", "Wrap", ["x"], ["y"], [inner], imports)
        )
        model.graph.node.append(helper.make_node("Wrap", ["scores"], ["seen"], domain="local"))
        model.opset_import.append(helper.make_opsetid("local", 1))
        assert "custom operator Spy (evil)" in refusal(model)

    @pytest.mark.parametrize("operator", ["Spy", "EPContext"])
    def test_a_custom_operator_in_a_graph_that_a_function_has_by_default(
        self, operator: str
    ) -> None:
        domain = "evil" if operator == "Spy" else "com.microsoft"
        inner = helper.make_node(operator, ["x"], ["z"], domain=domain)
        assert operator in refusal(with_default_graph([inner], []))

    def test_a_local_function_of_standard_operators_is_allowed(self) -> None:
        model = tiny_model()
        inner = helper.make_node("Relu", ["x"], ["y"])
        imports = [helper.make_opsetid("", 17)]
        model.functions.append(
            helper.make_function("local", "Wrap", ["x"], ["y"], [inner], imports)
        )
        model.graph.node.append(helper.make_node("Wrap", ["scores"], ["seen"], domain="local"))
        model.opset_import.append(helper.make_opsetid("local", 1))
        facts = inspect_onnx(model.SerializeToString())
        assert facts.multiply_adds == 12

    @pytest.mark.parametrize("operator", ["EPContext", "PythonOp"])
    def test_built_in_operators_that_load_code(self, operator: str) -> None:
        assert operator in refusal(with_custom_operator("com.microsoft", operator))

    @pytest.mark.parametrize("domain", ["com.microsoft", "local"])
    def test_a_function_under_the_name_of_what_loads_code(self, domain: str) -> None:
        model = tiny_model()
        inner = helper.make_node("Relu", ["x"], ["y"])
        imports = [helper.make_opsetid("", 17)]
        model.functions.append(
            helper.make_function(domain, "EPContext", ["x"], ["y"], [inner], imports)
        )
        model.graph.node.append(helper.make_node("EPContext", ["scores"], ["seen"], domain=domain))
        model.opset_import.append(helper.make_opsetid(domain, 1))
        assert f"custom operator EPContext ({domain})" in refusal(model)

    def test_an_operator_that_the_standard_does_not_have(self) -> None:
        assert "not a valid ONNX model" in refusal(with_custom_operator("", "Frobnicate"))

    @pytest.mark.parametrize("opset", [0, -3, 9999])
    def test_an_unknown_opset(self, opset: int) -> None:
        newest = onnx.defs.onnx_opset_version()
        assert f"opset is {opset}; allowed: 1 to {newest}" in refusal(tiny_model(opset=opset))

    def test_a_newer_file_format(self) -> None:
        model = tiny_model()
        model.ir_version = 999
        assert "IR version is 999" in refusal(model)

    def test_a_signature_that_is_no_tensor(self) -> None:
        model = tiny_model()
        model.graph.output[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
        assert "not a" in refusal(model)

    def test_a_path_that_cannot_be_read(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "missing.onnx"):
            with pytest.raises(InvalidInputError, match="a regular file"):
                inspect_onnx(path)


class TestExternalData:
    """Weights in other files: fine beside the model, refused anywhere else."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "weights.bin").write_bytes(WEIGHT)
        (folder / "deep").mkdir()
        (folder / "deep" / "weights.bin").write_bytes(b"\0" * 16 + WEIGHT + b"\0")
        (tmp_path / "outside.bin").write_bytes(WEIGHT)
        return folder

    def save(self, folder: Path, location: str, **entries: str) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(with_external_weight(location, **entries).SerializeToString())
        return path

    @pytest.mark.parametrize(
        ("location", "entries"),
        [
            ("weights.bin", {}),
            ("./weights.bin", {"length": "48"}),
            ("deep/weights.bin", {"offset": "16", "length": "48"}),
        ],
    )
    def test_beside_the_model(self, folder: Path, location: str, entries: dict[str, str]) -> None:
        path = self.save(folder, location, **entries)
        assert inspect_onnx(path).parameter_count == 12
        whole = read_onnx(path)
        assert inspect_onnx(whole).parameter_count == 12
        weight = onnx.load_model_from_string(whole).graph.initializer[0]
        np.testing.assert_array_equal(numpy_helper.to_array(weight).ravel(), np.arange(12))

    @pytest.mark.parametrize(
        "location",
        [
            "../outside.bin",
            "deep/../../outside.bin",
            "..",
            "",
            ".",
            "/etc/passwd",
            "..\\outside.bin",
            "C:\\secrets",
            "weights.bin\0.txt",
        ],
    )
    def test_outside_the_folder(self, folder: Path, location: str) -> None:
        said = refusal(self.save(folder, location))
        assert "a regular file inside the model's folder" in said
        assert repr(location) in said

    def test_through_a_symbolic_link(self, folder: Path) -> None:
        (folder / "link.bin").symlink_to(folder.parent / "outside.bin")
        (folder / "up").symlink_to(folder.parent)
        for location in ("link.bin", "up/outside.bin"):
            assert "reached without a link" in refusal(self.save(folder, location))

    def test_of_another_name(self, folder: Path) -> None:
        (folder / "hard.bin").hardlink_to(folder.parent / "outside.bin")
        assert "multiple hard links" in refusal(self.save(folder, "hard.bin"))

    def test_what_is_no_regular_file(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        for location in ("pipe", "deep"):
            assert "not regular file" in refusal(self.save(folder, location))

    def test_missing_or_too_short(self, folder: Path) -> None:
        assert "No such file" in refusal(self.save(folder, "missing.bin"))
        assert "exceeds available data" in refusal(self.save(folder, "weights.bin", length="49"))
        assert "exceeds available data" in refusal(
            self.save(folder, "weights.bin", offset="9", length="48")
        )
        assert "not a valid ONNX model" in refusal(self.save(folder, "weights.bin", length="40"))

    @pytest.mark.parametrize("number", ["-1", "4.5", "x", "9" * 40])
    def test_numbers_that_are_none(self, folder: Path, number: str) -> None:
        assert "a part of a regular file" in refusal(
            self.save(folder, "weights.bin", offset=number)
        )

    def test_too_much_of_it(self, folder: Path) -> None:
        path = self.save(folder, "weights.bin")
        assert "larger than is allowed" in refusal(path, max_bytes=path.stat().st_size + 40)

    def test_bytes_alone_must_hold_everything(self) -> None:
        said = refusal(with_external_weight("weights.bin"))
        assert "'weights.bin'; allowed: a file that holds all of its weights" in said

    def test_hidden_in_a_subgraph(self, folder: Path) -> None:
        model = with_custom_operator("", "Identity", nested=True)
        tensor = with_external_weight("../outside.bin").graph.initializer[0]
        branch = model.graph.node[-1].attribute[0].g
        branch.initializer.append(tensor)
        assert "tensors lie in other files" in refusal(model)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        assert "'../outside.bin'" in refusal(folder / "model.onnx")

    def test_hidden_in_what_a_function_has_by_default(self, folder: Path) -> None:
        tensor = with_external_weight("../outside.bin").graph.initializer[0]
        inner = helper.make_node("Identity", [tensor.name], ["z"])
        in_graph = with_default_graph([inner], [tensor])
        assert "tensors lie in other files" in refusal(in_graph)
        (folder / "model.onnx").write_bytes(in_graph.SerializeToString())
        assert "'../outside.bin'" in refusal(folder / "model.onnx")
        sparse = with_default_graph([], [])
        attribute = sparse.functions[0].attribute_proto.add(name="s")
        attribute.type = onnx.AttributeProto.SPARSE_TENSOR
        attribute.sparse_tensor.values.CopyFrom(tensor)
        assert "tensors lie in other files" in refusal(sparse)


class TestSignature:
    @pytest.mark.parametrize(
        ("kind", "spec", "said"),
        [
            (
                "inputs",
                TensorSpec("photo", "UINT8", (-1, -1, -1, 3)),
                "names of the model's inputs",
            ),
            ("inputs", TensorSpec("image", "FP32", (-1, -1, -1, 3)), "datatype of the model's"),
            ("inputs", TensorSpec("image", "UINT8", (-1, -1, 3)), "shape of the model's input"),
            ("inputs", TensorSpec("image", "UINT8", (-1, -1, -1, -1)), "-1 must be free"),
            ("inputs", TensorSpec("image", "UINT8", (-1, 8, 8, 1)), "got [-1, -1, -1, 3]"),
            ("outputs", TensorSpec("scores", "FP32", (-1, 5)), "shape of the model's output"),
            ("outputs", TensorSpec("labels", "FP32", (-1, 4)), "names of the model's outputs"),
        ],
    )
    def test_a_model_of_another_task(self, kind: str, spec: TensorSpec, said: str) -> None:
        other = dataclasses.replace(TASK, **{kind: (spec,)})
        with pytest.raises(InvalidInputError) as caught:
            check_signature(inspect_onnx(tiny_bytes()), other)
        assert said in str(caught.value)

    def test_a_model_of_this_task(self) -> None:
        facts = inspect_onnx(tiny_bytes())
        check_signature(facts, TASK)
        fixed = TensorSpec("image", "UINT8", (-1, 32, 32, 3))
        check_signature(facts, dataclasses.replace(TASK, inputs=(fixed,)))
