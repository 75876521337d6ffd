"""Workers that hang or are slow get no new batches until they have shown better."""

from __future__ import annotations

import math

import pytest

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.quarantine import Quarantine, QuarantineLimits, Sign
from modelless.controller.dispatch.queues import Batch, Worker
from modelless.policies.reasons import Reason

from .world import LADDER, World

INT8, FP32, LITE2 = LADDER
LIMITS = DispatchLimits(suspect_factor=4.0, suspect_s=0.1, overdue_factor=10.0, overdue_s=60.0)


def hanging_world() -> tuple[World, int]:
    """Two workers, the query on w0, whose batch has been seen to hang once."""
    world = World(limits=LIMITS)
    world.add_worker("w0")
    query = world.ask(latency_ms=1000.0)
    world.add_worker("w1")
    world.tick(0.4)
    return world, query


def test_a_query_on_a_worker_that_hangs_is_answered_by_another_in_time() -> None:
    world, query = hanging_world()
    assert set(world.running) == {"w0"}, "one look is not enough: this process may have stood still"
    world.tick(0.02)
    assert world.dispatcher.quarantined == {"w0": Sign.HANGING}
    assert world.running["w1"].query_ids == (query,)
    world.finish("w1")
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert (receipt.outcome, receipt.worker_id, receipt.attempts) == ("served", "w1", 2)


def test_a_worker_in_quarantine_gets_nothing_until_its_batch_is_back() -> None:
    world, _ = hanging_world()
    world.tick(0.02)
    world.add_worker("w0")  # it reports as ever
    queries = [world.ask() for _ in range(3)]
    assert "w0" not in {batch.worker_id for batch in world.executed[1:]}
    world.finish("w0", after_s=0.01)
    assert world.dispatcher.quarantined == {}
    (late,) = [world.ask(batch_key="another")]
    assert late in world.running["w0"].query_ids
    world.drain()
    assert set(world.completed) >= {*queries, late}


def test_what_waits_for_a_worker_that_hangs_goes_elsewhere_with_its_tries_left() -> None:
    world = World(limits=LIMITS)
    world.add_worker("w0")
    running, waiting = world.ask(batch_key="a"), world.ask(batch_key="b")
    world.add_worker("w1")
    world.tick(0.4)
    world.tick(0.02)
    world.finish("w1")
    world.finish("w1")
    assert set(world.completed) == {running, waiting}
    receipts = [world.dispatcher.receipt(query) for query in (running, waiting)]
    assert [receipt.attempts for receipt in receipts if receipt is not None] == [2, 1]


def test_a_query_that_hangs_again_is_not_sent_a_third_time() -> None:
    world, query = hanging_world()
    world.tick(0.02)
    world.add_worker("w2")
    for _ in range(4):
        world.tick(1.0)
    assert [batch.worker_id for batch in world.executed if query in batch.query_ids] == ["w0", "w1"]


def test_a_retry_is_not_sent_after_its_deadline() -> None:
    world, query = hanging_world()
    world.tick(1.0)
    assert world.refused[query].reason is Reason.DEADLINE_PASSED
    assert len(world.executed) == 1


def test_the_only_worker_of_a_task_is_waited_for() -> None:
    world = World(limits=LIMITS)
    world.add_worker("w0")
    query = world.ask()
    for _ in range(4):
        world.tick(1.0)
    assert world.dispatcher.quarantined == {}
    world.finish("w0")
    assert query in world.completed


def test_a_worker_whose_batch_never_returns_is_tried_later_and_later() -> None:
    world, _ = hanging_world()
    world.tick(0.02)
    world.finish("w1")
    del world.running["w0"]  # it will never say anything about it
    lengths_s = []
    for _ in range(3):
        began_s = world.now_s
        while world.dispatcher.quarantined:
            world.ask()
            world.tick(0.25)
            world.finish("w1")
        lengths_s.append(world.now_s - began_s)
        while "w0" not in world.running:
            world.ask(batch_key=world.now_s)
        world.tick(0.4)
        world.tick(0.02)
        assert world.dispatcher.quarantined == {"w0": Sign.HANGING}
        del world.running["w0"]
        while "w1" in world.running:
            world.finish("w1")
    assert lengths_s == pytest.approx([5.0, 10.0, 20.0], abs=1.0)


def test_a_worker_in_quarantine_may_die() -> None:
    world, _ = hanging_world()
    world.tick(0.02)
    world.fail("w0", worker_lost=True)
    assert set(world.instances.reports) == {"w1"}
    assert world.dispatcher.quarantined == {}


def test_a_batch_that_fails_after_all_ends_the_quarantine_too() -> None:
    world, query = hanging_world()
    world.tick(0.02)
    world.fail("w0")
    assert world.dispatcher.quarantined == {}
    assert query not in world.refused


# -- workers that other gateways use, too --------------------------------------------------------


def test_a_batch_that_is_turned_back_after_all_ends_the_quarantine_too() -> None:
    world, query = hanging_world()
    world.tick(0.02)
    world.turn_back("w0")
    assert world.dispatcher.quarantined == {}
    world.finish("w1")
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert (receipt.outcome, receipt.attempts) == ("served", 2)


def test_others_batches_never_hang() -> None:
    world = World(limits=LIMITS)
    world.add_worker("w0")
    world.ask()
    world.add_worker("w1")
    world.finish("w0", others_s=3.0)
    for _ in range(29):
        world.tick(0.1)
        assert world.dispatcher.quarantined == {}
    world.tick(0.2)
    queries = [world.ask(batch_key=number) for number in range(2)]
    assert set(world.running) == {"w0", "w1"}
    world.drain()
    assert set(world.completed) > set(queries)


@pytest.mark.parametrize("times_as_long", [1.0, 1.9])
def test_a_batch_that_waits_as_long_as_it_may_behind_others_does_not_look_hanging(
    times_as_long: float,
) -> None:
    world = World(limits=LIMITS)
    world.add_worker("w0")
    query = world.ask(latency_ms=10_000.0)
    world.add_worker("w1")
    batch = world.running["w0"]
    _, patience_s = world.dispatcher.patience(batch.batch_id, world.now_s)
    assert patience_s > 0.05, "two gateways take turns with batches like this one"
    for _ in range(10):
        world.tick(patience_s * times_as_long / 10.0)
    assert world.dispatcher.quarantined == {}
    world.finish("w0")
    assert [each.worker_id for each in world.executed if query in each.query_ids] == ["w0"]


def test_nor_does_it_look_like_one_to_be_given_up_on_its_last_attempt() -> None:
    world = World(limits=DispatchLimits(max_attempts=1))
    world.add_worker("w0")
    query = world.ask()  # without a deadline
    _, patience_s = world.dispatcher.patience(world.running["w0"].batch_id, world.now_s)
    world.tick(min(patience_s, 1e6))
    assert set(world.running) == {"w0"}
    world.finish("w0")
    assert query in world.completed


@pytest.mark.parametrize(("waited_s", "slow"), [(0.2, False), (0.0, True)])
def test_having_waited_for_others_is_not_slowness(waited_s: float, slow: bool) -> None:
    world = World()
    for name in ("w0", "w1"):
        world.add_worker(name)
    for number in range(12):
        for part in ("a", "b"):  # one for each worker
            world.ask(batch_key=(number, part))
        world.finish("w1")
        if "w0" in world.running:
            own_s = world.expected_s(world.running["w0"])
            world.finish("w0", after_s=own_s + 0.2 - waited_s, waited_s=waited_s)
    assert (world.dispatcher.quarantined == {"w0": Sign.SLOW}) is slow


# -- slow workers --------------------------------------------------------------------------------


class Slow:
    """Workers of one class whose batches take what a test says; 10 ms were expected."""

    def __init__(self, count: int, limits: QuarantineLimits | None = None) -> None:
        world = World()
        self.workers = [Worker(f"w{i}", "cpu-1") for i in range(count)]
        self.instances = world.instances
        self.quarantine = Quarantine(self.instances, limits)
        self.now_s = 100.0
        for worker in self.workers:
            world.add_worker(worker.worker_id)
        for report in self.instances.reports.values():
            self.quarantine.filter_report(report)

    def run(self, number: int, took_s: float, times: int = 1) -> bool:
        """The worker runs batches that take so long; whether the last one put it in quarantine."""
        found = False
        for _ in range(times):
            begin_s, self.now_s = self.now_s, self.now_s + took_s
            batch = Batch(0, INT8, "cpu-1", (), 1, begin_s, 0.010, math.inf, math.inf)
            found = self.quarantine.check_slow(self.workers[number], batch, self.now_s)
        return found


def test_several_slow_batches_in_a_row_put_a_worker_into_quarantine() -> None:
    slow = Slow(2)
    slow.run(0, 0.011, 20)
    slow.run(1, 0.011, 20)
    assert not slow.run(0, 0.1, 4)
    assert not slow.run(0, 0.011), "once in time, and it begins anew"
    assert slow.run(0, 0.1, 5)
    assert slow.quarantine.signs == {"w0": Sign.SLOW}
    report = slow.instances.reports["w0"]
    assert report.variant_ids
    assert slow.quarantine.filter_report(report).variant_ids == ()


def test_what_slows_all_slows_nobody() -> None:
    slow = Slow(3)
    for number in range(3):
        slow.run(number, 0.011, 20)
    for _ in range(40):
        for number in range(3):
            assert not slow.run(number, 0.1)
    assert slow.quarantine.signs == {}


def test_milliseconds_of_the_scheduler_are_no_slowness() -> None:
    slow = Slow(2, QuarantineLimits(slow_s=0.2))
    slow.run(1, 0.011, 20)
    assert not slow.run(0, 0.1, 20)


def test_without_others_to_compare_with_nobody_is_slow() -> None:
    slow = Slow(1)
    assert not slow.run(0, 0.5, 50)


def test_of_two_slow_workers_one_serves_on() -> None:
    slow = Slow(3)
    for number in range(3):
        slow.run(number, 0.011, 20)
    for _ in range(10):
        slow.run(0, 0.2)
        slow.run(1, 0.2)
    assert len(slow.quarantine.signs) == 1


def test_a_trial_decides_and_each_further_quarantine_is_longer() -> None:
    slow = Slow(2)
    slow.run(0, 0.011, 20)
    slow.run(1, 0.011, 20)
    slow.run(0, 0.1, 5)
    for length_s in (1.0, 2.0, 4.0):
        assert slow.quarantine.release_due(slow.now_s + 0.9 * length_s) == []
        slow.now_s += length_s
        assert slow.quarantine.release_due(slow.now_s) == ["w0"]
        assert slow.quarantine.signs == {}
        assert slow.run(0, 0.1), "one slow batch is enough on trial"
    slow.now_s += 8.0
    assert slow.quarantine.release_due(slow.now_s) == ["w0"]
    assert not slow.run(0, 0.011)
    assert not slow.run(0, 0.1, 4), "it passed: five in a row again"


def test_after_a_sound_while_the_next_quarantine_is_short_again() -> None:
    slow = Slow(2)
    slow.run(0, 0.011, 20)
    slow.run(1, 0.011, 20)
    slow.run(0, 0.1, 5)
    slow.now_s += 1.0
    slow.quarantine.release_due(slow.now_s)
    slow.run(0, 0.011)
    slow.now_s += 61.0
    slow.run(0, 0.1, 5)
    assert slow.quarantine.release_due(slow.now_s + 1.1) == ["w0"]
