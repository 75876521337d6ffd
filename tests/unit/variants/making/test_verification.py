"""Conversions are held against their source; lossy models are compared with theirs."""

from __future__ import annotations

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.variants.making.calibration import CalibrationData, Feed
from modelless.variants.making.fidelity import Fidelity, Outputs, compare
from modelless.variants.making.verification import Tolerance, verify_conversion
from modelless.variants.vocabulary import CtcDecoding, Task, TensorSpec

from .networks import node, write

DOUBLING = write([node("Add", "x x", "y")], {}, ["N", 3], ["N", 3])
DATA = CalibrationData.of({"x": np.arange(12, dtype=np.float32).reshape(4, 3)}, 2)


def doubled(feed: Feed) -> Outputs:
    return {"y": 2.0 * feed["x"].astype(np.float64)}


def refusal(outputs: object, tolerance: Tolerance | None = None) -> str:
    with pytest.raises(InvalidInputError) as caught:
        verify_conversion(outputs, DOUBLING, DATA, tolerance or Tolerance())  # type: ignore[arg-type]
    return str(caught.value)


class TestVerification:
    def test_the_same_passes(self) -> None:
        verify_conversion(doubled, DOUBLING, DATA)

    def test_the_first_difference_is_named(self) -> None:
        def wrong(feed: Feed) -> Outputs:
            values = doubled(feed)["y"].copy()
            if values[0, 0] > 0:
                values[1, 2] += 0.5
            return {"y": values}

        words = refusal(wrong)
        assert "output 'y' of call 1 at [1, 2]: got 22.0; allowed: 22.5, the source's" in words
        assert "1 of 6 values differ" in words
        verify_conversion(wrong, DOUBLING, DATA, Tolerance(absolute=0.6))

    def test_names_and_shapes_must_be_the_same(self) -> None:
        assert "outputs: got ['y']; allowed: z" in refusal(lambda feed: {"z": feed["x"]})
        assert "shape: got (2, 3); allowed: (2, 2)" in refusal(lambda feed: {"y": feed["x"][:, :2]})

    def test_nothing_passes_for_a_number(self) -> None:
        assert "nan" in refusal(lambda feed: {"y": doubled(feed)["y"] * np.nan})

    def test_what_is_no_float_must_be_equal(self) -> None:
        words = refusal(lambda feed: {"y": (2 * feed["x"]).astype(int) + 1}, Tolerance(absolute=9))
        assert "at [0, 0]: got 0.0; allowed: 1, the source's." in words

    def test_without_inputs_nothing_is_verified(self) -> None:
        with pytest.raises(InvalidInputError, match="one call at least"):
            verify_conversion(doubled, DOUBLING, CalibrationData())


class TestFidelity:
    SOURCE = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32)

    def fidelity(self, made: np.ndarray) -> Fidelity:
        return compare([{"y": self.SOURCE}], [{"y": made}])

    def test_figures(self) -> None:
        found = self.fidelity(self.SOURCE + np.float32([[0.0, -2.0], [0.0, 0.0]]))
        assert found == Fidelity(2.0, pytest.approx(10 * np.log10(26 / 4)), 0.5, 2)

    def test_calls_are_pooled_whatever_their_sizes(self) -> None:
        source = [{"y": self.SOURCE}, {"y": np.ones((1, 3), np.float32)}]
        made = [{"y": self.SOURCE + 1}, {"y": np.ones((1, 3), np.float32)}]
        assert compare(source, made) == Fidelity(1.0, pytest.approx(10 * np.log10(29 / 4)), 1.0, 3)

    def test_equals(self) -> None:
        assert self.fidelity(self.SOURCE) == Fidelity(0.0, 200.0, 1.0, 2)

    def test_the_worst_output_counts(self) -> None:
        made = {"a": self.SOURCE, "b": 2 * self.SOURCE}
        assert compare([{"a": self.SOURCE, "b": self.SOURCE}], [made]).sqnr_db == 0.0

    def test_nothing_is_as_bad_as_can_be(self) -> None:
        assert self.fidelity(self.SOURCE * np.nan).sqnr_db == -200.0
        assert compare([{"y": 0 * self.SOURCE}], [{"y": self.SOURCE}]).sqnr_db == -200.0

    def test_an_infinite_answer_is_nothing_like_a_finite_one(self) -> None:
        endless = np.array([[np.inf, 4.0], [1.0, -np.inf]], np.float32)
        assert self.fidelity(endless) == Fidelity(np.inf, -200.0, 0.5, 2)
        assert compare([{"y": endless}], [{"y": self.SOURCE}]).sqnr_db == -200.0
        assert compare([{"y": endless}], [{"y": -endless}]).sqnr_db == -200.0

    def test_equal_infinite_answers_are_equal(self) -> None:
        masked = np.array([[3.0, -np.inf], [-np.inf, 4.0]], np.float32)
        assert compare([{"y": masked}], [{"y": masked}]) == Fidelity(0.0, 200.0, 1.0, 2)
        near = masked + np.float32([[0.0, 0.0], [0.0, 1.0]])
        assert compare([{"y": masked}], [{"y": near}]).sqnr_db == pytest.approx(10 * np.log10(25))

    def test_class_numbers_agree_or_not_and_are_no_noise(self) -> None:
        source = {"label": np.array([1, 2, 3, 4]), "share": np.ones((4, 1), np.float32)}
        made = {**source, "label": np.array([1, 2, 3, 900])}
        assert compare([source], [made]) == Fidelity(0.0, 200.0, 0.75, 4)
        bare = compare([{"label": source["label"]}], [{"label": made["label"]}])
        assert (bare.sqnr_db, bare.nearness) == (None, 75.0)

    def test_texts_are_compared_as_they_read(self) -> None:
        output = TensorSpec("y", "FP32", (-1, -1, 3))
        task = Task("t", (), (output,), "cer", labels=("", "a", "b"), decoding=CtcDecoding("y"))
        one, other = ({"y": np.eye(3, dtype=np.float32)[rows]} for rows in (
            [[1, 0, 2], [1, 0, 1]], [[1, 2, 2], [1, 1, 1]]
        ))  # fmt: skip
        found = compare([one], [other], task)
        assert (found.text_agreement, found.same_answers, found.items) == (0.5, 0.5, 2)

    def test_no_classes_no_agreement(self) -> None:
        one = [{"y": self.SOURCE[0]}]
        assert compare(one, one).top_1_agreement is None

    def test_other_shapes_are_refused(self) -> None:
        with pytest.raises(InvalidInputError, match=r"call 0: got \{'y': \(2,\)\}"):
            self.fidelity(self.SOURCE[0])
        with pytest.raises(InvalidInputError, match="calls of the made model: got 0"):
            compare([], [])
