"""Is one rate of bad events larger than another by more than a tolerance? Asked as often as wanted.

Two streams of independent yes-or-no events come in side by side, at whatever pace each; ``n`` of
them so far, ``x`` bad, with unknown rates p and q. For fixed (p, q), the probability of what was
seen under a mixture over all rates, over its probability under (p, q),

    M(p, q) = B(x + a, n - x + a) / B(a, a) / (p^x (1 - p)^(n - x)), times the same of the other,

is a martingale with mean 1: the mixture sequential probability ratio test (Robbins, Annals of
Mathematical Statistics 1970; for A/B tests: Johari et al., KDD 2017; as confidence sequences:
Howard et al., Annals of Statistics 2021). So by Ville's inequality it *ever* reaches 1/alpha with
probability at most alpha. Against a hypothesis that allows many (p, q) the least M among these is
taken, which is smaller still than that of the true one: an e-value at every moment, and no price
for looking at every one of them. B is the beta function and a = 1/2 (Jeffreys; the
Krichevsky-Trofimov estimator). Nothing is approximated.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

_PRIOR: Final = 0.5
_STEPS: Final = 45  # of bisection: fewer than would round a rate to 0 or 1


class Stream(NamedTuple):
    """Events so far: how many, and how many of them were bad."""

    total: int
    bad: int

    @property
    def rate(self) -> float:
        """The share that was bad; 0 of none."""
        return self.bad / self.total if self.total else 0.0


class Evidence(NamedTuple):
    """Natural logarithms of two e-values; 1/alpha is reached with probability alpha at most.

    Attributes:
        log_worse: against "at most ``tolerance`` worse": large if the version is worse.
        log_fine: against "at least ``tolerance`` worse": large if it is not.
    """

    log_worse: float
    log_fine: float


def weigh(tried: Stream, standing: Stream, tolerance: float) -> Evidence:
    """What two streams say of the difference of their rates, tried less standing.

    Args:
        tried: of the version on trial.
        standing: of the one it is compared with.
        tolerance: above 0 and below 1.
    """
    mixture = _log_mixture(tried) + _log_mixture(standing)
    best = sum(_log_likelihood(each, each.rate, 1.0 - each.rate) for each in (tried, standing))
    at_border = _most_likely_at(tried, standing, tolerance)
    is_beyond = tried.rate - standing.rate > tolerance
    return Evidence(
        log_worse=mixture - (at_border if is_beyond else best),
        log_fine=mixture - (best if is_beyond else at_border),
    )


def _log_mixture(stream: Stream) -> float:
    good = stream.total - stream.bad
    return _log_beta(stream.bad + _PRIOR, good + _PRIOR) - _log_beta(_PRIOR, _PRIOR)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_likelihood(stream: Stream, rate: float, rest: float) -> float:
    """``rest`` is 1 - ``rate``, which rounds to 0 before it is."""
    good = stream.total - stream.bad
    bad_part = stream.bad * math.log(rate) if stream.bad else 0.0
    return bad_part + (good * math.log(rest) if good else 0.0)


def _most_likely_at(tried: Stream, standing: Stream, difference: float) -> float:
    """The largest log likelihood among rates that differ by just that much.

    It is concave along this line, so the root of its slope is bisected.
    """
    most = 1.0 - difference
    low, high = 0.0, most  # of the standing one's rate
    for _ in range(_STEPS):
        rate = (low + high) / 2.0
        slope = _slope(tried, rate + difference, most - rate) + _slope(standing, rate, 1.0 - rate)
        low, high = (rate, high) if slope > 0.0 else (low, rate)
    rate = (low + high) / 2.0
    return _log_likelihood(tried, rate + difference, most - rate) + _log_likelihood(
        standing, rate, 1.0 - rate
    )


def _slope(stream: Stream, rate: float, rest: float) -> float:
    return stream.bad / rate - (stream.total - stream.bad) / rest
