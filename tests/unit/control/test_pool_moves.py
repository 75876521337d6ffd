"""Resizes before starts, bounds by pool, and no pool shrinks while another still grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from modelless.controller.control.messages import PlanEffect, ScalePool
from modelless.controller.control.pool_moves import PlanLimits, PoolPlanner
from modelless.controller.device.messages import ResizeWorker
from modelless.policies.reasons import Reason
from modelless.policies.views import ClusterView, Instance, Pool, WorkerState
from modelless.variants.vocabulary import DeviceClass

CLASSES = {
    name: DeviceClass(name, "cpu", threads, 1 << 30, 0.05 * threads, 8.0)
    for name, threads in (("cpu-1", 1), ("cpu-2", 2), ("cpu-4", 4))
}
WHY = Reason.OPTIMISED
SMALL = Pool("cpu-1", ("cpu-1", "cpu-2"), 0, 4, max_cores=4)
LARGE = Pool("cpu-4", ("cpu-4",), 0, 2)
GATEWAYS = Pool("gateways", ("cpu-1", "cpu-2"), 0, 0)


def worker(name: str, size: str = "cpu-1", *, pool: str = "", **changes: object) -> WorkerState:
    ready = (Instance(name, "t/m/v@1", 10, 0.1, 0.0, 1),)
    return replace(WorkerState(name, size, 100, ready, pool=pool), **changes)  # type: ignore[arg-type]


def view(*workers: WorkerState, now_s: float = 0.0) -> ClusterView:
    return ClusterView(now_s, CLASSES, workers, (), {}, {})


def effects(
    workers: tuple[WorkerState, ...], wanted: Mapping[str, int], *pools: Pool
) -> list[PlanEffect]:
    return PoolPlanner(PlanLimits.of(pools)).effects(view(*workers), wanted, WHY)


def test_a_worker_too_small_becomes_the_size_that_is_missing_the_idlest_first() -> None:
    there = (worker("a", busy_share=0.9), worker("b", busy_share=0.1))
    found = effects(there, {"cpu-1": 1, "cpu-2": 1}, SMALL)
    assert found == [ResizeWorker("b", "cpu-2", WHY)]


def test_and_back() -> None:
    there = (worker("a", "cpu-2", pool="cpu-1"),)
    assert effects(there, {"cpu-1": 1, "cpu-2": 0}, SMALL) == [ResizeWorker("a", "cpu-1", WHY)]


def test_one_that_is_being_resized_counts_as_what_it_becomes() -> None:
    there = (worker("a", resizing_to="cpu-2", pool="cpu-1"),)
    assert effects(there, {"cpu-1": 0, "cpu-2": 1}, SMALL) == []
    assert effects(there, {"cpu-1": 1, "cpu-2": 0}, SMALL) == [], "one thing at a time"


def test_what_no_resize_can_make_is_started_where_it_can_become_that() -> None:
    limits = PlanLimits({}, {"cpu-1": 4, "cpu-2": 0}, sizes={"cpu-1": SMALL.sizes})
    found = PoolPlanner(limits).effects(view(worker("a")), {"cpu-1": 0, "cpu-2": 2}, WHY)
    assert found == [ResizeWorker("a", "cpu-2", WHY), ScalePool("cpu-1", 2, WHY)]


@pytest.mark.parametrize(("wanted", "count"), [(9, 4), (4, 4), (3, 3)])
def test_cores_bound_starts(wanted: int, count: int) -> None:
    there = (worker("a"), worker("b"))
    assert effects(there, {"cpu-1": wanted}, SMALL) == [ScalePool("cpu-1", count, WHY)]


def test_cores_bound_resizes() -> None:
    there = tuple(worker(name) for name in "abcd")
    assert effects(there, {"cpu-1": 3, "cpu-2": 1}, SMALL) == []


def test_workers_of_another_size_leave_from_the_pool_they_are_in() -> None:
    there = (worker("a"), worker("b", "cpu-2", pool="cpu-1"))
    assert effects(there, {"cpu-1": 1, "cpu-2": 0}, SMALL) == [ScalePool("cpu-1", 1, WHY)]


def test_gateways_are_as_many_as_they_are_but_may_be_resized() -> None:
    there = (worker("g", pool="gateways"),)
    limits = replace(PlanLimits.of([GATEWAYS]), max_workers={"cpu-1": 0, "cpu-2": 0})
    fleet = PoolPlanner(limits)
    assert fleet.effects(view(*there), {"cpu-1": 0}, WHY) == []
    assert fleet.effects(view(*there), {"cpu-1": 5}, WHY) == []
    resize = fleet.effects(view(*there), {"cpu-1": 0, "cpu-2": 1}, WHY)
    assert resize == [ResizeWorker("g", "cpu-2", WHY)]


def test_no_pool_shrinks_until_the_one_that_grows_is_ready() -> None:
    fleet = PoolPlanner(PlanLimits.of([SMALL, LARGE]))
    wanted = {"cpu-1": 0, "cpu-4": 1}
    small = worker("a")
    assert fleet.effects(view(small, now_s=0.0), wanted, WHY) == [ScalePool("cpu-4", 1, WHY)]
    empty = worker("b", "cpu-4", instances=())
    assert fleet.effects(view(small, empty, now_s=5.0), wanted, WHY) == []
    ready = worker("b", "cpu-4")
    leave = [ScalePool("cpu-1", 0, WHY)]
    assert fleet.effects(view(small, ready, now_s=6.0), wanted, WHY) == leave


def test_a_pool_that_never_grows_does_not_keep_others_for_ever() -> None:
    fleet = PoolPlanner(PlanLimits.of([SMALL, LARGE]))
    wanted = {"cpu-1": 0, "cpu-4": 1}
    for now_s in (0.0, 30.0, 59.0):
        found = fleet.effects(view(worker("a"), now_s=now_s), wanted, WHY)
        assert found == [ScalePool("cpu-4", 1, WHY)]
    found = fleet.effects(view(worker("a"), now_s=60.0), wanted, WHY)
    assert ScalePool("cpu-1", 0, WHY) in found
