"""What outcomes teach, and how soon the instances asks what was learned."""

from __future__ import annotations

from .world import LADDER, FakeCostModel, World

LITE2 = list(LADDER)[2]


def serve(world: World) -> None:
    world.ask(latency_ms=1000.0)
    world.finish()


def shown_s(world: World) -> float:
    """What policies are shown of LITE2 alone."""
    return world.instances.residents("w0")[LITE2].p50_s[1]


def test_estimates_are_new_whenever_there_have_been_twice_as_many_outcomes() -> None:
    world = World()
    world.add_worker()
    renewed = []
    for number in range(1, 20):
        expected_s = world.cost_model.latency_s[LITE2] = 0.040 + 1e-4 * number
        serve(world)
        if shown_s(world) == expected_s:
            renewed.append(number)
    assert renewed == [1, 2, 4, 8, 16]
    assert len(world.cost_model.observed) == 19


def test_another_cost_model_knows_nothing_yet() -> None:
    world = World()
    world.add_worker()
    for _ in range(6):
        serve(world)
    newer = FakeCostModel({**world.cost_model.latency_s, LITE2: 0.050})
    world.instances.replace_catalog(world.instances.variants, newer)
    assert shown_s(world) == 0.050
    newer.latency_s[LITE2] = 0.060
    serve(world)
    assert shown_s(world) == 0.060
    assert len(newer.observed) == 1
