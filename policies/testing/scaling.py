"""Checks of scaling policies."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil
from typing import Any, ClassVar

import numpy as np
import pytest

from modelless.policies.reasons import Reason
from modelless.policies.seams import ScalingPolicy
from modelless.policies.testing.case import PolicyConformance, copy_of
from modelless.policies.testing.options import NOW_S, make_busy, make_cluster
from modelless.policies.testing.plain import plain
from modelless.policies.testing.process import Question
from modelless.policies.views import ClusterView, Targets
from modelless.variants.vocabulary import Placement


class ScalingConformance(PolicyConformance):
    """Declarations, besides ``PolicyConformance``'s:

    fits_memory: the workers' memory holds all instances wanted of their device class; otherwise the
    policy wants more, in order of importance, and the core loads what fits.
    keeps_pools: it wants no more workers than their pool may have; otherwise the core starts as
    many as the pool may have.
    """

    seam = ScalingPolicy
    budget_s: ClassVar[float] = 0.5
    fits_memory: ClassVar[bool] = True
    keeps_pools: ClassVar[bool] = True

    def questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(31)
        asked: list[Question] = []
        for number in range(12):
            view = make_cluster(rng, (0, 1, 20, 60)[number % 4], number % 5)
            view = replace(view if number % 3 else make_busy(view), now_s=view.now_s + number)
            asked.append(("targets", (view, dict(view.arrivals_per_s))))
        return asked

    def large_questions(self, policy: Any) -> list[Question]:
        view = make_cluster(np.random.default_rng(32), 1000, 20)
        return [("targets", (view, dict(view.arrivals_per_s)))]

    @pytest.mark.parametrize("variants", [0, 1, 30, 1000])
    @pytest.mark.parametrize("workers", [0, 1, 12])
    @pytest.mark.parametrize("unknown", [0.0, 0.3])
    def test_wants_what_there_is(
        self, policy: Any, variants: int, workers: int, unknown: float
    ) -> None:
        view = make_cluster(np.random.default_rng(33), variants, workers, unknown=unknown)
        for now in (view, make_busy(view)):
            check_targets(policy.targets(now, dict(now.arrivals_per_s)), now)

    @pytest.mark.parametrize("rate", [0.0, 1e9, float("inf"), float("nan")])
    def test_any_forecast_will_do(self, policy: Any, rate: float) -> None:
        view = make_cluster(np.random.default_rng(34), 20, 3)
        for forecast in (
            {},
            dict.fromkeys(view.arrivals_per_s, rate),
            {"a scope of long ago": rate},
        ):
            check_targets(policy.targets(view, forecast), view)

    @pytest.mark.parametrize("variants", [1, 5, 200])
    @pytest.mark.parametrize("workers", [0, 1, 12])
    def test_wants_no_more_than_there_is_room_for(
        self, policy: Any, variants: int, workers: int
    ) -> None:
        """Checks a flood and little demand, with pools that may grow and without."""
        rng = np.random.default_rng(36)
        for number in range(6):
            view = make_cluster(rng, variants, workers, unknown=0.1)
            view = replace(view if number % 2 else make_busy(view), now_s=NOW_S + 40.0 * number)
            for rate in (1.0, 1e6):
                targets = policy.targets(view, dict.fromkeys(view.arrivals_per_s, rate))
                check_room(targets, view, in_all=self.fits_memory)
                if self.keeps_pools:
                    check_pools(targets, view)

    def test_the_order_of_the_options_does_not_matter(self, policy: Any) -> None:
        """The order of importance included."""
        if self.order_matters:
            pytest.skip("declared: order_matters")
        rng = np.random.default_rng(35)
        for _ in range(5):
            view = make_busy(make_cluster(rng, 40, 6))
            shuffled = replace(
                view,
                workers=tuple(view.workers[i] for i in rng.permutation(len(view.workers))),
                variants=tuple(view.variants[i] for i in rng.permutation(len(view.variants))),
            )
            first = copy_of(policy).targets(view, dict(view.arrivals_per_s))
            second = copy_of(policy).targets(shuffled, dict(view.arrivals_per_s))
            assert plain(first) == plain(second), "another order of the same cluster, other targets"


def check_targets(targets: Targets, view: ClusterView) -> None:
    """Check that the targets are whole numbers of existing things that can run, with a reason."""
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
    for scope, shares in targets.shares.items():
        for placement, share in shares.items():
            assert placement.variant_id in facts, f"a share of {scope!r} to unknown {placement!r}"
            assert 0.0 <= share < np.inf, f"{share!r} of {scope!r} to {placement}"


def check_room(targets: Targets, view: ClusterView, *, in_all: bool) -> None:
    """Check that each worker that exists or is wanted holds one copy at most, and has room for it.

    Args:
        targets: wanted instances and workers.
        view: the cluster.
        in_all: whether there must be room for all instances together.
    """
    facts = {variant.variant_id: variant for variant in view.variants}
    wanted_bytes: Counter[str] = Counter()
    for placement, count in targets.instances.items():
        if count == 0:
            continue
        name = placement.device_class
        rooms = _rooms(targets, view, name)
        needed = facts[placement.variant_id].memory_bytes[name]
        able = sum(room >= needed for room in rooms)
        assert count <= able, f"{count} x {placement} of {needed:.0f} bytes: {able} workers for it"
        wanted_bytes[name] += count * ceil(needed)
    for name, needed in wanted_bytes.items() if in_all else ():
        room = sum(_rooms(targets, view, name))
        assert needed <= room, f"{needed} bytes wanted of {name}, which has {room}"


def _rooms(targets: Targets, view: ClusterView, name: str) -> list[int]:
    """Returns the memory of each worker of a class that exists or is wanted, bytes."""
    rooms = [worker.memory_bytes for worker in view.workers if worker.device_class == name]
    more = targets.workers.get(name, 0) - len(rooms)
    return rooms + [view.device_classes[name].memory_bytes] * max(more, 0)


def check_pools(targets: Targets, view: ClusterView) -> None:
    """Check that the workers of a pool's sizes are no more than the pool may have."""
    for pool in view.pools:
        wanted = sum(targets.workers.get(size, 0) for size in pool.sizes)
        assert wanted <= pool.max_workers, (
            f"{wanted} workers of {', '.join(pool.sizes)}, but {pool.max_workers} may there be"
        )
