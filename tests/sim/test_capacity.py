"""What a load of 1 is: capacity by hand, and the worlds that are shipped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.sim.bound.capacity import demand_of
from modelless.controller.sim.worlds.world import load_world

from .worlds import SHIPPED, world

EXACT = {"p90_ratio": 1.0 + 1e-9, "p99_ratio": 1.0 + 2e-9}


def one_task(**changes: Any) -> dict[str, Any]:
    """Two variants of 10 and 40 ms an item, which batches do not quicken, on two workers."""
    ladder = {
        "kind": "ladder",
        "count": 2,
        "latency_ms": [10, 40],
        "accuracy": [60, 80],
        "further_item": 1.0,
        "tail": EXACT,
    }
    return {
        "duration_s": 20,
        "devices": [{"name": "cpu", "count": 2}],
        "tasks": [{"name": "t", "variants": ladder}],
        "queries": [
            {"tasks": ["t"], "arrivals": {"kind": "poisson", "rate_per_s": 50}, "slos": [{}]}
        ],
        **changes,
    }


def capacity(**changes: Any) -> float:
    return demand_of(world(**one_task(**changes))).capacity_per_s


def slos(*limits: dict[str, Any]) -> list[dict[str, Any]]:
    arrivals = {"kind": "poisson", "rate_per_s": 200}
    return [{"tasks": ["t"], "arrivals": arrivals, "slos": list(limits)}]


def test_everyone_takes_what_costs_least() -> None:
    assert capacity() == pytest.approx(2 / 0.010, rel=1e-3)


def test_a_minimum_accuracy_costs() -> None:
    found = capacity(queries=slos({"weight": 1}, {"weight": 1, "min_accuracy": 70}))
    assert found == pytest.approx(2 / 0.025, rel=0.05)  # as many of each as come by chance


def test_what_a_batch_really_takes_counts() -> None:
    point = {"device": "cpu", "p50_ms": 10, "batch": 1}
    points = [point, {**point, "batch": 8, "p50_ms": 80}]
    written = {"model": "m", "accuracy": 70, "points": points, "true_ratios": {"cpu": 1.25}}
    variants = {"kind": "written", "tail": EXACT, "variants": [written]}
    found = capacity(tasks=[{"name": "t", "variants": variants}])
    assert found == pytest.approx(2 / 0.0125, rel=1e-3)


def test_what_nothing_answers_in_time_can_be_left_out() -> None:
    limits = slos({"weight": 1}, {"weight": 1, "latency_ms": 9})
    file = world(**one_task(queries=limits))
    every_second = demand_of(file, only_possible=True)
    assert every_second.capacity_per_s == pytest.approx(2 / 0.010, rel=1e-3)
    assert every_second.mean_per_s == pytest.approx(100, rel=0.1)
    with pytest.raises(InvalidInputError, match="limits that nothing can keep"):
        demand_of(file)


def test_neighbours_slow_each_other() -> None:
    """Three on two hosts: two that always meet each other, and one alone."""
    devices = [{"name": "cpu", "count": 3, "per_host": 2, "contention": 0.25}]
    assert capacity(devices=devices) == pytest.approx((2.0 / 1.25 + 1.0) / 0.010, rel=1e-3)
    devices[0]["contention"] = 1.5  # better one at a time
    assert capacity(devices=devices) == pytest.approx(2.0 / 0.010, rel=1e-3)


@pytest.mark.parametrize(("hop_ms", "batch_s"), [(5, 0.010), (15, 0.020)])
def test_of_two_batches_one_may_be_on_its_way(hop_ms: float, batch_s: float) -> None:
    network = {"worker_hop_ms": hop_ms}
    limits = {"max_batch": 1}
    assert capacity(network=network, limits=limits) == pytest.approx(2 / batch_s, rel=1e-3)


def test_workers_that_may_come_count_and_faults_do_not() -> None:
    devices = [{"name": "cpu", "count": 2, "max_workers": 5}]
    faults = [{"kind": "worker-dies", "worker": "cpu/0", "at_s": 1}]
    assert capacity(devices=devices, faults=faults) == pytest.approx(5 / 0.010, rel=1e-3)


def test_what_comes_on_average_and_in_the_busiest_seconds() -> None:
    crowd = {"kind": "flash-crowd", "base_per_s": 10, "peak_per_s": 100, "at_s": 5, "hold_s": 6}
    queries = [{"tasks": ["t"], "arrivals": crowd, "slos": [{}]}]
    demand = demand_of(world(**one_task(queries=queries)))
    assert demand.busiest_per_s == pytest.approx(100, rel=0.15)
    assert demand.mean_per_s < 0.8 * demand.busiest_per_s
    assert demand.load == demand.busiest_per_s / demand.capacity_per_s


def test_limits_that_nothing_keeps_are_an_error() -> None:
    with pytest.raises(InvalidInputError, match="limits that nothing can keep"):
        capacity(queries=slos({"weight": 1}, {"weight": 1, "min_accuracy": 99}))


@pytest.mark.parametrize("path", SHIPPED)
def test_shipped_worlds_ask_for_what_their_devices_can_serve(path: Path) -> None:
    load = demand_of(load_world(path)).load
    assert math.isclose(load, 1.0, abs_tol=0.1) or path.stem == "bursty"
    assert load > 0.6  # how long its bursts last is up to chance: five seconds are rarely full
