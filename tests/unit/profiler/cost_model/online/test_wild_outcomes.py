"""Estimates never go wild: whatever one outcome says, and however many of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.variants.estimates import Load

from .helpers import IDLE, lognormal, make_model, one_s, placement, tell

P = placement(0)
STRANGE = [math.nan, math.inf, -math.inf, 0.0, -0.01, 1e-12, 1e12]


def quantiles(model: ServingCostModel, load: Load = IDLE) -> list[float]:
    estimates = model.estimate((P,), 1, load)
    return [float(q[0]) for q in (estimates.p50_s, estimates.p90_s, estimates.p99_s)]


def settled(make: Any) -> ServingCostModel:
    model = make_model(make)
    tell(model, 1000, lognormal(0.05))
    return model


@pytest.mark.parametrize("latency_s", [*STRANGE, 1000 * one_s(0), one_s(0) / 1000])
def test_what_cannot_be_true_changes_nothing(make: Any, latency_s: float) -> None:
    model = settled(make)
    before = quantiles(model)
    for _ in range(1000):
        model.observe(P, 1, IDLE, latency_s)
    assert quantiles(model) == before
    (counted,) = model.coverage()
    assert (counted.outcomes, counted.ignored) == (1000, 1000)


@pytest.mark.parametrize("ratio", [49.0, 1 / 49.0])
def test_one_outlier_is_a_bounded_shift_and_soon_forgotten(make: Any, ratio: float) -> None:
    """A stopped process that goes on: once 49 times as long."""
    model = settled(make)
    before = quantiles(model)
    model.observe(P, 1, IDLE, ratio * one_s(0))
    after = quantiles(model)
    assert after[0] == pytest.approx(before[0], rel=0.06)
    assert after[1] == pytest.approx(before[1], rel=0.10)
    assert after[2] == pytest.approx(before[2], rel=0.15)
    for _ in range(50):
        model.observe(P, 1, IDLE, one_s(0))
    assert quantiles(model)[0] == pytest.approx(before[0], rel=0.02)


@pytest.mark.parametrize("ratio", [49.0, 1 / 49.0])
def test_the_very_first_outcome_moves_little_too(make: Any, ratio: float) -> None:
    model = make_model(make)
    before = quantiles(model)
    model.observe(P, 1, IDLE, ratio * one_s(0))
    for here, there in zip(quantiles(model), before, strict=True):
        assert abs(math.log(here / there)) < 0.4


@pytest.mark.parametrize("factor", [8.0, 0.2])
def test_a_lasting_change_is_followed_within_fifty_outcomes(make: Any, factor: float) -> None:
    model = settled(make)
    for _ in range(50):
        model.observe(P, 1, IDLE, factor * one_s(0))
    assert quantiles(model)[0] == pytest.approx(factor * one_s(0), rel=0.1)


def test_after_a_storm_all_is_well_within_200_outcomes(make: Any) -> None:
    model = settled(make)
    rng = np.random.default_rng(3)
    for _ in range(200):
        model.observe(P, 1, Load(float(rng.integers(60))), one_s(0) * 45.0 ** rng.uniform(-1, 1))
    for _ in range(200):
        model.observe(P, 1, IDLE, one_s(0) * float(rng.lognormal(0.0, 0.05)))
    assert quantiles(model)[0] == pytest.approx(one_s(0), rel=0.1)


@given(
    outcomes=st.lists(
        st.tuples(
            st.one_of(st.floats(), st.floats(0.0002, 0.5)), st.floats(), st.floats(), st.booleans()
        ),
        max_size=60,
    )
)
def test_estimates_stay_finite_positive_and_in_order(
    make: Any, outcomes: list[tuple[float, float, float, bool]]
) -> None:
    model = make_model(make, count=2)
    for latency_s, busy, at_s, first in outcomes:
        before = quantiles(model)
        model.observe(placement(0 if first else 1), 1, Load(busy, at_s), latency_s)
        shift = [abs(math.log(b / a)) for a, b in zip(before, quantiles(model), strict=True)]
        assert max(shift) < 1.5
    for load in (IDLE, Load(3.0), Load(1e300), Load(math.nan), Load(-1.0), Load(math.inf)):
        p50_s, p90_s, p99_s = quantiles(model, load)
        assert 0.0 < p50_s <= p90_s <= p99_s < math.inf
