"""Awakenings at regular intervals are forecast; others are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.forecast.ewma import Ewma
from modelless.policies.forecast.recurring import Recurring

BURST_S, PER_S = 10, 4.0


def told(wakes_s: Iterable[int], until_s: int, burst_s: int = BURST_S) -> Recurring:
    """A forecaster that was told of bursts, second by second: ``[wake, wake + burst)``."""
    forecaster = Recurring()
    awake = {second for wake_s in wakes_s for second in range(wake_s, wake_s + burst_s)}
    for second in range(until_s + 1):  # what came in the second that ends now
        forecaster.observe(float(second), {"b": PER_S if second - 1 in awake else 0.0})
    return forecaster


def test_a_burst_every_minute_is_due_when_its_time_comes() -> None:
    forecaster = told((30, 90, 150, 210), until_s=255)  # it will wake at 270
    assert not forecaster.awakenings(14.0)
    assert forecaster.awakenings(16.0)["b"] == pytest.approx(PER_S, rel=0.05)
    assert forecaster.awakenings(20.0)["b"] == pytest.approx(5 * PER_S, rel=0.05)
    assert forecaster.awakenings(600.0)["b"] == pytest.approx(BURST_S * PER_S, rel=0.05)
    assert forecaster.forecast(20.0)["b"] == pytest.approx(5 * PER_S / 20.0, rel=0.05)


def test_three_intervals_are_needed() -> None:
    assert not told((30, 90, 150), until_s=200).awakenings(60.0)
    assert told((30, 90, 150, 210), until_s=260).awakenings(60.0)


def test_bursts_of_any_length_are_told_by_their_beginnings_and_pauses_by_their_ends() -> None:
    by_the_clock, by_the_pause = Recurring(), Recurring()
    lengths_s = (4, 18, 9, 14, 4)
    begins_s = [60 * number for number in range(len(lengths_s))]
    after_pauses_s = np.cumsum([0, *(length_s + 40 for length_s in lengths_s[:-1])]).tolist()
    for forecaster, starts_s in ((by_the_clock, begins_s), (by_the_pause, after_pauses_s)):
        bursts = zip(starts_s, lengths_s, strict=True)
        awake = {s for start_s, length_s in bursts for s in range(start_s, start_s + length_s)}
        for second in range(max(awake) + 12):
            forecaster.observe(float(second), {"b": PER_S if second - 1 in awake else 0.0})
    assert not by_the_clock.awakenings(40.0)  # 15 s after it woke
    assert by_the_clock.awakenings(50.0)["b"] >= 1.0
    assert not by_the_pause.awakenings(25.0)  # 11 s after it fell silent
    assert by_the_pause.awakenings(35.0)["b"] >= 1.0


def test_one_that_is_a_little_overdue_is_due_at_once_and_then_given_up() -> None:
    wakes_s = (30, 90, 150, 210)
    assert told(wakes_s, until_s=273).awakenings(1.0)["b"] >= 1.0
    assert not told(wakes_s, until_s=290).awakenings(600.0)


def test_what_comes_by_chance_is_not_foreseen() -> None:
    rng = np.random.default_rng(1)
    forecaster, foreseen = Recurring(), 0
    for second in range(3600):
        rates = {str(scope): float(rng.poisson(0.03)) for scope in range(10)}
        forecaster.observe(float(second), rates)
        foreseen += len(forecaster.awakenings(20.0))
    assert foreseen < 0.01 * 36_000


def test_awake_it_is_the_moving_average() -> None:
    forecaster, average = Recurring(half_life_s=7.0), Ewma(half_life_s=7.0)
    for second in range(100):
        rates: Mapping[str, float] = {"b": float(second % 4)}
        forecaster.observe(float(second), rates)
        average.observe(float(second), rates)
        assert forecaster.forecast(10.0) == average.forecast(10.0)
        assert not forecaster.awakenings(10.0)


def test_a_clock_that_jumps_back_is_no_interval() -> None:
    forecaster = told((30, 90, 150, 210), until_s=260)
    forecaster.observe(5.0, {"b": 0.0})
    assert not forecaster.awakenings(600.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("quiet_s", 0.0), ("quiet_s", float("nan")), ("tolerance", 0.0), ("tolerance", 1.0)],
)
def test_settings_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidInputError, match=name):
        Recurring(**{name: value})
