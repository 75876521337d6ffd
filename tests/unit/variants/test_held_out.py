"""Inputs to calibrate with, taken from a set on whose other items accuracy is measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.validation.arrays import ArraySet
from modelless.variants.validation.inputs import arrays_of, first_inputs, held_out
from modelless.variants.validation.measuring import random_order
from modelless.variants.vocabulary import Task, TensorSpec

TASK = Task("t", (TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 3)),), "top-1")


def items(count: int) -> ArraySet:
    """Items that are told apart by their first number."""
    numbers = np.arange(count, dtype=np.float32)
    inputs = {"x": np.stack([numbers, numbers], axis=1)}
    return ArraySet("set", TASK, inputs, [0] * count, lambda: "of the set")


def numbers_in(data: CalibrationData) -> list[int]:
    return [int(row[0]) for feed in data.feeds for row in feed["x"]]


@pytest.mark.parametrize(("count", "expected"), [(5, 1), (99, 19), (5000, 256)])
def test_none_of_the_measured_items_is_held_out(count: int, expected: int) -> None:
    data, left = held_out(items(count))
    held = numbers_in(data)
    assert (len(held), left) == (expected, count - expected)
    assert set(held).isdisjoint(random_order(count)[:left])


def test_too_few_to_part() -> None:
    with pytest.raises(InvalidInputError, match="--calibration"):
        held_out(items(4))


def test_some_of_a_set_of_inputs() -> None:
    assert numbers_in(first_inputs(items(300), 40)) == random_order(300)[:40]
    assert sorted(numbers_in(first_inputs(items(7), 40))) == list(range(7))


class TestArraysOfANewTask:
    def test_all_but_labels(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.zeros((70, 2)), z=np.ones((70, 1)), labels=np.zeros(70))
        data = arrays_of(tmp_path / "a.npz", most=40)
        assert [feed.keys() for feed in data.feeds] == [{"x", "z"}] * 2

    def test_nothing_but_labels(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", labels=np.zeros(3))
        with pytest.raises(InvalidInputError, match="an array an input, too"):
            arrays_of(tmp_path / "a.npz")

    def test_another_kind_of_file(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="--task-file"):
            arrays_of(tmp_path)
