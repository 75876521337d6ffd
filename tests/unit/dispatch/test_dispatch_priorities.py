"""Priorities hold across queues of any shape, scope and variant, whatever the policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.clockwork import Clockwork
from modelless.policies.selection.slack_fit import SlackFit
from modelless.policies.views import Run, Wait

from .some_policies import Scripted
from .world import LADDER, World

INT8, FP32, LITE2 = LADDER
POLICIES = [BestValue, CheapestFeasible, Clockwork, SlackFit]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("urgent_ms", [400.0, 20_000.0])
def test_the_urgent_go_before_a_full_batch_of_another_shape(
    policy: Callable[[], SelectionPolicy], urgent_ms: float
) -> None:
    world = World(policy(), {INT8: LADDER[INT8]})
    world.add_worker()
    world.ask()
    usual = [world.ask(latency_ms=300.0, batch_key=(224,)) for _ in range(8)]
    urgent = world.ask(latency_ms=urgent_ms, batch_key=(96,), priority=9)
    world.finish()
    assert world.running["w0"].query_ids == (urgent,)
    world.finish()
    assert set(world.running["w0"].query_ids) <= set(usual)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_the_urgent_that_this_worker_cannot_serve_block_nobody(
    policy: Callable[[], SelectionPolicy],
) -> None:
    world = World(policy(), {INT8: LADDER[INT8], LITE2: LADDER[LITE2]})
    world.add_worker("w0", [INT8])
    world.add_worker("w1", [LITE2])
    for _ in range(2):
        world.ask()
    while len(world.running) < 2:  # policies that bind to one worker leave the other idle
        world.ask(min_accuracy=79.0)
    urgent = world.ask(latency_ms=2000.0, min_accuracy=79.0, batch_key=(96,), priority=9)
    usual = world.ask(scope="imagenet/lite0", latency_ms=2000.0)
    world.finish("w0")
    assert usual in world.running["w0"].query_ids
    assert urgent in world.open_ids


def test_what_has_less_priority_does_not_count_as_a_wait() -> None:
    world = World(CheapestFeasible(), {INT8: LADDER[INT8]}, DispatchLimits(max_batch=1))
    world.add_worker()
    for _ in range(10):  # 100 ms of work
        world.ask(latency_ms=500.0)
    usual = world.ask(latency_ms=50.0)
    urgent = world.ask(latency_ms=50.0, priority=1)
    assert world.refused[usual].reason is Reason.QUEUE_TOO_LONG
    assert urgent not in world.refused
    world.finish()
    assert world.running["w0"].query_ids == (urgent,)


def test_what_has_more_priority_does() -> None:
    world = World(CheapestFeasible(), {INT8: LADDER[INT8]}, DispatchLimits(max_batch=1))
    world.add_worker()
    for _ in range(10):
        world.ask(latency_ms=500.0, priority=9)
    usual = world.ask(latency_ms=50.0)
    assert world.refused[usual].reason is Reason.QUEUE_TOO_LONG


def test_a_full_queue_has_room_for_the_urgent() -> None:
    world = World(
        CheapestFeasible(), {INT8: LADDER[INT8]}, DispatchLimits(max_batch=1, max_queued=3)
    )
    world.add_worker()
    world.ask()
    usual = [world.ask(latency_ms=ms) for ms in (900.0, 2000.0, 1500.0)]
    urgent = world.ask(latency_ms=900.0, priority=1)
    assert set(world.refused) == {usual[1]}  # the last of them
    assert world.refused[usual[1]].reason is Reason.QUEUE_FULL
    assert urgent in world.open_ids
    assert world.dispatcher.queued == 3
    another = world.ask(latency_ms=100.0)  # nobody stands behind it by rank
    assert world.refused[another].reason is Reason.QUEUE_FULL


def test_a_batch_that_fills_is_not_delayed_by_what_goes_behind() -> None:
    shown: list[list[int]] = []

    def idle(worker: object, queues: object) -> Wait | Run:
        shown.append([query.query_id for queue in queues for query in queue.queries])  # type: ignore[attr-defined]
        return Wait(Reason.FILLING_BATCH, 200.0)

    world = World(Scripted(idle=idle), {INT8: LADDER[INT8]})
    world.ask()
    world.add_worker()
    one = world.ask(batch_key=(1,))
    two = world.ask(batch_key=(2,), priority=3)
    shown.clear()
    world.tick()
    assert shown == [[two]]
    assert {one, two} <= world.open_ids
