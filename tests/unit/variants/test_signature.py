"""Tensors against a task's signature."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.common.errors import InvalidInputError
from modelless.variants.signature import (
    DATATYPES,
    DTYPES,
    check_inputs,
    dtype_of,
    item_size,
    padded_size,
    round_size,
)
from modelless.variants.vocabulary import Task, TensorSpec
from tests.builders import TASK

TWO = Task(
    name="two",
    inputs=(TensorSpec("left", "FP32", (-1, 2)), TensorSpec("right", "INT64", (-1, 3))),
    outputs=(TensorSpec("out", "FP32", (-1,)),),
    accuracy_metric="top-1",
)


def picture(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    """An array of 0, 1, 2, ... up to 255 and again."""
    return (np.arange(np.prod(shape)) % 256).astype(dtype).reshape(shape)


def refusal(task: Task, tensors: dict[str, Any], **limits: int) -> str:
    """The words with which ``tensors`` are refused."""
    with pytest.raises(InvalidInputError) as caught:
        check_inputs(task, tensors, **limits)
    return str(caught.value)


def test_what_fits_is_passed_on_uncopied() -> None:
    image = picture(2, 5, 6, 3)
    clean, items = check_inputs(TASK, {"image": image})
    assert items == 2
    assert clean["image"] is image


def test_strided_arrays_become_contiguous() -> None:
    image = picture(2, 5, 6, 4)[..., :3]
    clean, _ = check_inputs(TASK, {"image": image})
    assert clean["image"].flags.c_contiguous
    np.testing.assert_array_equal(clean["image"], image)


def test_whole_floats_stand_for_bytes_and_are_rounded() -> None:
    image = np.array([0.0, 0.4, 0.5, 1.5, 254.6, 255.0], np.float32).reshape(1, 1, 2, 3)
    clean, _ = check_inputs(TASK, {"image": image})
    assert clean["image"].dtype == np.uint8
    assert clean["image"].ravel().tolist() == [0, 0, 0, 2, 255, 255]


def test_pictures_of_0_to_1_are_refused_as_rounding_would_make_them_black() -> None:
    image = picture(1, 2, 2, 3).astype(np.float32) / 255.0
    image[0, 0, 0, 0] = 0.5
    assert "multiply 0 to 1 by 255" in refusal(TASK, {"image": image})
    whole = np.array([0.0, 1.0, 1.0], np.float32).reshape(1, 1, 1, 3)
    clean, _ = check_inputs(TASK, {"image": whole})
    assert clean["image"].ravel().tolist() == [0, 1, 1]


class Counting(np.ndarray):
    """Counts how often its largest value is looked for."""

    looked = 0

    def max(self, *args: Any, **more: Any) -> Any:
        Counting.looked += 1
        return super().max(*args, **more)


def test_the_largest_value_of_a_float_picture_is_looked_for_once() -> None:
    image = picture(1, 2, 2, 3).astype(np.float32).view(Counting)
    clean, _ = check_inputs(TASK, {"image": image})
    assert clean["image"].ravel().tolist() == list(range(12))
    assert Counting.looked == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -0.01, 255.01, 1e9])
def test_floats_outside_a_byte_are_refused_by_index(bad: float) -> None:
    image = np.full((2, 4, 5, 3), 7.0, np.float32)
    image[1, 2, 3, 0] = image[1, 3, 0, 0] = bad
    said = refusal(TASK, {"image": image})
    assert "inputs.image[1, 2, 3, 0]" in said
    assert "allowed: 0 to 255" in said


def test_nan_is_refused_in_float_inputs_but_infinity_is_not() -> None:
    left, right = np.zeros((2, 2), np.float32), np.zeros((2, 3), np.int64)
    left[0, 0] = np.inf
    left[0, 1] = -np.inf
    assert check_inputs(TWO, {"left": left, "right": right})[1] == 2
    left[1, 1] = np.nan
    assert "inputs.left[1, 1]: got nan" in refusal(TWO, {"left": left, "right": right})


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        ([], "Missing: image."),
        (["picture"], "Missing: image. Unknown: picture."),
        (["image", "mask"], "Unknown: mask."),
    ],
)
def test_names(names: list[str], hint: str) -> None:
    said = refusal(TASK, {name: picture(1, 2, 2, 3) for name in names})
    assert said.endswith(hint)
    assert "image (UINT8 [-1, -1, -1, 3])" in said


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.int64, np.bool_, ">u2"])
def test_other_datatypes_are_refused(dtype: Any) -> None:
    assert "inputs.image: datatype" in refusal(TASK, {"image": picture(1, 2, 2, 3, dtype=dtype)})


def test_fp32_for_other_integers_is_refused() -> None:
    tensors = {"left": np.zeros((1, 2), np.float32), "right": np.zeros((1, 3), np.float32)}
    said = refusal(TWO, tensors)
    assert said == "inputs.right: datatype: got 'FP32'; allowed: INT64."


@pytest.mark.parametrize("shape", [(4,), (2, 2, 3), (1, 2, 2, 4), (1, 2, 2, 3, 1), (1, 0, 2, 3)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    said = refusal(TASK, {"image": np.zeros(shape, np.uint8)})
    assert f"inputs.image: shape: got {list(shape)}" in said


def test_a_scalar_is_refused() -> None:
    assert "got []" in refusal(TASK, {"image": np.uint8(3) * np.ones((), np.uint8)})


def test_number_of_items() -> None:
    assert "got [0, 2, 2, 3]" in refusal(TASK, {"image": np.zeros((0, 2, 2, 3), np.uint8)})
    assert "allowed: 1 to 4" in refusal(TASK, {"image": picture(5, 1, 1, 3)}, max_items=4)
    tensors = {"left": np.zeros((2, 2), np.float32), "right": np.zeros((3, 3), np.int64)}
    assert "inputs.right: items along axis 0: got 3; allowed: 2" in refusal(TWO, tensors)


def test_datatypes_go_both_ways() -> None:
    assert {DATATYPES[DTYPES[name]] for name in DTYPES} == set(DTYPES)
    assert dtype_of("FP16") == np.float16
    with pytest.raises(InvalidInputError, match="'TEXT'"):
        dtype_of("TEXT")


TEXTS = Task("texts", (TensorSpec("text", "BYTES", (-1, 2)),), (), "top-1")


@pytest.mark.parametrize(
    "sent",
    [
        np.array([["a", "é"]]),
        np.array([["a", "é"]], np.object_),
        np.array([[b"a", "é".encode()]], np.object_),
        np.array([[b"a", "é".encode()]]),
    ],
)
def test_texts_become_str(sent: np.ndarray) -> None:
    clean, items = check_inputs(TEXTS, {"text": sent})
    assert (clean["text"].tolist(), items) == ([["a", "é"]], 1)


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [(b"\xc3(" + b"x" * 99, "xc3"), (None, "None"), (7, "7"), ("\ud800", "ud800")],
)
def test_what_is_no_text_is_refused(wrong: object, shown: str) -> None:
    said = refusal(TEXTS, {"text": np.array([["a", "b"], ["c", wrong]], np.object_)})
    assert "inputs.text[1, 1]: got" in said
    assert shown in said
    assert len(said) < 200
    assert "got FP32" in refusal(TEXTS, {"text": np.zeros((1, 2), np.float32)}).replace("'", "")


def test_it_is_cheap_for_a_photo() -> None:
    tensors = {"image": picture(1, 224, 224, 3)}
    best_s = min(_time_s(tensors) for _ in range(200))
    assert best_s < 10e-6


def _time_s(tensors: dict[str, np.ndarray]) -> float:
    start = time.perf_counter()
    check_inputs(TASK, tensors)
    return time.perf_counter() - start


def test_the_size_of_an_item_where_sizes_are_free() -> None:
    specs = (TensorSpec("image", "FP32", (-1, 3, 48, -1)), TensorSpec("ids", "INT64", (-1, 2)))
    free = Task("free", specs, TWO.outputs, "top-1")
    tensors = {"image": np.zeros((5, 3, 48, 320)), "ids": np.zeros((5, 2))}
    assert item_size(free, tensors) == pytest.approx(3 * 48 * 320 + 2, rel=0.022)
    assert item_size(TWO, {"left": np.zeros((5, 2)), "right": np.zeros((5, 3))}) == 0


@given(st.integers(1, 10**12))
def test_few_sizes_stand_for_all(size: int) -> None:
    rounded = round_size(size)
    assert abs(rounded - size) <= 0.022 * size + 0.5
    assert rounded >= 1


def test_sixteen_sizes_in_a_doubling() -> None:
    assert len({round_size(size) for size in range(1 << 12, 1 << 13)}) == 17


PADDED = Task(
    name="padded",
    inputs=(TensorSpec("image", "UINT8", (-1, 2, -1, 3), "edge"),),
    outputs=TWO.outputs,
    accuracy_metric="top-1",
)


def test_free_sizes_are_padded_with_what_is_at_the_end() -> None:
    image = picture(5, 2, 65, 3)
    clean, items = check_inputs(PADDED, {"image": image})
    assert (items, clean["image"].shape) == (5, (5, 2, 80, 3))
    np.testing.assert_array_equal(clean["image"][:, :, :65], image)
    assert (clean["image"][:, :, 65:] == image[:, :, 64:65]).all()
    floats, _ = check_inputs(PADDED, {"image": image.astype(np.float32)})
    np.testing.assert_array_equal(floats["image"], clean["image"])


def test_free_sizes_are_padded_with_zeros() -> None:
    spec = TensorSpec("ids", "INT64", (-1, -1), 0.0)
    task = Task("ids", (spec,), TWO.outputs, "top-1")
    clean, _ = check_inputs(task, {"ids": np.full((1, 9), 7)})
    assert clean["ids"].tolist() == [[7] * 9 + [0]]
    assert item_size(task, clean) == 10


def test_free_sizes_are_padded_with_a_value() -> None:
    task = Task("grey", (replace(PADDED.inputs[0], padding=127.0),), TWO.outputs, "top-1")
    clean, _ = check_inputs(task, {"image": picture(1, 2, 9, 3)})
    assert clean["image"].dtype == np.uint8
    assert (clean["image"][:, :, 9:] == 127).all()


def test_a_padded_size_is_not_copied() -> None:
    image = picture(1, 2, 80, 3)
    assert check_inputs(PADDED, {"image": image})[0]["image"] is image


@given(st.integers(1, 10**9))
def test_padding_adds_a_quarter_at_most(size: int) -> None:
    padded = padded_size(size)
    assert size <= padded <= 1.25 * size
    assert padded_size(padded) == padded


def test_four_padded_sizes_in_a_doubling() -> None:
    assert {padded_size(size) for size in range(65, 129)} == {80, 96, 112, 128}
