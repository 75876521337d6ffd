"""What to measure next: what tells most of everything, for the time it takes.

Each candidate is worth what knowing it would take off the errors of all points (``acquisition``),
for a second of measuring. Placements that are loaded already cost no loading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from modelless.profiler.cost_model.learned.acquisition import Gains
from modelless.profiler.cost_model.learned.calibration import MEDIAN_OF_NORMAL
from modelless.profiler.cost_model.learned.placements import PlacementModel
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.measure.campaign import Chosen
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import Subject
from modelless.profiler.measure.timing import Effort
from modelless.variants.estimates import FloatArray
from modelless.variants.vocabulary import Placement

LEAST_MEASURED = 10
"""Points before an error is believed: with fewer, how far off predictions are is not known."""

_USUAL_LOAD_S = 0.3
_MOST_POINTS = 600  # looked at in one choice: its cost grows with their square


class InformedAgenda:
    """An ``Agenda`` that stops when the rest is predicted well enough.

    Args:
        prior: see ``PlacementModel``.
        subjects: every placement that may be measured.
        batches: every batch.
        target_error: median relative error of what was not measured at which to stop, e.g. 0.05;
            None to go on for as long as there is something left.
        effort: with which points are measured: what it costs.
    """

    def __init__(
        self,
        prior: Prior,
        subjects: Mapping[Placement, Subject],
        batches: Sequence[int],
        target_error: float | None = None,
        effort: Effort | None = None,
    ) -> None:
        self._model = PlacementModel(prior, subjects, batches)
        self._target_error = target_error
        self._effort = effort or Effort()
        self._expected_error = np.inf

    @property
    def expected_error(self) -> float:
        """Median relative error expected of the points that were left when last asked.

        Where very many were left, of an even part of them.
        """
        return self._expected_error

    def choose(
        self, left: Mapping[Placement, Sequence[int]], known: Sequence[Measurement]
    ) -> Chosen | None:
        """See ``Agenda.choose``."""
        fitted = self._model.fit(known)
        points = [(placement, batch) for placement in _some_of(left) for batch in left[placement]]
        rows = self._model.rows(points)
        expected = fitted.expect(rows)
        self._expected_error = float(np.median(expected.spread)) * MEDIAN_OF_NORMAL
        is_enough = self._target_error is not None and self._expected_error <= self._target_error
        if is_enough and len(known) >= LEAST_MEASURED:
            return None
        loads_s = [row.load_s for row in known]
        load_s = float(np.median(loads_s)) if loads_s else _USUAL_LOAD_S
        cost_s = self._cost_s(expected.median_s)
        gain = Gains(fitted.covariance(rows), fitted.noise_variance)
        worth = gain.now() / (cost_s + load_s)
        first = int(np.argmax(worth))
        placement = points[first][0]
        others = [row for row, point in enumerate(points) if point[0] != placement]
        batches = [points[first][1]]
        gain.learn(first)
        same = [row for row, point in enumerate(points) if point[0] == placement and row != first]
        while same:
            now = gain.now()
            rival = float(np.max(now[others] / (cost_s[others] + load_s), initial=0.0))
            best = max(same, key=lambda row: now[row] / cost_s[row])
            if now[best] / cost_s[best] < rival:
                break
            same.remove(best)
            gain.learn(best)
            batches.append(points[best][1])
        return Chosen(placement, tuple(sorted(batches)))

    def _cost_s(self, median_s: FloatArray) -> FloatArray:
        effort = self._effort
        most_s = np.minimum(effort.max_time_s, effort.tail_repeats * median_s)
        return np.maximum(most_s, effort.min_repeats * median_s)


def _some_of(left: Mapping[Placement, Sequence[int]]) -> list[Placement]:
    """Placements, evenly taken, of about ``_MOST_POINTS`` points."""
    placements = list(left)
    points = sum(len(batches) for batches in left.values())
    count = max(1, len(placements) * _MOST_POINTS // max(points, _MOST_POINTS))
    rows = np.linspace(0, len(placements) - 1, count).astype(int)
    return [placements[row] for row in rows]
