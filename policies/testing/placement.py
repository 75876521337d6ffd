"""Checks of placement policies."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from modelless.policies.seams import PlacementPolicy
from modelless.policies.testing.case import PolicyConformance, copy_of
from modelless.policies.testing.options import make_cluster, variant_id
from modelless.policies.testing.process import Question


class PlacementConformance(PolicyConformance):
    """Declarations, besides ``PolicyConformance``'s:

    leaves_workers_out: a worker may be missing from the ranking, and then gets nothing.
    """

    seam = PlacementPolicy
    leaves_workers_out: ClassVar[bool] = False

    def questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(41)
        asked: list[Question] = []
        for number in range(20):
            workers = make_cluster(rng, 30, (0, 1, 5, 20)[number % 4]).workers
            asked.append(("rank", (variant_id(number), 10_000_000 * number, workers)))
        return asked

    def large_questions(self, policy: Any) -> list[Question]:
        workers = make_cluster(np.random.default_rng(42), 30, 1000).workers
        return [("rank", (variant_id(0), 50_000_000, workers))]

    @pytest.mark.parametrize("workers", [0, 1, 12, 1000])
    @pytest.mark.parametrize("memory_bytes", [1, 100_000_000, 1 << 50])
    def test_ranks_the_workers_it_is_given(
        self, policy: Any, workers: int, memory_bytes: int
    ) -> None:
        given = make_cluster(np.random.default_rng(43), 10, workers).workers
        ranked = [w.worker_id for w in policy.rank(variant_id(0), memory_bytes, given)]
        names = {worker.worker_id for worker in given}
        assert len(set(ranked)) == len(ranked), "a worker ranked twice"
        assert set(ranked) <= names, f"ranked but not given: {set(ranked) - names}"
        if not self.leaves_workers_out:
            assert set(ranked) == names, f"given but not ranked: {names - set(ranked)}"

    def test_the_order_of_the_workers_does_not_matter(self, policy: Any) -> None:
        if self.order_matters:
            pytest.skip("declared: order_matters")
        rng = np.random.default_rng(44)
        for _ in range(10):
            given = make_cluster(rng, 10, 12).workers
            shuffled = tuple(given[number] for number in rng.permutation(len(given)))
            first, second = (
                [w.worker_id for w in copy_of(policy).rank(variant_id(0), 1000, workers)]
                for workers in (given, shuffled)
            )
            assert first == second, "another order of the same workers, another ranking"
