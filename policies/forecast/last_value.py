"""Last value: predicts that the last rate continues."""

from __future__ import annotations

from collections.abc import Mapping

from modelless.policies.seams import Forecaster


class LastValue(Forecaster):
    """The random-walk forecast: hard to beat over short horizons; a reference for others."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        self._rates = dict(arrivals_per_s)

    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        return dict(self._rates)
