"""All corrections that outcomes teach, by row; a row is a placement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from modelless.profiler.cost_model.online.columns import IntArray, make_column
from modelless.profiler.cost_model.online.coverage import CoverageCounter
from modelless.profiler.cost_model.online.residuals import Residuals
from modelless.profiler.cost_model.online.shift_detector import ShiftDetector
from modelless.profiler.cost_model.online.tails import Tails
from modelless.variants.estimates import FloatArray

HALF_LIFE_S = 4.0
"""A placement without outcomes for so long is half as far from its profile."""
_CURVE_HALF_LIFE_S = 3600.0
"""The same for the contention curve of a device class."""
ABSURD_RATIO = 50.0
"""Outcomes that take so many times longer or shorter than the measured median are ignored: a
stopped process, a clock that jumped, a wrong unit."""
_ABSURD_LOG = math.log(ABSURD_RATIO)
_FRESH_S = 2.0
"""A row is trusted for so long after an outcome."""
_HELD_S, _HELD_OUTCOMES = 15.0, 30
"""And for so long after one that confirmed what was no longer trusted."""


class Recency:
    """How far what was learned of each of n rows is trusted, by when it had its last outcome.

    A placement that was once observed to be slow is not chosen, so it is never observed to be quick
    again. What was learned of a row is therefore trusted less and less while the row has no
    outcome, until it is tried again: optimism under uncertainty, as in Sutton and Barto,
    *Reinforcement Learning*, section 2.6. If the next outcome confirms what was learned, that is
    trusted again, for 15 s and 30 outcomes of any rows at least. So of the batches at most one in
    31 is such a trial of the same row, and at most one in 15 s.

    Args:
        count: number of rows.
    """

    def __init__(self, count: int) -> None:
        self._seen, self._seen_s = make_column(count)
        self._seen_s += math.inf  # no outcome yet
        self._held, self._held_until = make_column(count)  # by ``outcomes``
        self.outcomes = 0
        """Outcomes so far, and refusals, so that a row is tried again that refuses all queries."""

    def record_outcome(self, row: int, at_s: float) -> float:
        """Note an outcome of the row, at a time that is ignored if it is not finite.

        Returns:
            The share that was trusted before, but for what was confirmed.
        """
        self.outcomes += 1
        if not math.isfinite(at_s):
            return 1.0
        rest_s = at_s - self._seen[row] - _FRESH_S
        self._seen[row] = at_s
        return 0.5 ** (rest_s / HALF_LIFE_S) if rest_s > 0.0 else 1.0

    def confirm(self, row: int, *, is_confirmed: bool) -> None:
        """Note whether the last outcome of the row confirmed what was no longer trusted."""
        self._held[row] = is_confirmed * (self.outcomes + _HELD_OUTCOMES)

    def shares(self, at_s: float) -> FloatArray:
        """Returns the trusted share of what was learned of each row, shape (rows,)."""
        with np.errstate(over="ignore"):  # between times that no clock has
            age_s = at_s - self._seen_s
        half_lives = np.maximum(age_s - _FRESH_S, 0.0) / HALF_LIFE_S
        is_held = (self._held_until > 0.0) & (age_s < _HELD_S)
        half_lives[is_held | (self._held_until > self.outcomes)] = 0.0
        return np.exp2(-half_lives)


_RENEW_EVERY_S = 1.0
_CLEARLY_LOG = 0.05
"""An outcome that confirms what is no longer trusted is nearer to it by this, log latency."""


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
        contention: see ``Residuals``.
        learns: if False, every prediction stays as profiled and outcomes are only counted, so that
            the value of learning can be measured.

    Attributes:
        version: increases with each observation that was learned.
        counters: coverage of each group's predictions.
        shifted: rows that have shifted, even if they have come back since.
    """

    def __init__(self, groups: Sequence[int], contention: Sequence[float], *, learns: bool) -> None:
        self._groups = list(groups)
        self._learns = learns
        self._residuals = Residuals(groups, contention)
        self._tails = Tails(groups)
        self._detector = ShiftDetector(len(groups))
        self._recency = Recency(len(groups))
        self._renewed_s = -math.inf  # no time known yet
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
        """Learn from one outcome; return whether it makes estimates that were given obsolete.

        That is so if it confirms what was no longer trusted.

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
        if not 0.0 < ratio < math.inf or abs(ratio_log := math.log(ratio)) > _ABSURD_LOG:
            self.counters[self._groups[row]].ignored += 1
            return False
        if abs(at_s - self._renewed_s) >= _RENEW_EVERY_S:
            self._renew(at_s)
        residuals, tails = self._residuals, self._tails
        spread = (math.log(p90_s / p50_s), math.log(p99_s / p50_s))
        slowed, error, given = self._compare(row, ratio_log, busy_neighbours, spread)
        relative = abs(math.exp(given[0] - error) - 1.0)
        self.counters[self._groups[row]].count(error, given, relative)
        if not self._learns:
            return False
        trust = self._recency.record_outcome(row, at_s)
        is_confirmed = False
        if trust < 1.0:
            is_confirmed = self._end_doubt(row, ratio_log - slowed, trust)
            slowed, error, given = self._compare(row, ratio_log, busy_neighbours, spread)
        residuals.learn(row, ratio_log, slowed, busy_neighbours)
        tails.learn(row, spread, error, given)
        if self._detector.observe(row, ratio_log - slowed):
            residuals.forget(row)
            alarms = self.shifted[row].alarms if row in self.shifted else 0
            self.shifted[row] = ShiftMark(alarms + 1, at_s)
        self.version += 1
        return is_confirmed

    def renew(self, at_s: float) -> None:
        """Let time pass, seconds on the driver's clock; earlier times than before are ignored."""
        if at_s - self._renewed_s >= _RENEW_EVERY_S:
            self._renew(at_s)

    def doubt(self) -> None:
        """Note that a query was refused because all placements are predicted to be too slow."""
        self._recency.outcomes += 1

    def _compare(
        self, row: int, ratio_log: float, busy_neighbours: float, spread: tuple[float, float]
    ) -> tuple[float, float, tuple[float, float, float]]:
        """Returns a row's contention, the error of its location and its quantiles, as logs."""
        slowed = self._residuals.contention(row, busy_neighbours)
        error = ratio_log - slowed - self._residuals.idle(row)
        return slowed, error, self._tails.quantiles(row, spread)

    def _end_doubt(self, row: int, idle_log: float, trust: float) -> bool:
        """Decide what is trusted of a row by its outcome; return whether that is all again."""
        residuals = self._residuals
        far = abs(idle_log - residuals.idle_if(row, 1.0)) + _CLEARLY_LOG
        is_confirmed = far < abs(idle_log - residuals.idle_if(row, trust))
        keep = 1.0 if is_confirmed else trust
        residuals.keep(row, keep)
        self._tails.keep(row, keep)
        self._recency.confirm(row, is_confirmed=is_confirmed)
        return is_confirmed

    def _renew(self, at_s: float) -> None:
        """Trust rows without outcomes less, and fade the curves."""
        if not math.isfinite(at_s):
            return
        passed_s = at_s - self._renewed_s
        self._renewed_s = at_s
        if 0.0 < passed_s < math.inf:
            half_lives = min(passed_s / _CURVE_HALF_LIFE_S, 1.0)
            self._residuals.fade_curves(0.5**half_lives)
        shares = self._recency.shares(at_s)
        self._residuals.trust(shares)
        self._tails.trust(shares)
        self.version += 1
