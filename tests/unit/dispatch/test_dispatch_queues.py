"""Queues and batches: who goes first, with whom, and how many may wait."""

from __future__ import annotations

import pytest

from modelless.controller.dispatch.fair_shares import Tenants
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.queues import WaitingQueries, Worker
from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.priorities import urgency
from modelless.policies.reasons import Reason
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible

from .world import LADDER, World, make_query

INT8, FP32, LITE2 = LADDER
ONE = {INT8: LADDER[INT8]}


def in_order(world: World) -> list[int]:
    """The queries in the order in which they ran, everything run to the end."""
    while world.running:
        world.finish()
    return [query_id for batch in world.executed for query_id in batch.query_ids]


def busy_world(max_batch: int = 1, **kwargs: object) -> World:
    """One variant, one worker, and a first query that keeps it busy."""
    limits = DispatchLimits(max_batch=max_batch, **kwargs)  # type: ignore[arg-type]
    world = World(variants=ONE, limits=limits)
    world.add_worker()
    world.ask()
    return world


def test_the_earliest_deadline_goes_first() -> None:
    world = busy_world()
    late, early, middle = (world.ask(latency_ms=ms) for ms in (900.0, 500.0, 700.0))
    never = world.ask()
    assert in_order(world) == [1, early, middle, late, never]


def test_priority_goes_before_the_deadline() -> None:
    world = busy_world()
    usual = world.ask(latency_ms=500.0)
    urgent = world.ask(latency_ms=900.0, priority=9)
    urgent_too = world.ask(latency_ms=800.0, priority=9)
    assert in_order(world) == [1, urgent_too, urgent, usual]


def test_equals_go_in_order_of_arrival() -> None:
    world = busy_world()
    queries = [world.ask(latency_ms=900.0) for _ in range(5)]
    assert in_order(world) == [1, *queries]


def test_the_most_urgent_of_several_queues_goes_first() -> None:
    world = World(CheapestFeasible())
    world.add_worker()
    world.ask()
    one = world.ask(scope="imagenet/lite2", latency_ms=900.0)
    two = world.ask(scope="imagenet/lite0/fp32", latency_ms=500.0)
    three = world.ask(scope="imagenet/lite0/int8", latency_ms=700.0)
    assert in_order(world) == [1, two, three, one]


def test_one_batch_at_a_time_a_worker() -> None:
    world = busy_world()
    for _ in range(3):
        world.ask(latency_ms=500.0)
    assert len(world.executed) == 1
    world.finish()
    assert len(world.executed) == 2
    assert world.dispatcher.queued == 2


def test_a_batch_takes_what_is_already_waiting() -> None:
    world = busy_world(max_batch=8)
    queries = [world.ask(latency_ms=1000.0) for _ in range(5)]
    world.finish()
    assert world.running["w0"].query_ids == tuple(queries)
    assert world.dispatcher.members(world.running["w0"].batch_id) == tuple(queries)
    receipt = world.dispatcher.receipt(queries[0])
    assert receipt is not None
    assert receipt.batch_items == 5


def test_a_batch_never_exceeds_its_items() -> None:
    world = busy_world(max_batch=4)
    queries = [world.ask(latency_ms=1000.0, items=items) for items in (2, 1, 3, 1)]
    world.finish()
    assert world.running["w0"].query_ids == tuple(queries[:2])
    world.finish()
    assert world.running["w0"].query_ids == tuple(queries[2:])


def test_a_batch_stops_growing_before_its_first_deadline() -> None:
    world = busy_world(max_batch=8)  # b items take 5 + 5 b ms, 1.2 of that at p99
    queries = [world.ask(latency_ms=latency_ms) for latency_ms in (39.5, 900.0, 900.0, 900.0)]
    world.finish()  # at 10 ms: 29.5 ms are left, so three fit at p99 (24 ms), four do not (30 ms)
    assert world.running["w0"].query_ids == tuple(queries[:3])


def test_nor_before_the_deadline_of_anyone_in_it() -> None:
    """An urgent query may have more time than a later one of less priority."""
    world = busy_world(max_batch=8)
    urgent = world.ask(latency_ms=900.0, priority=9)
    tight = [world.ask(latency_ms=42.0) for _ in range(2)]
    world.finish()  # 32 ms are left: two fit at p99 (18 ms), three too (24 ms)
    assert world.running["w0"].query_ids == (urgent, *tight)
    world = busy_world(max_batch=8)
    urgent = world.ask(latency_ms=900.0, priority=9)
    tight = [world.ask(latency_ms=32.5), world.ask(latency_ms=900.0)]
    world.finish()  # 22.5 ms are left: the third would make the second late
    assert world.running["w0"].query_ids == (urgent, tight[0])


def test_a_batch_that_does_not_pay_is_not_made() -> None:
    world = World(MostAccurateFeasible(batching=EarliestDeadlineFirst(min_gain=0.3)), ONE)
    world.add_worker()
    world.ask()
    for _ in range(5):
        world.ask(latency_ms=1000.0)
    world.finish()
    assert len(world.running["w0"].query_ids) == 1  # an item in two costs 7.5 of 10 ms: 25 % less


def test_a_device_that_gains_nothing_from_batches_runs_none() -> None:
    world = World(variants=ONE)
    world.cost_model.fixed_share = -0.1  # two at once take longer than one by one
    world.add_worker()
    for _ in range(4):
        world.ask(latency_ms=1000.0)
    in_order(world)
    assert all(len(batch.query_ids) == 1 for batch in world.executed)


def test_only_equal_shapes_share_a_batch() -> None:
    world = busy_world(max_batch=8)
    a = [world.ask(latency_ms=1000.0, batch_key=(224, 224)) for _ in range(2)]
    b = [world.ask(latency_ms=999.0, batch_key=(96, 96)) for _ in range(2)]
    world.finish()
    assert world.running["w0"].query_ids == tuple(b)
    world.finish()
    assert world.running["w0"].query_ids == tuple(a)


def test_only_one_variant_a_batch() -> None:
    world = World(CheapestFeasible())
    world.add_worker()
    world.ask()
    a = world.ask(latency_ms=1000.0)
    b = world.ask(latency_ms=1001.0, scope="imagenet/lite2")
    world.finish()
    assert world.running["w0"].query_ids == (a,)
    world.finish()
    assert world.running["w0"].query_ids == (b,)


def test_the_queue_is_bounded() -> None:
    world = busy_world(max_queued=3)
    for _ in range(3):
        world.ask(latency_ms=1000.0)
    refused = world.ask(latency_ms=1000.0)
    assert world.refused[refused].reason is Reason.QUEUE_FULL
    assert world.refused[refused].retry_after_s == 1.0
    assert world.dispatcher.take_counters().arrivals == {"imagenet": 5}
    world.finish()
    world.ask(latency_ms=1000.0)
    assert list(world.refused) == [refused]


def test_what_runs_or_waits_is_in_use() -> None:
    world = World()
    world.add_worker()
    assert world.dispatcher.in_use("w0") == set()
    assert world.dispatcher.in_use("nobody") == set()
    world.ask(scope="imagenet/lite2")
    world.ask(scope="imagenet/lite0/int8")
    assert world.dispatcher.in_use("w0") == {LITE2, INT8}
    world.finish()
    assert world.dispatcher.in_use("w0") == {INT8}
    world.finish()
    assert world.dispatcher.in_use("w0") == set()


def test_members_of_a_batch_that_is_over() -> None:
    world = busy_world()
    assert world.dispatcher.members(0) == (1,)
    world.finish()
    assert world.dispatcher.members(0) == ()
    assert world.dispatcher.members(77) == ()


def test_what_is_late_is_said_to_be() -> None:
    world = busy_world()
    query = world.ask(latency_ms=25.0)
    world.finish()
    world.finish(after_s=0.020)
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert receipt.outcome == "served-late"
    assert receipt.observed_latency_s == pytest.approx(0.030)
    assert receipt.predicted_latency_s == pytest.approx(0.020)
    assert world.dispatcher.take_counters().outcomes == {"served": 1, "served-late": 1}


def test_used_counts_answers_by_worker_and_variant() -> None:
    world = busy_world(max_batch=8)
    for _ in range(3):
        world.ask(latency_ms=1000.0)
    in_order(world)
    assert len(world.executed) == 2
    assert world.dispatcher.take_counters().used == {("w0", INT8): 4}


class TestWaitingQueries:
    def test_a_query_that_takes_for_ever_is_no_backlog(self) -> None:
        waiting, worker = WaitingQueries(Tenants(1000)), Worker("w0", "cpu-1")
        waiting.bind_query(make_query(1, 0.0), worker, INT8, float("inf"))
        waiting.bind_query(make_query(2, 0.0), worker, INT8, float("nan"))
        waiting.bind_query(make_query(3, 0.0), worker, INT8, 0.5)
        assert worker.backlog_s == {0: 0.5}
        waiting.remove_query(1)
        assert (worker.backlog_s, len(waiting)) == ({0: 0.5}, 2)

    def test_rounding_leaves_no_backlog_behind(self) -> None:
        waiting, worker = WaitingQueries(Tenants(1000)), Worker("w0", "cpu-1")
        for number in range(10):
            waiting.bind_query(make_query(number, 0.0), worker, INT8, 0.1 * (number + 1))
        for number in range(10):
            waiting.remove_query(number)
        assert worker.backlog_s == {}
        assert worker.queues == {}

    def test_all_queries_come_most_urgent_first(self) -> None:
        waiting, worker = WaitingQueries(Tenants(1000)), Worker("w0", "cpu-1")
        queries = [
            make_query(1, 0.0, latency_ms=500.0),
            make_query(2, 0.0, latency_ms=100.0),
            make_query(3, 0.0, latency_ms=900.0, priority=1),
            make_query(4, 0.0),
        ]
        for query in queries[:2]:
            waiting.bind_query(query, worker, INT8, 0.0)
        for query in queries[2:]:
            waiting.defer_query(query)
        assert [query.query_id for query in waiting.all_queries()] == [3, 2, 1, 4]
        assert waiting.all_queries() == sorted(queries, key=urgency)
        assert [query.query_id for query in waiting.find_expired(0.5)] == [2, 1]
        assert waiting.place(3) is not None
        assert waiting.place(5) is None
