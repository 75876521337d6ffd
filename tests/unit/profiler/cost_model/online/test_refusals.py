"""Old corrections fade while queries are refused for them."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.controller.dispatch.messages import LoadChanged
from modelless.profiler.cost_model.measured_model import MeasuredCostModel
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement
from tests.unit.dispatch.world import LADDER, World

from .helpers import make_model, one_s, placement

PLACEMENTS = tuple(placement(number) for number in range(3))


def slow_minute(model: MeasuredCostModel, *numbers: int, ratio: float = 8.0) -> float:
    """These placements take so many times as long as profiled for a while; when that ended."""
    for second in range(60):
        for number in numbers:
            for _ in range(5):
                load = Load(at_s=float(second))
                model.observe(placement(number), 1, load, ratio * one_s(number))
    return 60.0


def refuse(model: MeasuredCostModel, begin_s: float, times: int, every_s: float = 1.0) -> None:
    for number in range(times):
        model.doubt(PLACEMENTS, begin_s + every_s * number)


def test_it_fades_where_queries_are_refused_for_it(make: Any) -> None:
    model = make_model(make, count=3)
    now_s = slow_minute(model, 0, 1, 2)
    assert model.correction(placement(0)) > 6.0
    refuse(model, now_s, 5)
    assert model.correction(placement(0)) > 6.0, "patience"
    refuse(model, now_s + 5.0, 40)
    assert model.correction(placement(0)) < 1.1


def test_what_nobody_is_refused_for_is_remembered(make: Any) -> None:
    model = make_model(make, count=3)
    now_s = slow_minute(model, 0)
    known = model.correction(placement(0))
    model.estimate(PLACEMENTS, 1, Load(at_s=now_s + 86400.0))
    refuse(model, now_s + 86400.0, 1)
    refuse(model, now_s + 86400.0, 1000, every_s=1e-4)  # many at once are one
    assert model.correction(placement(0)) == known


def test_whoever_is_heard_of_keeps_what_its_class_shows(make: Any) -> None:
    model = make_model(make, count=3)
    now_s = slow_minute(model, 0)
    for second in range(60):
        model.observe(placement(1), 1, Load(at_s=now_s + second), 2.0 * one_s(1))
        refuse(model, now_s + second, 1)
    assert model.correction(placement(1)) == pytest.approx(2.0, rel=0.05)
    assert 1.2 < model.correction(placement(0)) < 2.2, "as its class, no longer its own 8"


def test_a_slow_minute_does_not_shut_the_door_for_good(make: Any) -> None:
    name = next(iter(LADDER))
    world = World(variants={name: LADDER[name]})
    figures = {"p50_s": 0.010, "p90_s": 0.011, "p99_s": 0.012}
    world.instances.cost_model = MeasuredCostModel([make.measurement(variant_id=name, **figures)])
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
