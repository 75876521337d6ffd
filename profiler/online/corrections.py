"""Everything that outcomes teach, behind one object with rows for placements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.online.coverage import CoverageCounter
from modelless.profiler.online.drift import ShiftDetector
from modelless.profiler.online.residuals import Residuals
from modelless.profiler.online.settings import ResidualSettings
from modelless.profiler.online.tails import Tails
from modelless.profiler.online.vain import Vain

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_FADE_EVERY = 256  # observations between two fadings; each touches every row
_FADE_EVERY_S = 10.0


class ShiftMark(NamedTuple):
    """That a row has shifted.

    Attributes:
        alarms: how often so far.
        at_s: when last, on the driver's clock.
    """

    alarms: int
    at_s: float


class Corrections:
    """Correcting factors of p50, p90 and p99 for n rows, each of one of several groups.

    Args:
        groups: for each row the index of its group (a device class).
        settings: see ResidualSettings.
        contention: as for ``Residuals``.

    Attributes:
        version: another after each observation that was learned from.
        counters: of each group's predictions.
        shifted: rows that were seen to change, whether or not they have come back since.
    """

    def __init__(
        self,
        groups: Sequence[int],
        settings: ResidualSettings,
        contention: Sequence[float] | None = None,
    ) -> None:
        self._settings = settings
        self._groups = list(groups)
        self._residuals = Residuals(groups, settings, contention)
        self._tails = Tails(groups)
        self._detector = ShiftDetector(len(groups), settings.shift)
        self._absurd_log = math.log(settings.absurd_ratio)
        self._unfaded = 0
        self._faded_s = math.nan  # no time known yet
        self._vain = Vain(groups)
        self.version = 0
        self.counters = [CoverageCounter() for _ in range(max(groups, default=-1) + 1)]
        self.shifted: dict[int, ShiftMark] = {}

    def factor(self, row: int, busy_neighbours: float = 0.0) -> float:
        """The factor of one row's p50 at a load."""
        log = self._residuals.location(row, busy_neighbours)
        return math.exp(log + self._tails.quantiles(row, (0.0, 0.0))[0])

    def slowdown(self, row: int, busy_neighbours: float) -> float:
        """How many times as long one row takes beside so many busy neighbours as alone."""
        return math.exp(self._residuals.contention(row, busy_neighbours))

    def factors(self, rows: IntArray, busy_neighbours: float) -> FloatArray:
        """Factors of p50, p90 and p99 of many rows, shape (3, n); a new array."""
        logs = self._tails.offsets(rows)
        logs += self._residuals.locations(rows, busy_neighbours)
        np.exp(logs, out=logs)
        return logs

    def observe(
        self,
        row: int,
        measured_s: tuple[float, float, float],
        busy_neighbours: float,
        at_s: float,
        latency_s: float,
    ) -> bool:
        """Learn from one outcome; False if it was ignored, or nothing is to be learned.

        Args:
            row: whose.
            measured_s: p50, p90, p99 at that batch as profiled, without any correction; finite
                and more than 0.
            busy_neighbours: 0 or more.
            at_s: when, on the driver's clock; only how far it has moved counts.
            latency_s: what it took.
        """
        p50_s, p90_s, p99_s = measured_s
        ratio = latency_s / p50_s
        if not 0.0 < ratio < math.inf or abs(ratio_log := math.log(ratio)) > self._absurd_log:
            self.counters[self._groups[row]].ignored += 1
            return False
        residuals, tails = self._residuals, self._tails
        slowed = residuals.contention(row, busy_neighbours)
        error = ratio_log - slowed - residuals.idle(row)
        spread = (math.log(p90_s / p50_s), math.log(p99_s / p50_s))
        given = tails.quantiles(row, spread)
        relative = abs(math.exp(given[0] - error) - 1.0)
        self.counters[self._groups[row]].count(error, given, relative)
        if not self._settings.learns:
            return False
        self._vain.heard(row)
        residuals.learn(row, ratio_log, slowed, busy_neighbours)
        tails.learn(row, spread, error, given)
        if self._detector.observe(row, ratio_log - slowed):
            residuals.forget(row)
            alarms = self.shifted[row].alarms if row in self.shifted else 0
            self.shifted[row] = ShiftMark(alarms + 1, at_s)
        self.version += 1
        self._unfaded += 1
        if self._unfaded >= _FADE_EVERY or not abs(at_s - self._faded_s) < _FADE_EVERY_S:
            self._fade(at_s)
        return True

    def doubt(self, rows: IntArray, at_s: float) -> None:
        """A query was refused for what is predicted of these rows; see ``Vain``.

        Args:
            rows: whose.
            at_s: as for ``observe``.
        """
        fading = self._vain.refused(rows, at_s)
        if fading is not None:
            self._residuals.fade(*fading)
            self._tails.fade(*fading)
            self.version += 1

    def _fade(self, at_s: float) -> None:
        """Forget by count and by time; a clock that jumps costs at most half of what is known."""
        settings = self._settings
        passed_s = at_s - self._faded_s
        ages = self._unfaded / settings.half_life
        if passed_s > 0.0:
            ages += min(passed_s / settings.half_life_s, 1.0)
        self._unfaded = 0
        if math.isfinite(at_s):
            self._faded_s = at_s
        keep = np.full(len(self._groups), 0.5**ages)
        shared = np.full(len(self.counters), 0.5**ages)
        self._residuals.fade(keep, shared)
        self._tails.fade(keep, shared)
