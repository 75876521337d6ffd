"""Policies that choose when a worker falls idle."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from modelless.controller.dispatch.explanations import explain_receipt
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.policies.reasons import CustomReason, Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    Defer,
    QueryView,
    QueueView,
    Reject,
    Run,
    Wait,
    WorkerView,
)

from .some_policies import LateBinding, Scripted
from .world import LADDER, World

INT8, FP32, LITE2 = LADDER
TINY = {"fashion/tiny/fp32@1": (0.002, 85.0)}


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


class Plain(SelectionPolicy):
    """Has no batching policy, and a reason of its own."""

    def __init__(self) -> None:
        self.counts: list[dict[str, int]] = []

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        self.counts.append(dict(candidates.worker_counts))
        return Reject(CustomReason("too-many")) if query.items > 1 else Defer()

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        self.counts.append(dict(worker.worker_counts))
        return Run(INT8, (queues[0].queries[0],), CustomReason("first-come"))


def test_a_late_binder_needs_no_batching_policy_and_may_have_reasons_of_its_own() -> None:
    policy = Plain()
    world = World(policy)
    world.add_worker("w0")
    world.add_worker("w1")
    query, refused = world.ask(), world.ask(items=2)
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert explain_receipt(receipt)["reason"] == "first-come"
    assert world.refused[refused].reason == "too-many"
    assert world.refused[refused].message == "refused: too-many"
    assert world.dispatcher.take_counters().meters.refusals == {("imagenet", "too-many"): 1}
    assert policy.counts == [{"cpu-1": 2}] * 3
    assert json.dumps(explain_receipt(receipt))


def test_a_policy_that_names_no_batching_policy_has_the_default() -> None:
    class Brief(SelectionPolicy):
        def on_arrival(
            self, query: QueryView, candidates: Candidates, rng: np.random.Generator
        ) -> Choice:
            return Bind(0, Reason.ALWAYS)

    world = World(Brief())
    world.add_worker()
    query = world.ask()
    assert world.running["w0"].query_ids == (query,)


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
    rng = np.random.default_rng(0)
    world = World(Scripted(arrival=lambda q, c: late.on_arrival(q, c, rng), idle=on_idle))
    world.add_worker()
    query = world.ask(latency_ms=900.0)
    assert world.wakes == [100.5]
    assert world.running == {}
    idle[0] = Run(INT8, (world.asked[query],), Reason.EARLIEST_DEADLINE_FIRST)
    world.tick(0.5)
    assert world.running["w0"].query_ids == (query,)


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
