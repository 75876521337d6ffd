"""A worker becomes one of another class while it serves: what it takes along, and its queries."""

from __future__ import annotations

import pytest

from modelless.controller.device.resizing import LATELY_S, Resident, take_along
from modelless.controller.dispatch.messages import LoadChanged, WorkerReport, WorkerReported
from modelless.policies.reasons import Reason
from modelless.variants.estimates import Load
from tests.unit.dispatch.world import World

INT8 = "imagenet/lite0/int8@1"


def resident(name: str, last_used_s: float, *, size: int = 10, in_use: bool = False) -> Resident:
    return Resident(name, size, last_used_s, in_use)


@pytest.mark.parametrize(
    ("residents", "free_bytes", "taken"),
    [
        ([], 0, ()),
        ([resident("a", 1.0), resident("b", 2.0)], 20, ("b", "a")),
        ([resident("a", 1.0), resident("b", 2.0)], 10, ("b",)),
        ([resident("a", 1.0), resident("b", 2.0)], 9, None),
        ([resident("a", 1.0, in_use=True), resident("b", 2.0)], 10, ("a",)),
        ([resident("a", 1.0, size=11, in_use=True), resident("b", 2.0)], 10, None),
        ([resident("old", 1.0), resident("b", 2.0 + LATELY_S)], 20, ("b",)),
        ([resident("old", 1.0, in_use=True), resident("b", 2.0 + LATELY_S)], 20, ("old", "b")),
        ([resident("a", -float("inf")), resident("b", -float("inf"))], 20, ("a", "b")),
        ([resident("never", -float("inf")), resident("b", 5.0)], 20, ("b",)),
    ],
)
def test_what_was_used_lately_is_taken_along_if_it_fits(
    residents: list[Resident], free_bytes: int, taken: tuple[str, ...] | None
) -> None:
    assert take_along(residents, free_bytes) == taken


def test_queries_of_a_resized_worker_are_chosen_for_anew_and_none_is_lost() -> None:
    world = World()
    world.add_worker("w0", [INT8])
    running, waiting = world.ask(), world.ask()
    report = WorkerReport("w0", "h200", (INT8,))
    world.dispatcher.handle(WorkerReported(report), world.now_s)
    receipt = world.dispatcher.receipt(waiting)
    assert receipt is not None
    assert receipt.device_class == "h200"
    world.finish("w0", after_s=0.010)
    assert running in world.completed
    done = world.dispatcher.receipt(running)
    assert done is not None
    assert done.device_class == "cpu-1", "it ran before"
    assert world.cost_model.observed[-1][0].device_class == "cpu-1"
    world.finish("w0", after_s=0.010)
    assert waiting in world.completed
    assert world.cost_model.observed[-1][0].device_class == "h200"


def test_a_query_is_held_for_a_worker_that_is_started_for_it() -> None:
    world = World()
    assert world.refused[world.ask(latency_ms=9000.0)].reason is Reason.NOTHING_READY
    world.dispatcher.handle(LoadChanged(Load(), {"cpu-1": 5.0}), world.now_s)
    late = world.ask(latency_ms=5000.0)
    assert world.refused[late].reason is Reason.NOTHING_READY, "5 s to start and 0.5 s to load"
    held = world.ask(latency_ms=6000.0)
    assert held not in world.refused
    world.tick(5.2)
    world.add_worker("w0", [INT8])
    world.finish("w0", after_s=0.010)
    assert held in world.completed


def test_a_worker_that_is_there_does_not_have_to_be_started() -> None:
    world = World()
    world.dispatcher.handle(LoadChanged(Load(), {"cpu-1": 5.0}), world.now_s)
    world.add_worker("w0", [])
    assert world.ask(latency_ms=1000.0) not in world.refused
