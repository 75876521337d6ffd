"""Texts that are decoded from scores, by hand and at their edges."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.decoding import (
    alphabet_of_metadata,
    decode_texts,
    find_ctc,
    read_lines,
    with_blank,
)
from modelless.variants.metrics import find_metric
from modelless.variants.validation.expected import Expects
from modelless.variants.vocabulary import CtcDecoding, Task, TensorSpec

LABELS = ("", "a", "b", " ")
STEPS = TensorSpec("steps", "FP32", (-1, -1, 4))
TASK = Task(
    "text",
    (TensorSpec("x", "FP32", (-1, 2)),),
    (TensorSpec("other", "FP32", (-1, 3)), STEPS),
    "exact-match",
    labels=LABELS,
    decoding=CtcDecoding("steps"),
)


def scores(*rows: str) -> NDArray[np.float32]:
    """Scores of which the best of each step spell the rows; ``-`` is the blank."""
    indices = np.array([["-ab ".index(letter) for letter in row] for row in rows])
    return np.eye(4, dtype=np.float32)[indices]


def test_repeats_count_once_and_blanks_part_them() -> None:
    found = decode_texts(scores("aab-b ", "------", "-a-a-a", "bbbbbb"), CtcDecoding("s"), LABELS)
    assert found == ("abb ", "", "aaa", "b")


def test_the_blank_may_be_any_class() -> None:
    found = decode_texts(scores("a-b", "-- "), CtcDecoding("s", blank=2), ("_", "a", "", "."))
    assert found == ("a_", "_.")


def test_what_is_no_number_is_never_the_best() -> None:
    given = scores("abab")
    given[0, 1] = np.nan
    given[0, 3, 1] = np.nan
    assert decode_texts(given, CtcDecoding("s"), LABELS) == ("aab",)


@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 5), (1, 2, 3, 4)])
def test_scores_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"output 's': shape.*\[items, steps, 4\]"):
        decode_texts(np.zeros(shape), CtcDecoding("s"), LABELS)


def test_lines_keep_every_character_but_their_end() -> None:
    assert read_lines("a\n \r\n\u3000\n\u2028\n#\n") == ("a", " ", "\u3000", "\u2028", "#")
    assert read_lines("\ufeffa\n\nb") == ("a", "", "b")


def test_an_alphabet_that_lacks_one_class_lacks_the_space() -> None:
    told = {"character": "a\nb\n"}
    assert alphabet_of_metadata(told, "character", 4) == ("a", "b", " ")
    assert alphabet_of_metadata(told, "character", 3) == ("a", "b")
    assert alphabet_of_metadata(told, "character", -1) == ("a", "b")
    with pytest.raises(InvalidInputError, match=r"\['character'\].*an entry 'words'"):
        alphabet_of_metadata(told, "words", 4)


def test_a_models_metadata_tell_how_it_is_read() -> None:
    outputs = TASK.outputs
    assert find_ctc(outputs, {"character": "a\nb"}) == (CtcDecoding("steps"), LABELS)
    assert find_ctc(outputs, {"character": "a\nb\nc\nd"}) is None
    assert find_ctc(outputs, {}) is None
    assert find_ctc(outputs[:1], {"character": "a"}) is None


def test_the_blank_takes_its_place_among_the_labels() -> None:
    assert with_blank("ab", 0) == ("", "a", "b")
    assert with_blank("ab", 2) == ("a", "b", "")


@pytest.mark.parametrize(
    ("decoding", "said"),
    [
        (CtcDecoding("other"), "decoding.output: got 'other'"),
        (CtcDecoding("none"), "outputs: other FP32"),
        (CtcDecoding("steps", 4), "0 to 3"),
        (CtcDecoding("steps", -1), "0 to 3"),
    ],
)
def test_a_decoding_that_does_not_fit_its_task(decoding: CtcDecoding, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        Task("t", TASK.inputs, TASK.outputs, "cer", labels=LABELS, decoding=decoding)


def test_an_alphabet_that_does_not_fit_its_output() -> None:
    for labels, said in ((LABELS[:3], "may be the space"), ((*LABELS, "c", "d"), "5 characters")):
        with pytest.raises(InvalidInputError, match=said):
            Task("t", (), TASK.outputs, "cer", labels=labels, decoding=TASK.decoding)


# -- metrics of texts -------------------------------------------------------------------------

RIGHT = ["ab a", "b", "xyz a"]


def test_texts_are_judged_as_they_read() -> None:
    outputs = {"steps": scores("aab- a-a", "-bbb--b-", "aab a---")}  # "ab aa", "bb", "ab a"
    assert find_metric("exact-match", TASK).evidence(outputs, RIGHT).tolist() == [False] * 3
    assert find_metric("exact-match", TASK).evidence(outputs, ["ab aa", "bb", "ab a"]).all()
    cer, wer = find_metric("cer", TASK), find_metric("wer", TASK)
    assert cer.evidence(outputs, RIGHT).tolist() == [[1, 4], [1, 1], [3, 5]]
    assert cer.figure(cer.evidence(outputs, RIGHT)) == "CER 50.00%"
    assert wer.evidence(outputs, RIGHT).tolist() == [[1, 2], [1, 1], [1, 2]]
    assert wer.figure(wer.evidence(outputs, RIGHT)) == "WER 60.00%"
    assert wer.percent(wer.evidence(outputs, RIGHT)) == pytest.approx(40.0)


def test_without_a_decoding_there_are_no_words() -> None:
    bare = Task("steps", TASK.inputs, (STEPS,), "cer", labels=LABELS)
    assert find_metric("cer", bare).expects is Expects.SEQUENCE
    assert find_metric("cer", TASK).expects is Expects.TEXT
    with pytest.raises(InvalidInputError, match=r"'wer': decoding of task 'steps'.*task file"):
        find_metric("wer", bare)
