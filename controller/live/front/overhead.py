"""The recent time that it takes to hand a batch over, beyond the device's own time."""

from __future__ import annotations

import math
from collections.abc import Callable

REMEMBERED_S = 5.0
"""A mean without new measurements stands so long; then it begins to fade."""

HALVES_S = 5.0


class Overhead:
    """An exponential mean that returns to its first guess while nothing is measured.

    Queries are refused by predictions that contain it. An overload may drive it beyond every
    deadline. Then nothing is admitted and nothing is measured, so without the return the gateway
    would never notice the end of the overload.

    Args:
        first_s: the first guess, seconds.
        learnt: a measurement's weight, 0 to 1.
        clock: returns the time in seconds.
        most_growth: a measurement counts at most so many times the mean.
        believe_first: whether the first measurement replaces the guess.
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
        """Add a measurement, seconds; a negative one comes from the clock and counts as 0."""
        before_s = max(took_s, 0.0) if self._is_to_believe else self.seconds
        self._is_to_believe = False
        counted_s = min(max(took_s, 0.0), self._most_growth * before_s if before_s else math.inf)
        self._mean_s = before_s + self._learnt * (counted_s - before_s)
        self._learnt_at_s = self._clock()

    @property
    def seconds(self) -> float:
        """The mean now, seconds."""
        idle_s = max(self._clock() - self._learnt_at_s - REMEMBERED_S, 0.0)
        fades: float = 0.5 ** (idle_s / HALVES_S)
        return self._first_s + (self._mean_s - self._first_s) * fades
