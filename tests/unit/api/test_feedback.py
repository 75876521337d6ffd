"""Feedback on answers: read strictly, and judged by the answer it speaks of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.api.feedback import MOST_AT_ONCE, Feedback, judge, parse_feedback
from modelless.controller.dispatch.trials import Answer
from modelless.variants.vocabulary import Task, TensorSpec

TASK = Task(
    "animals",
    (TensorSpec("image", "UINT8", (-1, 2, 2, 3)),),
    (TensorSpec("scores", "FP32", (-1, 3)),),
    "top-1",
    labels=("cat", "dog", "owl"),
)
CLASSES = {"cat": 0, "dog": 1, "owl": 2}


def body(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"feedback": entries}).encode()


def answer(*classes: int) -> Answer:
    return Answer(7, "animals", True, len(classes), classes)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"receipt_id": "ab-c1-12", "correct": True}, Feedback("ab-c1", 12, (True,), None)),
        (
            {"receipt_id": "a-1", "correct": [True, False]},
            Feedback("a", 1, (True, False), None),
        ),
        ({"receipt_id": "a-1", "label": 0}, Feedback("a", 1, None, (0,))),
        ({"receipt_id": "a-1", "label": ["cat", 2]}, Feedback("a", 1, None, ("cat", 2))),
        ({"receipt_id": "a-1", "score": 0.25}, Feedback("a", 1, (0.25,), None)),
        ({"receipt_id": "a-1", "score": [1, 0.5]}, Feedback("a", 1, (1.0, 0.5), None)),
    ],
)
def test_what_is_said_is_read(entry: dict[str, Any], expected: Feedback) -> None:
    assert parse_feedback(body(entry)) == (expected,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "valid JSON"),
        (b"[]", "feedback: "),
        (b'{"feedback": []}', "at least 1"),
        (body({"receipt_id": "a-1"}), "one of 'correct'"),
        (body({"receipt_id": "a-1", "correct": True, "label": 1}), "one of 'correct'"),
        (body({"receipt_id": "a-1", "score": 1.0, "label": 1}), "one of 'correct'"),
        (body({"receipt_id": "a-1", "score": 1.5}), r"feedback\.0\.score"),
        (body({"receipt_id": "a-1", "score": float("nan")}), r"NaN"),
        (body({"receipt_id": "a-1", "correct": "yes"}), r"feedback\.0\.correct"),
        (body({"receipt_id": "a-1", "correct": 1}), r"feedback\.0\.correct"),
        (body({"receipt_id": "a-1", "label": 1.5}), r"feedback\.0\.label"),
        (body({"receipt_id": "a-0", "correct": True}), r"feedback\.0\.receipt_id"),
        (body({"receipt_id": "12", "correct": True}), "got '12'; allowed: a reply's parameters"),
        (b"{}", "feedback: got nothing; it must be given"),
        (body({"receipt_id": "a-1", "corect": True}), r"0\.corect: got True; there is no such key"),
        (body(*[{"receipt_id": "a-1", "correct": True}] * (MOST_AT_ONCE + 1)), "at most 1000"),
    ],
)
def test_nonsense_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        parse_feedback(text)


def test_answers_are_judged_by_label_or_by_the_clients_word() -> None:
    assert judge(answer(0, 1, 2), Feedback("a", 1, None, ("cat", 2, "owl")), TASK, CLASSES) == (
        True,
        False,
        True,
    )
    assert judge(answer(0, 1), Feedback("a", 1, (False, True), None), TASK, CLASSES) == (
        False,
        True,
    )


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (Feedback("a", 1, None, ("cat",)), r"label: got \['cat'\]; .* 2 items"),
        (Feedback("a", 1, (True, True, True), None), "correct or score: got .* 2 items"),
        (Feedback("a", 1, None, ("cat", "dgo")), "Did you mean 'dog'"),
        (Feedback("a", 1, None, (0, 3)), "label: got 3; allowed: 0 to 2"),
        (Feedback("a", 1, None, (0, -1)), "label: got -1"),
    ],
)
def test_what_does_not_fit_the_answer(told: Feedback, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        judge(answer(0, 1), told, TASK, CLASSES)


def test_labels_of_what_are_no_classes() -> None:
    with pytest.raises(InvalidInputError, match="say 'correct' instead"):
        judge(Answer(7, "animals", True, 1, None), Feedback("a", 1, None, (0,)), TASK, CLASSES)
