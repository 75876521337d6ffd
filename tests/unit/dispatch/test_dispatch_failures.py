"""Workers that die, batches that fail or hang, clients that leave, deadlines that pass."""

from __future__ import annotations

import pytest

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import BatchDone, BatchFailed
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.views import Bind, Reject

from .some_policies import LateBinding, Scripted
from .world import LADDER, World

INT8, FP32, LITE2 = LADDER


def test_a_lost_batch_is_tried_elsewhere() -> None:
    world = World()
    world.add_worker("w0")
    query = world.ask()
    world.add_worker("w1")
    world.fail("w0", worker_lost=True)
    assert world.running["w1"].query_ids == (query,)
    world.finish("w1")
    assert query in world.completed
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert (receipt.attempts, receipt.worker_id, receipt.outcome) == (2, "w1", "served")


def test_a_lost_batch_is_tried_elsewhere_only_once() -> None:
    world = World()
    for worker in ("w0", "w1", "w2"):
        world.add_worker(worker)
    query = world.ask()
    world.lose(next(iter(world.running)))
    (second,) = world.running
    world.lose(second)
    assert world.refused[query].reason is Reason.WORKER_LOST
    assert world.running == {}
    assert len(world.executed) == 2


def test_with_nobody_left_a_lost_batch_is_refused() -> None:
    world = World()
    world.add_worker()
    query = world.ask()
    world.lose()
    assert world.refused[query].reason is Reason.NOTHING_READY


def test_what_only_waited_for_a_lost_worker_has_its_tries_left() -> None:
    world = World()
    world.add_worker("w0")
    running, waiting = world.ask(batch_key="a"), world.ask(batch_key="b")
    world.add_worker("w1")
    world.lose("w0")
    assert world.running["w1"].query_ids == (running,)
    world.finish("w1")
    world.add_worker("w2")
    assert world.running["w1"].query_ids == (waiting,)
    world.lose("w1")
    assert world.running["w2"].query_ids == (waiting,)
    world.finish("w2")
    assert set(world.completed) == {running, waiting}


def test_a_retry_waits_like_any_other_and_its_receipt_says_so() -> None:
    world = World()
    world.add_worker("w0")
    world.add_worker("w1")
    first, second = world.ask(), world.ask()
    assert set(world.running) == {"w0", "w1"}
    world.lose("w0")
    receipt = world.dispatcher.receipt(first)
    assert receipt is not None
    assert (receipt.outcome, receipt.worker_id, receipt.attempts) == ("waiting", "w1", 1)
    world.finish("w1")
    assert receipt.outcome == "running"
    assert second in world.completed


def test_an_answer_from_a_worker_that_was_given_up_is_ignored() -> None:
    world = World()
    world.add_worker("w0")
    query = world.ask()
    batch = world.running["w0"]
    world.add_worker("w1")
    world.lose("w0")
    assert world.dispatcher.handle(BatchDone(batch.batch_id, 0.01), world.now_s) == []
    assert world.dispatcher.handle(BatchFailed(batch.batch_id, worker_lost=True), world.now_s) == []
    world.finish("w1")
    assert list(world.completed) == [query]


def test_a_worker_that_comes_back_serves_again() -> None:
    world = World()
    world.add_worker()
    world.ask()
    world.lose()
    assert world.instances.reports == {}
    world.add_worker()
    query = world.ask()
    assert world.running["w0"].query_ids == (query,)


def test_a_batch_that_fails_on_a_sound_worker_is_not_tried_again() -> None:
    world = World()
    world.add_worker("w0")
    world.add_worker("w1")
    query, waiting = world.ask(scope="imagenet/lite2"), world.ask()
    world.fail("w0")
    assert world.refused[query].reason is Reason.EXECUTION_FAILED
    assert waiting in world.open_ids


def test_after_a_failed_batch_the_next_one_runs() -> None:
    world = World()
    world.add_worker()
    world.ask()
    waiting = world.ask()
    world.fail()
    assert world.running["w0"].query_ids == (waiting,)


@pytest.mark.parametrize("policy", [CheapestFeasible, LateBinding])
def test_a_batch_that_hangs_is_given_up_with_its_worker(policy: type[SelectionPolicy]) -> None:
    limits = DispatchLimits(overdue_factor=10.0, overdue_s=1.0)
    world = World(policy(), {INT8: LADDER[INT8]}, limits)
    world.add_worker("w0")
    query = world.ask()
    world.add_worker("w1")
    world.tick(1.1)  # it may take 10 x 12 ms + 1 s
    assert set(world.running) == {"w0"}
    world.tick(0.03)
    assert world.running["w1"].query_ids == (query,)
    assert set(world.instances.reports) == {"w1"}


def test_a_cancelled_query_leaves_its_queue() -> None:
    world = World()
    world.add_worker()
    world.ask()
    waiting, other = world.ask(), world.ask()
    before_s = world.predicted_wait_s("w0")
    world.cancel(waiting)
    assert world.dispatcher.queued == 1
    assert world.predicted_wait_s("w0") == pytest.approx(before_s - 0.040)
    world.finish()
    assert world.running["w0"].query_ids == (other,)
    receipt = world.dispatcher.receipt(waiting)
    assert receipt is not None
    assert (receipt.outcome, receipt.reason) == ("cancelled", Reason.CANCELLED)


def test_a_cancelled_query_that_runs_is_not_answered() -> None:
    world = World()
    world.add_worker()
    query = world.ask()
    world.cancel(query)
    assert world.dispatcher.open_queries == 0
    assert world.finish() == []
    counters = world.dispatcher.take_counters()
    assert counters.outcomes == {"cancelled": 1}
    assert counters.used == {}
    assert world.cost_model.observed  # though its batch teaches as any other


def test_a_cancelled_query_is_not_retried() -> None:
    world = World()
    world.add_worker("w0")
    query = world.ask()
    world.add_worker("w1")
    world.cancel(query)
    assert world.lose("w0") == []
    assert world.running == {}


def test_cancelling_what_is_over_changes_nothing() -> None:
    world = World()
    world.add_worker()
    query = world.ask()
    world.finish()
    world.cancel(query)
    world.cancel(12345)
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert receipt.outcome == "served"


def test_a_deadline_that_passes_in_the_queue_is_answered_at_the_next_tick() -> None:
    world = World(CheapestFeasible("p50"))
    world.add_worker()
    world.ask(scope="imagenet/lite2")
    query = world.ask(latency_ms=50.5)
    world.tick(0.050)
    assert query in world.open_ids
    world.tick(0.001)
    assert world.refused[query].reason is Reason.DEADLINE_PASSED
    assert world.predicted_wait_s("w0") == 0.0


def test_a_late_query_is_chosen_for_anew_before_it_is_refused() -> None:
    world = World()
    world.add_worker()
    world.ask()
    query = world.ask(latency_ms=90.0)
    assert world.variant_of(query) == LITE2
    world.finish(after_s=0.060)  # 20 ms later than predicted: 30 ms are left
    assert world.running["w0"].variant_id == FP32
    assert world.running["w0"].query_ids == (query,)
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert (receipt.rebinds, receipt.attempts) == (1, 1)
    assert receipt.predicted_latency_s == pytest.approx(0.080)


def test_a_late_query_that_nothing_can_save_is_refused_for_the_queue() -> None:
    """Not for its limits: an idle system would have met them."""
    world = World()
    world.add_worker()
    world.ask()
    query = world.ask(latency_ms=90.0)
    world.finish(after_s=0.085)
    assert world.refused[query].reason is Reason.QUEUE_TOO_LONG
    assert "85 ms" in world.refused[query].message
    assert world.running == {}


def test_a_query_whose_deadline_has_passed_is_not_chosen_for_again() -> None:
    world = World()
    world.add_worker()
    world.ask()
    query = world.ask(latency_ms=90.0)
    world.finish(after_s=0.095)
    assert world.refused[query].reason is Reason.DEADLINE_PASSED


def test_a_policy_that_binds_for_good_rejects_what_is_late() -> None:
    world = World(Scripted(late=lambda query, candidates: Reject(Reason.DEADLINE_PASSED)))
    world.add_worker()
    world.ask()
    query = world.ask(latency_ms=90.0)
    world.finish(after_s=0.060)
    assert world.refused[query].reason is Reason.DEADLINE_PASSED


def test_a_late_query_moves_to_a_worker_that_can_save_it() -> None:
    world = World()
    world.cost_model.speed["h200"] = 10.0
    world.add_worker("slow", [INT8])
    world.ask()
    query = world.ask(latency_ms=25.0)
    world.add_worker("fast", [INT8], "h200")
    world.finish("slow", after_s=0.018)
    assert world.running["fast"].query_ids == (query,)
    world.finish("fast")
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert (receipt.outcome, receipt.device_class) == ("served", "h200")


def test_choosing_anew_has_an_end_and_then_it_runs_late() -> None:
    """A policy that insists on what is too late."""
    stubborn = Scripted(
        arrival=lambda query, candidates: Bind(0, Reason.CHEAPEST_FEASIBLE),
        late=lambda query, candidates: Bind(0, Reason.CHEAPEST_FEASIBLE),
    )
    world = World(stubborn, {LITE2: LADDER[LITE2]})
    world.add_worker()
    query = world.ask(latency_ms=10.0)
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert world.running["w0"].query_ids == (query,)
    assert receipt.rebinds == 1
    waiting = world.ask(latency_ms=60.0)
    world.finish()
    assert world.running["w0"].query_ids == (waiting,)
    world.finish()
    assert receipt.outcome == "served-late"


def test_late_ones_behind_an_early_head_wait_their_turn() -> None:
    world = World(variants={INT8: LADDER[INT8]}, limits=DispatchLimits(max_batch=1))
    world.add_worker()
    world.ask()
    first = world.ask(latency_ms=500.0, priority=5)
    late = world.ask(latency_ms=45.0)
    world.finish(after_s=0.040)
    assert world.running["w0"].query_ids == (first,)
    assert late in world.open_ids
    world.finish()
    assert world.refused[late].reason is Reason.DEADLINE_PASSED


def test_shutting_down_refuses_what_waits_and_completes_what_runs() -> None:
    world = World()
    world.add_worker()
    running = world.ask()
    waiting = [world.ask(latency_ms=500.0) for _ in range(3)]
    world.shut_down()
    assert {query: refusal.reason for query, refusal in world.refused.items()} == dict.fromkeys(
        waiting, Reason.SHUTTING_DOWN
    )
    assert world.dispatcher.queued == 0
    late = world.ask(latency_ms=500.0)  # read from a connection after the end
    assert world.refused[late].reason is Reason.SHUTTING_DOWN
    world.finish()
    assert list(world.completed) == [running]


def test_losing_a_variant_moves_its_queue_to_what_is_left() -> None:
    world = World()
    world.add_worker("w0")
    world.ask()
    query = world.ask(latency_ms=500.0)
    world.add_worker("w0", [INT8, LITE2])
    world.add_worker("w0", [INT8])
    assert world.variant_of(query) == INT8
    assert query in world.open_ids


def test_losing_every_variant_refuses_the_queue() -> None:
    world = World()
    world.add_worker("w0")
    world.ask()
    query = world.ask(latency_ms=500.0)
    world.add_worker("w0", [])
    assert world.refused[query].reason is Reason.NOTHING_READY
    world.finish("w0", after_s=0.040)
    assert 1 in world.completed


def test_a_report_that_says_nothing_new_does_nothing() -> None:
    world = World()
    world.add_worker()
    world.ask()
    world.ask()
    assert world.add_worker() == []


def test_a_new_worker_gets_new_queries_and_late_ones() -> None:
    world = World()
    world.add_worker("w0")
    world.ask()
    world.add_worker("w1")
    query = world.ask()
    assert world.running["w1"].query_ids == (query,)
