"""Checks of batching policies."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from modelless.policies.seams import BatchingPolicy
from modelless.policies.testing.case import PolicyConformance, copy_of
from modelless.policies.testing.options import NOW_S, make_queues, make_worker
from modelless.policies.testing.process import Question
from modelless.policies.testing.rules import check_deadlines_kept, check_decision
from modelless.policies.views import Run, Wait


class BatchingConformance(PolicyConformance):
    """Declarations, besides ``PolicyConformance``'s:

    never_idles: while anything waits it returns a batch (it is work-conserving).
    keeps_deadlines: no batch is so large that a query is late that would be in time alone.
    """

    seam = BatchingPolicy
    budget_s: ClassVar[float] = 0.005
    never_idles: ClassVar[bool] = True
    keeps_deadlines: ClassVar[bool] = True

    def questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(21)
        asked: list[Question] = []
        for number in range(30):
            worker = make_worker(rng, 5, unknown=float(rng.choice([0.0, 0.3])))
            queues = make_queues(rng, worker, number % 5, 20) if number % 5 else []
            asked.append(("next_batch", (worker, queues, NOW_S + 0.001 * number)))
        return asked

    def large_questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(22)
        worker = make_worker(rng, 20, max_batch=64)
        return [("next_batch", (worker, make_queues(rng, worker, 20, 1000), NOW_S))]

    def service(self, policy: Any) -> Iterator[Question]:
        rng = np.random.default_rng(26)
        worker = make_worker(rng, 5)
        for number in itertools.count():
            now_s = NOW_S + 0.1 * number
            (queue,) = make_queues(rng, worker, 1, 1)
            query = queue.queries[0]._replace(
                query_id=number, arrival_s=now_s, deadline_s=now_s + 1.0, tenant=f"tenant-{number}"
            )
            yield "next_batch", (worker, [queue._replace(queries=(query,))], now_s)

    def test_with_nothing_queued_it_waits(self, policy: Any) -> None:
        rng = np.random.default_rng(23)
        decision = policy.next_batch(make_worker(rng, 3), [], NOW_S)
        assert isinstance(decision, Wait), f"a batch of nothing: {decision!r}"

    @pytest.mark.parametrize("queries", [1, 30, 1000])
    @pytest.mark.parametrize("max_batch", [4, 32])
    @pytest.mark.parametrize("unknown", [0.0, 0.3, 1.0])
    def test_makes_batches_that_can_be_run(
        self, policy: Any, queries: int, max_batch: int, unknown: float
    ) -> None:
        rng = np.random.default_rng(24)
        for _ in range(10 if queries < 1000 else 2):
            worker = make_worker(rng, 5, max_batch=max_batch, unknown=unknown)
            queues = make_queues(rng, worker, min(queries, 8), queries)
            decision = policy.next_batch(worker, queues, NOW_S)
            check_decision(decision, worker, queues, NOW_S)
            if self.never_idles:
                assert isinstance(decision, Run), "queries wait, and the worker is left idle"
            if self.keeps_deadlines:
                check_deadlines_kept(decision, worker, NOW_S)

    def test_the_order_of_the_queues_does_not_matter(self, policy: Any) -> None:
        if self.order_matters:
            pytest.skip("declared: order_matters")
        rng = np.random.default_rng(25)
        for _ in range(40):
            worker = make_worker(rng, 5)
            queues = make_queues(rng, worker, 8, 40)
            shuffled = [queues[number] for number in rng.permutation(len(queues))]
            first = copy_of(policy).next_batch(worker, queues, NOW_S)
            second = copy_of(policy).next_batch(worker, shuffled, NOW_S)
            assert first == second, "another order of the same queues, another batch"
