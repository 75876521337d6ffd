"""Lag quantile: predicts a quantile of demand from the means of past windows.

Linear quantile regression (Koenker and Bassett, Econometrica 1978) on the mean rates of past
windows and on the Poisson spread that goes with them, fitted online by subgradient steps of the
pinball loss. Capacity must cover the peaks, so scaling needs a high quantile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.forecast.observed_rates import MAX_RATE_PER_S, ObservedRates
from modelless.policies.seams import Forecaster
from modelless.policies.views import FloatArray

_MOST_POINTS = 1024
_FIRST_SPREAD = 1.0  # standard deviations above the mean, before anything was learned


class LagQuantile(Forecaster):
    """A quantile of the mean rate over the next ``horizon_s``, whatever horizon is asked for.

    Args:
        quantile: quantile of demand, more than 0 and less than 1.
        lags_s: lengths of the past windows whose mean rates are used, seconds.
        horizon_s: horizon of the demand to learn, seconds; the same as ``forecast_horizon_s`` of
            the planner.
        step: size of a learning step, on the scale of the features.
    """

    def __init__(
        self,
        quantile: float = 0.9,
        lags_s: Sequence[float] = (10.0, 30.0, 120.0),
        horizon_s: float = 10.0,
        step: float = 0.005,
    ) -> None:
        if not 0.0 < quantile < 1.0:
            raise InvalidInputError.of("quantile", quantile, "more than 0, less than 1")
        if not lags_s or not all(0.0 < lag_s < inf for lag_s in lags_s):
            raise InvalidInputError.of("lags_s", lags_s, "seconds, more than 0, one or several")
        if not 0.0 < horizon_s < inf:
            raise InvalidInputError.of("horizon_s", horizon_s, "seconds, more than 0")
        if not 0.0 < step <= 1.0:
            raise InvalidInputError.of("step", step, "more than 0, up to 1")
        self.quantile = quantile
        self.lags_s = tuple(sorted(map(float, lags_s)))
        self.horizon_s = horizon_s
        self.step = step
        self._observed = ObservedRates()
        self._scopes: list[str] = []  # rows of the arrays below
        lags = len(self.lags_s)
        self._first_weights = np.array([1.0 / lags] * lags + [_FIRST_SPREAD])
        self._weights: FloatArray = np.empty((0, lags + 1))
        # Seconds at each observation from some start, and arrivals by scope up to then. The history
        # is always long enough for the lags: at first it is invented.
        self._needed_s = self.lags_s[-1] + horizon_s
        self._seconds: FloatArray = np.array([0.0, self._needed_s])
        self._arrivals: FloatArray = np.empty((0, 2))

    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        elapsed_s, rates = self._observed.record(now_s, arrivals_per_s)
        self._keep_scopes(rates)
        if self._seconds[-1] + elapsed_s > self._seconds[-1] and self._scopes:
            self._append(elapsed_s, rates)
            self._learn()

    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        if not self._scopes:
            return {}
        features = self._features(self._seconds[-1])
        rates = np.clip((self._weights * features).sum(axis=1), 0.0, MAX_RATE_PER_S)
        return dict(zip(self._scopes, rates.tolist(), strict=True))

    def _keep_scopes(self, rates: Mapping[str, float]) -> None:
        """Add rows for new scopes and remove those of forgotten ones."""
        gone = self._observed.forgotten
        if gone:
            rows = [row for row, scope in enumerate(self._scopes) if scope not in gone]
            self._scopes = [self._scopes[row] for row in rows]
            self._weights, self._arrivals = self._weights[rows], self._arrivals[rows]
        known = set(self._scopes)
        new = [scope for scope in rates if scope not in known]
        if new:
            self._scopes += new
            self._weights = np.vstack([self._weights, np.tile(self._first_weights, (len(new), 1))])
            # As if the scope had always had the rate of its first observation.
            first = np.array([rates[scope] for scope in new])[:, None] * self._seconds
            self._arrivals = np.vstack([self._arrivals, first])

    def _append(self, elapsed_s: float, rates: Mapping[str, float]) -> None:
        last = self._arrivals[:, -1]
        # A scope without an observation keeps its rate.
        before = (last - self._arrivals[:, -2]) / (self._seconds[-1] - self._seconds[-2])
        now = np.array([rates.get(scope, before[row]) for row, scope in enumerate(self._scopes)])
        self._seconds = np.append(self._seconds, self._seconds[-1] + elapsed_s)
        self._arrivals = np.column_stack([self._arrivals, last + now * elapsed_s])
        begin_s = self._seconds[-1] - self._needed_s
        first = int(np.searchsorted(self._seconds, begin_s, side="right")) - 1
        first = max(first, 0, len(self._seconds) - _MOST_POINTS)
        # Both begin anew at 0, or sums would lose their last digits in the end.
        self._seconds = self._seconds[first:] - self._seconds[first]
        self._arrivals = self._arrivals[:, first:] - self._arrivals[:, first, None]

    def _learn(self) -> None:
        """One step, on the horizon that ends now."""
        begin_s = self._seconds[-1] - self.horizon_s
        if begin_s <= 0.0:
            return
        features = self._features(begin_s)
        came = (self._arrivals[:, -1] - self._upto(np.array([begin_s]))[:, 0]) / self.horizon_s
        under = (self._weights * features).sum(axis=1) < came
        slope = np.where(under, self.quantile, self.quantile - 1.0)
        # Features are divided by their length, or busy scopes would take larger steps.
        length = np.linalg.norm(features, axis=1)
        self._weights += (self.step * slope / length)[:, None] * features

    def _features(self, at_s: float) -> FloatArray:
        """Returns the features at ``at_s``, shape (scopes, lags + 1).

        They are the mean rates over the windows that end there, and the spread of the longest one.
        """
        begins_s = np.maximum(at_s - np.array(self.lags_s), 0.0)
        counts = self._upto(np.array([at_s])) - self._upto(begins_s)
        means = np.maximum(counts, 0.0) / (at_s - begins_s)
        longest = means[:, -1:]
        spread = np.sqrt((longest + 1.0 / self.lags_s[-1]) / self.horizon_s)
        return np.hstack([means, spread])

    def _upto(self, at_s: FloatArray) -> FloatArray:
        """Returns the arrivals up to each of ``at_s``, shape (scopes, len(at_s)).

        They are linear between observations.
        """
        right = np.clip(np.searchsorted(self._seconds, at_s), 1, len(self._seconds) - 1)
        left = right - 1
        share = (at_s - self._seconds[left]) / (self._seconds[right] - self._seconds[left])
        return self._arrivals[:, left] * (1.0 - share) + self._arrivals[:, right] * share
