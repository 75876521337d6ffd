"""Inputs to measure with."""

from __future__ import annotations

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.profiler.measure.inputs import sample_inputs, warm_up_inputs
from modelless.variants.vocabulary import TensorSpec

IMAGE = TensorSpec("image", "UINT8", (-1, -1, -1, 3))


def test_arrays_of_the_signature_the_same_each_time() -> None:
    specs = (IMAGE, TensorSpec("mask", "BOOL", (-1, 5)), TensorSpec("x", "FP16", (-1,)))
    arrays = sample_inputs(specs, 4, free_axes={"image": (32, 48)})
    assert [(a.shape, a.dtype.name) for a in arrays.values()] == [
        ((4, 32, 48, 3), "uint8"),
        ((4, 5), "bool"),
        ((4,), "float16"),
    ]
    assert arrays["image"].max() > 250
    again = sample_inputs(specs, 4, free_axes={"image": (32, 48)})
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)


def test_free_axes_have_a_usual_size() -> None:
    assert sample_inputs([IMAGE], 1)["image"].shape == (1, 224, 224, 3)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="batch"):
        sample_inputs([IMAGE], 0)
    with pytest.raises(InvalidInputError, match="2 sizes"):
        sample_inputs([IMAGE], 1, free_axes={"image": (3,)})
    with pytest.raises(InvalidInputError, match="TEXT"):
        sample_inputs([TensorSpec("text", "TEXT", (-1,))], 1)


def test_texts_are_examples_at_equal_steps_of_their_lengths() -> None:
    text = TensorSpec("text", "BYTES", (-1,))
    known = {"text": ["x" * length for length in (5, 1, 4, 2, 3)]}

    def lengths(batch: int) -> list[int]:
        return [len(each) for each in sample_inputs([text], batch, texts=known)["text"]]

    assert (lengths(1), lengths(3), lengths(5)) == ([3], [1, 3, 5], [1, 2, 3, 4, 5])
    assert len(lengths(20)) == 20
    made = sample_inputs([TensorSpec("text", "BYTES", (-1, 2))], 3)["text"]
    assert made.shape == (3, 2)
    assert all(type(each) is str and each.isdigit() for each in made.ravel())


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (99, [1, 2, 4, 8])],
)
def test_a_session_is_warmed_up_to_the_largest_batch(most: int, sizes: list[int]) -> None:
    batches = warm_up_inputs(lambda items: {"image": np.zeros((items, 2))}, most)
    assert [len(batch["image"]) for batch in batches] == sizes
