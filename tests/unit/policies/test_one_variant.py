"""One variant a task, for the memory that there is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.one_variant import OneVariant
from modelless.policies.views import VariantFacts
from modelless.variants.vocabulary import DeviceClass
from tests.builders import make_cluster_view, make_facts, make_workers

CPU, GPU = "cpu-1", "gpu-1"
CLASSES = {
    CPU: DeviceClass(CPU, "cpu", 1, 1000, 0.05, 8.0),
    GPU: DeviceClass(GPU, "gpu", 1, 4000, 3.5, 700.0),
}


def variant(name: str, accuracy: float, one_s: float, memory_bytes: float) -> VariantFacts:
    on = {CPU: [one_s], GPU: [one_s / 10]}
    return make_facts(f"{name}@1", accuracy, on, memory_bytes=memory_bytes, load_s=1.0)


SMALL = variant("t/m/small", 60.0, 0.01, 300.0)
LARGE = variant("t/m/large", 80.0, 0.05, 900.0)
HUGE = variant("t/m/huge", 90.0, 0.20, 1100.0)
OTHER = variant("u/m/only", 70.0, 0.02, 500.0)


def plan(
    policy: OneVariant, workers: Mapping[str, int], *variants: VariantFacts
) -> dict[tuple[str, str], int]:
    view = make_cluster_view(CLASSES, make_workers(workers, memory_bytes=1000), variants)
    targets = policy.targets(view, {})
    assert targets.reason is Reason.PLANNED
    return {(p.variant_id, p.device_class): n for p, n in targets.instances.items()}


def test_a_task_alone_gets_the_most_accurate_that_fits_into_a_worker() -> None:
    assert plan(OneVariant(), {CPU: 3}, SMALL, LARGE, HUGE) == {("t/m/large@1", CPU): 3}
    assert plan(OneVariant("fastest"), {CPU: 3}, SMALL, LARGE, HUGE) == {("t/m/small@1", CPU): 3}


def test_tasks_share_a_workers_memory_equally() -> None:
    shared = {("t/m/small@1", CPU): 3, ("u/m/only@1", CPU): 3}  # 500 bytes each
    assert plan(OneVariant(), {CPU: 3}, SMALL, LARGE, OTHER) == shared


def test_every_worker_runs_the_same_variant_whatever_its_class() -> None:
    assert plan(OneVariant(), {CPU: 2, GPU: 1}, SMALL, LARGE) == {
        ("t/m/large@1", CPU): 2,
        ("t/m/large@1", GPU): 1,
    }


def test_what_does_not_fit_into_a_share_is_on_fewer_workers_and_on_one_at_least() -> None:
    # Of 4 x 1000 bytes each of the tasks has 2000: two of 900, or four of 500.
    wide = {("t/m/large@1", CPU): 2, ("u/m/only@1", CPU): 4}
    assert plan(OneVariant(), {CPU: 4}, LARGE, OTHER) == wide
    narrow = {("t/m/large@1", CPU): 1, ("u/m/only@1", CPU): 1}
    assert plan(OneVariant(), {CPU: 1}, LARGE, OTHER) == narrow


def test_nothing_is_planned_where_nothing_fits() -> None:
    assert plan(OneVariant(), {CPU: 2}, HUGE) == {}
    assert plan(OneVariant(), {}, SMALL) == {}


def test_the_preference_is_checked() -> None:
    with pytest.raises(InvalidInputError, match="prefer: got 'best'"):
        OneVariant("best")
