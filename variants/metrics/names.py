"""Finding a metric by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from modelless.common.errors import NotFoundError
from modelless.variants.metrics.classification import MacroF1, TopK
from modelless.variants.metrics.detection import MeanAveragePrecision
from modelless.variants.metrics.metric import Metric
from modelless.variants.metrics.regression import ERRORS, RegressionError
from modelless.variants.metrics.sequences import CharacterErrorRate, ExactMatch
from modelless.variants.vocabulary import Task

AGREEMENT: Final = "agreement"
"""Top-1, where what a reference variant answers counts as right."""

_MADE: Final[Mapping[str, Callable[[Task], Metric]]] = {
    AGREEMENT: partial(TopK, name=AGREEMENT),
    "macro-f1": MacroF1,
    "map": MeanAveragePrecision,
    "exact-match": ExactMatch,
    "cer": CharacterErrorRate,
    **{error: partial(RegressionError, error=error) for error in ERRORS},
}

NAMES: Final = ("top-1", "top-5", *_MADE)
"""The metrics there are; ``top-K`` for any K."""


def find_metric(name: str, task: Task) -> Metric:
    """The metric of that name, for the outputs of ``task``.

    Raises:
        NotFoundError: there is none; says which there are.
        InvalidInputError: the task's outputs are not what it judges.
    """
    top = re.fullmatch(r"top-([1-9]\d{0,5})", name)
    if top:
        return TopK(task, int(top[1]))
    if name not in _MADE:
        raise NotFoundError(
            f"metric: got {name!r}; there is: {', '.join(NAMES)}, and top-K for any K. Say which "
            f"with --metric, or measure_accuracy with a Metric of your own."
        )
    return _MADE[name](task)
