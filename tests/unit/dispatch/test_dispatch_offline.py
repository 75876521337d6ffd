"""Offline queries get what online queries leave, and the cheapest variant that is allowed."""

from __future__ import annotations

import math

import pytest

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.cheapest_feasible import CheapestFeasible

from .some_policies import LateBinding, Scripted
from .world import LADDER, World

INT8, FP32, LITE2 = LADDER
OFFLINE = {"priority": -1, "latency_ms": 30_000.0}


def test_the_cheapest_variant_that_is_accurate_enough_serves() -> None:
    world = World(BestValue())
    world.add_worker()
    for least, variant_id in ((0.0, INT8), (72.0, FP32), (76.0, LITE2)):
        query = world.ask(**OFFLINE, min_accuracy=least)
        assert world.running["w0"].variant_id == variant_id
        world.finish()
        assert query in world.completed
        receipt = world.dispatcher.receipt(query)
        assert receipt is not None
        assert receipt.reason is Reason.CHEAPEST_FEASIBLE


def test_no_policy_sees_them() -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a policy was asked")

    world = World(Scripted(arrival=fail, idle=fail))
    world.add_worker()
    queries = [world.ask(**OFFLINE) for _ in range(3)]
    for _ in range(2):
        world.finish()
    assert set(queries) == set(world.completed)


@pytest.mark.parametrize("policy", [BestValue, LateBinding])
def test_no_batch_of_online_queries_is_filled_with_them(policy: type[SelectionPolicy]) -> None:
    world = World(policy(), {INT8: LADDER[INT8]})
    world.add_worker()
    first = world.ask(**OFFLINE)
    for _ in range(3):
        world.ask(**OFFLINE)
    online = world.ask(latency_ms=9_000.0)
    world.finish()
    assert first in world.completed
    assert world.running["w0"].query_ids == (online,)


@pytest.mark.parametrize("policy", [BestValue, CheapestFeasible])
def test_online_queries_go_first_even_late_ones(policy: type[BestValue]) -> None:
    world = World(policy(), limits=DispatchLimits(max_batch=1))
    world.add_worker()
    first = world.ask(**OFFLINE)
    offline = world.ask(**OFFLINE)
    late = world.ask(latency_ms=5.0, serve_late=True)
    online = world.ask(latency_ms=9_000.0)
    for _ in range(4):
        world.finish()
    assert list(world.completed) == [first, online, late, offline]


def test_a_full_queue_has_room_for_online_queries() -> None:
    world = World(limits=DispatchLimits(max_batch=1, max_queued=2))
    world.add_worker()
    queries = [world.ask(**OFFLINE) for _ in range(4)]
    online = world.ask(latency_ms=9_000.0)
    assert world.refused[queries[3]].reason is Reason.QUEUE_FULL
    assert len(world.refused) == 2
    assert online in world.open_ids


@pytest.mark.parametrize(
    ("latency_ms", "items"),
    # One item takes 10 ms, its p99 is 12; n take 5 + 5 n, and 1.2 times that.
    # An online query that runs at once has its limit left, less 10 ms.
    [(None, 3), (1000.0, 3), (40.0, 2), (30.0, 1), (20.0, 0), (15.0, 0)],
)
def test_a_batch_is_no_longer_than_what_online_queries_have_left(
    latency_ms: float | None, items: int
) -> None:
    world = World(BestValue(), {INT8: LADDER[INT8]})
    world.add_worker()
    if latency_ms is not None:
        world.ask(latency_ms=latency_ms)
    else:
        world.ask(**OFFLINE)
    for _ in range(8):
        world.ask(**OFFLINE)
    world.finish()
    assert len(world.running["w0"].query_ids if world.running else ()) == items
    if not items:
        world.tick(11.0)
        assert world.running, "after a while what came is forgotten"


def test_a_rare_hurry_does_not_stop_them() -> None:
    world = World(BestValue(), {INT8: LADDER[INT8]})
    world.add_worker()
    for _ in range(120):
        world.ask(latency_ms=1000.0)
        world.finish()
    world.ask(latency_ms=15.0)
    world.finish()
    world.ask(**OFFLINE)
    assert world.running


def test_late_online_queries_beside_them_stop_them_until_others_are_in_time() -> None:
    world = World(BestValue(), {INT8: LADDER[INT8]})
    world.add_worker()
    for _ in range(40):
        world.ask(**OFFLINE)
    for _ in range(6):
        assert world.running
        world.ask(latency_ms=500.0)
        world.finish()  # the offline batch
        world.finish(after_s=0.6)
    for _ in range(198):
        assert not world.running
        world.ask(latency_ms=500.0)
        world.finish()
    for _ in range(3):
        world.ask(latency_ms=500.0)
        world.finish()
    assert world.running, "one online query in 200 may be late"


def test_late_online_queries_with_no_offline_batch_near_do_not_stop_them() -> None:
    world = World(BestValue(), {INT8: LADDER[INT8]})
    world.add_worker()
    for after_s in [0.6] * 20 + [0.01]:
        world.ask(latency_ms=500.0)
        world.finish(after_s=after_s)
    world.ask(**OFFLINE)
    assert world.running


def test_they_are_refused_if_nothing_is_ready_and_ask_for_no_load() -> None:
    world = World()
    world.add_worker("w0", [INT8])
    loadable = world.ask(**OFFLINE, min_accuracy=80.0)
    never = world.ask(**OFFLINE, min_accuracy=99.0)
    dear = world.ask(**OFFLINE, max_cost_usd=1e-12)
    assert world.refused[loadable].reason is Reason.NOTHING_READY
    assert world.refused[never].reason is Reason.TOO_INACCURATE
    assert world.refused[dear].reason is Reason.TOO_DEAR
    assert not world.dispatcher.held
    counters = world.dispatcher.take_counters()
    assert not counters.unmet
    assert not counters.kinds


def test_they_cost_no_more_than_they_allow() -> None:
    one_usd = 0.05 / 3600.0 * 0.010
    world = World(variants={INT8: LADDER[INT8]})
    world.add_worker()
    world.ask(**OFFLINE, max_cost_usd=1.01 * one_usd)
    assert world.running


def test_they_are_counted_apart() -> None:
    world = World()
    world.add_worker()
    world.ask(**OFFLINE)
    world.finish()
    world.ask(latency_ms=1000.0)
    world.finish()
    meters = world.dispatcher.take_counters().meters
    assert meters.ends == {("imagenet", "offline-served"): 1, ("imagenet", "served"): 1}
    assert sum(meters.latencies["imagenet"][:-1]) == 1.0


def test_a_variant_of_unknown_latency_serves_none() -> None:
    world = World(variants={INT8: (math.inf, 70.0)})
    world.add_worker()
    world.ask(**OFFLINE)
    assert not world.running
