"""Detects that a placement's latency has changed for good, from its log residuals."""

from __future__ import annotations

import math

_SETTLE = 50
"""A row's first outcomes that are skipped, while the contention is learned."""
_WARM_UP = 50
"""The outcomes that give the level to compare with; also after each alarm."""
_SLACK = 1.0
"""The deviations per outcome that count as no change."""
_THRESHOLD = 15.0
"""The sum of deviations beyond the slack that is an alarm."""
_CLIP = 3.0
"""The most deviations that one outcome counts, so that no single outcome is an alarm."""
LEAST_DEVIATION = 0.05
"""The least standard deviation of log latency to compare with; smaller changes are not worth a new
measurement."""


class ShiftDetector:
    """Detects changes of n rows by a two-sided CUSUM (Page, Biometrika 1954) over their log
    residuals in standard deviations.

    Each row is compared with its own first outcomes. A profile that is wrong from the start is
    therefore corrected without an alarm, and slow changes add up to one.

    With known mean and deviation and normal, independent residuals, Siegmund's approximation
    (Sequential Analysis, 1985; threshold + 1.166) gives one false alarm in 10^13 outcomes. Here
    mean and deviation come from the warm-up, and real residuals are neither normal nor independent.
    In simulations there is no false alarm in a million normal, exponential or Student-t(3)
    residuals, and there are 50 in a million where neighbouring residuals are correlated by 0.5. A
    shift of two deviations is detected after 17 outcomes at the median, one of three after 10.
    """

    def __init__(self, count: int) -> None:
        self._seen = [-_SETTLE] * count
        self._mean = [0.0] * count
        self._deviation = [0.0] * count
        self._up = [0.0] * count
        self._down = [0.0] * count

    def observe(self, row: int, residual: float) -> bool:
        """Take in the log residual of one outcome, finite; return whether it is an alarm.

        After an alarm the row is compared with its next outcomes.
        """
        seen = self._seen[row]
        if seen < 0:
            self._seen[row] = seen + 1
            return False
        if seen < _WARM_UP:
            self._warm_up(row, residual, seen + 1)
            return False
        surprise = (residual - self._mean[row]) / self._deviation[row]
        if not -_CLIP < surprise < _CLIP:
            surprise = math.copysign(_CLIP, surprise)
        up, down = self._up[row] + surprise - _SLACK, self._down[row] - surprise - _SLACK
        self._up[row] = up = up if up > 0.0 else 0.0
        self._down[row] = down = down if down > 0.0 else 0.0
        if up <= _THRESHOLD and down <= _THRESHOLD:
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
            reach = 3.0 * max(self._deviation[row], LEAST_DEVIATION)
            error = max(-reach, min(reach, error))
        self._mean[row] += error / seen
        self._deviation[row] += (abs(error) - self._deviation[row]) / seen
        if seen == _WARM_UP:  # from mean absolute to standard deviation
            scaled = 1.2533141373155 * self._deviation[row]
            self._deviation[row] = max(scaled, LEAST_DEVIATION)
