"""A worker that is a hop away gets its next batch a hop before the one that it runs is back."""

from __future__ import annotations

import pytest

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import BatchDone, BatchFailed
from modelless.controller.dispatch.quarantine import Sign
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.cheapest_feasible import CheapestFeasible

from .some_policies import LateBinding
from .world import LADDER, World

INT8, FP32, _ = LADDER
ONE = {INT8: LADDER[INT8]}
RUN_S, HOP_S = 0.010, 0.004
ALONE = DispatchLimits(max_batch=1)


def remote_world(
    policy: SelectionPolicy | None = None,
    limits: DispatchLimits = ALONE,
    lead_s: float = HOP_S,
    others_s: float = 0.0,
) -> World:
    """One worker, a hop away, that has answered once."""
    world = World(policy or LateBinding(), ONE, limits)
    world.add_worker(hop_s=HOP_S, lead_s=lead_s)
    world.ask()
    world.finish(after_s=RUN_S + HOP_S, others_s=others_s)
    return world


@pytest.mark.parametrize(
    ("policy", "bound_s"),
    [(LateBinding, 0.0), (BestValue, 0.0), (CheapestFeasible, RUN_S + HOP_S)],
)
def test_the_next_batch_leaves_a_hop_before_the_one_that_runs_is_back(
    policy: type[SelectionPolicy], bound_s: float
) -> None:
    world = remote_world(policy())
    began_s = world.now_s
    first, second, third = (world.ask(latency_ms=500.0) for _ in range(3))
    assert world.wakes[-1] == pytest.approx(began_s + RUN_S)
    world.tick(RUN_S - 1e-4)
    assert not world.early, "late binding stays as late as can be"
    world.tick(2e-4)
    assert world.early["w0"].query_ids == (second,)
    world.tick(1e-4)  # the world refuses a third
    world.finish(after_s=HOP_S - 3e-4)
    assert world.running["w0"].query_ids == (second,)
    assert list(world.completed)[1:] == [first]
    assert world.predicted_wait_s("w0") == pytest.approx(RUN_S + bound_s, abs=3e-4)
    world.tick(RUN_S - HOP_S + 2e-4)
    assert world.early["w0"].query_ids == (third,)
    world.drain()
    assert list(world.completed)[1:] == [first, second, third]


def test_a_query_that_comes_within_the_hop_is_handed_over_at_once() -> None:
    world = remote_world()
    world.ask()
    world.tick(RUN_S + 1e-3)
    assert not world.early
    query = world.ask()
    assert world.early["w0"].query_ids == (query,)


def test_when_a_late_batch_ends_nobody_knows() -> None:
    world = remote_world()
    world.ask()
    world.tick(RUN_S + HOP_S + 1e-4)
    query = world.ask()
    world.tick(1e-3)
    assert not world.early
    world.finish(after_s=1e-3)
    assert world.running["w0"].query_ids == (query,)


def test_the_device_of_this_process_gets_nothing_early() -> None:
    world = remote_world(lead_s=0.0)
    for _ in range(2):
        world.ask()
    wakes = len(world.wakes)
    world.tick(RUN_S + 1e-3)
    assert not world.early
    assert len(world.wakes) == wakes


def test_an_idle_worker_goes_first() -> None:
    world = remote_world()
    world.ask()
    world.tick(RUN_S + 1e-3)
    world.add_worker("another", hop_s=HOP_S, lead_s=HOP_S)
    query = world.ask()
    assert world.running["another"].query_ids == (query,)


# -- other gateways ------------------------------------------------------------------------------


def test_nothing_is_handed_over_early_where_another_gateways_batch_was_met() -> None:
    world = remote_world(others_s=0.02)
    world.tick(0.02)  # theirs is done
    first, second = world.ask(), world.ask()
    world.tick(RUN_S + 1e-3)
    assert world.running["w0"].query_ids == (first,)
    assert not world.early
    world.finish(after_s=HOP_S)  # and nobody else is there any more
    assert world.running["w0"].query_ids == (second,)
    third = world.ask()
    world.tick(RUN_S + 1e-3)
    assert world.early["w0"].query_ids == (third,)


@pytest.mark.parametrize(("others_s", "is_early"), [(RUN_S, True), (RUN_S + 0.01, False)])
def test_what_is_ours_of_that_which_keeps_the_worker_is_known(
    others_s: float, is_early: bool
) -> None:
    world = remote_world()
    for _ in range(3):
        world.ask()
    world.tick(RUN_S + 1e-4)
    world.finish(after_s=HOP_S, others_s=others_s)
    assert len(world.running) == 1, "ours runs already"
    world.tick(RUN_S - HOP_S + 1e-3)
    assert bool(world.early) is is_early


def test_what_is_turned_back_waits_until_the_other_is_back_and_lost_nothing() -> None:
    world = remote_world()
    first, second = world.ask(latency_ms=500.0), world.ask(latency_ms=500.0)
    world.tick(RUN_S + 1e-4)
    world.turn_back(others_s=0.03, early=True)
    assert world.running["w0"].query_ids == (first,)
    assert world.dispatcher.queued == 1
    world.tick(1e-3)
    assert not world.early, "it would be turned back again"
    world.finish(after_s=1e-3, others_s=0.03)
    assert not world.running, "others' turn"
    world.tick(0.03)
    assert world.running["w0"].query_ids == (second,)
    world.finish()
    receipt = world.dispatcher.receipt(second)
    assert receipt is not None
    assert (receipt.outcome, receipt.attempts) == ("served", 1)


def test_one_that_is_turned_back_while_the_next_is_there() -> None:
    world = remote_world()
    world.ask()
    second = world.ask()
    world.tick(RUN_S + 1e-4)
    world.turn_back(others_s=0.03)
    assert world.running["w0"].query_ids == (second,)
    world.drain()
    assert len(world.completed) == 3


def test_it_may_wait_for_ours_at_least_as_long_as_a_way_back_would_take() -> None:
    world = remote_world()
    world.ask()
    world.ask(latency_ms=1e3 * (RUN_S + RUN_S + HOP_S) + 0.5)
    world.tick(RUN_S + 1e-6)
    batch_id = world.early["w0"].batch_id
    expected_s, patience_s = world.dispatcher.patience(batch_id, world.now_s)
    assert expected_s == pytest.approx(RUN_S + HOP_S)
    assert patience_s == pytest.approx(HOP_S)
    calm = world.ask(latency_ms=500.0)
    world.finish(after_s=HOP_S)
    world.finish(after_s=RUN_S)
    _, patience_s = world.dispatcher.patience(world.running["w0"].batch_id, world.now_s)
    assert world.running["w0"].query_ids == (calm,)
    assert patience_s > 10.0 * HOP_S


# -- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_told_by_its_batch", [True, False])
def test_a_lost_worker_loses_two_batches_and_each_is_tried_once_more(
    is_told_by_its_batch: bool,
) -> None:
    world = remote_world()
    queries = [world.ask(), world.ask()]
    world.tick(RUN_S + 1e-4)
    world.fail(worker_lost=True) if is_told_by_its_batch else world.lose()
    assert {world.refused[q].reason for q in queries} == {Reason.NOTHING_READY}
    world = remote_world()
    queries = [world.ask(), world.ask()]
    world.tick(RUN_S + 1e-4)
    batch_ids = [world.running["w0"].batch_id, world.early["w0"].batch_id]
    world.add_worker("w1", hop_s=HOP_S, lead_s=HOP_S)
    world.fail(worker_lost=True) if is_told_by_its_batch else world.lose()
    for batch_id in batch_ids:  # what else is heard of it changes nothing
        assert world.dispatcher.handle(BatchFailed(batch_id, worker_lost=True), world.now_s) == []
    assert world.running["w1"].query_ids == (queries[0],)
    world.lose("w1")
    assert world.refused[queries[0]].reason is Reason.WORKER_LOST
    assert world.refused[queries[1]].reason is Reason.NOTHING_READY


def test_one_that_finds_nobody_goes_elsewhere_and_the_one_that_runs_is_awaited() -> None:
    world = remote_world()
    first, second = world.ask(), world.ask()
    world.tick(RUN_S + 1e-4)
    world.add_worker("w1", hop_s=HOP_S)
    world.fail(worker_lost=True, early=True)  # routers know it no more; it ends what it runs
    assert world.running["w1"].query_ids == (second,)
    world.finish("w0", after_s=1e-3)
    assert first in world.completed
    world.ask()
    assert "w0" not in world.running, "it is given nothing until it reports again"
    world.finish("w1")
    receipt = world.dispatcher.receipt(second)
    assert receipt is not None
    assert (receipt.outcome, receipt.attempts) == ("served", 1)


def test_one_that_could_not_be_run_costs_the_other_nothing() -> None:
    world = remote_world()
    first, second, third = (world.ask() for _ in range(3))
    world.tick(RUN_S + 1e-4)
    world.fail(early=True)
    assert world.refused[second].reason is Reason.EXECUTION_FAILED
    world.finish(after_s=1e-3)
    assert first in world.completed
    assert world.running["w0"].query_ids == (third,)


LIMITS = DispatchLimits(max_batch=1, suspect_factor=4.0, suspect_s=0.1, overdue_s=60.0)
HANGS_S = 4.0 * (1.2 * RUN_S + HOP_S) + 0.1


def test_what_waits_behind_a_batch_that_hangs_goes_elsewhere_with_it() -> None:
    world = remote_world(limits=LIMITS)
    first, second = world.ask(latency_ms=2000.0), world.ask(latency_ms=2000.0)
    world.tick(RUN_S + 1e-4)
    stuck = [world.running["w0"].batch_id, world.early["w0"].batch_id]
    world.add_worker("w1")
    world.tick(HANGS_S)
    world.tick(0.02)
    assert world.dispatcher.quarantined == {"w0": Sign.HANGING}
    assert world.running["w1"].query_ids == (first,)
    world.finish("w1")
    world.finish("w1")
    assert {first, second} <= world.completed.keys()
    for batch_id in stuck:
        world.dispatcher.handle(BatchDone(batch_id, RUN_S), world.now_s)
    assert world.dispatcher.quarantined == {}
    world.running.pop("w0")
    world.early.pop("w0")
    assert world.dispatcher.in_use("w0") == set()


def test_a_batch_hangs_from_when_it_begins_and_not_from_when_it_was_handed_over() -> None:
    world = remote_world(limits=LIMITS)
    world.ask(latency_ms=5000.0)
    second = world.ask(latency_ms=5000.0)
    world.tick(RUN_S + 1e-4)
    assert "w0" in world.early
    world.add_worker("w1")
    world.tick(HANGS_S - RUN_S - 1e-3)  # the first is very late, and the second waits
    assert world.dispatcher.quarantined == {}
    world.finish(after_s=0.0)
    world.tick(HANGS_S - HOP_S - 0.021)
    world.tick(0.02)
    assert world.dispatcher.quarantined == {}
    world.tick(0.02)
    world.tick(0.02)
    assert world.dispatcher.quarantined == {"w0": Sign.HANGING}
    assert world.running["w1"].query_ids == (second,)


def test_nobody_hangs_who_has_what_may_not_be_tried_again() -> None:
    world = remote_world(limits=LIMITS)
    first = world.ask()
    world.tick(RUN_S + 1e-3)
    world.add_worker("w1")
    tried = world.ask()
    world.lose("w1")
    assert world.early["w0"].query_ids == (tried,)
    world.add_worker("w2")
    for _ in range(3):
        world.tick(HANGS_S)
    assert world.dispatcher.quarantined == {}
    world.drain()
    assert {first, tried} <= world.completed.keys()


def test_answers_may_come_in_any_order() -> None:
    world = remote_world()
    first, second, third = (world.ask() for _ in range(3))
    world.tick(RUN_S + 1e-4)
    late = world.early.pop("w0")
    world._carry_out(world.dispatcher.handle(BatchDone(late.batch_id, RUN_S), world.now_s))
    assert list(world.completed)[1:] == [second]
    world.finish(after_s=1e-3)
    assert list(world.completed)[1:] == [second, first]
    assert world.running["w0"].query_ids == (third,)


def test_cancelled_queries_do_not_come_back() -> None:
    world = remote_world()
    first, second, third = (world.ask() for _ in range(3))
    world.tick(RUN_S + 1e-4)
    world.cancel(second)
    world.turn_back(early=True)
    assert world.dispatcher.queued == 1
    world.finish(after_s=1e-3)
    assert world.running["w0"].query_ids == (third,)
    world.cancel(third)
    world.finish()
    assert world.dispatcher.open_queries == 0
    assert first in world.completed


def test_what_both_batches_need_must_not_be_unloaded() -> None:
    world = World(CheapestFeasible(), dict(LADDER), ALONE)
    world.add_worker(hop_s=HOP_S, lead_s=HOP_S)
    world.ask()
    world.finish(after_s=RUN_S + HOP_S)
    world.ask()
    world.ask(min_accuracy=75.0)
    world.tick(RUN_S + 1e-4)
    assert world.early["w0"].variant_id == FP32
    assert world.dispatcher.in_use("w0") == {INT8, FP32}
    assert world.dispatcher.members(world.early["w0"].batch_id) == (3,)


def test_a_worker_that_holds_nothing_any_more_is_given_nothing_early() -> None:
    world = remote_world()
    first, second = world.ask(), world.ask(latency_ms=100.0)
    world.add_worker(variant_ids=(), hop_s=HOP_S, lead_s=HOP_S)
    assert world.refused[second].reason is Reason.NOTHING_READY, "no load would end in time"
    held = world.ask()
    world.tick(RUN_S + 1e-4)
    assert not world.early
    world.finish(after_s=1e-3)
    assert first in world.completed
    assert held in world.open_ids


def test_queries_that_wait_are_refused_when_all_ends_and_both_batches_complete() -> None:
    world = remote_world()
    first, second, third = (world.ask() for _ in range(3))
    world.tick(RUN_S + 1e-4)
    world.shut_down()
    assert world.refused[third].reason is Reason.SHUTTING_DOWN
    world.finish(after_s=1e-3)
    world.finish()
    assert {first, second} <= world.completed.keys()
