"""One point: how long it is measured, and what it says when it is not sure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.profiler.measure.timing import (
    FEWEST_REPEATS,
    MeasurementEffort,
    measure_point,
    summarise,
)

INPUTS = {"image": np.zeros((2, 1), np.uint8)}


def measured(make: Any, stream: Iterator[float], effort: MeasurementEffort) -> tuple[Any, Any]:
    clock = make.clock()
    loaded = make.loaded(make.variant(), 1, clock, lambda _batch: stream)
    return measure_point(loaded, INPUTS, effort, clock), loaded


def test_steady_latencies_stop_as_soon_as_the_tail_has_its_time(make: Any) -> None:
    timing, loaded = measured(make, repeat(0.010), MeasurementEffort(min_time_s=0.15))
    assert sum(loaded.runs) * 0.010 / 2 == pytest.approx(0.15, abs=0.021)
    assert timing.relative_width <= 0.05
    assert timing.repeats == len(loaded.runs) - 2  # two were for warming up
    assert timing.p50_s == pytest.approx(0.010)
    assert timing.mean_s == pytest.approx(0.010)


def test_quick_runs_stop_at_the_repeats_the_tail_needs(make: Any) -> None:
    timing, _ = measured(make, repeat(1e-5), MeasurementEffort(tail_repeats=300))
    assert timing.repeats == 300


def test_warming_up_is_not_counted(make: Any) -> None:
    stream = iter([5.0, 1.0, *repeat(0.010, 1000)])
    timing, _ = measured(make, stream, MeasurementEffort(max_time_s=100.0))
    assert timing.p99_s == pytest.approx(0.010)


def test_slow_runs_end_at_the_time_limit(make: Any) -> None:
    timing, _ = measured(make, repeat(0.9), MeasurementEffort(max_time_s=2.0))
    assert timing.repeats == FEWEST_REPEATS
    assert timing.relative_width < 1e-9


def test_latencies_that_never_settle_end_at_the_repeat_limit_and_say_so(make: Any) -> None:
    effort = MeasurementEffort(max_repeats=100, max_time_s=1000.0)
    timing, _ = measured(make, cycle((0.010, 0.020)), effort)
    assert timing.repeats == 100
    assert timing.relative_width > 0.05


def test_more_noise_takes_more_repeats(make: Any) -> None:
    rng = np.random.default_rng(0)
    effort = MeasurementEffort(tail_repeats=7, max_time_s=1000.0)
    counts = [
        measured(make, iter(0.01 * rng.lognormal(0.0, sigma, 10_000)), effort)[0].repeats
        for sigma in (0.01, 0.1, 0.3)
    ]
    assert counts == sorted(counts)
    assert counts[-1] > 4 * counts[0]


def test_a_confident_median_is_within_its_stated_width(make: Any) -> None:
    rng = np.random.default_rng(5)
    effort = MeasurementEffort(tail_repeats=7, max_time_s=1000.0)
    errors = [
        abs(measured(make, iter(rng.lognormal(0.0, 0.2, 10_000)), effort)[0].p50_s - 1.0)
        for _ in range(100)
    ]
    assert np.mean(np.array(errors) <= 0.06) >= 0.90


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=120))
def test_figures_are_in_order(samples: list[float]) -> None:
    timing = summarise(samples)
    assert timing.p50_s <= timing.p90_s <= timing.p99_s
    assert min(samples) <= timing.mean_s * (1 + 1e-9)


def test_a_clock_too_coarse_is_named(make: Any) -> None:
    with pytest.raises(EnvironmentUnfitError, match="clock cannot see"):
        measured(make, repeat(0.0), MeasurementEffort(max_repeats=50, warm_up_s=0.0))


@pytest.mark.parametrize(
    "settings",
    [
        {"relative_width": 0.0},
        {"min_repeats": 2},
        {"min_repeats": 50, "max_repeats": 40},
        {"max_time_s": 0.0},
    ],
)
def test_effort_refuses_nonsense(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match="effort"):
        MeasurementEffort(**settings)  # type: ignore[arg-type]
