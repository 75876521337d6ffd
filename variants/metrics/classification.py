"""Metrics of classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.metrics.metric import Metric, Proportion
from modelless.variants.metrics.outputs import ClassOutput
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.validation.expected import Expects
from modelless.variants.vocabulary import Task


class TopK(Proportion):
    """The share of items whose class is among the ``k`` that the variant puts first.

    Args:
        task: whose outputs are judged.
        k: 1 or more, fewer than there are classes.
        name: ``top-K`` by default.

    Raises:
        InvalidInputError: the task's outputs are no classes, or too few.
    """

    expects = Expects.CLASS

    def __init__(self, task: Task, k: int = 1, name: str = "") -> None:
        self.name = name or f"top-{k}"
        self._k = k
        self._output = ClassOutput(task, self.name)
        classes = self._output.class_count
        if k > 1 and not self._output.has_scores:
            raise InvalidInputError.of("metric", self.name, "top-1: the task's output is one class")
        if classes > 0 and k >= classes:
            raise InvalidInputError.of("metric", self.name, f"top-1 to top-{classes - 1}")

    def evidence(self, outputs: Tensors, expected: Sequence[Any]) -> NDArray[np.bool_]:
        """BOOL [items]: whether it is among the first ``k``."""
        right: NDArray[np.bool_] = (
            self._output.rank(outputs, np.asarray(expected, np.int64)) < self._k
        )
        return right


class MacroF1(Metric):
    """The mean over classes of F1, the harmonic mean of precision and recall.

    Over the classes that occur, as answer or as what is right; as
    ``sklearn.metrics.f1_score(average="macro")``, from counts that are quick to resample.
    """

    name = "macro-f1"
    expects = Expects.CLASS

    def __init__(self, task: Task) -> None:
        self._output = ClassOutput(task, self.name)

    def evidence(self, outputs: Tensors, expected: Sequence[Any]) -> NDArray[np.int64]:
        """INT64 [items, 2]: the class that is right, and the class that was answered."""
        return np.stack([np.asarray(expected, np.int64), self._output.first(outputs)], axis=1)

    def percent(self, evidence: NDArray[Any]) -> float:
        """100 times the mean F1."""
        right, answer = evidence.T + 1  # no answer is -1
        count = int(evidence.max()) + 2
        hits = np.bincount(right[right == answer], minlength=count)
        occurs = np.bincount(right, minlength=count) + np.bincount(answer, minlength=count)
        return 100.0 * float(np.mean(2.0 * hits[occurs > 0] / occurs[occurs > 0]))
