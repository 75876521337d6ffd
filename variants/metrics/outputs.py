"""Finding in a task's outputs what a metric reads."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.signature import TEXT
from modelless.variants.vocabulary import Task, TensorSpec

_FLOATS = ("FP16", "FP32", "FP64")


def find_output(
    task: Task, metric: str, fits: Callable[[TensorSpec], bool], allowed: str
) -> TensorSpec:
    """The first of the task's outputs that fits; InvalidInputError says what would."""
    found = next((spec for spec in task.outputs if fits(spec)), None)
    if found is None:
        raise InvalidInputError.of(
            f"metric {metric!r}: outputs of task {task.name!r}",
            ", ".join(map(str, task.outputs)),
            allowed,
            "Choose another metric.",
        )
    return found


def is_float(spec: TensorSpec) -> bool:
    """Whether its values are real numbers."""
    return spec.datatype in _FLOATS


def is_whole(spec: TensorSpec) -> bool:
    """Whether its values are whole numbers."""
    return spec.datatype.startswith(("INT", "UINT"))


def is_scores(spec: TensorSpec) -> bool:
    """Whether it is a score for each class: FP [-1, classes]."""
    return is_float(spec) and len(spec.shape) == 2 and spec.shape[1] != 1


def is_number(spec: TensorSpec) -> bool:
    """Whether it is one number an item: [-1] or [-1, 1]."""
    return spec.shape in ((-1,), (-1, 1)) and spec.datatype != TEXT


class ClassOutput:
    """The classes that a variant answers: scores for each class, or the index of one.

    Args:
        task: whose outputs they are.
        metric: for errors.

    Raises:
        InvalidInputError: the task has no such output.
    """

    def __init__(self, task: Task, metric: str) -> None:
        scores = [spec for spec in task.outputs if is_scores(spec)]
        self._spec = scores[0] if scores else find_output(
            task,
            metric,
            lambda spec: is_whole(spec) and is_number(spec),
            "scores FP32 [-1, classes], or a class's index INT64 [-1]",
        )  # fmt: skip
        self.has_scores = bool(scores)
        self.class_count = self._spec.shape[1] if scores else -1

    def rank(self, outputs: Tensors, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many classes are put before the wanted ones, INT64 [items]; of equals the first.

        Scores that are not numbers come last; where the wanted one is none, all come before it.
        """
        values = outputs[self._spec.name]
        if not self.has_scores:
            misses: NDArray[np.int64] = (values.reshape(-1) != wanted).astype(np.int64)
            return misses
        rows = np.arange(len(wanted))
        inside = (wanted >= 0) & (wanted < values.shape[1])
        scores = np.where(np.isnan(values), -np.inf, values)
        mine = scores[rows, np.where(inside, wanted, 0)][:, None]
        before = (scores > mine) | (
            (scores == mine) & (np.arange(scores.shape[1]) < wanted[:, None])
        )
        is_answer = inside & (mine[:, 0] > -np.inf)
        ranks: NDArray[np.int64] = np.where(is_answer, before.sum(axis=1), scores.shape[1])
        return ranks

    def first(self, outputs: Tensors) -> NDArray[np.int64]:
        """The class that is put first, INT64 [items]; -1 where no score is a number."""
        values = outputs[self._spec.name]
        if not self.has_scores:
            return values.reshape(-1).astype(np.int64)
        best: NDArray[np.int64] = values.argmax(axis=1)  # the first that is no number, if one is
        for row, place in enumerate(best.tolist()):
            if math.isnan(values.item(row, place)):
                break
        else:
            return best
        is_none = np.isnan(values)
        best = np.where(is_none, -np.inf, values).argmax(axis=1)
        answer: NDArray[np.int64] = np.where(is_none.all(axis=1), -1, best)
        return answer
