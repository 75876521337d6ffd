"""Queries whose items differ in size: estimates, batches and what is learned are by size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from modelless.controller.dispatch.explanations import explain_receipt
from modelless.policies.reasons import Reason
from modelless.policies.views import QueueView, Run, Wait, WorkerView

from .some_policies import LateBinding
from .world import LADDER, World

INT8, FP32, LITE2 = LADDER
NARROW = {"batch_key": "narrow", "size": 100}
WIDE = {"batch_key": "wide", "size": 300}


class Watching(LateBinding):
    """Notes what it is shown: the sizes that wait, and what one item takes with the quickest."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[set[int], float]] = []
        self.waits_for: set[int] = set()

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        sizes = {query.size for queue in queues for query in queue.queries}
        self.shown.append((sizes, worker.residents[INT8].p50_s[1]))
        if sizes <= self.waits_for:
            return Wait(Reason.FILLING_BATCH, now_s + 0.005)
        return super().on_idle(worker, queues, now_s, rng)


def test_a_query_bound_on_arrival_is_predicted_for_its_size() -> None:
    world = World()
    world.add_worker()
    narrow = world.ask(latency_ms=50.0, **NARROW)
    assert world.variant_of(narrow) == LITE2
    world.finish()
    wide = world.ask(latency_ms=50.0, **WIDE)  # lite2 would take 120 ms, and fp32 60
    assert world.variant_of(wide) == INT8
    receipt = world.dispatcher.receipt(wide)
    assert receipt is not None
    assert receipt.predicted_latency_s == pytest.approx(0.030)
    assert explain_receipt(receipt)["item_size"] == 300
    assert [row["p50_ms"] for row in explain_receipt(receipt)["candidates"]] == pytest.approx(
        [30.0, 60.0, 120.0]
    )
    assert world.predicted_wait_s("w0") == pytest.approx(0.030)


def test_the_cost_model_is_told_the_size() -> None:
    world = World()
    world.add_worker()
    for limits in (WIDE, NARROW, {}):
        world.ask(**limits)
        world.finish()
    assert world.cost_model.observed_sizes == [300, 100, 0]


def test_what_waits_for_a_worker_counts_with_its_size() -> None:
    world = World()
    world.add_worker(variant_ids=[INT8])
    world.ask(**NARROW)
    world.ask(**WIDE)
    assert world.predicted_wait_s("w0") == pytest.approx(0.010 + 0.030)


def test_a_policy_sees_one_size_at_a_time_the_most_urgent_first() -> None:
    policy = Watching()
    world = World(policy)
    world.add_worker()
    world.ask(latency_ms=1000.0)
    policy.shown.clear()
    first = world.ask(latency_ms=400.0, **WIDE)
    late = [world.ask(latency_ms=800.0 + n, **NARROW) for n in range(2)]
    world.ask(latency_ms=900.0, **WIDE)
    world.finish()
    assert policy.shown == [({300}, pytest.approx(0.030))]
    assert first in world.running["w0"].query_ids
    world.finish()
    assert policy.shown[1] == ({100}, pytest.approx(0.010))
    assert world.running["w0"].query_ids == tuple(late)


def test_a_size_that_waits_for_more_does_not_keep_the_others_waiting() -> None:
    policy = Watching()
    world = World(policy)
    world.add_worker()
    world.ask()
    policy.waits_for = {100}
    narrow = world.ask(latency_ms=500.0, **NARROW)
    wide = world.ask(latency_ms=900.0, **WIDE)
    world.finish()
    assert world.running["w0"].query_ids == (wide,)
    assert narrow in world.open_ids


def test_a_lower_priority_waits_while_a_higher_one_fills_its_batch() -> None:
    policy = Watching()
    world = World(policy)
    world.add_worker()
    world.ask()
    policy.waits_for = {100}
    world.ask(latency_ms=500.0, priority=1, **NARROW)
    world.ask(latency_ms=500.0, **WIDE)
    world.finish()
    assert not world.running
