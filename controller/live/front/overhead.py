"""What handing a batch over costs beyond the device's own time, as it was lately."""

from __future__ import annotations

import math
from collections.abc import Callable

REMEMBERED_S = 5.0
"""For so long a mean stands that nothing has been added to; then it begins to fade."""

HALVES_S = 5.0


class Overhead:
    """An exponential mean that goes back to its first guess while nothing is measured.

    It is part of what queries are refused by. An overload may drive it beyond every deadline: then
    nothing is admitted, so nothing is measured, and that the overload is over would never be found
    out.

    Args:
        first_s: before anything was measured, seconds.
        learnt: a measurement's weight, 0 to 1.
        clock: seconds.
        most_growth: a measurement of more times the mean than this counts as so many.
        believe_first: whether the first measurement is the mean, as of a place that is far away.
    """

    def __init__(
        self,
        first_s: float,
        learnt: float,
        clock: Callable[[], float],
        most_growth: float = math.inf,
        *,
        believe_first: bool = False,
    ) -> None:
        self._first_s = self._mean_s = first_s
        self._learnt = learnt
        self._clock = clock
        self._most_growth = most_growth
        self._learnt_at_s = clock()
        self._is_to_believe = believe_first

    def learn(self, took_s: float) -> None:
        """A batch was handed over; negative times are the clock's."""
        before_s = max(took_s, 0.0) if self._is_to_believe else self.seconds
        self._is_to_believe = False
        counted_s = min(max(took_s, 0.0), self._most_growth * before_s if before_s else math.inf)
        self._mean_s = before_s + self._learnt * (counted_s - before_s)
        self._learnt_at_s = self._clock()

    @property
    def seconds(self) -> float:
        """What it costs now."""
        idle_s = max(self._clock() - self._learnt_at_s - REMEMBERED_S, 0.0)
        fades: float = 0.5 ** (idle_s / HALVES_S)
        return self._first_s + (self._mean_s - self._first_s) * fades
