"""What handing over costs is learnt, and forgotten while nobody pays it."""

from __future__ import annotations

import pytest

from modelless.controller.live.front.remote_workers import HALVES_S, REMEMBERED_S, Overhead


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_it_follows_what_is_measured() -> None:
    overhead = Overhead(0.0, 0.1, Clock())
    overhead.learn(0.010)
    assert overhead.seconds == pytest.approx(0.001)
    for _ in range(100):
        overhead.learn(0.010)
    assert overhead.seconds == pytest.approx(0.010, rel=0.01)
    overhead.learn(-1.0)
    assert overhead.seconds > 0.008


def test_one_outlier_counts_for_little_but_a_place_may_be_far_away() -> None:
    overhead = Overhead(0.002, 0.1, Clock(), most_growth=4.0)
    overhead.learn(2.0)
    assert overhead.seconds == pytest.approx(0.0026)
    far = Overhead(0.002, 0.1, Clock(), most_growth=4.0, believe_first=True)
    far.learn(0.040)
    assert far.seconds == pytest.approx(0.040)
    far.learn(2.0)
    assert far.seconds == pytest.approx(0.052)


def test_an_overload_that_nobody_is_admitted_to_is_forgotten() -> None:
    clock = Clock()
    overhead = Overhead(0.002, 0.1, clock, most_growth=4.0)
    for _ in range(200):
        overhead.learn(1.0)
    assert overhead.seconds == pytest.approx(1.0, rel=0.01)
    clock.now_s += REMEMBERED_S
    assert overhead.seconds == pytest.approx(1.0, rel=0.01)
    clock.now_s += HALVES_S
    assert overhead.seconds == pytest.approx(0.501, rel=0.01)
    clock.now_s += 20 * HALVES_S
    assert overhead.seconds == pytest.approx(0.002, abs=1e-5)
    overhead.learn(0.002)
    assert overhead.seconds == pytest.approx(0.002, abs=1e-5)
