"""The seam of accuracy metrics.

A metric reduces every item to a row of *evidence*, and any set of rows to per cent. So a run can
stop and be judged at any item, an interval comes from resampling rows (the bootstrap), and two
variants are compared row by row on the same items.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.common.intervals import Z_95, wilson_percent
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.validation.expected import Expects

RESAMPLES: Final = 200
"""Enough for a standard error, by the same book."""

_RESAMPLED_AT_ONCE: Final = 8  # bounds the memory of the resampled indices
_SEED: Final = 0


class Metric(ABC):
    """How answers are judged.

    Attributes:
        name: as in ``Task.accuracy_metric`` and ``Accuracy.metric``.
        expects: the form in which it needs to know what is right.
        is_proportion: the evidence of an item is True or False, and per cent is the share of True.
    """

    name: str
    expects: Expects
    is_proportion: ClassVar[bool] = False

    @abstractmethod
    def evidence(self, outputs: Tensors, expected: Sequence[Any]) -> NDArray[Any]:
        """A row an item, along axis 0.

        Args:
            outputs: of a variant, of the task's signature, items along axis 0.
            expected: what is right, item by item.
        """

    @abstractmethod
    def percent(self, evidence: NDArray[Any]) -> float:
        """0 to 100, higher is better, of one row of evidence or more."""

    def figure(self, evidence: NDArray[Any]) -> str:
        """The metric in its own unit where that is not per cent, e.g. ``MAE 3.1``; else empty."""
        del evidence
        return ""


class Proportion(Metric):
    """A metric that counts the items that are right."""

    is_proportion = True

    def percent(self, evidence: NDArray[Any]) -> float:
        """The share of True."""
        return 100.0 * float(np.mean(evidence))


@dataclass(frozen=True, slots=True)
class Score:
    """A metric over items.

    Attributes:
        percent, low_percent, high_percent: with its 95 % confidence interval.
        count: items.
        figure: in the metric's own unit; empty where that is per cent.
    """

    percent: float
    low_percent: float
    high_percent: float
    count: int
    figure: str = ""

    @property
    def half_width_percent(self) -> float:
        """Half of the interval's width, in points."""
        return (self.high_percent - self.low_percent) / 2.0


def score(metric: Metric, evidence: NDArray[Any]) -> Score:
    """The score of the evidence, with its 95 % interval.

    Wilson's interval for proportions; otherwise the figure and 1.96 bootstrapped standard errors to
    either side, within 0 to 100. Not the bootstrap's percentiles: in resamples items occur twice,
    which moves rank statistics as a whole (mean average precision by two points with 2,000
    pictures), so their percentiles lie beside the figure.
    """
    count = len(evidence)
    if count == 0:
        raise InvalidInputError.of(f"{metric.name}: items", 0, "1 or more")
    percent = metric.percent(evidence)
    half = 0.0
    if not metric.is_proportion:
        half = Z_95 * standard_error(lambda rows: metric.percent(evidence[rows]), count)
    if half > 0.0:
        low, high = max(0.0, percent - half), min(100.0, percent + half)
    else:
        # Resampling knows nothing of what it has never seen, errors for instance: few perfect items
        # must not look like certainty, so as many of them may be otherwise.
        low, high = wilson_percent(round(percent / 100.0 * count), count)
    return Score(percent, min(low, percent), max(high, percent), count, metric.figure(evidence))


def standard_error(statistic: Callable[[NDArray[np.intp]], float], count: int) -> float:
    """The bootstrap's standard error of ``statistic``, which is asked for resampled row indices.

    Items are resampled ``RESAMPLES`` times, with a fixed seed (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 6). 0 for a single row, which cannot be resampled.
    """
    if count < 2:
        return 0.0
    from scipy.stats import bootstrap

    resampled = bootstrap(
        (np.arange(count),),
        statistic,
        n_resamples=RESAMPLES,
        batch=_RESAMPLED_AT_ONCE,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    return float(resampled.standard_error)
