"""Order statistics: the interval covers, the tail errs upwards, quantiles are in order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.common.errors import InvalidInputError
from modelless.profiler.measure.timing import (
    as_ordered,
    conservative_quantile,
    is_median_known,
    median_interval,
    median_of,
    median_ranks,
    relative_width,
)

latencies = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=300)


@pytest.mark.parametrize(
    ("count", "ranks"),
    # From published tables of the order-statistic interval for the median at 95 %.
    [(5, None), (6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)), (100, (40, 61))],
)
def test_ranks_agree_with_published_tables(count: int, ranks: tuple[int, int] | None) -> None:
    assert median_ranks(count) == ranks


@pytest.mark.parametrize("count", [6, 7, 25, 101, 2000])
def test_ranks_are_the_narrowest_that_keep_the_confidence(count: int) -> None:
    ranks = median_ranks(count)
    assert ranks is not None
    low, high = ranks
    assert low + high == count + 1

    def missed(low: int) -> float:
        return float(2 * sum(math.comb(count, i) for i in range(low)) / 2**count)

    assert missed(low) <= 0.05 < missed(low + 1)


def test_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        low, high = median_interval(np.sort(rng.lognormal(0.0, 0.5, 20)))
        covered += low <= 1.0 <= high
    assert covered / 2000 >= 0.945


def test_too_few_samples_are_never_known() -> None:
    assert not is_median_known(as_ordered([1.0] * 5), 0.05)
    assert is_median_known(as_ordered([1.0] * 6), 0.05)


@given(latencies)
def test_quantiles_are_in_order_and_bounded(samples: list[float]) -> None:
    ordered = as_ordered(samples)
    p50 = median_of(ordered)
    p90, p99 = (conservative_quantile(ordered, level) for level in (0.90, 0.99))
    assert p90 <= p99 <= 2.0 * ordered[-1]
    assert p50 <= max(p50, p90)
    if len(ordered) < 99:
        assert p99 >= ordered[-1]


@given(latencies, st.floats(0.001, 1000.0))
def test_quantiles_scale_with_the_samples(samples: list[float], factor: float) -> None:
    once = conservative_quantile(as_ordered(samples), 0.99)
    scaled = conservative_quantile(as_ordered([factor * sample for sample in samples]), 0.99)
    assert scaled == pytest.approx(factor * once, rel=1e-6)


@pytest.mark.parametrize("count", [7, 15, 40, 100, 400])
@pytest.mark.parametrize("level", [0.90, 0.99])
def test_the_next_run_is_within_the_quantile_as_often_as_it_says(count: int, level: float) -> None:
    """For latencies with an exponential tail; the cap at twice the slowest does not bind here."""
    rng = np.random.default_rng(2)
    samples = np.sort(10.0 + rng.exponential(1.0, (4000, count)), axis=1)
    following = 10.0 + rng.exponential(1.0, 4000)
    bounds = [conservative_quantile(row, level) for row in samples]
    assert np.mean(following <= bounds) >= level - 0.006


def test_a_single_sample_promises_nothing() -> None:
    assert conservative_quantile(as_ordered([0.5]), 0.99) == 1.0


def test_relative_width_takes_the_larger_side() -> None:
    assert relative_width(0.9, 1.0, 1.3) == pytest.approx(0.3)
    assert relative_width(0.0, 0.0, 1.0) == math.inf


@pytest.mark.parametrize("samples", [[], [math.nan], [1.0, -1.0], [math.inf]])
def test_impossible_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(InvalidInputError, match="latencies_s"):
        as_ordered(samples)
