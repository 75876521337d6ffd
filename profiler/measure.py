"""Measuring one loaded variant at one batch: warm up, repeat until the median is known well enough.

Neither the clock nor the engine is imported: the clock is an argument, the variant a LoadedVariant.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from modelless.profiler.quantiles import (
    as_ordered,
    conservative_quantile,
    is_median_known,
    median_interval,
    median_of,
    relative_width,
)
from modelless.variants.errors import EnvironmentUnfitError, InvalidInputError
from modelless.variants.runtimes.base import LoadedVariant, Tensors

FEWEST_REPEATS = 3
"""Taken even when the time limit has passed: below that not even a median can be spoken of."""

_CHECK_GROWTH = 1.2
"""The interval is looked at each time the samples have grown by this factor, not after every run:
looking often and stopping at the first good look makes intervals a little optimistic."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try for one point.

    Attributes:
        relative_width: how far the median's confidence interval may reach to either side, as a
            share of the median.
        confidence: of that interval.
        min_repeats: at least as many timed runs: 6 give a 95 % interval at all, 9 a p90 without
            extrapolating.
        tail_repeats, min_time_s: for the sake of p90 and p99, go on to that many runs, or for that
            long, whichever comes first.
        max_repeats, max_time_s: stop there, sure or not; the time includes warming up.
        warm_up_runs, warm_up_s: before timing, at least as many runs and as long, but no more than
            a quarter of ``max_time_s`` once one has run.
    """

    relative_width: float = 0.05
    confidence: float = 0.95
    min_repeats: int = 9
    tail_repeats: int = 300
    max_repeats: int = 5000
    min_time_s: float = 0.25
    max_time_s: float = 2.0
    warm_up_runs: int = 2
    warm_up_s: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < self.relative_width < 1.0:
            raise InvalidInputError.of("effort.relative_width", self.relative_width, "0 to 1")
        if not 0.0 < self.confidence < 1.0:
            raise InvalidInputError.of("effort.confidence", self.confidence, "0 to 1")
        if not FEWEST_REPEATS <= self.min_repeats <= self.max_repeats:
            raise InvalidInputError.of(
                "effort.min_repeats", self.min_repeats, f"{FEWEST_REPEATS} to max_repeats"
            )
        if not self.max_time_s > 0.0:
            raise InvalidInputError.of("effort.max_time_s", self.max_time_s, "more than 0")


class StopReason(StrEnum):
    """Why measuring a point ended."""

    CONFIDENT = "confident"
    TIME_LIMIT = "time-limit"
    REPEAT_LIMIT = "repeat-limit"


@dataclass(frozen=True, slots=True)
class Timing:
    """The latency of one batch, from ``repeats`` timed runs. Seconds for the whole batch.

    Attributes:
        p50_s: the median.
        low_s, high_s: the median's confidence interval; the extremes if runs are too few for one.
        p90_s, p99_s: estimates that err upwards when runs are few (see ``conservative_quantile``).
        total_s: time spent, warming up included.
        confident: the interval is as narrow as was asked for.
    """

    repeats: int
    p50_s: float
    p90_s: float
    p99_s: float
    mean_s: float
    low_s: float
    high_s: float
    total_s: float
    confident: bool
    stopped: StopReason

    @property
    def relative_width(self) -> float:
        """How far the interval reaches from the median, as a share of it; inf if there is none."""
        if self.repeats < FEWEST_REPEATS:
            return math.inf
        return relative_width(self.low_s, self.p50_s, self.high_s)


def summarise(
    latencies_s: list[float], effort: Effort, *, total_s: float, stopped: StopReason
) -> Timing:
    """The figures of one point from its timed runs.

    Raises:
        InvalidInputError: none, negative or not a number.
        EnvironmentUnfitError: the clock is too coarse to see a run.
    """
    ordered = as_ordered(latencies_s)
    count = len(ordered)
    median = median_of(ordered)
    if not median > 0.0:
        raise EnvironmentUnfitError(
            f"the clock cannot see a run: {count} runs took {total_s:.3g} s together, "
            "yet half of them 0 s each; measure a larger batch"
        )
    low, high = median_interval(ordered, effort.confidence)
    return Timing(
        repeats=count,
        p50_s=median,
        p90_s=max(median, conservative_quantile(ordered, 0.90)),
        p99_s=max(median, conservative_quantile(ordered, 0.99)),
        mean_s=float(ordered.mean()),
        low_s=low,
        high_s=high,
        total_s=total_s,
        confident=is_median_known(ordered, effort.relative_width, effort.confidence),
        stopped=stopped,
    )


def measure_point(
    loaded: LoadedVariant,
    inputs: Tensors,
    effort: Effort,
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
            ordered = as_ordered(latencies_s)
            if is_median_known(ordered, effort.relative_width, effort.confidence):
                stopped = StopReason.CONFIDENT
                break
            next_look = int(count * _CHECK_GROWTH) + 1
        if count >= effort.max_repeats:
            stopped = StopReason.REPEAT_LIMIT
            break
        # A run that would end past the limit is not begun.
        if count >= FEWEST_REPEATS and spent_s + latencies_s[-1] > effort.max_time_s:
            stopped = StopReason.TIME_LIMIT
            break
    return summarise(latencies_s, effort, total_s=clock() - started_s, stopped=stopped)


def _warm_up(
    loaded: LoadedVariant,
    inputs: Tensors,
    effort: Effort,
    clock: Callable[[], float],
    started_s: float,
) -> None:
    runs = 0
    while runs < effort.warm_up_runs or clock() - started_s < effort.warm_up_s:
        loaded.infer(inputs)
        runs += 1
        if clock() - started_s >= effort.max_time_s / 4.0:
            break
