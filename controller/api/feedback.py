"""Feedback on answers: what was right, told after the fact (``POST /modelless/feedback``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from modelless.common.errors import InvalidInputError
from modelless.common.settings_files import problems
from modelless.controller.api.json_reader import as_whole, read_json
from modelless.controller.api.request_limits import DEFAULT_LIMITS, Limits
from modelless.controller.api.v2_errors import PayloadTooLargeError, invalid, nearest
from modelless.controller.dispatch.trials import Answer
from modelless.variants.signature import MAX_ITEMS
from modelless.variants.vocabulary import Task

MOST_AT_ONCE: Final = 1000
RECEIPT: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}-[1-9][0-9]{0,17}(\.[0-9a-f]{24})?")


class Feedback(NamedTuple):
    """What a client tells of one answer.

    Attributes:
        gateway_id, query_id: of the receipt: the gateway that answered, and the query.
        correct: how right each item's answer was, 0 to 1; None if ``labels`` say it.
        labels: the right class of each item, by index or by name.
        tag: the end of the receipt's id.
        owner: the tenant whose key the feedback came with; empty where there are no keys.
    """

    gateway_id: str
    query_id: int
    correct: tuple[float, ...] | None
    labels: tuple[int | str, ...] | None
    tag: str = ""
    owner: str = ""


_Score = Annotated[float, Field(ge=0.0, le=1.0)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    receipt_id: str
    correct: bool | list[bool] | None = None
    label: int | str | list[int | str] | None = None
    score: _Score | list[_Score] | None = None

    @field_validator("receipt_id", mode="after")
    @classmethod
    def _is_a_receipt(cls, receipt_id: str) -> str:
        if not RECEIPT.fullmatch(receipt_id):
            raise ValueError("allowed: a reply's parameters.receipt_id, such as k2j5h8-17.5e0c9a")
        return receipt_id

    @field_validator("correct", "label", "score", mode="before")
    @classmethod
    def _is_of_one_query(cls, given: object) -> object:
        # Before the elements: there would be errors for each of them.
        if isinstance(given, list) and len(given) > MAX_ITEMS:
            raise ValueError(f"got {len(given)} entries; allowed: one for each item of a query")
        return [*map(as_whole, given)] if isinstance(given, list) else as_whole(given)

    @model_validator(mode="after")
    def _one_of_both(self) -> _Entry:
        if [self.correct, self.label, self.score].count(None) != 2:
            raise ValueError(
                "say one of 'correct' (true or false), 'label' (the right class) and 'score' "
                "(0 to 1)"
            )
        return self


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    feedback: Annotated[list[_Entry], FailFast()] = Field(min_length=1, max_length=MOST_AT_ONCE)


def parse_feedback(
    body: bytes | memoryview, limits: Limits = DEFAULT_LIMITS
) -> tuple[Feedback, ...]:
    """Read a body: ``{"feedback": [{"receipt_id": ..., "label": ...}, ...]}``.

    Raises:
        InvalidInputError: names the first wrong entry and what is wrong with it.
        PayloadTooLargeError: it has too many bytes.
    """
    if len(body) > limits.max_feedback_bytes:
        raise PayloadTooLargeError(
            f"body: got {len(body)} bytes of feedback; allowed: up to {limits.max_feedback_bytes}. "
            "Send fewer entries at once."
        )
    try:
        found = _Body.model_validate(read_json(body, len(body), limits))
    except ValidationError as error:
        raise InvalidInputError(f"feedback: {problems(error)}") from None
    return tuple(map(_feedback, found.feedback))


def judge(
    answer: Answer, told: Feedback, task: Task, classes: Mapping[str, int]
) -> tuple[float, ...]:
    """How right each item of an answer is: 0 to 1.

    Args:
        answer: what was answered.
        told: the feedback on it.
        task: of the answer.
        classes: the index of each of the task's labels.

    Raises:
        InvalidInputError: not an entry for each item, an unknown class, or labels of a task whose
            answers are no classes.
    """
    if told.correct is not None:
        _must_match("correct or score", told.correct, answer.items)
        return told.correct
    labels = told.labels or ()
    _must_match("label", labels, answer.items)
    if answer.classes is None:
        raise InvalidInputError(
            f"label: the answers of task {task.name!r} are no classes; say 'correct' instead"
        )
    right = [_index(label, task, classes) for label in labels]
    return tuple(one == other for one, other in zip(answer.classes, right, strict=True))


def _feedback(entry: _Entry) -> Feedback:
    gateway_id, _, rest = entry.receipt_id.rpartition("-")
    query_id, _, tag = rest.partition(".")
    correct = entry.score if entry.correct is None else entry.correct
    label = entry.label
    return Feedback(
        gateway_id,
        int(query_id),
        None if correct is None else tuple(correct) if isinstance(correct, list) else (correct,),
        None if label is None else tuple(label) if isinstance(label, list) else (label,),
        tag,
    )


def _must_match(field: str, values: Sequence[object], items: int) -> None:
    if len(values) != items:
        allowed = f"one for each of the query's {items} items" if items > 1 else "one"
        raise invalid(field, list(values), allowed)


def _index(label: int | str, task: Task, classes: Mapping[str, int]) -> int:
    if isinstance(label, str):
        index = classes.get(label)
        if index is not None:
            return index
        hint = nearest(label, (name for name in classes if name[:1] == label[:1]))
        raise InvalidInputError.of("label", label, f"a label of task {task.name!r}", hint)
    if label < 0 or (task.labels and label >= len(task.labels)):
        last = len(task.labels) - 1 if task.labels else "the number of classes"
        raise InvalidInputError.of("label", label, f"0 to {last}")
    return label
