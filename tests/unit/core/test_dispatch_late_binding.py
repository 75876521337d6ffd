"""Policies that choose when a worker falls idle."""

from __future__ import annotations

import pytest

from modelless.controller.core.limits import DispatchLimits
from modelless.policies.reasons import Reason
from modelless.policies.views import QueueView, Run, Wait, WorkerView

from .some_policies import LateBinding, Scripted
from .world import LADDER, World

INT8, FP32, LITE2 = LADDER


def test_an_idle_worker_takes_a_deferred_query_at_once() -> None:
    world = World(LateBinding())
    world.add_worker()
    query = world.ask(latency_ms=30.0)
    assert world.running["w0"].query_ids == (query,)
    assert world.running["w0"].variant_id == FP32
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert receipt.reason is Reason.EARLIEST_DEADLINE_FIRST
    assert receipt.row is None
    assert receipt.predicted_latency_s == pytest.approx(0.020)
    world.finish()
    assert query in world.completed


def test_deferred_queries_wait_for_whoever_is_free_first() -> None:
    world = World(LateBinding())
    world.add_worker("w0")
    world.add_worker("w1", [INT8])
    world.ask(min_accuracy=79.0)
    world.ask()
    assert set(world.running) == {"w0", "w1"}
    query = world.ask(latency_ms=500.0)
    assert world.dispatcher.queued == 1
    world.finish("w1")
    assert world.running["w1"].query_ids == (query,)
    assert world.running["w1"].variant_id == INT8


def test_a_late_choice_takes_a_whole_batch() -> None:
    world = World(LateBinding())
    world.add_worker()
    world.ask()
    queries = [world.ask(latency_ms=500.0) for _ in range(10)]
    world.finish()
    assert world.running["w0"].query_ids == tuple(queries[:8])
    assert world.dispatcher.queued == 2


def test_only_workers_that_hold_something_of_the_scope_are_asked() -> None:
    policy = LateBinding()
    variants = {**LADDER, "fashion/tiny/fp32@1": (0.002, 85.0)}
    world = World(policy, variants)
    world.add_worker("w0", ["fashion/tiny/fp32@1"])
    world.add_worker("w1", [INT8])
    world.ask(scope="fashion")
    assert set(world.running) == {"w0"}
    calls = policy.idle_calls
    world.ask(scope="fashion")
    assert policy.idle_calls == calls
    world.ask()
    assert set(world.running) == {"w0", "w1"}


def test_a_worker_that_waits_is_woken() -> None:
    idle: list[Run | Wait] = [Wait(Reason.NOTHING_QUEUED, 100.5)]

    def on_idle(worker: WorkerView, queues: list[QueueView]) -> Run | Wait:
        return idle[0]

    late = LateBinding()
    world = World(Scripted(arrival=lambda q, c: late.on_arrival(q, c, world.roster), idle=on_idle))  # type: ignore[arg-type]
    world.add_worker()
    query = world.ask(latency_ms=900.0)
    assert world.wakes == [100.5]
    assert world.running == {}
    idle[0] = Run(INT8, (world.asked[query],), Reason.EARLIEST_DEADLINE_FIRST)
    world.tick(0.5)
    assert world.running["w0"].query_ids == (query,)


def test_what_holds_for_a_class_is_asked_of_one_of_its_workers() -> None:
    asked: list[str] = []
    late = LateBinding()

    def on_idle(worker: WorkerView, queues: list[QueueView]) -> Run | Wait:
        asked.append(worker.worker_id)
        is_small = worker.device_class == "cpu-1"
        return Wait(Reason.WORTH_WAITING, 100.5, for_class=is_small)

    world = World(Scripted(arrival=lambda q, c: late.on_arrival(q, c, world.roster), idle=on_idle))  # type: ignore[arg-type]
    for name, device_class in (("w0", "cpu-1"), ("w1", "h200"), ("w2", "cpu-1"), ("w3", "h200")):
        world.add_worker(name, device_class=device_class)
    world.ask(latency_ms=900.0)
    assert asked == ["w3", "w2", "w1"]
    asked.clear()
    world.ask(latency_ms=900.0)  # a query has come: what held may do so no more
    assert asked == ["w3", "w2", "w1"]
    asked.clear()
    world.tick(0.1)  # and so may what held a while ago
    assert sorted(asked) in (["w0", "w1", "w3"], ["w1", "w2", "w3"])


def test_a_policy_that_waits_until_now_does_not_spin() -> None:
    world = World(Scripted(idle=lambda worker, queues: Wait(Reason.NOTHING_QUEUED, 0.0)))
    world.add_worker()
    world.ask()
    assert world.wakes == [100.0 + DispatchLimits().min_wait_s]


def test_deferred_queries_that_nobody_can_serve_any_more_are_refused() -> None:
    world = World(LateBinding())
    world.add_worker("w0")
    world.add_worker("w1", [])
    world.ask()
    query = world.ask(latency_ms=400.0)  # a load takes 500 ms
    world.add_worker("w0", [])
    assert world.refused[query].reason is Reason.NOTHING_READY
    world.finish("w0", after_s=0.010)


def test_deferred_queries_survive_the_loss_of_one_of_two_workers() -> None:
    world = World(LateBinding())
    world.add_worker("w0")
    world.add_worker("w1")
    for _ in range(3):
        world.ask(latency_ms=900.0)
    lost = world.running["w0"].query_ids
    world.lose("w0")
    assert world.refused == {}
    world.finish("w1")
    assert set(lost) <= set(world.running["w1"].query_ids)  # with the one that waited


def test_deadlines_pass_for_deferred_queries_too() -> None:
    world = World(LateBinding())
    world.add_worker()
    world.ask()
    query = world.ask(latency_ms=20.0)
    world.tick(0.021)
    assert world.refused[query].reason is Reason.DEADLINE_PASSED


def test_cancelling_a_deferred_query() -> None:
    world = World(LateBinding())
    world.add_worker()
    world.ask()
    query = world.ask()
    world.cancel(query)
    assert world.dispatcher.queued == 0
    world.finish()
    assert world.running == {}


def test_what_a_policy_saw_does_not_change_behind_its_back() -> None:
    seen: list[QueueView] = []
    late = LateBinding()

    def on_idle(worker: WorkerView, queues: list[QueueView]) -> Run | Wait:
        seen.extend(queues)
        return late.on_idle(worker, queues, 0.0, None)  # type: ignore[arg-type]

    world = World(Scripted(arrival=lambda q, c: late.on_arrival(q, c, None), idle=on_idle))  # type: ignore[arg-type]
    world.add_worker()
    first = world.ask()
    assert [query.query_id for query in seen[0].queries] == [first]
