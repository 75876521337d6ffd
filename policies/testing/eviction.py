"""Checks of eviction policies."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modelless.policies.seams import EvictionPolicy
from modelless.policies.testing.case import PolicyConformance, copy_of
from modelless.policies.testing.options import make_cluster, make_instance, variant_id
from modelless.policies.testing.process import Question
from modelless.policies.views import Instance


class EvictionConformance(PolicyConformance):
    """Declarations: ``PolicyConformance``'s."""

    seam = EvictionPolicy

    def questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(51)
        asked: list[Question] = []
        for number in range(20):
            view = make_cluster(rng, 20, 3)
            view = replace(view, now_s=view.now_s + number)
            asked.append(("observe", (view,)))
            asked.append(("rank", (make_residents(rng, (0, 1, 5, 50)[number % 4]), view)))
            newcomer, *victims = make_residents(rng, 4)
            asked.append(("admits", (newcomer, tuple(victims), view)))
        return asked

    def large_questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(52)
        view = make_cluster(rng, 1000, 20)
        newcomer, *residents = make_residents(rng, 1001)
        return [
            ("observe", (view,)),
            ("rank", (tuple(residents), view)),
            ("admits", (newcomer, tuple(residents), view)),
        ]

    @pytest.mark.parametrize("count", [0, 1, 2, 30, 1000])
    def test_ranks_all_that_it_is_given(self, policy: Any, count: int) -> None:
        rng = np.random.default_rng(53)
        for _ in range(5):
            residents = make_residents(rng, count)
            ranked = policy.rank(residents, make_cluster(rng, 20, 3))
            check_permutation(ranked, residents)

    def test_says_whether_a_load_is_worth_what_leaves(self, policy: Any) -> None:
        rng = np.random.default_rng(56)
        for _ in range(10):
            newcomer, *victims = make_residents(rng, 4)
            view = make_cluster(rng, 20, 3)
            policy.observe(view)
            assert isinstance(policy.admits(newcomer, tuple(victims), view), bool)

    @pytest.mark.parametrize("odd", [float("inf"), float("nan"), 0.0])
    def test_odd_figures_are_ranked_too(self, policy: Any, odd: float) -> None:
        rng = np.random.default_rng(54)
        residents = tuple(
            replace(instance, load_s=odd, memory_bytes=number % 2)
            for number, instance in enumerate(make_residents(rng, 20))
        )
        check_permutation(policy.rank(residents, make_cluster(rng, 20, 3)), residents)

    def test_the_order_of_the_residents_does_not_matter(self, policy: Any) -> None:
        if self.order_matters:
            pytest.skip("declared: order_matters")
        rng = np.random.default_rng(55)
        for _ in range(10):
            residents, view = make_residents(rng, 40), make_cluster(rng, 20, 3)
            shuffled = tuple(residents[number] for number in rng.permutation(len(residents)))
            first, second = (list(copy_of(policy).rank(g, view)) for g in (residents, shuffled))
            assert first == second, "another order of the same residents, another ranking"


def make_residents(rng: np.random.Generator, count: int) -> tuple[Instance, ...]:
    """Returns idle instances of one worker, some of them equal but for their names."""
    return tuple(
        make_instance(rng, "worker-0", variant_id(number), int(rng.choice([20, 50, 90])) << 20)
        for number in range(count)
    )


def check_permutation(ranked: Sequence[Instance], residents: Sequence[Instance]) -> None:
    """Check that the ranking contains each resident once."""

    def names(instances: Sequence[Instance]) -> list[tuple[str, str]]:
        return sorted((instance.worker_id, instance.variant_id) for instance in instances)

    assert names(ranked) == names(residents), "the ranking is no permutation of the residents"
