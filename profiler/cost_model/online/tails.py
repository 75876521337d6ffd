"""Calibrated quantiles: adaptive conformal offsets around the expected latency.

Source: Gibbs and Candes, "Adaptive Conformal Inference Under Distribution Shift" (NeurIPS 2021).
After a miss a quantile moves up, after a hit it moves down a little, in such proportion that it
stands still exactly when it covers its share, whatever the distribution. Here the quantile's offset
is stepped in units of the residuals' spread, as in Angelopoulos, Candes and Tibshirani, "Conformal
PID Control for Time Series Prediction" (NeurIPS 2023), section 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from modelless.profiler.cost_model.online.columns import IntArray, make_column
from modelless.profiler.cost_model.online.residuals import CLASS_WEIGHT
from modelless.variants.estimates import FloatArray

LEVELS = (0.50, 0.90, 0.99)

_STEPS = (0.05, 0.1, 0.3)
"""The step of each level, in deviations: rarer events need longer steps to be followed as fast."""
_AFTER_MISS = tuple(step * level for step, level in zip(_STEPS, LEVELS, strict=True))
_AFTER_HIT = tuple(step * (level - 1.0) for step, level in zip(_STEPS, LEVELS, strict=True))
_SCALE_RATE = 0.05
_LEAST_SCALE = 0.005
_MOST_ERROR = 1.0
_Z99 = 2.3263478740408408
_PEAK_DECAY = 1.0 - 1.0 / 200.0
_PEAK_ROOM = 1.5
_NORMAL_MAD = 1.2533141373155  # deviation over mean absolute deviation of a normal distribution
_MOST_OFFSET = math.log(10.0)
_LEVEL_NUMBERS = range(len(LEVELS))


class Tails:
    """Offsets of the log of p50, p90 and p99 from the profile with its residuals.

    A row without outcomes has its group's offsets: the mean of the rows that have some, shrunk
    towards 0.

    An upper offset reaches at most half as far again as the largest recent error. Otherwise p99
    would take thousands of outcomes to come back from a burst of misses.

    Args:
        groups: index of each row's group.
    """

    def __init__(self, groups: Sequence[int]) -> None:
        count = len(groups)
        self._group_of_row = np.asarray(groups, dtype=np.intp)
        self._own, flat = make_column(3 * count)  # a row's three side by side
        self._owns = flat.reshape(count, 3)
        self._trust, self._trusts = make_column(count)
        self._trusts += 1.0
        self._scale, self._scales = make_column(count)  # 0 without outcomes
        self._peak = [0.0] * count

    def quantiles(self, row: int, spread: tuple[float, float]) -> tuple[float, float, float]:
        """Returns the logs of p50, p90 and p99 of one row over its expected latency, ascending.

        Args:
            row: the row.
            spread: the profile's logs of p90 and p99 over p50, ascending.
        """
        own, first, trust = self._own, 3 * row, self._trust[row]
        p50 = trust * own[first]
        p90 = max(spread[0] + trust * own[first + 1], p50)
        return p50, p90, max(spread[1] + trust * own[first + 2], p90)

    def offsets(self, rows: IntArray) -> FloatArray:
        """Returns the offsets of many rows, shape (3, n); the quantiles may need ordering."""
        offsets = self._owns.take(rows, axis=0)
        offsets *= self._trusts.take(rows)[:, np.newaxis]
        return np.ascontiguousarray(offsets.T)

    def learn(
        self,
        row: int,
        spread: tuple[float, float],
        error: float,
        given: tuple[float, float, float],
    ) -> None:
        """Learn from one outcome of a trusted row.

        Args:
            row: the row.
            spread: as for ``quantiles``.
            error: log of observed over expected latency.
            given: the result of ``quantiles`` before this outcome.
        """
        # Comparisons are faster than min and max; this runs once for each batch.
        error_now = error if error < _MOST_ERROR else _MOST_ERROR
        size = error_now if error_now > 0.0 else min(-error, _MOST_ERROR)
        scale, peak = self._scale[row], self._peak[row]
        if scale == 0.0:
            scale, peak = spread[1] / _Z99 / _NORMAL_MAD, spread[1]
        scale += _SCALE_RATE * (size - scale)
        if scale < _LEAST_SCALE:
            scale = _LEAST_SCALE
        peak *= _PEAK_DECAY
        if peak < error_now:
            peak = error_now
        self._scale[row], self._peak[row] = scale, peak
        deviation = scale * _NORMAL_MAD
        own, first = self._own, 3 * row
        bases = (0.0, spread[0], spread[1])
        # No error that was seen explains a quantile beyond its reach. An offset below the previous
        # quantile would have no effect and wind up.
        floor, reach, highest = -deviation, deviation, _PEAK_ROOM * peak
        for level in _LEVEL_NUMBERS:
            steps = _AFTER_MISS if error > given[level] else _AFTER_HIT
            quantile = bases[level] + own[first + level] + deviation * steps[level]
            if quantile > reach:
                quantile = reach
            if quantile < floor:
                quantile = floor
            floor = quantile
            reach = quantile if quantile > highest else highest
            offset = quantile - bases[level]
            own[first + level] = offset if -_MOST_OFFSET < offset < _MOST_OFFSET else _clamp(offset)

    def keep(self, row: int, share: float) -> None:
        """Keep only a share of what was learned of a row, and trust that."""
        self._owns[row] *= share
        self._trust[row] = 1.0

    def trust(self, share: FloatArray) -> None:
        """Trust only a share of what was learned of each row, shape (rows,)."""
        self._trusts[:] = share
        is_new, groups = self._scales == 0.0, self._group_of_row
        weights = np.where(is_new, 0.0, share)
        sums = CLASS_WEIGHT + np.bincount(groups, weights)
        for offsets in self._owns.T:
            means = np.bincount(groups, weights * offsets) / sums
            offsets[is_new] = means[groups[is_new]]


def _clamp(offset: float) -> float:
    if offset > _MOST_OFFSET:
        return _MOST_OFFSET
    return offset if offset > -_MOST_OFFSET else -_MOST_OFFSET
