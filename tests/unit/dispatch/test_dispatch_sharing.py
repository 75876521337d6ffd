"""Workers that other gateways use, too: nothing is handed to them that must wait too long."""

from __future__ import annotations

import pytest

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.policies.reasons import Reason
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.cheapest_feasible import CheapestFeasible

from .world import LADDER, World

INT8 = next(iter(LADDER))
ONE = {INT8: LADDER[INT8]}


@pytest.mark.parametrize("policy", [CheapestFeasible, BestValue])
def test_a_batch_that_is_turned_back_waits_and_runs_later(
    policy: type[CheapestFeasible | BestValue],
) -> None:
    world = World(policy(), ONE, DispatchLimits(max_batch=1, max_attempts=1))
    world.add_worker()
    query = world.ask(latency_ms=500.0)
    for _ in range(3):  # which is not an attempt
        world.turn_back(others_s=0.05)
        assert not world.running
        assert world.dispatcher.queued == 1
        assert world.wakes[-1] == pytest.approx(world.now_s + 0.05)
        world.tick(0.049)
        assert not world.running
        world.tick(0.001)
        assert world.running["w0"].query_ids == (query,)
    world.finish()
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert (receipt.outcome, receipt.attempts) == ("served", 1)


def test_one_that_cannot_wait_so_long_is_refused_at_once() -> None:
    world = World(CheapestFeasible(), ONE)
    world.add_worker()
    query = world.ask(latency_ms=50.0)
    world.turn_back(others_s=0.1)
    assert world.refused[query].reason is Reason.QUEUE_TOO_LONG
    assert world.refused[query].retry_after_s == pytest.approx(0.1 + 0.012 - 0.05)


def test_it_goes_to_another_worker_if_there_is_one() -> None:
    world = World(CheapestFeasible(), ONE)
    world.add_worker("w0")
    world.add_worker("w1")
    query = world.ask(latency_ms=50.0)
    world.turn_back("w0", 0.1)
    assert world.running["w1"].query_ids == (query,)


def test_what_others_will_keep_it_for_is_part_of_the_wait() -> None:
    world = World(CheapestFeasible(), ONE)
    world.add_worker()
    world.ask()
    world.finish(others_s=0.08)
    assert world.predicted_wait_s("w0") == pytest.approx(0.08)
    refused = world.ask(latency_ms=50.0)
    assert world.refused[refused].reason is Reason.QUEUE_TOO_LONG
    query = world.ask(latency_ms=200.0)
    assert not world.running
    world.tick(0.08)
    assert world.running["w0"].query_ids == (query,)


def test_a_batch_may_wait_as_long_as_its_most_urgent_query_can() -> None:
    world = World(CheapestFeasible(), ONE)
    world.add_worker()
    world.ask(latency_ms=50.0)
    batch_id = world.running["w0"].batch_id
    expected_s, patience_s = world.dispatcher.patience(batch_id, world.now_s)
    assert (expected_s, patience_s) == (pytest.approx(0.01), pytest.approx(0.04))
    assert world.dispatcher.patience(99, world.now_s) == (0.0, 0.0)


def test_a_worker_that_others_keep_may_be_lost_or_change() -> None:
    world = World(CheapestFeasible(), ONE)
    world.add_worker()
    world.ask()
    world.finish(others_s=0.5)
    query = world.ask(latency_ms=2000.0)
    assert world.dispatcher.in_use("w0") == {INT8}  # for what waits
    world.lose()
    assert world.refused[query].reason is Reason.NOTHING_READY
    world.add_worker()
    again = world.ask(latency_ms=50.0)
    assert world.running["w0"].query_ids == (again,)


def test_cancelled_queries_do_not_come_back() -> None:
    world = World(CheapestFeasible(), ONE)
    world.add_worker()
    query = world.ask(latency_ms=500.0)
    world.cancel(query)
    world.turn_back(others_s=0.01)
    world.tick(0.01)
    assert not world.running
    assert world.dispatcher.open_queries == 0


def test_a_cancelled_query_frees_its_place_and_never_runs() -> None:
    world = World(CheapestFeasible(), ONE, DispatchLimits(max_batch=1, max_queued=2))
    world.add_worker()
    world.ask()
    gone, kept = (world.ask(latency_ms=500.0) for _ in range(2))
    world.cancel(gone)
    assert world.dispatcher.queued == 1
    assert world.predicted_wait_s("w0") == pytest.approx(0.02)
    another = world.ask(latency_ms=600.0)
    assert another in world.open_ids  # it has the place that is free
    while world.running:
        world.finish()
    assert [batch.query_ids for batch in world.executed] == [(1,), (kept,), (another,)]
