"""How often each of many things is asked for, when what is popular changes at an unknown pace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from modelless.policies.views import FloatArray

_PRIOR_QUERIES = 0.5
_LEAST_PER_S = 1e-9


class Popularity:
    """Rates from decayed counts of several half-lives, mixed by how well each predicted lately.

    A short half-life follows changes, a long one tells rare things apart, and which is better is
    another matter for each name; so each of them is weighed, name by name, by the Poisson
    likelihood that it gave to what came (a discounted Bayesian mixture). Each estimate is drawn
    towards the mean of all names, as if half a query of it had been seen already.

    Args:
        half_lives_s: of the counts, seconds, ascending.
    """

    def __init__(self, half_lives_s: Sequence[float]) -> None:
        self._decay_per_s = math.log(2.0) / np.array(half_lives_s, dtype=np.float64)[:, None]
        self._forget_s = float(half_lives_s[-1])
        self._rows: dict[str, int] = {}
        self._counts: FloatArray = np.zeros((len(half_lives_s), 0))
        self._evidence: FloatArray = np.zeros((len(half_lives_s), 0))
        self._watched_s: FloatArray = np.zeros((len(half_lives_s), 1))

    def observe(self, span_s: float, counts: Mapping[str, float], names: Iterable[str]) -> None:
        """So many queries came by name in the last ``span_s`` seconds; of other names, none.

        ``names`` are all that there are: those not known yet are taken in, with no past.
        """
        for name in names:
            self._rows.setdefault(name, len(self._rows))
        if not self._rows:
            return
        missing = ((0, 0), (0, len(self._rows) - self._counts.shape[1]))
        self._counts = np.pad(self._counts, missing)
        self._evidence = np.pad(self._evidence, missing)
        came = np.zeros(len(self._rows))
        for name, count in counts.items():
            if name in self._rows:
                came[self._rows[name]] += count
        if self._watched_s.any():
            expected_per_s = self._rates_per_s()
            self._evidence *= 0.5 ** (span_s / self._forget_s)
            self._evidence += came * np.log(expected_per_s) - expected_per_s * span_s
        kept = np.exp(-self._decay_per_s * span_s)
        self._counts = self._counts * kept + came
        self._watched_s = self._watched_s * kept + (1.0 - kept) / self._decay_per_s

    def per_s(self) -> dict[str, float]:
        """Expected queries a second by name."""
        if not self._rows:
            return {}
        weights = np.exp(self._evidence - self._evidence.max(axis=0))
        mixed = (weights * self._rates_per_s()).sum(axis=0) / weights.sum(axis=0)
        return dict(zip(self._rows, mixed.tolist(), strict=True))

    def _rates_per_s(self) -> FloatArray:
        """By half-life and name."""
        watched_s = np.maximum(self._watched_s, _LEAST_PER_S)
        mean_per_s = self._counts.mean(axis=1, keepdims=True) / watched_s
        prior_s = _PRIOR_QUERIES / np.maximum(mean_per_s, _LEAST_PER_S)
        rates: FloatArray = (self._counts + _PRIOR_QUERIES) / (watched_s + prior_s)
        return rates
