"""Accuracy metrics: how good a variant's answers are, as per cent with an interval."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from modelless.common.errors import InvalidInputError
from modelless.common.plugins import Plugins
from modelless.variants.metrics.classification import MacroF1, TopK
from modelless.variants.metrics.detection import MeanAveragePrecision
from modelless.variants.metrics.metric import Metric, Score, score
from modelless.variants.metrics.regression import ERRORS, RegressionError
from modelless.variants.metrics.sequences import CharacterErrorRate, ExactMatch, WordErrorRate
from modelless.variants.vocabulary import Task

AGREEMENT: Final = "agreement"
"""Top-1, where what a reference variant answers counts as right."""

METRICS: Final = Plugins(
    "metric",
    {
        "top-1": partial(TopK, k=1),
        "top-5": partial(TopK, k=5),
        AGREEMENT: partial(TopK, name=AGREEMENT),
        "macro-f1": MacroF1,
        "map": MeanAveragePrecision,
        "exact-match": ExactMatch,
        "cer": CharacterErrorRate,
        "wer": WordErrorRate,
        **{error: partial(RegressionError, error=error) for error in ERRORS},
    },
    group="modelless.metrics",
)
"""The metrics there are, besides ``top-K`` for any K; each is called with the task."""


def find_metric(name: str, task: Task) -> Metric:
    """The metric called ``name``, for the outputs of ``task``.

    Raises:
        NotFoundError: there is none; says which there are.
        InvalidInputError: the task's outputs are not what it judges, or a package offers something
            else by this name.
    """
    top = re.fullmatch(r"top-([1-9]\d{0,5})", name)
    metric = TopK(task, int(top[1])) if top else METRICS.find(name)(task)
    if not isinstance(metric, Metric):
        raise InvalidInputError.of(
            "metric", name, "a class derived from Metric", f"It makes {metric!r:.80}."
        )
    return metric


__all__ = ["AGREEMENT", "METRICS", "Metric", "Score", "find_metric", "score"]
