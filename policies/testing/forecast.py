"""Checks of forecasters."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from modelless.policies.seams import Forecaster
from modelless.policies.testing.case import PolicyConformance, copy_of
from modelless.policies.testing.plain import plain
from modelless.policies.testing.process import Question

HORIZON_S = 10.0


class ForecasterConformance(PolicyConformance):
    """Declarations: ``PolicyConformance``'s."""

    seam = Forecaster

    def questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(61)
        asked: list[Question] = []
        for number in range(40):
            asked.append(("observe", (float(number), make_rates(rng, 3))))
            asked.append(("forecast", (HORIZON_S,)))
            asked.append(("awakenings", (HORIZON_S,)))
        return asked

    def large_questions(self, policy: Any) -> list[Question]:
        rates = make_rates(np.random.default_rng(62), 1000)
        asking: list[Question] = [("forecast", (HORIZON_S,)), ("awakenings", (HORIZON_S,))]
        return [("observe", (1.0, rates)), *asking]

    def service(self, policy: Any) -> Iterator[Question]:
        rng = np.random.default_rng(64)
        for number in itertools.count():
            yield "observe", (float(number), make_rates(rng, 3))

    def test_before_anything_was_seen(self, policy: Any) -> None:
        check_rates(policy.forecast(HORIZON_S))

    @pytest.mark.parametrize("scopes", [0, 1, 1000])
    def test_forecasts_rates(self, policy: Any, scopes: int) -> None:
        rng = np.random.default_rng(63)
        for number in range(20):
            policy.observe(float(number), make_rates(rng, scopes))
            for horizon_s in (0.0, 1.0, 3600.0):
                rates = policy.forecast(horizon_s)
                check_rates(rates)
                known = {f"task{scope}" for scope in range(scopes)}
                assert set(rates) <= known, f"forecast but never seen: {set(rates) - known}"
                waking = policy.awakenings(horizon_s)
                check_rates(waking)
                assert set(waking) <= known, f"to wake but never seen: {set(waking) - known}"

    def test_foresees_awakenings_of_what_sleeps_only(self, policy: Any) -> None:
        for number in range(300):
            rates = {"awake": 5.0, "sleeper": 5.0 if number % 60 < 10 else 0.0}
            policy.observe(float(number), rates)
            waking = policy.awakenings(HORIZON_S)
            check_rates(waking)
            awake = {scope for scope, rate in rates.items() if rate > 0.0}
            assert not awake & set(waking), f"foreseen to wake, but awake: {awake & set(waking)}"

    def test_silence_and_bursts(self, policy: Any) -> None:
        for number, rate in enumerate((0.0, 0.0, 1e6, 0.0, 1e-9, 1e6, 0.0)):
            policy.observe(float(number), {"task0": rate})
            check_rates(policy.forecast(HORIZON_S))

    def test_scopes_come_and_go(self, policy: Any) -> None:
        for number in range(10):
            policy.observe(float(number), {f"task{number}": 5.0})
            check_rates(policy.forecast(HORIZON_S))

    def test_the_same_moment_twice(self, policy: Any) -> None:
        for _ in range(3):
            policy.observe(1.0, {"task0": 5.0})
            check_rates(policy.forecast(HORIZON_S))

    def test_asking_does_not_change_the_answer(self, policy: Any) -> None:
        policy.observe(0.0, {"task0": 5.0})
        policy.observe(1.0, {"task0": 9.0})
        assert plain(policy.forecast(HORIZON_S)) == plain(policy.forecast(HORIZON_S))

    def test_keeps_nothing_that_others_may_change(self, policy: Any) -> None:
        rates = {"task0": 5.0}
        policy.observe(0.0, rates)
        before = plain(policy.forecast(HORIZON_S))
        rates["task0"] = 77.0
        assert plain(policy.forecast(HORIZON_S)) == before, "it kept the mapping it was given"
        dict(policy.forecast(HORIZON_S)).clear()
        answer = policy.forecast(HORIZON_S)
        if isinstance(answer, dict):
            answer.clear()
        assert plain(policy.forecast(HORIZON_S)) == before, "it gave away the mapping it keeps"

    def test_the_order_of_the_scopes_does_not_matter(self, policy: Any) -> None:
        if self.order_matters:
            pytest.skip("declared: order_matters")
        rng = np.random.default_rng(64)
        first, second = copy_of(policy), copy_of(policy)
        for number in range(10):
            rates = make_rates(rng, 20)
            first.observe(float(number), rates)
            second.observe(float(number), dict(reversed(rates.items())))
        assert dict(first.forecast(HORIZON_S)) == dict(second.forecast(HORIZON_S))


def make_rates(rng: np.random.Generator, scopes: int) -> dict[str, float]:
    """Returns random arrivals a second by scope."""
    return {f"task{number}": float(rng.exponential(20.0)) for number in range(scopes)}


def check_rates(rates: Mapping[str, float]) -> None:
    """Check that the rates are possible numbers of queries a second."""
    for scope, rate in rates.items():
        assert isinstance(scope, str), f"{scope!r} is no scope"
        assert 0.0 <= rate < float("inf"), f"{rate!r} queries a second of {scope!r}"
