"""Observed rates in a form that forecasters can learn from.

Clocks may stand still or jump back, rates may have any value, and clients may invent any number of
scopes. This module handles that for all forecasters, and forgets scopes that have become silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp2, isfinite

MAX_RATE_PER_S = 1e12
MAX_SCOPES = 4096
FORGET_AFTER_S = 3600.0


class ObservedRates:
    """The elapsed time and the measured rates, observation by observation.

    Attributes:
        now_s: time of the last valid observation; None before the first.
        forgotten: scopes dropped with the last observation.
    """

    def __init__(self) -> None:
        self.now_s: float | None = None
        self.forgotten: frozenset[str] = frozenset()
        self._heard_s: dict[str, float] = {}

    def record(
        self, now_s: float, arrivals_per_s: Mapping[str, float]
    ) -> tuple[float, dict[str, float]]:
        """Returns the seconds since the last observation, and the rates of all remembered scopes.

        The seconds are 0 at first and if the clock stood still, jumped back or was not finite.
        Scopes that are not named were silent: their rate is 0. Scopes with a rate that is NaN or
        infinite are left out.
        """
        if not isfinite(now_s):
            now_s = self.now_s if self.now_s is not None else 0.0
        elapsed_s = max(now_s - self.now_s, 0.0) if self.now_s is not None else 0.0
        if self.now_s is not None and now_s < self.now_s:
            self._heard_s = {scope: min(s, now_s) for scope, s in self._heard_s.items()}
        self.now_s = now_s
        rates = dict.fromkeys(self._heard_s, 0.0)
        for scope, rate in arrivals_per_s.items():
            if isfinite(rate):
                rates[scope] = min(max(float(rate), 0.0), MAX_RATE_PER_S)
                if rates[scope] > 0.0 or scope not in self._heard_s:
                    self._heard_s[scope] = now_s
            elif scope in rates:
                del rates[scope]
        self._forget(now_s)
        return elapsed_s, {
            scope: rate for scope, rate in rates.items() if scope not in self.forgotten
        }

    def _forget(self, now_s: float) -> None:
        gone = {s for s, heard_s in self._heard_s.items() if now_s - heard_s > FORGET_AFTER_S}
        excess = len(self._heard_s) - len(gone) - MAX_SCOPES
        if excess > 0:
            kept = [scope for scope in self._heard_s if scope not in gone]
            gone.update(sorted(kept, key=lambda s: (self._heard_s[s], s))[:excess])
        for scope in gone:
            del self._heard_s[scope]
        self.forgotten = frozenset(gone)


def newness(elapsed_s: float, half_life_s: float) -> float:
    """Returns the weight of a new observation after ``elapsed_s``, by its half-life."""
    return 1.0 - exp2(-elapsed_s / half_life_s)
