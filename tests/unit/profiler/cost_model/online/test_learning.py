"""Corrections learn contention and what a class shares, and forget."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.profiler.cost_model.online.residuals import ContentionCurve, Residuals
from modelless.variants.estimates import Load

from .helpers import IDLE, lognormal, make_model, one_s, placement, tell


def test_under_contention_the_error_falls_under_ten_percent_within_200_outcomes(make: Any) -> None:
    """Each of 0 to 3 busy neighbours adds 40 %: what was profiled is off by 38 % and more."""
    told = tell(
        make_model(make),
        400,
        lognormal(0.05),
        lambda _t, _number, load: 1.0 + 0.4 * load.busy_neighbours,
        loads=(1.0, 2.0, 3.0),
    )
    learned = float(np.median([outcome.error for outcome in told[200:]]))
    blind = make_model(make, learns=False)
    uncorrected = [
        abs(float(blind.estimate((placement(0),), 1, IDLE).p50_s[0]) / (one_s(0) * slowed) - 1.0)
        for slowed in (1.4, 1.8, 2.2)
    ]
    assert np.median(uncorrected) > 0.4
    assert learned < 0.07


def test_unseen_contention_is_learned_just_as_well(make: Any) -> None:
    told = tell(make_model(make), 400, lognormal(0.05), lambda t, _n, _load: 1.9)
    assert np.median([outcome.error for outcome in told[200:]]) < 0.06


def test_the_curve_bends(make: Any) -> None:
    """Two neighbours find idle cores, the next ones do not."""
    model = make_model(make)
    slowed = {0.0: 1.0, 1.0: 1.0, 2.0: 1.0, 4.0: 2.0}
    tell(
        model,
        2000,
        lognormal(0.03),
        lambda _t, _n, load: slowed[load.busy_neighbours],
        loads=slowed,
    )
    for busy, factor in slowed.items():
        found = float(model.estimate((placement(0),), 1, Load(busy)).p50_s[0]) / one_s(0)
        assert found == pytest.approx(factor, rel=0.08), busy


def test_without_learning_outcomes_are_counted_and_predictions_stay_as_profiled(make: Any) -> None:
    model = make_model(make, learns=False)
    profiled = model.estimate((placement(0),), 1, IDLE).p50_s[0]
    tell(model, 100, lognormal(0.01), lambda _t, _number, _load: 1.5)
    assert model.estimate((placement(0),), 1, IDLE).p50_s[0] == profiled
    (coverage,) = model.coverage()
    assert coverage.outcomes == 100
    assert coverage.median_error_percent == pytest.approx(100.0 / 3.0, abs=2.0)


@given(
    prior=st.floats(-1.0, 2.0),
    steps=st.lists(st.tuples(st.floats(0.0, 64.0), st.floats(-1.0, 1.0)), max_size=30),
    keep=st.floats(0.0, 1.0),
)
def test_a_curve_never_falls_whatever_it_learns(
    prior: float, steps: list[tuple[float, float]], keep: float
) -> None:
    curve = ContentionCurve(prior, 1.1)
    for busy, step in steps:
        curve.learn(busy, step)
    curve.fade(keep)
    values = [curve.at(busy) for busy in np.linspace(0.0, 64.0, 129)]
    assert values[0] == 0.0
    assert all(b >= a for a, b in pairwise(values))
    assert values[-1] <= 1.1 * 64.0 + 1e-9


def test_a_placement_never_seen_has_what_its_class_shows(make: Any) -> None:
    model = make_model(make, count=6)
    tell(model, 1000, lognormal(0.05), lambda _t, _n, _load: 2.0, count=5)
    assert model.correction(placement(0)) == pytest.approx(2.0, rel=0.05)
    assert 1.5 < model.correction(placement(5)) < 2.0
    model = make_model(make, count=6)
    factors = (1.0, 2.0, 0.5, 1.3, 0.77)
    tell(model, 1000, lognormal(0.05), lambda _t, number, _load: factors[number], count=5)
    assert model.correction(placement(5)) == pytest.approx(1.0, rel=0.1)
    for number, factor in enumerate(factors):
        assert model.correction(placement(number)) == pytest.approx(factor, rel=0.05)


def test_other_classes_learn_nothing() -> None:
    residuals = Residuals([0, 0, 1], [0.0, 0.0, 0.0])
    for _ in range(50):
        residuals.learn(0, 0.7, residuals.contention(0, 1.0), 1.0)
    assert residuals.location(1, 1.0) > 0.1
    assert residuals.location(2, 1.0) == 0.0


def test_one_and_many_rows_are_told_the_same() -> None:
    rng = np.random.default_rng(4)
    residuals = Residuals([0, 1, 0, 1], [0.1, 0.3, 0.2, 0.0])
    for step in range(500):
        row, load = int(rng.integers(4)), float(rng.choice([0.0, 0.7, 3.0]))
        residuals.learn(row, float(rng.normal(0.3, 0.2)), residuals.contention(row, load), load)
        if step % 100 == 99:
            residuals.fade_curves(0.9)
            residuals.forget(row)
    residuals.trust(np.array([1.0, 0.5, 0.1, 0.0]))
    for load in (0.0, 0.7, 5.0):
        many = residuals.locations(np.arange(4), load)
        assert many == pytest.approx([residuals.location(row, load) for row in range(4)])


def test_what_was_measured_of_neighbours_counts_until_more_is_seen() -> None:
    residuals = Residuals([0, 0], [math.log(1.2), math.log(1.6)])
    assert residuals.location(0, 1.0) == pytest.approx(math.log(1.2))
    assert residuals.location(1, 1.0) == pytest.approx(math.log(1.6))
    assert residuals.location(1, 0.0) == 0.0
    for _ in range(300):
        for load, ratio_log in ((0.0, 0.0), (1.0, math.log(2.0))):
            residuals.learn(1, ratio_log, residuals.contention(1, load), load)
    assert residuals.location(1, 1.0) == pytest.approx(math.log(2.0), abs=0.03)
    residuals.trust(np.zeros(2))
    residuals.fade_curves(0.0)
    assert residuals.location(1, 1.0) == pytest.approx(math.log(1.6))


@pytest.mark.parametrize("at_s", [1e12, -1e12, math.nan, math.inf, -math.inf])
def test_a_clock_that_jumps_costs_half_of_what_is_known_at_most(make: Any, at_s: float) -> None:
    model = make_model(make, count=2)
    for number in range(300):
        model.observe(placement(0), 1, Load(at_s=0.1 * number), 2.0 * one_s(0))
    before = model.correction(placement(0))
    model.observe(placement(0), 1, Load(at_s=at_s), 2.0 * one_s(0))
    assert model.correction(placement(0)) == pytest.approx(before, rel=0.02)
    for number in range(20):
        model.observe(placement(0), 1, Load(at_s=30.0 + number), 2.0 * one_s(0))
    assert model.correction(placement(0)) == pytest.approx(2.0, rel=0.02)
