"""Times one loaded variant at one batch size until the median is known well enough.

The clock is an argument and the variant a ``LoadedVariant``; the module imports neither.

The statistics follow Hoefler and Belli, "Scientific Benchmarking of Parallel Computing Systems" (SC
2015): medians with order-statistic intervals, whose width is the rule to stop. Le Boudec,
"Performance Evaluation of Computer and Communication Systems" (2010), theorem 2.1, gives the
interval itself. They assume independent samples of one distribution; warm-up and noise checks make
that plausible.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.variants.estimates import FloatArray
from modelless.variants.runtimes.runtime import LoadedVariant, Tensors

_CONFIDENCE = 0.95
"""The confidence of the median's interval."""

_TAIL_START = 0.5
"""The quantile from which the tail is extrapolated when samples are few."""

_TAIL_CAP = 2.0
"""The most that an extrapolated quantile may be, as a multiple of the slowest sample."""


@lru_cache(maxsize=4096)
def median_ranks(count: int) -> tuple[int, int] | None:
    """Returns the ranks (1-based, low and high) of the samples that enclose the median.

    The number of samples below the median is Binomial(count, 1/2) whatever the distribution, so the
    interval [x_(low), x_(high)], high = count + 1 - low, covers it with probability 1 - 2
    P(Binomial <= low - 1). ``low`` is the largest rank that keeps 95 %.

    Returns:
        None where even the extremes do not keep 95 % (fewer than 6 samples).
    """
    if count < 1:
        return None
    allowed = int((1.0 - _CONFIDENCE) / 2.0 * 2.0**53) * (1 << count) >> 53
    term, tail, low = 1, 0, 0
    while 2 * low < count:
        tail += term  # term = C(count, low): exact in integers
        if tail > allowed:
            break
        term = term * (count - low) // (low + 1)
        low += 1
    return (low, count + 1 - low) if low >= 1 else None


def median_interval(ordered: FloatArray) -> tuple[float, float]:
    """Returns the 95 % interval of the median from samples in ascending order.

    Where ``median_ranks`` is None it is the extremes, with less confidence.
    """
    low, high = median_ranks(len(ordered)) or (1, len(ordered))
    return float(ordered[low - 1]), float(ordered[high - 1])


def median_of(ordered: FloatArray) -> float:
    """Returns the median of samples in ascending order."""
    count = len(ordered)
    return float(ordered[count // 2] + ordered[(count - 1) // 2]) / 2.0


def conservative_quantile(ordered: FloatArray, level: float) -> float:
    """Returns an estimate of a quantile that errs upwards when samples are few.

    With at least ``level / (1 - level)`` samples (9 for p90, 99 for p99) it is the sample of rank
    ceil((n + 1) level): the next run is at most that with probability ``level`` or more, whatever
    the distribution (for exchangeable samples; the same rank as in split conformal prediction).

    With fewer, no sample is high enough, so the tail is extrapolated. Excesses over the median of
    the slower half are taken as exponential, and the estimate is the predictive quantile of a next
    excess given the mean of k observed ones, ``mean * k * ((1 - u)^(-1/k) - 1)``, which for a true
    exponential is exact at any k (the ratio is F-distributed with 2 and 2k degrees of freedom). It
    is never less than the slowest sample, and never more than twice it.
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
    """Returns how far the interval reaches from the median to the larger side, as a share."""
    return max(high - median, median - low) / median if median > 0.0 else math.inf


def is_median_known(ordered: FloatArray, width: float) -> bool:
    """Returns whether the median's interval reaches at most ``width`` to either side."""
    if median_ranks(len(ordered)) is None:
        return False
    low, high = median_interval(ordered)
    return relative_width(low, median_of(ordered), high) <= width


def as_ordered(latencies_s: list[float]) -> FloatArray:
    """Returns latencies as an ascending array; refuses values that no working clock measures.

    Raises:
        InvalidInputError: no latencies, or one that is negative or not finite.
    """
    ordered = np.sort(np.asarray(latencies_s, dtype=np.float64))
    if ordered.size == 0:
        raise InvalidInputError.of("latencies_s", latencies_s, "at least one")
    if not (np.isfinite(ordered).all() and ordered[0] >= 0.0):
        raise InvalidInputError.of("latencies_s", latencies_s, "finite numbers, 0 or more")
    return ordered


FEWEST_REPEATS = 3
"""The runs timed even after the time limit; fewer do not give a median."""

_WARM_UP_RUNS = 2
_CHECK_GROWTH = 1.2
"""The growth of the sample between two checks of the interval.

Intervals become too narrow if they are checked often and the first narrow one ends the measurement.
"""


@dataclass(frozen=True, slots=True)
class MeasurementEffort:
    """How much effort to spend on one point.

    Attributes:
        relative_width: how far the median's confidence interval may reach to either side, as a
            share of the median.
        min_repeats: least timed runs: 6 give a 95 % interval, 9 a p90 without extrapolation.
        tail_repeats, min_time_s: for p90 and p99, continue for that many runs or that long,
            whichever comes first.
        max_repeats, max_time_s: stop there in any case; the time includes warming up.
        warm_up_s: least time before timing, but at most a quarter of ``max_time_s``.
    """

    relative_width: float = 0.05
    min_repeats: int = 9
    tail_repeats: int = 300
    max_repeats: int = 5000
    min_time_s: float = 0.25
    max_time_s: float = 2.0
    warm_up_s: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < self.relative_width < 1.0:
            raise InvalidInputError.of("effort.relative_width", self.relative_width, "0 to 1")
        if not FEWEST_REPEATS <= self.min_repeats <= self.max_repeats:
            raise InvalidInputError.of(
                "effort.min_repeats", self.min_repeats, f"{FEWEST_REPEATS} to max_repeats"
            )
        if not self.max_time_s > 0.0:
            raise InvalidInputError.of("effort.max_time_s", self.max_time_s, "more than 0")


@dataclass(frozen=True, slots=True)
class Timing:
    """The latency of one batch from ``repeats`` timed runs; seconds for the whole batch.

    Attributes:
        p50_s: the median.
        p90_s, p99_s: estimates that err upwards when runs are few (see ``conservative_quantile``).
        relative_width: how far the median's interval reaches, as a share of the median; that of the
            extremes if runs are too few for an interval, and inf if they are too few for a median.
    """

    repeats: int
    p50_s: float
    p90_s: float
    p99_s: float
    mean_s: float
    relative_width: float


def summarise(latencies_s: list[float]) -> Timing:
    """Returns the figures of one point from its timed runs.

    Raises:
        InvalidInputError: no latencies, or one that is negative or not finite.
        EnvironmentUnfitError: the clock is too coarse to measure a run.
    """
    ordered = as_ordered(latencies_s)
    count = len(ordered)
    median = median_of(ordered)
    if not median > 0.0:
        raise EnvironmentUnfitError(
            f"the clock cannot see a run: {count} runs took {ordered.sum():.3g} s together, "
            "yet half of them 0 s each; measure a larger batch"
        )
    low, high = median_interval(ordered)
    return Timing(
        repeats=count,
        p50_s=median,
        p90_s=max(median, conservative_quantile(ordered, 0.90)),
        p99_s=max(median, conservative_quantile(ordered, 0.99)),
        mean_s=float(ordered.mean()),
        relative_width=relative_width(low, median, high) if count >= FEWEST_REPEATS else math.inf,
    )


def measure_point(
    loaded: LoadedVariant,
    inputs: Tensors,
    effort: MeasurementEffort,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time ``loaded.infer(inputs)`` until ``effort`` is satisfied or spent."""
    started_s = clock()
    _warm_up(loaded, inputs, effort, clock, started_s)
    latencies_s: list[float] = []
    next_look = effort.min_repeats
    while True:
        before_s = clock()
        loaded.infer(inputs)
        now_s = clock()
        latencies_s.append(now_s - before_s)
        count, spent_s = len(latencies_s), now_s - started_s
        if count >= next_look and (count >= effort.tail_repeats or spent_s >= effort.min_time_s):
            if is_median_known(as_ordered(latencies_s), effort.relative_width):
                break
            next_look = int(count * _CHECK_GROWTH) + 1
        # No run starts that would end after the limit.
        is_too_late = spent_s + latencies_s[-1] > effort.max_time_s
        if count >= effort.max_repeats or (count >= FEWEST_REPEATS and is_too_late):
            break
    return summarise(latencies_s)


def _warm_up(
    loaded: LoadedVariant,
    inputs: Tensors,
    effort: MeasurementEffort,
    clock: Callable[[], float],
    started_s: float,
) -> None:
    runs = 0
    while runs < _WARM_UP_RUNS or clock() - started_s < effort.warm_up_s:
        loaded.infer(inputs)
        runs += 1
        if clock() - started_s >= effort.max_time_s / 4.0:
            break
