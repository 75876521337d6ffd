"""A worker shared by gateways: what it accepts, and that together they never over-commit it."""

from __future__ import annotations

import numpy as np
import pytest

from modelless.controller.live.worker.sharing import MOST_WAITING, AcceptedWork, TurnedBack


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_idle_worker_accepts_whatever_comes() -> None:
    work = AcceptedWork(Clock())
    assert work.remaining_s() == 0.0
    assert not isinstance(work.accept(5.0, 0.0), TurnedBack)


def test_what_remains_is_that_of_the_batch_that_runs_and_of_those_that_wait() -> None:
    clock = Clock()
    work = AcceptedWork(clock)
    first = work.accept(1.0, 0.0)
    clock.now_s += 0.25
    second = work.accept(2.0, 1.0)
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert work.remaining_s() == pytest.approx(2.75)
    clock.now_s += 0.75
    work.done(first)
    assert work.remaining_s() == pytest.approx(2.0)
    clock.now_s += 0.5
    assert work.remaining_s() == pytest.approx(1.5)
    work.done(second)
    assert work.remaining_s() == 0.0


def test_who_cannot_wait_so_long_is_turned_back_and_told_how_long() -> None:
    work = AcceptedWork(Clock())
    work.accept(1.0, 0.0)
    assert work.accept(0.1, 0.999) == TurnedBack(1.0)
    assert work.accept(0.1, float("nan")) == TurnedBack(1.0)
    assert not isinstance(work.accept(0.1, 1.0), TurnedBack)


def test_no_more_wait_than_may() -> None:
    work = AcceptedWork(Clock())
    for _ in range(1 + MOST_WAITING):
        assert not isinstance(work.accept(1.0, float("inf")), TurnedBack)
    assert work.accept(1.0, float("inf")) == TurnedBack(1.0 + MOST_WAITING)


def test_a_batch_that_takes_longer_than_expected_keeps_the_worker_still() -> None:
    clock = Clock()
    work = AcceptedWork(clock)
    work.accept(1.0, 0.0)
    clock.now_s += 9.0
    assert 0.0 < work.remaining_s() < 0.01


def test_one_that_could_not_run_leaves_the_other_as_it_is() -> None:
    clock = Clock()
    work = AcceptedWork(clock)
    work.accept(1.0, 0.0)
    broken = work.accept(1.0, 2.0)
    clock.now_s += 0.5
    assert isinstance(broken, int)
    work.done(broken)
    assert work.remaining_s() == pytest.approx(0.5)


@pytest.mark.parametrize("seed", range(20))
def test_accepted_batches_begin_in_time_whoever_sends_them(seed: int) -> None:
    """Each accepted batch begins before its patience ends, if batches take as long as expected."""
    rng = np.random.default_rng(seed)
    clock = Clock()
    work = AcceptedWork(clock)
    waiting: list[tuple[int, float, float]] = []  # ticket, expected_s, to begin by
    ends_s = 0.0
    for _ in range(500):
        come_s = clock.now_s + float(rng.exponential(0.01))
        while waiting and ends_s <= come_s:
            clock.now_s = ends_s
            work.done(waiting.pop(0)[0])
            if waiting:
                assert clock.now_s <= waiting[0][2] + 1e-9
                ends_s = clock.now_s + waiting[0][1]
        clock.now_s = come_s
        expected_s, patience_s = rng.exponential(0.02), rng.exponential(0.02)
        ticket = work.accept(float(expected_s), float(patience_s))
        if isinstance(ticket, TurnedBack):
            assert ticket.others_s > patience_s or len(waiting) > MOST_WAITING
            continue
        waiting.append((ticket, float(expected_s), clock.now_s + float(patience_s)))
        assert len(waiting) <= 1 + MOST_WAITING
        if len(waiting) == 1:
            ends_s = clock.now_s + float(expected_s)
