"""A change is told from noise, marked, and followed faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from modelless.profiler.cost_model.online.shift_detector import ShiftDetector

from .helpers import IDLE, lognormal, make_model, one_s, placement, tell

Residuals = Callable[[np.random.Generator, int], np.ndarray[Any, Any]]


def correlated(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Neighbouring residuals correlated by 0.5, as bursts make them."""
    noise = rng.normal(0.0, 0.1, count)
    for t in range(1, count):
        noise[t] += 0.5 * noise[t - 1]
    return noise


@pytest.mark.parametrize(
    ("residuals", "most"),
    [
        (lambda rng, n: rng.normal(0.0, 0.1, n), 0),
        (lambda rng, n: rng.normal(0.0, 0.01, n), 0),
        (lambda rng, n: np.log1p(rng.exponential(0.2, n)), 0),
        (lambda rng, n: 0.1 * rng.standard_t(3.0, n), 0),
        (correlated, 20),
    ],
)
def test_false_alarms_are_as_rare_as_stated(residuals: Residuals, most: int) -> None:
    rng, rows, outcomes = np.random.default_rng(0), 50, 4000
    detector = ShiftDetector(rows)
    alarms = 0
    for row in range(rows):
        stream = residuals(rng, outcomes).tolist()
        alarms += sum(detector.observe(row, residual) for residual in stream)
    assert alarms <= most  # in 200,000


@pytest.mark.parametrize(
    ("shift", "median", "most"), [(0.2, 20, 60), (0.3, 11, 20), (-0.3, 11, 20)]
)
def test_a_shift_is_found_as_soon_as_stated(shift: float, median: int, most: int) -> None:
    rng = np.random.default_rng(2)
    delays = []
    for _ in range(100):
        detector = ShiftDetector(1)
        assert not any(detector.observe(0, x) for x in rng.normal(0.0, 0.1, 300).tolist())
        found = (detector.observe(0, x) for x in rng.normal(shift, 0.1, 1000).tolist())
        delays.append(1 + next(number for number, alarm in enumerate(found) if alarm))
    assert np.median(delays) <= median
    assert np.quantile(delays, 0.95) <= most


def test_single_outliers_are_no_alarm(make: Any) -> None:
    model = make_model(make)
    tell(
        model,
        4000,
        lognormal(0.05),
        lambda t, _n, _load: 40.0 if t % 40 == 0 else 1.0,
    )
    assert model.drifts() == ()


def test_a_profile_wrong_from_the_start_is_corrected_and_no_alarm(make: Any) -> None:
    model = make_model(make)
    tell(model, 4000, lognormal(0.05), lambda _t, _n, _load: 2.5)
    assert model.drifts() == ()


def test_contention_is_no_alarm(make: Any) -> None:
    model = make_model(make)
    tell(
        model,
        6000,
        lognormal(0.05),
        lambda _t, _n, load: 1.0 + 0.5 * load.busy_neighbours,
        loads=(0.0, 1.0, 2.0),
    )
    assert model.drifts() == ()


def test_a_shifted_placement_is_marked_and_the_others_are_not(make: Any) -> None:
    model = make_model(make)
    tell(model, 3000, lognormal(0.05), lambda t, n, _load: 1.5 if n == 2 and t >= 1500 else 1.0)
    (drift,) = model.drifts()
    assert drift.placement == placement(2)
    assert drift.alarms == 1
    assert drift.factor == pytest.approx(1.5, rel=0.05)
    assert 75.0 <= drift.at_s < 90.0


def test_what_came_back_is_marked_no_more(make: Any) -> None:
    model = make_model(make)
    tell(model, 2000, lognormal(0.05), lambda t, n, _load: 1.5 if n == 2 and t >= 1500 else 1.0)
    assert [drift.placement for drift in model.drifts()] == [placement(2)]
    tell(model, 1000, lognormal(0.05))
    assert model.drifts() == ()


def test_after_an_alarm_the_residual_follows_faster(make: Any) -> None:
    model = make_model(make, count=1)
    rng = np.random.default_rng(1)
    for _ in range(300):
        model.observe(placement(0), 1, IDLE, one_s(0) * float(rng.lognormal(0.0, 0.05)))
    after = 0
    while not model.drifts():
        model.observe(placement(0), 1, IDLE, 3.0 * one_s(0) * float(rng.lognormal(0.0, 0.05)))
        after += 1
    for _ in range(10):
        model.observe(placement(0), 1, IDLE, 3.0 * one_s(0) * float(rng.lognormal(0.0, 0.05)))
    assert after <= 10
    assert model.correction(placement(0)) > 2.5
