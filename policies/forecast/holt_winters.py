"""Holt-Winters: level, damped trend and an optional additive season.

Exponential smoothing after Holt (1957) and Winters (1960), with a trend damped after Gardner and
McKenzie (Management Science, 1985): rising demand keeps rising for a while, but not for ever. It
works in continuous time, so observations may come at any intervals: each smoothing constant is a
half-life, and the trend is a rate of change per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, expm1, inf, isfinite, log

from modelless.common.errors import InvalidInputError
from modelless.policies.forecast.observed_rates import MAX_RATE_PER_S, ObservedRates, newness
from modelless.policies.seams import Forecaster

_SEASONS_TO_HALF = 2.0


@dataclass(slots=True)
class _State:
    level: float
    trend_per_s: float
    season: list[float]


class HoltWinters(Forecaster):
    """The mean of the extrapolated rate over the horizon.

    Args:
        season_s: length of a season, such as 86400; null: none.
        level_half_life_s: seconds after which an observation counts half in the level.
        trend_half_life_s: the same for the trend, longer than that of the level.
        damping_half_life_s: seconds after which the predicted trend has halved.
        season_bins: parts of a season, each with its own deviation.
    """

    def __init__(
        self,
        season_s: float | None = None,
        level_half_life_s: float = 20.0,
        trend_half_life_s: float = 300.0,
        damping_half_life_s: float = 60.0,
        season_bins: int = 24,
    ) -> None:
        for name, value in (
            ("season_s", season_s),
            ("level_half_life_s", level_half_life_s),
            ("trend_half_life_s", trend_half_life_s),
            ("damping_half_life_s", damping_half_life_s),
        ):
            if value is not None and not 0.0 < value < inf:
                raise InvalidInputError.of(name, value, "seconds, more than 0")
        if type(season_bins) is not int or not 1 <= season_bins <= 1440:
            raise InvalidInputError.of("season_bins", season_bins, "a whole number, 1 to 1440")
        self.season_s = season_s
        self.level_half_life_s = level_half_life_s
        self.trend_half_life_s = trend_half_life_s
        self.damping_half_life_s = damping_half_life_s
        self.season_bins = season_bins
        self._observed = ObservedRates()
        self._states: dict[str, _State] = {}

    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        elapsed_s, rates = self._observed.record(now_s, arrivals_per_s)
        number = self._bin(0.0)
        for scope, rate in rates.items():
            state = self._states.get(scope)
            if state is None:
                bins = self.season_bins if self.season_s is not None else 1
                self._states[scope] = _State(rate, 0.0, [0.0] * bins)
            elif elapsed_s > 0.0:
                self._learn(state, elapsed_s, rate, number)
        for scope in self._observed.forgotten:
            self._states.pop(scope, None)

    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        horizon_s = horizon_s if isfinite(horizon_s) and horizon_s > 0.0 else 0.0
        damping_s = self.damping_half_life_s / log(2.0)
        # The mean over the horizon of the damped trend's sum up to each moment.
        reach_s = 0.0
        if horizon_s > 0.0:
            ratio = horizon_s / damping_s
            reach_s = damping_s * (1.0 + expm1(-ratio) / ratio)
        shares = self._shares(horizon_s)
        out = {}
        for scope, state in self._states.items():
            season = sum(share * state.season[number] for number, share in shares.items())
            rate = state.level + state.trend_per_s * reach_s + season
            out[scope] = min(max(rate, 0.0), MAX_RATE_PER_S)
        return out

    def _learn(self, state: _State, elapsed_s: float, rate: float, number: int) -> None:
        damping_s = self.damping_half_life_s / log(2.0)
        expected = state.level - state.trend_per_s * damping_s * expm1(-elapsed_s / damping_s)
        error = rate - state.season[number] - expected
        level = expected + newness(elapsed_s, self.level_half_life_s) * error
        damped = state.trend_per_s * exp(-elapsed_s / damping_s)
        trend_newness = newness(elapsed_s, self.trend_half_life_s)
        state.trend_per_s = damped + trend_newness * ((level - state.level) / elapsed_s - damped)
        state.level = level
        if self.season_s is not None:
            half_life_s = _SEASONS_TO_HALF * self.season_s / self.season_bins
            share = newness(elapsed_s, half_life_s)
            state.season[number] += share * (rate - level - state.season[number])

    def _bin(self, ahead_s: float) -> int:
        """Returns the part of the season ``ahead_s`` from the last observation."""
        if self.season_s is None:
            return 0
        phase = ((self._observed.now_s or 0.0) + ahead_s) % self.season_s / self.season_s
        return min(int(phase * self.season_bins), self.season_bins - 1)

    def _shares(self, horizon_s: float) -> dict[int, float]:
        """Returns about which share of the horizon falls on each part of the season."""
        if self.season_s is None:
            return {}
        samples = min(
            4 * self.season_bins, 1 + int(8 * horizon_s * self.season_bins / self.season_s)
        )
        shares: dict[int, float] = {}
        for sample in range(samples):
            number = self._bin(horizon_s * (sample + 0.5) / samples)
            shares[number] = shares.get(number, 0.0) + 1.0 / samples
        return shares
