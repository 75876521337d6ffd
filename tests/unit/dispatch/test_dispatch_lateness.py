"""Queries that may be late are served, but never before those that can be in time."""

from __future__ import annotations

import pytest

from modelless.controller.dispatch.explanations import explain_receipt
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.policies.reasons import Reason
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.cheapest_feasible import CheapestFeasible

from .world import LADDER, World

INT8, FP32, LITE2 = LADDER
ONE = {INT8: LADDER[INT8]}


@pytest.mark.parametrize("policy", [CheapestFeasible, BestValue])
def test_a_deadline_that_nothing_can_meet_refuses_one_and_only_delays_the_other(
    policy: type[CheapestFeasible | BestValue],
) -> None:
    world = World(policy(), ONE)
    world.add_worker()
    refused = world.ask(latency_ms=1.0)
    late = world.ask(latency_ms=1.0, serve_late=True)
    assert world.refused[refused].reason is Reason.TOO_SLOW
    world.finish()
    receipt = world.dispatcher.receipt(late)
    assert receipt is not None
    assert receipt.outcome == "served-late"
    assert explain_receipt(receipt)["latency_ms"] == pytest.approx(1.0)  # as it was asked for
    assert explain_receipt(receipt)["when_late"] == "serve"


def test_the_late_wait_behind_all_who_can_be_in_time() -> None:
    world = World(CheapestFeasible(), ONE, DispatchLimits(max_batch=1))
    world.add_worker()
    world.ask()
    late = world.ask(latency_ms=5.0, serve_late=True)
    in_time = [world.ask(latency_ms=ms) for ms in (900.0, 100.0)]
    order = []
    while world.running:
        order += world.running["w0"].query_ids
        world.finish()
    assert order == [1, in_time[1], in_time[0], late]


def test_late_ones_do_not_keep_others_from_being_admitted() -> None:
    world = World(CheapestFeasible(), ONE, DispatchLimits(max_batch=1))
    world.add_worker()
    for _ in range(20):  # 10 ms each
        world.ask(latency_ms=5.0, serve_late=True)
    assert not world.refused
    query = world.ask(latency_ms=25.0)
    assert query not in world.refused
    world.finish()
    assert world.running["w0"].query_ids == (query,)


def test_a_query_that_becomes_late_while_it_waits_is_served_when_there_is_time() -> None:
    world = World(BestValue(), ONE, DispatchLimits(max_batch=1))
    world.add_worker()
    world.ask()
    late = world.ask(latency_ms=15.0, serve_late=True)
    refused = world.ask(latency_ms=15.0)
    world.finish(after_s=0.03)
    world.tick()
    assert refused in world.refused
    world.finish()
    assert world.answered_s[late] > world.asked[late].deadline_s


def test_late_is_not_for_ever() -> None:
    world = World(CheapestFeasible(), ONE, DispatchLimits(max_batch=1, max_late_s=0.05))
    world.add_worker()
    world.ask(priority=9)
    late = world.ask(latency_ms=5.0, serve_late=True)
    world.finish(after_s=0.02)
    world.running.clear()  # the worker hangs with it
    later = world.ask(latency_ms=5.0, serve_late=True)
    world.tick(0.06)
    assert late not in world.refused  # it runs
    assert world.refused[later].reason in (Reason.DEADLINE_PASSED, Reason.QUEUE_TOO_LONG)


def test_the_other_limits_hold_as_before() -> None:
    world = World(CheapestFeasible(), ONE)
    world.add_worker()
    query = world.ask(latency_ms=1.0, min_accuracy=99.0, serve_late=True)
    assert world.refused[query].reason is Reason.TOO_INACCURATE


def test_who_named_no_deadline_cannot_be_late() -> None:
    world = World(CheapestFeasible(), {})
    world.add_worker()
    query = world.ask(serve_late=True)
    assert world.refused[query].reason is Reason.NOTHING_READY
