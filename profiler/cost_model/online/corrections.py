"""Everything that outcomes teach, behind one object with rows for placements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.online.columns import FloatArray, column
from modelless.profiler.cost_model.online.coverage import CoverageCounter
from modelless.profiler.cost_model.online.residuals import Residuals
from modelless.profiler.cost_model.online.settings import ResidualSettings, ShiftSettings
from modelless.profiler.cost_model.online.tails import Tails

# Which predictions queries are refused for while nothing shows whether they still hold.
#
# A placement that was once seen to be slow is not chosen, and so never seen to be quick again: if
# there is no other, everybody is refused. What it was seen to do is let be forgotten then, until
# it is tried: optimism where nothing is known, as in Sutton and Barto, *Reinforcement Learning*,
# section 2.6. What nobody is refused for is remembered, however long ago it was seen.

_EVERY_S = 1.0
"""However many queries are refused in this time, they count once."""
_PATIENCE = 5.0
"""Times that queries may be refused for a row before it begins to be forgotten."""
_HALF_LIFE = 3.0
"""Times after which half of it is."""
_ONCE = 0.5 ** (1.0 / _HALF_LIFE)
_FORGOTTEN = _PATIENCE + 20.0 * _HALF_LIFE


class Vain:
    """How often queries were refused for each of n rows since it was last heard of.

    Args:
        groups: for each row the index of its group: what rows have in common is kept as long as
            any of them is heard of.
    """

    def __init__(self, groups: Sequence[int]) -> None:
        self._group_of_row = np.asarray(groups, dtype=np.intp)
        self._group_count = max(groups, default=-1) + 1
        self._times, self._counts = column(len(groups))
        self._is_known = np.zeros(len(groups), dtype=np.bool_)
        self._refused_s = np.full(len(groups), -np.inf)

    def heard(self, row: int) -> None:
        """The row was seen at work."""
        self._times[row] = 0.0
        self._is_known[row] = True

    def refused(self, rows: IntArray, at_s: float) -> tuple[FloatArray, FloatArray] | None:
        """A query was refused for these rows.

        Args:
            rows: whose.
            at_s: when, on any clock; one that jumps costs nothing.

        Returns:
            The shares to keep of what is known, by row and by group; None to keep it all.
        """
        due = rows[np.abs(at_s - self._refused_s[rows]) >= _EVERY_S]
        if not due.size:
            return None
        self._refused_s[due] = at_s
        self._counts[due] += 1.0
        vain = due[self._is_known[due] & (self._counts[due] > _PATIENCE)]
        if not vain.size:
            return None
        keep = np.ones(len(self._group_of_row))
        keep[vain] = _ONCE
        fresh = self._is_known & (self._counts <= _PATIENCE)
        is_fresh = np.bincount(self._group_of_row[fresh], minlength=self._group_count) > 0
        shared = np.ones(self._group_count)
        touched = self._group_of_row[vain]
        shared[touched] = np.where(is_fresh[touched], 1.0, _ONCE)
        self._is_known[vain[self._counts[vain] > _FORGOTTEN]] = False
        return keep, shared


# Telling a change from noise: has a placement come to take another time than it did?


class ShiftDetector:
    """A two-sided CUSUM over the log residuals of n rows; see ``ShiftSettings``.

    Each row is compared with what it was itself during its first outcomes, so that a profile that
    is wrong from the start is corrected and no alarm, and a slow change adds up to one.
    """

    def __init__(self, count: int, settings: ShiftSettings) -> None:
        self._settings = settings
        self._seen = [-settings.settle] * count
        self._mean = [0.0] * count
        self._deviation = [0.0] * count
        self._up = [0.0] * count
        self._down = [0.0] * count

    def observe(self, row: int, residual: float) -> bool:
        """Take in the log residual of one outcome, finite; True if it is an alarm.

        After an alarm the row is compared with what it shows from then on.
        """
        settings = self._settings
        seen = self._seen[row]
        if seen < 0:
            self._seen[row] = seen + 1
            return False
        if seen < settings.warm_up:
            self._warm_up(row, residual, seen + 1)
            return False
        surprise = (residual - self._mean[row]) / self._deviation[row]
        clip, slack = settings.clip, settings.slack
        if not -clip < surprise < clip:
            surprise = math.copysign(clip, surprise)
        up, down = self._up[row] + surprise - slack, self._down[row] - surprise - slack
        self._up[row] = up = up if up > 0.0 else 0.0
        self._down[row] = down = down if down > 0.0 else 0.0
        if up <= settings.threshold and down <= settings.threshold:
            return False
        self.restart(row)
        return True

    def restart(self, row: int) -> None:
        """Compare the row with what it shows from now on."""
        self._seen[row] = 0
        self._mean[row] = self._deviation[row] = self._up[row] = self._down[row] = 0.0

    def _warm_up(self, row: int, residual: float, seen: int) -> None:
        """Mean and mean absolute deviation as they come; an outlier counts for little."""
        self._seen[row] = seen
        error = residual - self._mean[row]
        if seen > 4:
            reach = 3.0 * max(self._deviation[row], self._settings.least_deviation)
            error = max(-reach, min(reach, error))
        self._mean[row] += error / seen
        self._deviation[row] += (abs(error) - self._deviation[row]) / seen
        if seen == self._settings.warm_up:  # from mean absolute to standard deviation
            scaled = 1.2533141373155 * self._deviation[row]
            self._deviation[row] = max(scaled, self._settings.least_deviation)


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
