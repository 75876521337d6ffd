"""The forecasters: what they learn, from whatever they are told, and what they forget."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.forecast.ewma import Ewma
from modelless.policies.forecast.holt_winters import HoltWinters
from modelless.policies.forecast.lag_quantile import LagQuantile
from modelless.policies.forecast.observed_rates import (
    FORGET_AFTER_S,
    MAX_SCOPES,
    ObservedRates,
    newness,
)
from modelless.policies.forecast.recurring import Recurring
from modelless.policies.seams import Forecaster

ALL = [Ewma, HoltWinters, lambda: HoltWinters(season_s=60.0), LagQuantile, Recurring]
every = pytest.mark.parametrize(
    "make", ALL, ids=["ewma", "holt-winters", "season", "quantile", "recurring"]
)


def sound(rates: Mapping[str, float]) -> bool:
    return all(math.isfinite(rate) and rate >= 0.0 for rate in rates.values())


@every
def test_steady_demand_is_foreseen(make: type[Forecaster]) -> None:
    forecaster = make()
    for second in range(300):
        forecaster.observe(float(second), {"t": 40.0})
    assert forecaster.forecast(10.0)["t"] == pytest.approx(40.0, rel=0.15)


@every
def test_whatever_it_is_told_it_answers_with_rates(make: type[Forecaster]) -> None:
    forecaster = make()
    nan, inf = math.nan, math.inf
    clock = [0.0, 1.0, 1.0, nan, 2.0, inf, -5.0, -4.0, 1e9, 1e9 + 1e-9, 1e9 + 1.0, 0.0, -inf]
    told = [5.0, nan, inf, -3.0, 1e300, 0.0, 1e-300, -inf, 7.0]
    for number in range(200):
        rates = {"t": told[number % len(told)], "u": told[number % 4], "v": nan}
        forecaster.observe(clock[number % len(clock)], rates)
        for horizon_s in (0.0, 10.0, -1.0, 1e12, nan, inf):
            assert sound(forecaster.forecast(horizon_s))
    assert "v" not in forecaster.forecast(10.0)


@every
def test_a_rate_that_was_not_told_changes_nothing(make: type[Forecaster]) -> None:
    forecaster, other = make(), make()
    for second in range(60):
        forecaster.observe(float(second), {"t": 10.0})
        other.observe(float(second), {"t": 10.0 if second % 2 == 0 else math.nan})
    assert other.forecast(10.0)["t"] == pytest.approx(forecaster.forecast(10.0)["t"], rel=1e-6)


@every
def test_who_falls_silent_is_forgotten_in_the_end(make: type[Forecaster]) -> None:
    forecaster = make()
    forecaster.observe(0.0, {"gone": 50.0, "here": 1.0})
    for second in (1.0, 600.0, FORGET_AFTER_S):
        forecaster.observe(second, {"here": 1.0})
        assert set(forecaster.forecast(10.0)) == {"gone", "here"}
    assert forecaster.forecast(10.0)["gone"] < 10.0
    forecaster.observe(FORGET_AFTER_S + 1.0, {"here": 1.0})
    assert set(forecaster.forecast(10.0)) == {"here"}


@every
def test_made_up_scopes_do_not_pile_up(make: type[Forecaster]) -> None:
    forecaster = make()
    for second in range(4):
        forecaster.observe(
            float(second), {"regular": 9.0} | {f"made-up-{second}-{i}": 1.0 for i in range(2000)}
        )
    rates = forecaster.forecast(10.0)
    assert len(rates) == MAX_SCOPES
    assert "regular" in rates
    assert len(pickle.dumps(forecaster)) < 8 << 20


def test_the_ewma_goes_half_the_way_in_its_half_life_however_often_it_looks() -> None:
    for step_s in (0.5, 1.0, 10.0):
        forecaster = Ewma(half_life_s=10.0)
        forecaster.observe(0.0, {"t": 0.0})
        for number in range(1, int(10.0 / step_s) + 1):
            forecaster.observe(number * step_s, {"t": 8.0})
        assert forecaster.forecast(60.0)["t"] == pytest.approx(4.0)


def test_holt_winters_follows_a_trend_and_damps_it() -> None:
    forecaster, steady = HoltWinters(), Ewma()
    for second in range(600):
        for each in (forecaster, steady):
            each.observe(float(second), {"t": 100.0 + second})
    at_10_s, at_hour = (forecaster.forecast(h)["t"] for h in (10.0, 3600.0))
    assert abs(at_10_s - 704.0) < abs(steady.forecast(10.0)["t"] - 704.0)
    assert at_10_s < at_hour < 700.0 + 0.1 * 3600.0, "a trend does not go on for ever"


def test_holt_winters_irregular_intervals_are_weighed_by_their_length() -> None:
    rng = np.random.default_rng(0)
    forecaster = HoltWinters()
    now_s = 0.0
    for _ in range(400):
        forecaster.observe(now_s, {"t": 20.0 + 0.1 * now_s})
        now_s += float(rng.uniform(0.1, 5.0))
    assert forecaster.forecast(10.0)["t"] == pytest.approx(20.0 + 0.1 * now_s, rel=0.1)


def test_holt_winters_knows_the_season() -> None:
    def rate(second: float) -> float:
        return 100.0 + 50.0 * math.sin(2.0 * math.pi * second / 600.0)

    errors = {}
    for name, season_s in (("with", 600.0), ("without", None)):
        forecaster = HoltWinters(season_s, level_half_life_s=600.0, trend_half_life_s=6000.0)
        missed = []
        for second in range(6000):
            forecaster.observe(float(second), {"t": rate(second)})
            if second >= 3000:
                missed.append(abs(forecaster.forecast(60.0)["t"] - rate(second + 30.0)))
        errors[name] = np.mean(missed)
    assert errors["with"] < 0.25 * errors["without"]


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.98])
def test_the_quantile_is_kept_as_often_as_promised(quantile: float) -> None:
    rng = np.random.default_rng(1)
    forecaster = LagQuantile(quantile=quantile)
    counts = rng.poisson(rng.gamma(4.0, 5.0, 8000 // 20).repeat(20))
    kept = []
    for second in range(1, len(counts) - 10):
        forecaster.observe(float(second), {"t": float(counts[second - 1])})
        if second > 2000:
            kept.append(counts[second : second + 10].mean() <= forecaster.forecast(10.0)["t"])
    assert np.mean(kept) == pytest.approx(quantile, abs=0.04)


def test_a_higher_quantile_is_never_the_lower_forecast_of_bursty_demand() -> None:
    rng = np.random.default_rng(2)
    low, high = LagQuantile(quantile=0.5), LagQuantile(quantile=0.95)
    for second in range(2000):
        rate = float(rng.poisson(30.0))
        low.observe(float(second), {"t": rate})
        high.observe(float(second), {"t": rate})
    assert high.forecast(10.0)["t"] > low.forecast(10.0)["t"]


def test_the_quantile_keeps_a_bounded_past() -> None:
    forecaster = LagQuantile()
    for number in range(5000):
        forecaster.observe(0.01 * number, {"t": 5.0})
    assert len(pickle.dumps(forecaster)) < 50_000
    assert forecaster.forecast(10.0)["t"] == pytest.approx(5.0, rel=0.5)


def test_the_intake_tells_time_and_silence() -> None:
    intake = ObservedRates()
    assert intake.record(10.0, {"a": 1.0}) == (0.0, {"a": 1.0})
    assert intake.record(12.0, {"b": -4.0}) == (2.0, {"a": 0.0, "b": 0.0})
    assert intake.record(12.0, {"a": math.nan}) == (0.0, {"b": 0.0})
    assert intake.record(5.0, {}) == (0.0, {"a": 0.0, "b": 0.0})
    assert intake.record(6.0, {}) == (1.0, {"a": 0.0, "b": 0.0})


def test_newness_is_half_after_the_half_life() -> None:
    assert newness(0.0, 7.0) == 0.0
    assert newness(7.0, 7.0) == pytest.approx(0.5)
    assert newness(1e9, 7.0) == 1.0


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Ewma(half_life_s=0.0), "half_life_s"),
        (lambda: HoltWinters(season_s=-1.0), "season_s"),
        (lambda: HoltWinters(damping_half_life_s=math.inf), "damping_half_life_s"),
        (lambda: HoltWinters(season_bins=0), "season_bins"),
        (lambda: LagQuantile(quantile=1.0), "quantile"),
        (lambda: LagQuantile(lags_s=()), "lags_s"),
        (lambda: LagQuantile(horizon_s=math.nan), "horizon_s"),
        (lambda: LagQuantile(step=0.0), "step"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: type[Forecaster], field: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{field}: got"):
        make()
