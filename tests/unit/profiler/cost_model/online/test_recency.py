"""What was learned of a placement is trusted less while it has no outcomes, until it is tried."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.controller.dispatch.messages import LoadChanged
from modelless.profiler.cost_model.online.corrections import HALF_LIFE_S
from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement
from tests.unit.dispatch.world import LADDER, World

from .helpers import make_model, one_s, placement


def slow_minute(model: ServingCostModel, *numbers: int, ratio: float = 8.0) -> float:
    """These placements take so many times as long as profiled for a while; when that ended."""
    for second in range(60):
        for number in numbers:
            for _ in range(5):
                load = Load(at_s=float(second))
                model.observe(placement(number), 1, load, ratio * one_s(number))
    return 60.0


def correction_at(model: ServingCostModel, at_s: float, number: int = 0) -> float:
    model.estimate((placement(number),), 1, Load(at_s=at_s))
    return model.correction(placement(number))


def test_what_has_no_outcomes_returns_to_its_profile_with_the_stated_half_life(make: Any) -> None:
    model = make_model(make, count=2)
    now_s = slow_minute(model, 0, 1) - 1.0  # of the last outcome
    learned = model.correction(placement(0))
    assert learned > 7.0
    assert correction_at(model, now_s + 2.0) == pytest.approx(learned), "it is still fresh"
    for half_lives in (1, 2, 5):
        found = correction_at(model, now_s + 2.0 + half_lives * HALF_LIFE_S)
        assert found == pytest.approx(learned ** (0.5**half_lives), rel=0.03)


def test_a_quick_outcome_ends_the_doubt(make: Any) -> None:
    model = make_model(make, count=1)
    now_s = slow_minute(model, 0)
    assert correction_at(model, now_s + 15.0) < 1.4
    assert not model.observe(placement(0), 1, Load(at_s=now_s + 15.0), one_s(0))
    assert model.correction(placement(0)) < 1.4
    for second in range(60):
        assert correction_at(model, now_s + 15.0 + second) < 1.4


def test_a_slow_outcome_brings_back_all_that_was_learned(make: Any) -> None:
    model = make_model(make, count=2)
    tried_s = slow_minute(model, 0) + 15.0
    assert correction_at(model, tried_s) < 1.4
    assert model.observe(placement(0), 1, Load(at_s=tried_s), 8.0 * one_s(0)), "renew estimates"
    assert model.correction(placement(0)) > 6.0
    for _ in range(100):
        assert not model.observe(placement(1), 1, Load(at_s=tried_s + 2.0), one_s(1))
    assert correction_at(model, tried_s + 14.0) > 6.0, "for 15 s"
    assert correction_at(model, tried_s + 16.0) < 1.5


def test_it_comes_back_for_thirty_outcomes(make: Any) -> None:
    model = make_model(make, count=2)
    now_s = slow_minute(model, 0) + 15.0
    model.observe(placement(0), 1, Load(at_s=now_s), 8.0 * one_s(0))
    for number in range(30):
        assert correction_at(model, now_s + 20.0 * number) > 6.0
        model.observe(placement(1), 1, Load(at_s=now_s + 20.0 * number), one_s(1))
    assert correction_at(model, now_s + 600.0) < 1.1


@pytest.mark.parametrize("ratio", [1.6, 2.0, 6.0])
@pytest.mark.parametrize("per_s", [0.1, 2.0, 10.0, 100.0])
def test_a_lasting_slowdown_makes_few_queries_late(make: Any, per_s: float, ratio: float) -> None:
    """Each query takes the first placement if that is in time with probability 99 %."""
    model = make_model(make, count=2)
    now_s = slow_minute(model, 0, ratio=ratio)
    limit_s, late, queries = 1.5 * one_s(0), 0, 2000
    for _ in range(queries):
        now_s += 1.0 / per_s
        load = Load(at_s=float(int(now_s)))
        is_tried = float(model.estimate((placement(0),), 1, load).p99_s[0]) <= limit_s
        late += is_tried
        taken, its = (0, ratio) if is_tried else (1, 1.0)
        model.observe(placement(taken), 1, load, its * one_s(taken))
    assert 1 <= late <= 1 + queries / 31
    assert late <= 2 + queries / per_s / 15.0


def test_what_is_seldom_used_and_always_as_slow_is_predicted_well(make: Any) -> None:
    model = make_model(make, count=2)
    now_s = slow_minute(model, 0, ratio=1.5)
    for number in range(400):
        now_s += 1.0
        if number % 20 == 19:
            assert number < 20 or correction_at(model, now_s) == pytest.approx(1.5, rel=0.03)
            model.observe(placement(0), 1, Load(at_s=now_s), 1.5 * one_s(0))
        else:
            model.observe(placement(1), 1, Load(at_s=now_s), one_s(1))


def test_of_two_one_that_has_outcomes_keeps_what_was_learned(make: Any) -> None:
    model = make_model(make, count=3)
    now_s = slow_minute(model, 0)
    for second in range(60):
        model.observe(placement(1), 1, Load(at_s=now_s + second), 2.0 * one_s(1))
    assert model.correction(placement(1)) == pytest.approx(2.0, rel=0.05)
    assert model.correction(placement(0)) == pytest.approx(1.0, rel=0.02), "as profiled"
    assert 1.2 < model.correction(placement(2)) < 2.0, "never seen: as its class"


def test_a_slow_minute_does_not_shut_the_door_for_good(make: Any) -> None:
    name = next(iter(LADDER))
    world = World(variants={name: LADDER[name]})
    figures = {"p50_s": 0.010, "p90_s": 0.011, "p99_s": 0.012}
    world.instances.cost_model = ServingCostModel([make.measurement(variant_id=name, **figures)])
    world.add_worker()
    slow = served(world, 300, take_s=0.1)
    assert slow < 100, "it was found that they would be late"
    assert served(world, 60, take_s=0.010) >= 25
    assert served(world, 60, take_s=0.010) == 60
    assert world.instances.cost_model.estimate(
        (Placement(name, "cpu-1"),), 1, Load(at_s=world.now_s)
    ).p50_s == pytest.approx(0.010, rel=0.1)


def served(world: World, queries: int, take_s: float) -> int:
    """How many of these are, a second apart, each within 50 ms or not at all."""
    before = len(world.completed)
    for _ in range(queries):
        world.now_s += 1.0
        world.dispatcher.handle(LoadChanged(Load(at_s=world.now_s)), world.now_s)
        world.ask(latency_ms=50.0)
        if world.running:
            world.finish(after_s=take_s)
    return len(world.completed) - before
