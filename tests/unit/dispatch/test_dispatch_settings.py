"""The selection policy changes while queries wait and run: each still comes out once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modelless.controller.dispatch.messages import Complete, SelectionChanged
from modelless.policies.discovery import BUILT_IN, build_policy
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy

from .world import LADDER, World

POLICIES = sorted(BUILT_IN[SelectionPolicy].keys() - {"static"})  # it must be told a variant
FAST = next(iter(LADDER))


def change(world: World, name: str) -> None:
    policy = build_policy(SelectionPolicy, name)
    event = SelectionChanged(policy, None)
    world._carry_out(world.dispatcher.handle(event, world.now_s))


@given(st.lists(st.sampled_from(POLICIES), min_size=2, max_size=6), st.integers(1, 12))
def test_no_query_is_lost(names: list[str], burst: int) -> None:
    world = World(build_policy(SelectionPolicy, names[0]))
    world.add_worker("w0")
    world.add_worker("w1", [FAST])
    for name in names:
        for number in range(burst):
            world.ask(latency_ms=300.0 + 100.0 * number, min_accuracy=70.0)
        change(world, name)
        if world.running:
            world.finish(min(world.running))
        world.tick(0.01)
    world.drain()
    assert not world.open_ids
    assert set(world.completed).isdisjoint(world.refused)
    assert all(isinstance(each, Complete) for each in world.completed.values())
    assert all(each.reason is not Reason.POLICY_FAILED for each in world.refused.values())


def test_the_next_query_is_chosen_for_by_the_new_policy() -> None:
    world = World(build_policy(SelectionPolicy, "most-accurate-feasible"))
    world.add_worker()
    first = world.ask(latency_ms=500.0)
    world.finish()
    change(world, "cheapest-feasible")
    second = world.ask(latency_ms=500.0)
    world.finish()
    assert world.served_by[first].variant_id != world.served_by[second].variant_id == FAST
