"""Recurring: predicts the next wake-up of a scope that wakes at regular intervals.

The hybrid histogram policy of "Serverless in the Wild" (Shahrad et al., USENIX ATC 2020) learns for
each application how long it sleeps, and warms it just before its next invocation if the pattern is
regular. Here the intervals between wake-ups are learned as well, because a job that a clock starts
sleeps for less after it has worked for longer. A scope that is awake, or wakes at irregular
intervals, is forecast as by ``ewma``: the same rate over any horizon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median

from modelless.common.errors import InvalidInputError
from modelless.policies.forecast.ewma import Ewma
from modelless.policies.forecast.observed_rates import MAX_RATE_PER_S, ObservedRates
from modelless.policies.seams import Forecaster

_INTERVALS = 8  # remembered intervals of a scope
_FEWEST = 3  # intervals from which regularity is judged
_ROBUST = 5  # intervals from which the longest and the shortest are left out
_NEW_BURST = 0.3  # weight of the latest burst in the mean


@dataclass(slots=True)
class _Burst:
    """A period of activity: its queries, and seconds from the first to the last."""

    queries: float = 0.0
    span_s: float = 0.0


@dataclass(slots=True)
class _Sleeper:
    """The activity and silence of one scope.

    Attributes:
        woke_s, heard_s: times of the last awakening and of the last query.
        burst: the burst since the awakening.
        mean: mean of earlier bursts; None before the first ended.
        periods_s, pauses_s: times from awakening to awakening, and from last query to awakening.
    """

    woke_s: float
    heard_s: float
    burst: _Burst = field(default_factory=_Burst)
    mean: _Burst | None = None
    periods_s: deque[float] = field(default_factory=lambda: deque(maxlen=_INTERVALS))
    pauses_s: deque[float] = field(default_factory=lambda: deque(maxlen=_INTERVALS))

    def wake(self, now_s: float) -> None:
        """End the previous burst and begin a new one."""
        self.periods_s.append(now_s - self.woke_s)
        self.pauses_s.append(now_s - self.heard_s)
        weight = _NEW_BURST if self.mean is not None else 1.0
        mean = self.mean or _Burst()
        self.mean = _Burst(
            mean.queries + weight * (self.burst.queries - mean.queries),
            mean.span_s + weight * (self.burst.span_s - mean.span_s),
        )
        self.burst = _Burst()
        self.woke_s = now_s


class Recurring(Forecaster):
    """The moving average, and the expected burst of silent scopes with regular bursts.

    Args:
        half_life_s: half-life of the moving average, seconds.
        quiet_s: seconds without a query after which a scope counts as asleep.
        tolerance: intervals are regular if they lie within this share of their median.
    """

    def __init__(
        self, half_life_s: float = 20.0, quiet_s: float = 5.0, tolerance: float = 0.1
    ) -> None:
        if not 0.0 < quiet_s < inf:
            raise InvalidInputError.of("quiet_s", quiet_s, "seconds, more than 0")
        if not 0.0 < tolerance < 1.0:
            raise InvalidInputError.of("tolerance", tolerance, "above 0 and below 1")
        self._mean = Ewma(half_life_s)
        self.half_life_s = half_life_s
        self.quiet_s = quiet_s
        self.tolerance = tolerance
        self._observed = ObservedRates()
        self._elapsed_s = 0.0
        self._sleepers: dict[str, _Sleeper] = {}

    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        self._mean.observe(now_s, arrivals_per_s)
        before_s = self._observed.now_s
        elapsed_s, rates = self._observed.record(now_s, arrivals_per_s)
        for scope in self._observed.forgotten:
            self._sleepers.pop(scope, None)
        now_s = self._observed.now_s or 0.0
        if before_s is not None and now_s < before_s:
            self._sleepers.clear()  # the clock jumped back
        self._elapsed_s = elapsed_s or self._elapsed_s
        for scope, rate in rates.items():
            if rate > 0.0:
                self._hear(scope, now_s, elapsed_s, rate)

    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        rates = dict(self._mean.forecast(horizon_s))
        for scope, queries in self.awakenings(horizon_s).items():
            rates[scope] = max(rates.get(scope, 0.0), min(queries / horizon_s, MAX_RATE_PER_S))
        return rates

    def awakenings(self, horizon_s: float) -> Mapping[str, float]:
        if not (isfinite(horizon_s) and horizon_s > 0.0):
            return {}
        now_s = self._observed.now_s or 0.0
        due = {
            scope: self._due_queries(sleeper, sleeper.mean, now_s, horizon_s)
            for scope, sleeper in self._sleepers.items()
            if sleeper.mean is not None and now_s - sleeper.heard_s > self.quiet_s
        }
        return {scope: queries for scope, queries in due.items() if queries > 0.0}

    def _hear(self, scope: str, now_s: float, elapsed_s: float, rate: float) -> None:
        """Note queries since the last observation, ``elapsed_s`` ago."""
        began_s = now_s - elapsed_s
        sleeper = self._sleepers.get(scope)
        if sleeper is None:
            sleeper = self._sleepers[scope] = _Sleeper(began_s, began_s)
        elif began_s - sleeper.heard_s > self.quiet_s:
            sleeper.wake(began_s)
        sleeper.heard_s = now_s
        sleeper.burst.queries += rate * elapsed_s
        sleeper.burst.span_s = now_s - sleeper.woke_s

    def _due_queries(
        self, sleeper: _Sleeper, mean: _Burst, now_s: float, horizon_s: float
    ) -> float:
        """Returns the queries expected of a sleeping scope within the horizon; 0 if unpredictable.

        The awakening is uniform between the shortest and the longest interval, or immediate if it
        is a little overdue. It brings at least one query.
        """
        window = self._window_s(sleeper, now_s)
        if window is None:
            return 0.0
        first_s, last_s = window
        if horizon_s <= first_s and horizon_s < last_s:
            return 0.0
        share = 1.0 if horizon_s >= last_s else (horizon_s - first_s) / (last_s - first_s)
        awake_s = horizon_s - (first_s + min(last_s, horizon_s)) / 2.0
        part = min(awake_s / mean.span_s, 1.0) if mean.span_s > 0.0 else 1.0
        return share * max(mean.queries * part, 1.0)

    def _window_s(self, sleeper: _Sleeper, now_s: float) -> tuple[float, float] | None:
        """Returns the earliest and the latest awakening, seconds from now; None if unpredictable.

        It uses the more regular of the two kinds of intervals.
        """
        found: tuple[float, float] | None = None
        least_spread_s = inf
        for intervals_s, since_s in (
            (sleeper.periods_s, now_s - sleeper.woke_s),
            (sleeper.pauses_s, now_s - sleeper.heard_s),
        ):
            if len(intervals_s) < _FEWEST:
                continue
            shortest_s, longest_s = _range(intervals_s)
            allowed_s = max(self.tolerance * median(intervals_s), 2.0 * self._elapsed_s)
            spread_s = longest_s - shortest_s
            if spread_s > allowed_s or since_s > longest_s + allowed_s:
                continue
            if spread_s < least_spread_s:
                least_spread_s = spread_s
                found = max(shortest_s - since_s, 0.0), max(longest_s - since_s, 0.0)
        return found


def _range(intervals_s: Sequence[float] | deque[float]) -> tuple[float, float]:
    """Returns the shortest and the longest interval, of many without the extremes."""
    ordered = sorted(intervals_s)
    kept = ordered[1:-1] if len(ordered) >= _ROBUST else ordered
    return kept[0], kept[-1]
