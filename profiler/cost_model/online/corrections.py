"""All corrections that outcomes teach, by row; a row is a placement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.online.columns import FloatArray, make_column
from modelless.profiler.cost_model.online.coverage import CoverageCounter
from modelless.profiler.cost_model.online.residuals import Residuals
from modelless.profiler.cost_model.online.settings import ResidualSettings, ShiftSettings
from modelless.profiler.cost_model.online.tails import Tails

_EVERY_S = 1.0
"""All refusals within this time count once."""
_PATIENCE = 5.0
"""The refusals of a row after which its corrections begin to fade."""
_HALF_LIFE = 3.0
"""The refusals after which half of the corrections has faded."""
_ONCE = 0.5 ** (1.0 / _HALF_LIFE)
_FORGOTTEN = _PATIENCE + 20.0 * _HALF_LIFE


class RefusalTracker:
    """Counts how often queries were refused for each of n rows since its last outcome.

    A placement that was once observed to be slow is not chosen, so it is never observed to be quick
    again; if there is no other, every query is refused. Its corrections then fade until it is
    tried: optimism under uncertainty, as in Sutton and Barto, *Reinforcement Learning*, section
    2.6. Corrections for which no query is refused stay, however old they are.

    Args:
        groups: index of each row's group. What rows of a group have in common stays as long as any
            of them has outcomes.
    """

    def __init__(self, groups: Sequence[int]) -> None:
        self._group_of_row = np.asarray(groups, dtype=np.intp)
        self._group_count = max(groups, default=-1) + 1
        self._times, self._counts = make_column(len(groups))
        self._is_known = np.zeros(len(groups), dtype=np.bool_)
        self._refused_s = np.full(len(groups), -np.inf)

    def record_outcome(self, row: int) -> None:
        """Note an outcome of the row."""
        self._times[row] = 0.0
        self._is_known[row] = True

    def record_refusal(self, rows: IntArray, at_s: float) -> tuple[FloatArray, FloatArray] | None:
        """Note that a query was refused for these rows.

        Args:
            rows: the rows.
            at_s: time on any clock, seconds; a clock that jumps does no harm.

        Returns:
            The shares of the corrections to keep, by row and by group; None to keep all.
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


class ShiftDetector:
    """Detects changes of n rows by a two-sided CUSUM over their log residuals; see
    ``ShiftSettings``.

    Each row is compared with its own first outcomes. A profile that is wrong from the start is
    therefore corrected without an alarm, and slow changes add up to one.
    """

    def __init__(self, count: int, settings: ShiftSettings) -> None:
        self._settings = settings
        self._seen = [-settings.settle] * count
        self._mean = [0.0] * count
        self._deviation = [0.0] * count
        self._up = [0.0] * count
        self._down = [0.0] * count

    def observe(self, row: int, residual: float) -> bool:
        """Take in the log residual of one outcome, finite; return whether it is an alarm.

        After an alarm the row is compared with its next outcomes.
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
        """Compare the row with its next outcomes from now on."""
        self._seen[row] = 0
        self._mean[row] = self._deviation[row] = self._up[row] = self._down[row] = 0.0

    def _warm_up(self, row: int, residual: float, seen: int) -> None:
        """Update mean and mean absolute deviation; an outlier counts little."""
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
    """The shifts of a row.

    Attributes:
        alarms: number of shifts.
        at_s: time of the last one on the driver's clock, seconds.
    """

    alarms: int
    at_s: float


class Corrections:
    """The factors that correct p50, p90 and p99 of n rows, each in one of several groups.

    Args:
        groups: index of each row's group (a device class).
        settings: how corrections learn.
        contention: see ``Residuals``.

    Attributes:
        version: increases with each observation that was learned.
        counters: coverage of each group's predictions.
        shifted: rows that have shifted, even if they have come back since.
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
        self._refusals = RefusalTracker(groups)
        self.version = 0
        self.counters = [CoverageCounter() for _ in range(max(groups, default=-1) + 1)]
        self.shifted: dict[int, ShiftMark] = {}

    def factor(self, row: int, busy_neighbours: float = 0.0) -> float:
        """Returns the factor of one row's p50 under a load."""
        log = self._residuals.location(row, busy_neighbours)
        return math.exp(log + self._tails.quantiles(row, (0.0, 0.0))[0])

    def factors(self, rows: IntArray, busy_neighbours: float) -> FloatArray:
        """Returns the factors of p50, p90 and p99 of many rows, shape (3, n); a new array."""
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
        """Learn from one outcome; return whether it was learned.

        Args:
            row: the row.
            measured_s: profiled p50, p90, p99 at that batch size without correction, seconds;
                finite and more than 0.
            busy_neighbours: 0 or more.
            at_s: time on the driver's clock, seconds; only differences count.
            latency_s: observed latency, seconds.
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
        self._refusals.record_outcome(row)
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
        """Note that a query was refused for the prediction of these rows; see ``RefusalTracker``.

        Args:
            rows: the rows.
            at_s: as for ``observe``.
        """
        fading = self._refusals.record_refusal(rows, at_s)
        if fading is not None:
            self._residuals.fade(*fading)
            self._tails.fade(*fading)
            self.version += 1

    def _fade(self, at_s: float) -> None:
        """Fade by count and by time; a clock that jumps costs at most half of the corrections."""
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
