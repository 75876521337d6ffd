"""Two versions in one dispatcher: arms never mix, and what is taken back loses no query."""

from __future__ import annotations

import pytest

from modelless.controller.control.served_versions import Service
from modelless.controller.dispatch.messages import Advised
from modelless.policies.discovery import BUILT_IN, build_policy
from modelless.policies.scopes import arm_of
from modelless.policies.seams import SelectionPolicy
from modelless.variants.registry.versions import Line
from modelless.variants.vocabulary import Placement

from .world import World

NAME = "imagenet/lite0/int8"
OLD, NEW, OTHER = f"{NAME}@1", f"{NAME}@2", "imagenet/lite2/fp32@1"
VARIANTS = {OLD: (0.010, 70.0), NEW: (0.009, 72.0), OTHER: (0.040, 60.0)}
TRIED = arm_of("imagenet", NEW, on_trial=True)
STANDING = arm_of("imagenet", NEW, on_trial=False)
POLICIES = [name for name in BUILT_IN[SelectionPolicy] if name != "static"]  # type: ignore[type-abstract]
"""All but the one that must be told a variant."""


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_the_policy_neither_arm_is_served_by_the_others_version(policy: str) -> None:
    world = World(build_policy(SelectionPolicy, policy), VARIANTS)  # type: ignore[type-abstract]
    world.add_worker("w0")
    world.add_worker("w1")
    shares = {
        TRIED: {Placement(NEW, "cpu-1"): 1.0},
        STANDING: {Placement(OLD, "cpu-1"): 1.0},
    }
    assert world.dispatcher.handle(Advised(shares), world.now_s) == []
    arms: dict[int, str] = {}
    for number in range(60):
        scope = STANDING if number % 3 else TRIED
        arms[world.ask(scope=scope, latency_ms=5000.0)] = scope
        if number % 4 == 3 and world.running:
            world.finish(min(world.running))
        elif number % 4 == 3:
            world.tick(1.0)  # it waits for batches to fill, but not for ever
    world.drain()
    assert set(world.completed) | set(world.refused) == set(arms)
    assert len(world.completed) >= 20
    for query_id in world.completed:
        forbidden = OLD if arms[query_id] == TRIED else NEW
        assert world.variant_of(query_id) != forbidden


def test_demand_is_counted_by_what_clients_ask_for() -> None:
    world = World(variants=VARIANTS)
    for scope in (TRIED, STANDING):
        world.ask(scope=scope)  # nothing is ready yet
    world.add_worker()
    for scope in (TRIED, STANDING):
        world.ask(scope=scope)
    assert world.dispatcher.open_by_scope() == {"imagenet": 2}
    counters = world.dispatcher.take_counters()
    assert counters.arrivals == {"imagenet": 4}
    assert counters.unmet == {"imagenet": 2}


def test_a_version_that_is_taken_back_finishes_what_it_runs_and_begins_nothing() -> None:
    world = World(variants={OLD: (0.010, 70.0), NEW: (0.010, 72.0)})
    before = Service("a", {NAME: Line(NAME, 2, (1,))})
    after = Service("b", {NAME: Line(NAME, 1)})
    world.add_worker("w0", before.serving((OLD, NEW)))
    running = world.ask()
    queued = [world.ask() for _ in range(3)]
    assert world.running["w0"].variant_id == NEW
    world.add_worker("w0", after.serving((OLD, NEW)))
    world.finish("w0", after_s=0.010)
    world.drain()
    assert world.variant_of(running) == NEW
    assert {world.variant_of(query_id) for query_id in queued} == {OLD}
    assert set(world.completed) == {running, *queued}
    assert not world.refused


@pytest.mark.parametrize("policy", POLICIES)
def test_who_waits_for_a_version_that_is_taken_back_gets_the_other(policy: str) -> None:
    chosen = build_policy(SelectionPolicy, policy)  # type: ignore[type-abstract]
    world = World(chosen, {OLD: (0.010, 70.0), NEW: (0.010, 72.0)})
    world.add_worker("w0")
    arm = arm_of(NAME, NEW, on_trial=True)
    asked = [world.ask(scope=arm, latency_ms=5000.0, serve_late=True) for _ in range(4)]
    world.add_worker("w0", (OLD,))
    asked.append(world.ask(scope=arm, latency_ms=5000.0, serve_late=True))  # dealt out before
    while world.running:
        world.finish()
    world.tick(4.99)  # some wait for batches to fill, but not for ever
    world.drain()
    assert set(world.completed) == set(asked)
    assert world.variant_of(asked[-1]) == OLD
    assert not world.refused


@pytest.mark.parametrize(("min_accuracy", "scope"), [(71.0, STANDING), (73.0, TRIED)])
def test_an_arm_that_is_there_but_not_accurate_enough_is_not_left(
    min_accuracy: float, scope: str
) -> None:
    world = World(variants=VARIANTS)
    world.add_worker()
    asked = world.ask(scope=scope, min_accuracy=min_accuracy, latency_ms=1000.0)
    world.drain()
    assert asked in world.refused
