"""Noise: what is counted, what is waited for, and how a watch looks back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.profiler.measure.noise import (
    CpuCounters,
    HostNoise,
    Noise,
    await_quiet,
    noise_between,
    parse_stat,
    read_counters,
    spread_of,
)

STAT = """cpu  400 0 100 9000 10 0 5 50 0 0
cpu0 300 10 50 4000 10 2 3 40 0 0
cpu1 100 0 50 5000 0 0 0 10 0 0
intr 1 2 3
"""


def counters(at_s: float, busy_s: float, own_s: float, steal_s: float = 0.0) -> CpuCounters:
    return CpuCounters(at_s, busy_s, steal_s, own_s, cores=2)


def test_the_kernels_counters_are_read_by_core() -> None:
    assert parse_stat(STAT, {0}, 0.01) == pytest.approx((3.65, 0.4, 1))
    assert parse_stat(STAT, {0, 1, 7}, 0.01) == pytest.approx((5.15, 0.5, 2))


def test_a_system_without_counters_is_not_called_noisy(tmp_path: Path) -> None:
    nothing = read_counters({0}, tmp_path / "stat")
    assert nothing.cores == 0
    assert noise_between(nothing, nothing, threads=1, spread=0.1) == Noise(spread=0.1)


def test_our_own_work_is_not_noise() -> None:
    noise = noise_between(counters(0, 0, 0), counters(1, 2.0, 2.0), threads=2)
    assert noise == Noise()


def test_a_neighbour_leaves_a_single_thread_its_core_but_not_two() -> None:
    before, after = counters(0, 0, 0), counters(1, 2.0, 1.0)
    assert noise_between(before, after, threads=1).contention == 0.0
    assert noise_between(before, after, threads=2).contention == pytest.approx(0.5)


def test_two_neighbours_contend_with_a_single_thread() -> None:
    noise = noise_between(counters(0, 0, 0), counters(1, 2.0, 0.5), threads=1)
    assert noise.contention == pytest.approx(0.5)
    assert noise.level == pytest.approx(2.0)


def test_stolen_time_is_a_share_of_all_cores() -> None:
    noise = noise_between(counters(0, 0, 0), counters(1, 1, 1, steal_s=0.2), threads=1)
    assert noise.steal == pytest.approx(0.1)
    assert noise.level > 1.0


@given(st.lists(st.floats(1e-6, 1.0), min_size=0, max_size=50))
def test_spread_is_never_negative(durations_s: list[float]) -> None:
    assert spread_of(durations_s) >= 0.0


def test_the_probe_sees_work_that_varies() -> None:
    now_s = 0.0
    steps: Iterator[float] = cycle((0.001, 0.001, 0.001, 0.003))

    def work() -> None:
        nonlocal now_s
        now_s += next(steps)

    gauge = HostNoise(lambda: counters(now_s, 0, 0), work=work, clock=lambda: now_s)
    noise = gauge.probe(threads=1, runs=40)
    assert noise.spread == pytest.approx(2.0)


def test_noise_that_stays_is_waited_for_three_times() -> None:
    probes = iter([Noise(spread=0.9, contention=0.5)] * 3)
    message = await_quiet(lambda: next(probes)).explain()
    assert "varies by 90% (limit 30%)" in message
    assert "50% of the wanted cores" in message
    assert next(probes, None) is None


def test_noise_that_passes_is_waited_for() -> None:
    probes = iter([Noise(steal=0.5), Noise()])
    assert await_quiet(lambda: next(probes)) == Noise()


def test_the_gauge_joins_short_windows() -> None:
    readings = iter([counters(t, 2 * t, t) for t in (0.0, 0.1, 0.2, 1.0, 1.1)])
    gauge = HostNoise(lambda: next(readings), window_s=0.5)
    for since_s in (0.05, 0.15, 0.9):
        # On two cores one neighbour is busy throughout: one of two wanted.
        assert gauge.since(since_s, threads=2, spread=0.0).contention == pytest.approx(0.5)


def test_the_gauge_forgets_what_is_long_past() -> None:
    readings = iter([counters(0, 0, 0), counters(10, 20, 0), counters(11, 21, 1)])
    gauge = HostNoise(lambda: next(readings), window_s=0.5)
    assert gauge.since(9.0, threads=1, spread=0.0).contention == pytest.approx(1.0)
    assert gauge.since(10.0, threads=1, spread=0.0).contention == 0.0


def test_this_host_can_be_asked() -> None:
    gauge = HostNoise()
    noise = gauge.probe(threads=1, runs=2)
    assert 0.0 <= noise.contention <= 1.0
    assert 0.0 <= gauge.since(0.0, threads=1, spread=0.5).steal <= 1.0
