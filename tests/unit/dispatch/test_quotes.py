"""Quotes: what a query could have now, and how honest that is."""

from __future__ import annotations

import math

import pytest

from modelless.controller.dispatch.quotes import Quote
from modelless.policies.discovery import build_policy
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy

from .world import LADDER, World, make_query

INT8, FP32, LITE2 = LADDER


def quote(world: World, **limits: object) -> Quote:
    query = make_query(0, world.now_s, **limits)  # type: ignore[arg-type]
    return world.dispatcher.quote(query, world.now_s)


@pytest.fixture(params=["best-value", "most-accurate-feasible"])
def world(request: pytest.FixtureRequest) -> World:
    made = World(build_policy(SelectionPolicy, request.param))  # type: ignore[type-abstract]
    made.add_worker()
    return made


def test_an_idle_system_serves_the_most_accurate_that_is_surely_in_time(world: World) -> None:
    found = quote(world, latency_ms=100)
    assert found.reason is None
    assert found.serves is not None
    assert found.serves.variant_id == LITE2
    assert found.serves.latency_s == pytest.approx(0.040)
    assert found.serves.wait_s == 0.0
    assert found.serves.cost_usd == pytest.approx(0.05 / 3600 * 0.040)
    assert found.probability > 0.99
    assert found.fastest is not None
    assert found.fastest.variant_id == INT8
    assert found.cheapest is not None
    assert found.cheapest.variant_id == INT8
    tight = quote(world, latency_ms=30)
    assert tight.serves is not None
    assert tight.serves.variant_id == FP32


def test_each_direction_relaxes_its_own_limit_and_no_other(world: World) -> None:
    found = quote(world, latency_ms=30, min_accuracy=78)
    assert found.reason is Reason.LIMITS_CONFLICT
    assert found.probability < 0.1
    assert found.fastest is not None
    assert found.fastest.variant_id == LITE2
    assert found.most_accurate is not None
    assert found.most_accurate.variant_id == FP32
    assert found.cheapest is None
    assert [limits._asdict() for limits in found.nearest] == [
        {"latency_ms": pytest.approx(48.1), "min_accuracy": None, "max_cost_usd": None},
        {"latency_ms": None, "min_accuracy": 75.0, "max_cost_usd": None},
    ]
    dear = quote(world, latency_ms=100, max_cost_usd=1e-9)
    assert dear.reason is Reason.TOO_DEAR
    assert dear.serves is None
    assert dear.cheapest is not None
    assert dear.cheapest.variant_id == INT8


def test_what_nothing_meets_is_said_with_the_reason(world: World) -> None:
    assert quote(world, min_accuracy=99, latency_ms=100).reason is Reason.TOO_INACCURATE
    assert quote(world, latency_ms=1).reason is Reason.TOO_SLOW
    assert quote(world, latency_ms=100, items=9).reason is Reason.BAD_ITEM_COUNT
    assert quote(world, latency_ms=100, scope="none").reason is Reason.NOTHING_READY


def test_what_waits_before_it_counts_and_what_waits_behind_does_not(world: World) -> None:
    idle = quote(world, latency_ms=60)
    for _ in range(40):
        world.ask(latency_ms=5_000)
    assert quote(world, latency_ms=60, priority=1).probability > 0.2
    behind = quote(world, latency_ms=5_000)
    assert behind.fastest is not None
    assert behind.fastest.wait_s > 0.1
    urgent = quote(world, latency_ms=5_000, priority=1)
    assert urgent.fastest is not None
    assert urgent.fastest.wait_s < behind.fastest.wait_s
    world.drain()
    assert idle.probability > 0.99


def test_more_time_is_never_less_probable(world: World) -> None:
    for _ in range(20):
        world.ask(latency_ms=2_000)
    found = [quote(world, latency_ms=ms).probability for ms in (1, 20, 100, 300, 1_000, 4_000)]
    assert found == sorted(found)
    assert found[0] < 0.05
    assert found[-1] > 0.9


def test_without_a_deadline_it_is_in_time(world: World) -> None:
    found = quote(world)
    assert found.probability == pytest.approx(1.0)
    assert found.serves is not None
    assert math.isfinite(found.serves.latency_s)


def test_what_a_load_could_serve_in_time_says_so() -> None:
    world = World()
    world.add_worker(variant_ids=[INT8])
    found = quote(world, latency_ms=5_000, min_accuracy=78)
    assert found.load_s == pytest.approx(0.540)
    assert found.serves is None
    assert found.probability > 0.5
    assert quote(world, latency_ms=100, min_accuracy=78).load_s is None


def test_a_quote_changes_nothing() -> None:
    worlds = [World(build_policy(SelectionPolicy, "best-value")) for _ in range(2)]  # type: ignore[type-abstract]
    for number, world in enumerate(worlds):
        world.add_worker()
        for step in range(30):
            world.ask(latency_ms=500)
            if number:
                found = quote(world, latency_ms=100)
                assert quote(world, latency_ms=100) == found
            if step % 3 == 0:
                world.finish()
        world.drain()
    assert worlds[0].executed == worlds[1].executed
    assert worlds[0].answered_s == worlds[1].answered_s


def test_probabilities_follow_what_became_of_such_queries() -> None:
    world = World()
    world.add_worker()
    assert quote(world, latency_ms=100).probability > 0.99
    for number in range(60):  # every other batch takes three times as long as it should
        world.ask(latency_ms=100)
        world.finish(after_s=0.15 if number % 2 else 0.04)
        world.now_s += 0.05
    assert quote(world, latency_ms=100).probability == pytest.approx(0.55, abs=0.15)


def test_cancelled_queries_teach_nothing() -> None:
    world = World()
    world.add_worker()
    for _ in range(60):
        world.cancel(world.ask(latency_ms=100))
        world.finish()
        world.now_s += 0.2
    assert quote(world, latency_ms=100).probability > 0.99
