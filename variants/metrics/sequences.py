"""Metrics of sequences: the characters or words of a text, or other classes step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.decoding import decode_texts
from modelless.variants.metrics.metric import Metric, Proportion
from modelless.variants.metrics.outputs import find_output, is_float, is_whole
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.validation.expected import Expects
from modelless.variants.vocabulary import Task

Answer = str | tuple[int, ...]


class SequenceOutput:
    """The sequences that a variant answers.

    Texts, where the task says how they are decoded. Else classes, step by step, of an output INT
    [-1, steps] or of scores FP [-1, steps, classes]: indices below 0 fill a sequence up and do not
    count, and neither do classes whose label is empty.

    Attributes:
        expects: the form in which right answers are compared with them.

    Raises:
        InvalidInputError: the task has no such output.
    """

    def __init__(self, task: Task, metric: str) -> None:
        self._decoding, self._labels = task.decoding, task.labels
        self.expects = Expects.SEQUENCE if task.decoding is None else Expects.TEXT
        if task.decoding is not None:
            self._name = task.decoding.output
            return
        self._name = find_output(
            task,
            metric,
            lambda spec: (
                (is_whole(spec) and len(spec.shape) == 2)
                or (is_float(spec) and len(spec.shape) == 3)
            ),
            "indices INT64 [-1, steps] or scores FP32 [-1, steps, classes]",
        ).name
        self._empty = [index for index, label in enumerate(task.labels) if not label]

    def read(self, outputs: Tensors) -> Sequence[Answer]:
        """The sequence of each item."""
        values = outputs[self._name]
        if self._decoding is not None:
            return decode_texts(values, self._decoding, self._labels)
        indices = values.argmax(axis=2) if values.ndim == 3 else values
        counts = (indices >= 0) & ~np.isin(indices, self._empty)
        return [tuple(row[here].tolist()) for row, here in zip(indices, counts, strict=True)]


class ExactMatch(Proportion):
    """The share of items whose whole sequence is right."""

    name = "exact-match"

    def __init__(self, task: Task) -> None:
        self._output = SequenceOutput(task, self.name)
        self.expects = self._output.expects

    def evidence(self, outputs: Tensors, expected: Sequence[Any]) -> NDArray[np.bool_]:
        """BOOL [items]: whether it is the same."""
        answers = self._output.read(outputs)
        return np.array([a == b for a, b in zip(answers, expected, strict=True)], np.bool_)


class ErrorRate(Metric):
    """100 minus an error rate: edits over the parts of the right answers, of all items together.

    The rate may be more than 1 (everything wrong, and too long); per cent ends at 0.
    """

    unit: ClassVar[str]

    def __init__(self, task: Task) -> None:
        self._output = SequenceOutput(task, self.name)
        self.expects = self._output.expects

    def parts(self, answer: Answer) -> Sequence[Any]:
        """The parts of an answer that are counted."""
        return answer

    def evidence(self, outputs: Tensors, expected: Sequence[Any]) -> NDArray[np.int64]:
        """INT64 [items, 2]: edits that make the answer right, and parts that are right."""
        pairs = zip(self._output.read(outputs), expected, strict=True)
        parts = [(self.parts(answer), self.parts(right)) for answer, right in pairs]
        return np.array([(edits(mine, right), len(right)) for mine, right in parts], np.int64)

    def percent(self, evidence: NDArray[Any]) -> float:
        """100 x (1 - rate), 0 or more."""
        return 100.0 * max(0.0, 1.0 - _rate(evidence))

    def figure(self, evidence: NDArray[Any]) -> str:
        """The rate itself."""
        return f"{self.unit} {_rate(evidence):.2%}"


class CharacterErrorRate(ErrorRate):
    """The error rate of characters, or of classes where answers are no texts."""

    name = "cer"
    unit = "CER"


class WordErrorRate(ErrorRate):
    """The error rate of words, which white space parts."""

    name = "wer"
    unit = "WER"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        if task.decoding is None:
            raise InvalidInputError.of(
                f"metric {self.name!r}: decoding of task {task.name!r}",
                None,
                "one that makes texts of its outputs",
                "Describe it in the task file, or choose another metric.",
            )

    def parts(self, answer: Answer) -> Sequence[Any]:
        """Its words."""
        return str(answer).split()


def edits(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The fewest insertions, deletions and replacements that make one the other (Levenshtein)."""
    before = list(range(len(other) + 1))
    for row, mine in enumerate(one, start=1):
        now = [row]
        for column, theirs in enumerate(other, start=1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (mine != theirs)))
        before = now
    return before[-1]


def _rate(evidence: NDArray[Any]) -> float:
    wrong, length = evidence.sum(axis=0).tolist()
    return float(wrong / max(length, 1))
