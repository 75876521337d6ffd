"""A device shared by gateways: what it accepts, and that together they never over-commit it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modelless.controller.device.messages import BatchHandedIn, StartBatch, TurnBatchBack

from .driver import A, Driver

MOST_WAITING = 1


def shared() -> Driver:
    driver = Driver(most_waiting=MOST_WAITING)
    driver.hold(A)
    return driver


def remaining_s(driver: Driver) -> float:
    return driver.device.remaining_s(driver.now_s)


def test_an_idle_device_accepts_any_batch() -> None:
    driver = shared()
    assert remaining_s(driver) == 0.0
    driver.hand_in(A, 5.0, 0.0)
    assert len(driver.of(StartBatch)) == 1


def test_the_batch_that_runs_and_those_that_wait_keep_it() -> None:
    driver = shared()
    first = driver.hand_in(A, 1.0, 0.0)
    driver.now_s += 0.25
    second = driver.hand_in(A, 2.0, 1.0)
    assert remaining_s(driver) == pytest.approx(2.75)
    driver.now_s += 0.75
    driver.end_batch(first)
    assert remaining_s(driver) == pytest.approx(2.0)
    driver.now_s += 0.5
    assert remaining_s(driver) == pytest.approx(1.5)
    driver.end_batch(second)
    assert remaining_s(driver) == 0.0


@pytest.mark.parametrize("patience_s", [0.999, -1.0, math.nan])
def test_a_batch_that_cannot_wait_so_long_is_turned_back(patience_s: float) -> None:
    driver = shared()
    driver.hand_in(A, 1.0, 0.0)
    assert driver.handle(BatchHandedIn(9, A, 0.1, patience_s)) == [
        TurnBatchBack(9, 1.0, is_held=True)
    ]
    assert driver.handle(BatchHandedIn(9, A, 0.1, 1.0)) == [driver.of(StartBatch)[-1]]


def test_no_more_wait_than_may() -> None:
    driver = shared()
    for _ in range(1 + MOST_WAITING):
        driver.hand_in(A, 1.0, math.inf)
    assert len(driver.of(StartBatch)) == 1 + MOST_WAITING
    driver.hand_in(A, 1.0, math.inf)
    assert [back.others_s for back in driver.of(TurnBatchBack)] == [1.0 + MOST_WAITING]


def test_a_batch_that_is_late_is_expected_to_be_late_for_as_long_again() -> None:
    driver = shared()
    driver.hand_in(A, 1.0, 0.0)
    driver.now_s += 1.0
    assert 0.0 < remaining_s(driver) < 0.01
    driver.now_s += 3.0
    assert remaining_s(driver) == pytest.approx(3.0)


def test_a_batch_that_ends_out_of_turn_leaves_the_other_as_it_is() -> None:
    driver = shared()
    driver.hand_in(A, 1.0, 0.0)
    broken = driver.hand_in(A, 1.0, 2.0)
    driver.now_s += 0.5
    driver.end_batch(broken)
    assert remaining_s(driver) == pytest.approx(0.5)


@pytest.mark.parametrize("seed", range(20))
def test_accepted_batches_begin_in_time_whoever_sends_them(seed: int) -> None:
    """Each accepted batch begins before its patience ends, if batches take as long as expected."""
    rng = np.random.default_rng(seed)
    driver = shared()
    waiting: list[tuple[int, float, float]] = []  # batch, expected_s, to begin by
    ends_s = 0.0
    for _ in range(500):
        come_s = driver.now_s + float(rng.exponential(0.01))
        while waiting and ends_s <= come_s:
            driver.now_s = ends_s
            driver.end_batch(waiting.pop(0)[0])
            if waiting:
                assert driver.now_s <= waiting[0][2] + 1e-9
                ends_s = driver.now_s + waiting[0][1]
        driver.now_s = come_s
        expected_s, patience_s = map(float, rng.exponential(0.02, 2))
        batch_id = driver.hand_in(A, expected_s, patience_s)
        effect = driver.effects[-1]
        if isinstance(effect, TurnBatchBack):
            assert effect.others_s > patience_s or len(waiting) > MOST_WAITING
            continue
        waiting.append((batch_id, expected_s, driver.now_s + patience_s))
        assert len(waiting) <= 1 + MOST_WAITING
        if len(waiting) == 1:
            ends_s = driver.now_s + expected_s
