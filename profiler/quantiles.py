"""Statistics of a handful of latencies, honest about what few samples can say.

Sources: Hoefler and Belli, "Scientific Benchmarking of Parallel Computing Systems" (SC 2015):
medians with order-statistic intervals, and their width as the rule to stop. Le Boudec,
"Performance Evaluation of Computer and Communication Systems" (2010), theorem 2.1: the interval
itself. All of it assumes samples that are independent and of one distribution; warm-up and the
noise watch are there to make that fair.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from modelless.variants.errors import InvalidInputError

FloatArray = NDArray[np.float64]

_TAIL_START = 0.5
"""The tail beyond few samples is drawn from here upwards: the slower half."""

_TAIL_CAP = 2.0
"""An extrapolated quantile is at most this many times the slowest sample seen."""


@lru_cache(maxsize=4096)
def median_ranks(count: int, confidence: float = 0.95) -> tuple[int, int] | None:
    """Ranks (1-based, low and high) of the samples that enclose the median with ``confidence``.

    The number of samples below the median is Binomial(count, 1/2) whatever the distribution, so the
    interval [x_(low), x_(high)], high = count + 1 - low, covers it with probability
    1 - 2 P(Binomial <= low - 1). The largest ``low`` that keeps ``confidence``; None where even the
    extremes do not (fewer than 6 samples at 95 %).
    """
    if count < 1:
        return None
    allowed = int((1.0 - confidence) / 2.0 * 2.0**53) * (1 << count) >> 53
    term, tail, low = 1, 0, 0
    while 2 * low < count:
        tail += term  # term = C(count, low): exact in integers
        if tail > allowed:
            break
        term = term * (count - low) // (low + 1)
        low += 1
    return (low, count + 1 - low) if low >= 1 else None


def median_interval(ordered: FloatArray, confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval of the median from samples in ascending order.

    The extremes, and so less confidence than asked for, where ``median_ranks`` is None.
    """
    low, high = median_ranks(len(ordered), confidence) or (1, len(ordered))
    return float(ordered[low - 1]), float(ordered[high - 1])


def median_of(ordered: FloatArray) -> float:
    """The median of samples in ascending order."""
    count = len(ordered)
    return float(ordered[count // 2] + ordered[(count - 1) // 2]) / 2.0


def conservative_quantile(ordered: FloatArray, level: float) -> float:
    """An estimate of a quantile that errs upwards when samples are few.

    With at least ``level / (1 - level)`` samples (9 for p90, 99 for p99) it is the sample of rank
    ceil((n + 1) level): the next run is at most that with probability ``level`` or more, whatever
    the distribution (for samples that are exchangeable; the same rank as in split conformal
    prediction).

    With fewer, no sample is high enough, so the tail is extrapolated: excesses over the median of
    the slower half are taken as exponential, and the estimate is the predictive quantile of a next
    excess given the mean of k seen ones, ``mean * k * ((1 - u)^(-1/k) - 1)``, which for a true
    exponential is exact at any k (the ratio is F-distributed with 2 and 2k degrees of freedom).
    Never less than the slowest sample, never more than twice it.
    """
    count = len(ordered)
    rank = math.ceil((count + 1) * level - 1e-9)
    if rank <= count:
        return float(ordered[rank - 1])
    slowest = float(ordered[-1])
    k = count // 2
    if k == 0:
        return _TAIL_CAP * slowest  # one sample says nothing of its spread
    median = median_of(ordered)
    mean = float((ordered[count - k :] - median).mean())
    beyond = (1.0 - level) / (1.0 - _TAIL_START)
    tail = median + mean * k * (math.pow(beyond, -1.0 / k) - 1.0)
    return min(max(slowest, tail), _TAIL_CAP * slowest)


def relative_width(low: float, median: float, high: float) -> float:
    """How far the interval reaches from the median, as a share of it: the larger side."""
    return max(high - median, median - low) / median if median > 0.0 else math.inf


def is_median_known(ordered: FloatArray, width: float, confidence: float) -> bool:
    """Whether the median's interval at ``confidence`` reaches at most ``width`` to either side."""
    if median_ranks(len(ordered), confidence) is None:
        return False
    low, high = median_interval(ordered, confidence)
    return relative_width(low, median_of(ordered), high) <= width


def as_ordered(latencies_s: list[float]) -> FloatArray:
    """Ascending array of latencies; refuses what no clock that works can have measured."""
    ordered = np.sort(np.asarray(latencies_s, dtype=np.float64))
    if ordered.size == 0:
        raise InvalidInputError.of("latencies_s", latencies_s, "at least one")
    if not (np.isfinite(ordered).all() and ordered[0] >= 0.0):
        raise InvalidInputError.of("latencies_s", latencies_s, "finite numbers, 0 or more")
    return ordered
