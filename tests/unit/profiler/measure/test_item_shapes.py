"""Sizes of items: as people write them, as inputs take them, as rows keep them."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.profiler.measure.item_shapes import (
    count_elements,
    free_sizes,
    has_free_axes,
    parse_shapes,
    write_shape,
)
from modelless.variants.vocabulary import TensorSpec

LINE = TensorSpec("image", "UINT8", (-1, 48, -1, 3))
TOKENS = (TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("mask", "INT64", (-1, -1)))


@pytest.mark.parametrize("sizes", [(48, 320, 3), (320,), (48, 320)])
def test_the_same_size_may_be_written_in_three_ways(sizes: tuple[int, ...]) -> None:
    assert parse_shapes([LINE], {"image": [sizes]}) == [{"image": (48, 320, 3)}]


def test_shapes_ascend_and_each_is_there_once() -> None:
    found = parse_shapes([LINE], {"image": [(640,), (64,), (48, 640)]})
    assert found == [{"image": (48, 64, 3)}, {"image": (48, 640, 3)}]


def test_sizes_of_several_inputs_go_together() -> None:
    fixed = TensorSpec("scale", "FP32", (-1,))
    found = parse_shapes([*TOKENS, fixed], {"ids": [(16,), (8,)], "mask": [(16,), (8,)]})
    assert [each["ids"] for each in found] == [(8,), (16,)]
    assert write_shape(found[0]) == "ids=8, mask=8, scale=1"
    assert count_elements("ids=8, mask=8, scale=1") == 17
    assert free_sizes([*TOKENS, fixed], found[0]) == {"ids": (8,), "mask": (8,)}


def test_an_unknown_shape_has_no_elements() -> None:
    assert count_elements("") == 0
    assert count_elements(write_shape({"image": (48, 320, 3)})) == 48 * 320 * 3


def test_free_axes() -> None:
    assert has_free_axes([LINE])
    assert not has_free_axes([TensorSpec("x", "FP32", (-1, 3))])


@pytest.mark.parametrize(
    ("specs", "written", "said"),
    [
        ([LINE], {"photo": [(320,)]}, "each that leaves sizes free: image"),
        (TOKENS, {"ids": [(8,)]}, "ids, mask"),
        (TOKENS, {"ids": [(8,)], "mask": [(8,), (9,)]}, "as many sizes"),
        ([LINE], {"image": [(47, 320)]}, "47x320"),
        ([LINE], {"image": [(0,)]}, "-1 is 1 or more"),
        ([LINE], {"image": [(48, 320, 3, 1)]}, "48x320x3x1"),
        ([LINE], {"image": [()]}, r"sizes of \[48, -1, 3\]"),
    ],
)
def test_sizes_that_do_not_fit(specs: Any, written: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        parse_shapes(specs, written)
