"""EWMA: the exponentially weighted moving average of the measured rates.

Simple exponential smoothing (Brown, 1956), as Proteus smooths its demand (Ahmad et al., ASPLOS
2024). Weights depend on the time that passed, not on the number of observations, so observations
may come at any intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from modelless.common.errors import InvalidInputError
from modelless.policies.forecast.observed_rates import ObservedRates, newness
from modelless.policies.seams import Forecaster


class Ewma(Forecaster):
    """The same rate over any horizon.

    Args:
        half_life_s: seconds after which an observation counts half.
    """

    def __init__(self, half_life_s: float = 20.0) -> None:
        if not 0.0 < half_life_s < inf:
            raise InvalidInputError.of("half_life_s", half_life_s, "seconds, more than 0")
        self.half_life_s = half_life_s
        self._observed = ObservedRates()
        self._rates: dict[str, float] = {}

    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        elapsed_s, rates = self._observed.record(now_s, arrivals_per_s)
        weight = newness(elapsed_s, self.half_life_s)
        for scope, rate in rates.items():
            known = self._rates.get(scope)
            self._rates[scope] = rate if known is None else known + weight * (rate - known)
        for scope in self._observed.forgotten:
            self._rates.pop(scope, None)

    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        return dict(self._rates)
