"""Latency of points that were not measured: trained on some devices, adapted to another.

Training holds for all devices that are to be predicted; adapting takes a device's few measurements
("shots") and costs a solve of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.learning.calibration import Scores, scores_of
from modelless.profiler.learning.elsewhere import Elsewhere
from modelless.profiler.learning.points import MOST_LOG, Points, Vocabulary, encode, latency_log
from modelless.profiler.learning.prior import Prior
from modelless.profiler.learning.process import Adapted, Belief, Process
from modelless.profiler.table import TableRow

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

MOST_TRAINING_POINTS = 3000
"""More are thinned out: the cost of training grows with their cube."""

_RELATED_SHARE = 0.75  # of the training points, at most, for items that are to be predicted


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latencies of the whole batch at n points, milliseconds, shape (n,) each.

    Attributes:
        median_ms: as likely too low as too high.
        low_ms, high_ms: the central 90 % band.
    """

    median_ms: FloatArray
    low_ms: FloatArray
    high_ms: FloatArray


class Predictor:
    """Predicts points of one device from measurements of others and a few of its own.

    Args:
        prior: the covariance and the roofline.
        training: measured rows, of other devices as a rule; may be empty.
        wanted: rows whose latency is to be predicted; their latencies are not looked at.
        seed: of the thinning out.
    """

    def __init__(
        self,
        prior: Prior,
        training: Sequence[TableRow],
        wanted: Sequence[TableRow],
        seed: int = 0,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        vocabulary = Vocabulary()
        self._wanted_batch = np.array([float(row.batch) for row in wanted])
        wanted_points = encode(wanted, vocabulary, prior.roofline)
        points = encode(training, vocabulary, prior.roofline)
        values = latency_log(training) - points.roofline_log
        elsewhere = Elsewhere(points, values)
        kept = _thin_out(points, wanted_points, self._rng)
        self._process = Process(prior.kernel, elsewhere.mark(points.take(kept)), values[kept])
        self._belief = self._process.believe(elsewhere.mark(wanted_points))

    @cached_property
    def _scores(self) -> Scores:
        return scores_of(self._process, self._rng)

    @property
    def belief(self) -> Belief:
        """What is expected of the wanted rows before any of them is measured."""
        return self._belief

    @property
    def process(self) -> Process:
        """What was learned from the training rows."""
        return self._process

    def predict(self, shots: IntArray, latency_ms: FloatArray, rows: IntArray) -> Prediction:
        """Predict some wanted rows after measuring others.

        Args:
            shots: which of the wanted rows were measured, k of them; may be none.
            latency_ms: what they took, shape (k,).
            rows: which to predict, n of them.
        """
        seen = self._belief.take(shots)
        values = np.log(latency_ms / self._wanted_batch[shots]) - seen.points.roofline_log
        adapted = Adapted(self._process, seen, values)
        belief = self._belief.take(rows)
        mean, variance = adapted.predict(belief)
        width = self._scores.quantile(0.9, adapted.left_out()) * np.sqrt(variance)
        centre = mean + belief.points.roofline_log + np.log(self._wanted_batch[rows])
        centre = np.clip(centre, -MOST_LOG, MOST_LOG)
        width = np.minimum(width, MOST_LOG)
        return Prediction(np.exp(centre), np.exp(centre - width), np.exp(centre + width))


def _thin_out(points: Points, wanted: Points, rng: np.random.Generator) -> IntArray:
    """Which training points to keep: first those of items that are to be predicted."""
    if len(points) <= MOST_TRAINING_POINTS:
        return np.arange(len(points))
    related = rng.permutation(np.flatnonzero(np.isin(points.item, wanted.item)))
    related = related[: int(_RELATED_SHARE * MOST_TRAINING_POINTS)]
    others = rng.permutation(np.setdiff1d(np.arange(len(points)), related))
    return np.sort(np.concatenate([related, others[: MOST_TRAINING_POINTS - len(related)]]))
