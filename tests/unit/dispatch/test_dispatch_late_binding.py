"""Policies that choose when a worker falls idle."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

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
    assert receipt.explain()["reason"] == "first-come"
    assert world.refused[refused].reason == "too-many"
    assert world.refused[refused].message == "refused: too-many"
    assert world.dispatcher.take_counters().meters.refusals == {("imagenet", "too-many"): 1}
    assert policy.counts == [{"cpu-1": 2}] * 3
    assert json.dumps(receipt.explain())


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


class Asked(LateBinding):
    """Lets every worker wait for ``for_s``, on small devices all that are alike.

    Attributes:
        asked: who was asked.
        gives, binds: it lets nobody wait, or has queries wait for the first row.
    """

    def __init__(self, for_s: float = 0.5) -> None:
        super().__init__()
        self.for_s = for_s
        self.asked: list[str] = []
        self.gives = self.binds = False

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        if self.binds:
            return Bind(0, Reason.LATE_BINDING)
        return super().on_arrival(query, candidates, rng)

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        self.asked.append(worker.worker_id)
        if self.gives:
            return super().on_idle(worker, queues, now_s, rng)
        is_small = worker.device_class == "cpu-1"
        return Wait(Reason.WORTH_WAITING, now_s + self.for_s, for_alike=is_small)

    def take(self) -> list[str]:
        """Who was asked since the last call."""
        asked, self.asked = self.asked, []
        return asked


def test_what_holds_for_all_who_are_alike_is_asked_of_one_of_them() -> None:
    policy = Asked()
    world = World(policy)
    for name, device_class in (("w0", "cpu-1"), ("w1", "h200"), ("w2", "cpu-1"), ("w3", "h200")):
        world.add_worker(name, device_class=device_class)
    world.ask(latency_ms=900.0)
    assert policy.take() == ["w3", "w2", "w1"]
    world.ask(latency_ms=950.0)  # it stands behind the first one: that was answered for, too
    assert policy.take() == ["w3", "w1"]
    world.ask(latency_ms=850.0)  # it comes before them: who would not wait so long may want it
    assert policy.take() == ["w3", "w2", "w1"]
    world.tick(0.4)
    assert policy.take() == ["w3", "w1"]
    world.tick(0.1)  # so long did the answer hold
    assert policy.take() == ["w3", "w2", "w1"]


def test_what_holds_for_all_who_are_alike_holds_for_who_falls_idle_as_well() -> None:
    policy = Asked()
    world = World(policy)
    world.add_worker("w0", device_class="cpu-1")
    policy.gives = True
    world.ask(latency_ms=900.0)
    policy.gives = False
    world.add_worker("w1", device_class="cpu-1")
    world.ask(latency_ms=900.0)
    assert policy.take() == ["w0", "w1"]
    world.finish("w0", after_s=0.010)
    assert policy.take() == []
    world.tick(0.49)
    assert policy.take() == ["w1"]


def test_the_driver_that_remembers_one_time_only_is_told_the_next() -> None:
    world = World(Asked())
    world.add_worker("w0", device_class="cpu-1")
    world.ask(latency_ms=900.0)
    world.wakes.clear()
    world.tick(0.4)
    assert world.wakes == [100.5]


def test_who_has_queries_of_its_own_is_asked_whatever_was_answered() -> None:
    policy = Asked()
    world = World(policy)
    world.add_worker("w0", device_class="cpu-1")
    world.ask(latency_ms=900.0)
    policy.take()
    policy.binds = True
    world.ask(latency_ms=950.0)
    assert policy.take() == ["w0"]


def test_an_answer_without_an_end_holds_for_who_gave_it() -> None:
    policy = Asked(for_s=math.inf)
    world = World(policy)
    for name in ("w0", "w1"):
        world.add_worker(name, device_class="cpu-1")
    world.ask(latency_ms=900.0)
    assert policy.take() == ["w1", "w0"]
    world.ask(latency_ms=950.0)
    assert policy.take() == ["w1", "w0"]


def test_who_holds_something_else_of_the_scope_is_asked_too() -> None:
    policy = Asked()
    world = World(policy, {**LADDER, **TINY})
    world.add_worker("w0", [INT8, FP32])
    world.add_worker("w1", [FP32, *TINY, INT8])  # the same of the scope as w0
    world.add_worker("w2", [INT8], hop_s=0.01)
    world.add_worker("w3", [INT8])
    world.add_worker("w4", [*TINY])
    world.ask(latency_ms=900.0)
    assert policy.take() == ["w3", "w2", "w1"]
    world.ask(scope="imagenet/lite0/int8", latency_ms=900.0)
    # (Of "imagenet", too, in which w1 and w0 differ from w3; that is settled.)
    assert policy.take() == ["w3", "w2"]
    world.ask(scope="fashion", latency_ms=900.0)
    assert policy.take() == ["w4"]  # w1 holds the same of that


def test_who_comes_to_hold_something_else_is_asked_about_what_it_held_before() -> None:
    policy = Asked()
    world = World(policy, {**LADDER, **TINY})
    world.add_worker("w0", [INT8])
    world.ask(latency_ms=900.0)
    world.add_worker("w0", [INT8, *TINY])
    policy.take()
    world.ask(latency_ms=800.0)
    assert policy.take() == ["w0"]
    world.add_worker("w0", [INT8])
    assert policy.take() == []  # of that it holds what it held when it was asked
    world.ask(latency_ms=700.0)
    assert policy.take() == ["w0"]


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
