"""Equal models are equal bytes, and makers get them tidy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from modelless.common.errors import IntegrityError
from modelless.variants.graphs.canonical import read_model, write_model

from .networks import FASHION, node, random_weights, run, write

CHAIN = [node("Add", "x a", "one"), node("Mul", "one b", "two"), node("Sub", "two a", "y")]
HELD = random_weights(a=(3,), b=(3,))


def test_untidy_models_become_the_same_bytes() -> None:
    tidy = read_model(write(CHAIN, HELD, ["N", 3], ["N", 3]))
    untidy = ModelProto()
    untidy.CopyFrom(tidy)
    nodes = list(untidy.graph.node)[::-1]
    del untidy.graph.node[:]
    untidy.graph.node.extend(nodes)
    untidy.graph.initializer.append(numpy_helper.from_array(np.zeros(9), "unread"))
    untidy.graph.value_info.append(helper.make_tensor_value_info("one", 1, ["N", 3]))
    untidy.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    untidy.producer_name, untidy.producer_version = "other", "9"
    untidy.metadata_props.add(key="made", value="now")
    assert write_model(untidy) == write_model(tidy)
    assert len(untidy.graph.initializer) == 3  # the model handed in stays as it was


def test_writing_what_was_read_changes_nothing_more() -> None:
    once = write_model(read_model(FASHION))
    assert write_model(read_model(once)) == once


def test_names_are_given_where_they_lack() -> None:
    twins = [node("Relu", "x", "one"), node("Relu", "one", "y")]
    for each in twins:
        each.name = "relu"
    nameless = node("Relu", "x", "spare")
    nameless.name = ""
    model = read_model(write([*twins, nameless], {}, ["N", 3], ["N", 3]))
    assert [each.name for each in model.graph.node] == ["relu", "relu#1", "Relu#2"]


def test_constant_nodes_become_initializers() -> None:
    value = numpy_helper.from_array(np.array([1, 2, 3], np.float32))
    nodes = [node("Constant", "", "c", value=value), node("Add", "x c", "y")]
    source = write(nodes, {}, ["N", 3], ["N", 3])
    model = read_model(source)
    assert [each.op_type for each in model.graph.node] == ["Add"]
    assert [each.name for each in model.graph.initializer] == ["c"]
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(run(write_model(model), x), run(source, x))


def test_what_must_not_run_is_refused() -> None:
    custom = helper.make_node("Spy", ["x"], ["y"], domain="elsewhere")
    with pytest.raises(IntegrityError):
        read_model(write([custom], {}, ["N", 3], ["N", 3]))


def test_files_whose_constants_had_to_be_inputs() -> None:
    model = ModelProto.FromString(write([node("Add", "x a", "y")], HELD, ["N", 3], ["N", 3]))
    model.ir_version, model.opset_import[0].version = 3, 8
    for name in HELD:
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]))
    old = bytes(model.SerializeToString())
    tidy = write_model(read_model(old))
    assert [each.name for each in read_model(tidy).graph.input] == ["x"]
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(run(tidy, x), run(old, x))


def test_absent_inputs_at_the_end_are_left_out() -> None:
    clip = node("Clip", "x", "y")
    clip.input.extend(["low", ""])
    held = {"low": np.zeros((), np.float32)}
    tidy = read_model(write([clip], held, ["N", 3], ["N", 3]))
    assert list(tidy.graph.node[0].input) == ["x", "low"]
