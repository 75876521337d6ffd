"""Metrics of regression, as the share of the plainest guess's error that a variant takes away.

An error has no upper end, so per cent is told against a constant answer, the best there is for the
metric: 100 is no error, 0 is no better than that constant. In their own unit they are the figure.

=======  ==========================================================================================
name     per cent
=======  ==========================================================================================
``mae``  100 x D2 = 100 x (1 - mean absolute error / that of always answering the median)
``rmse`` 100 x (1 - root mean square error / standard deviation, that of always answering the mean)
``r2``   100 x R2 = 100 x (1 - mean square error / variance)
=======  ==========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.metrics.metric import Metric
from modelless.variants.metrics.outputs import find_output, is_float, is_number
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.validation.expected import Expects
from modelless.variants.vocabulary import Task

ERRORS: Final = ("mae", "rmse", "r2")


class RegressionError(Metric):
    """One of ``ERRORS``. See the module.

    Raises:
        InvalidInputError: the task's outputs are no numbers, or there is no such error.
    """

    expects = Expects.NUMBER

    def __init__(self, task: Task, error: str) -> None:
        if error not in ERRORS:
            raise InvalidInputError.of("metric", error, ", ".join(ERRORS))
        self.name = error
        spec = find_output(
            task, error, lambda each: is_float(each) and is_number(each), "a number: FP32 [-1, 1]"
        )
        self._output = spec.name

    def evidence(self, outputs: Tensors, expected: Sequence[Any]) -> NDArray[np.float64]:
        """FP64 [items, 2]: the number that is right, and the answer.

        Raises:
            InvalidInputError: an answer that is not a finite number.
        """
        answers = outputs[self._output].reshape(-1).astype(np.float64)
        if not np.isfinite(answers).all():
            wrong = answers[~np.isfinite(answers)][0]
            raise InvalidInputError.of(f"output {self._output!r}", float(wrong), "finite numbers")
        return np.stack([np.asarray(expected, np.float64), answers], axis=1)

    def percent(self, evidence: NDArray[Any]) -> float:
        """See the module; never below 0."""
        right, answers = evidence.T
        if (right == right[0]).all():  # no spread to explain: all or nothing
            return 100.0 * float((right == answers).all())
        from sklearn.metrics import d2_absolute_error_score, r2_score

        if self.name == "mae":
            share = d2_absolute_error_score(right, answers)
        else:
            share = r2_score(right, answers)
            if self.name == "rmse":
                share = 1.0 - math.sqrt(max(0.0, 1.0 - share))
        return 100.0 * float(min(1.0, max(0.0, share)))

    def figure(self, evidence: NDArray[Any]) -> str:
        """The error in the unit of what is predicted."""
        right, answers = evidence.T
        if self.name == "mae":
            return f"MAE {np.abs(right - answers).mean():.4g}"
        if self.name == "rmse":
            return f"RMSE {np.sqrt(np.square(right - answers).mean()):.4g}"
        return ""
