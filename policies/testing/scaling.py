"""What a scaling policy must do."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from modelless.policies.reasons import Reason
from modelless.policies.seams import ScalingPolicy
from modelless.policies.testing.case import PolicyConformance, copy_of
from modelless.policies.testing.options import make_cluster
from modelless.policies.testing.plain import plain
from modelless.policies.testing.process import Question
from modelless.policies.views import ClusterView, Targets
from modelless.variants.vocabulary import Placement


class ScalingConformance(PolicyConformance):
    """Declarations: ``PolicyConformance``'s."""

    seam = ScalingPolicy
    budget_s: ClassVar[float] = 0.5

    def questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(31)
        asked: list[Question] = []
        for number in range(12):
            view = make_cluster(rng, (0, 1, 20, 60)[number % 4], number % 5)
            view = replace(view, now_s=view.now_s + number)
            asked.append(("targets", (view, dict(view.arrivals_per_s))))
        return asked

    def large_question(self) -> Question:
        view = make_cluster(np.random.default_rng(32), 1000, 20)
        return "targets", (view, dict(view.arrivals_per_s))

    @pytest.mark.parametrize("variants", [0, 1, 30, 1000])
    @pytest.mark.parametrize("workers", [0, 1, 12])
    @pytest.mark.parametrize("unknown", [0.0, 0.3])
    def test_wants_what_there_is(
        self, policy: Any, variants: int, workers: int, unknown: float
    ) -> None:
        view = make_cluster(np.random.default_rng(33), variants, workers, unknown=unknown)
        check_targets(policy.targets(view, dict(view.arrivals_per_s)), view)

    @pytest.mark.parametrize("rate", [0.0, 1e9, float("inf"), float("nan")])
    def test_any_forecast_will_do(self, policy: Any, rate: float) -> None:
        view = make_cluster(np.random.default_rng(34), 20, 3)
        for forecast in (
            {},
            dict.fromkeys(view.arrivals_per_s, rate),
            {"a scope of long ago": rate},
        ):
            check_targets(policy.targets(view, forecast), view)

    def test_the_order_of_the_options_does_not_matter(self, policy: Any) -> None:
        """The order of importance included."""
        if self.order_matters:
            pytest.skip("declared: order_matters")
        rng = np.random.default_rng(35)
        for _ in range(5):
            view = make_cluster(rng, 40, 6)
            shuffled = replace(
                view,
                workers=tuple(view.workers[i] for i in rng.permutation(len(view.workers))),
                variants=tuple(view.variants[i] for i in rng.permutation(len(view.variants))),
            )
            first = copy_of(policy).targets(view, dict(view.arrivals_per_s))
            second = copy_of(policy).targets(shuffled, dict(view.arrivals_per_s))
            assert plain(first) == plain(second), "another order of the same cluster, other targets"


def check_targets(targets: Targets, view: ClusterView) -> None:
    """Whole numbers of what there is and can run; with a reason."""
    assert isinstance(targets, Targets), f"{targets!r} are no targets"
    assert isinstance(targets.reason, Reason), f"no reason: {targets.reason!r}"
    facts = {variant.variant_id: variant for variant in view.variants}
    for placement, count in targets.instances.items():
        assert isinstance(placement, Placement), f"{placement!r} is no placement"
        assert type(count) is int, f"{count!r} instances of {placement}"
        assert count >= 0, f"{count!r} instances of {placement}"
        assert placement.variant_id in facts, f"unknown variant {placement.variant_id!r}"
        runs_on = facts[placement.variant_id].latency_s
        assert placement.device_class in runs_on, f"{placement} cannot run there"
    for name, count in targets.workers.items():
        assert name in view.device_classes, f"unknown device class {name!r}"
        assert type(count) is int, f"{count!r} workers of {name}"
        assert count >= 0, f"{count!r} workers of {name}"
