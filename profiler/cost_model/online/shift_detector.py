"""Detects that a placement's latency has changed for good, from its log residuals."""

from __future__ import annotations

import math

from modelless.profiler.cost_model.online.settings import ShiftSettings


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
