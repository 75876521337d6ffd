"""Metrics of sequences of classes: the characters of a text, the words of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.variants.metrics.metric import Metric, Proportion
from modelless.variants.metrics.outputs import find_output, is_float, is_whole
from modelless.variants.runtimes.base import Tensors
from modelless.variants.validation.expected import Expects
from modelless.variants.vocabulary import Task


class SequenceOutput:
    """The sequences that a variant answers: INT [-1, steps], or scores FP [-1, steps, classes].

    Scores are decoded greedily, step by step. Indices below 0 fill a sequence up and do not count,
    and neither do classes whose label is empty.

    Raises:
        InvalidInputError: the task has no such output.
    """

    def __init__(self, task: Task, metric: str) -> None:
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

    def read(self, outputs: Tensors) -> list[tuple[int, ...]]:
        """The sequence of each item."""
        values = outputs[self._name]
        indices = values.argmax(axis=2) if values.ndim == 3 else values
        counts = (indices >= 0) & ~np.isin(indices, self._empty)
        return [tuple(row[here].tolist()) for row, here in zip(indices, counts, strict=True)]


class ExactMatch(Proportion):
    """The share of items whose whole sequence is right."""

    name = "exact-match"
    expects = Expects.SEQUENCE

    def __init__(self, task: Task) -> None:
        self._output = SequenceOutput(task, self.name)

    def evidence(self, outputs: Tensors, expected: Sequence[Any]) -> NDArray[np.bool_]:
        """BOOL [items]: whether it is the same."""
        answers = self._output.read(outputs)
        return np.array([a == b for a, b in zip(answers, expected, strict=True)], np.bool_)


class CharacterErrorRate(Metric):
    """100 minus the character error rate: edits over characters, of all items together.

    The rate may be more than 1 (everything wrong, and too long); per cent ends at 0.
    """

    name = "cer"
    expects = Expects.SEQUENCE

    def __init__(self, task: Task) -> None:
        self._output = SequenceOutput(task, self.name)

    def evidence(self, outputs: Tensors, expected: Sequence[Any]) -> NDArray[np.int64]:
        """INT64 [items, 2]: edits that make the answer right, and characters that are right."""
        answers = self._output.read(outputs)
        return np.array(
            [(edits(a, b), len(b)) for a, b in zip(answers, expected, strict=True)], np.int64
        )

    def percent(self, evidence: NDArray[Any]) -> float:
        """100 x (1 - rate), 0 or more."""
        return 100.0 * max(0.0, 1.0 - _rate(evidence))

    def figure(self, evidence: NDArray[Any]) -> str:
        """The rate itself."""
        return f"CER {_rate(evidence):.2%}"


def edits(one: Sequence[int], other: Sequence[int]) -> int:
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
