"""Scaling over a step: by size, by number, to none and back; nothing is lost, the books agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.sim.bound.clairvoyant import clairvoyant_bound
from modelless.controller.sim.run import simulate
from modelless.controller.sim.series import Series
from modelless.controller.sim.summary import Summary
from modelless.controller.sim.worlds.world import WorldFile, parse_world

from .books import Books, Row

ONE_BY_ONE_PER_S = 50.0
"""What a worker of one thread can do: its only variant takes 20 ms."""


def cpu(name: str, threads: int, **changes: Any) -> dict[str, Any]:
    price = 0.05 * threads
    device = {"name": name, "threads": threads, "memory_mib": 400, "price_usd_per_hour": price}
    return {**device, "count": 0, "max_workers": 0, **changes}


def step_world(
    folder: Path, steps: list[tuple[float, float]], devices: list[dict[str, Any]], **changes: Any
) -> WorldFile:
    """A world whose rate follows ``(from second, queries a second)``."""
    rows = "".join(f"{start},only,{rate}\n" for start, rate in steps)
    (folder / "rates.csv").write_text("start_s,stream,rate_per_s\n" + rows)
    elastic = {"policy": "expected-value", "pools": {"down_after_s": 10.0, "zero_after_s": 10.0}}
    world = {
        "name": "step",
        "seed": 3,
        "duration_s": steps[-1][0],
        "devices": devices,
        "tasks": [
            {
                "name": "vision",
                "variants": {
                    "kind": "ladder",
                    "count": 1,
                    "latency_ms": [20, 20],
                    "memory_mib": [100, 100],
                    "speeds": {device["name"]: device["threads"] for device in devices},
                },
            }
        ],
        "queries": [
            {
                "tasks": ["vision"],
                "arrivals": {"kind": "rates", "path": "rates.csv"},
                "slos": [{"latency_ms": 400}],
            }
        ],
        "policies": {"scaling": elastic},
        **changes,
    }
    return parse_world(world, folder)


def stepped(
    folder: Path, steps: list[tuple[float, float]], devices: list[dict[str, Any]], **changes: Any
) -> tuple[Books, dict[str, Any], dict[str, Any]]:
    """A run of ``step_world``: books, figures, course."""
    file = step_world(folder, steps, devices, **changes)
    summary = Summary(3, "step", series=Series())
    simulate(file, log=folder / "log.parquet", summary=summary)
    books = Books(file, folder / "log.parquet")
    books.check(summary.figures())
    assert summary.series is not None
    return books, summary.figures(), summary.series.figures()


def actions(books: Books, *names: str) -> list[Row]:
    return [row for row in books.control if row["action"] in names]


def lost_after(books: Books, at_s: float) -> list[Row]:
    return [r for r in books.rows if r["arrival_s"] >= at_s and r["outcome"] != "served"]


STEP = [(0.0, 0.2 * ONE_BY_ONE_PER_S), (20.0, 1.7 * ONE_BY_ONE_PER_S), (60.0, 10.0), (100.0, 0.0)]


def test_a_worker_is_resized_for_a_step_and_back(tmp_path: Path) -> None:
    one = cpu("cpu-1", 1, count=1, max_workers=1, min_workers=1, sizes=["cpu-2"])
    books, figures, _ = stepped(tmp_path, STEP, [one, cpu("cpu-2", 2)])
    resized = [(row["at_s"], row["device"]) for row in actions(books, "resized")]
    assert [device for _, device in resized] == ["cpu-2", "cpu-1"]
    assert 20.0 < resized[0][0] < 26.0
    assert 70.0 <= resized[1][0] < 85.0
    assert not lost_after(books, resized[0][0] + 3.0), "nothing is lost on the way down"
    assert {row["device"] for row in books.ran} == {"cpu-1", "cpu-2"}
    assert not actions(books, "worker-gone", "load-failed", "policy-problem")
    assert figures["rent_usd"] == pytest.approx(
        0.05 / 3600 * (figures["end_s"] + resized[1][0] - resized[0][0]), rel=1e-6
    )


def test_a_pool_grows_for_a_step_and_shrinks_without_loss(tmp_path: Path) -> None:
    pool = cpu("cpu-1", 1, count=1, min_workers=1, max_workers=3, start_s=4.0)
    books, _, course = stepped(tmp_path, STEP, [pool])
    up = [row["at_s"] for row in actions(books, "worker-up")]
    assert len(up) == 2
    assert 24.0 < up[1] < 30.0
    assert len(actions(books, "worker-gone")) == 1
    assert not lost_after(books, up[1] + 4.0)
    good = sum(course["good"][int(up[1]) + 4 : 60])
    assert good == sum(course["queries"][int(up[1]) + 4 : 60])


def test_a_pool_goes_to_none_and_the_first_query_waits_for_a_worker(tmp_path: Path) -> None:
    pool = cpu("cpu-1", 1, count=1, min_workers=0, max_workers=2, start_s=2.0)
    steps = [(0.0, 10.0), (10.0, 0.0), (60.0, 2.0), (65.0, 0.0), (66.0, 0.0)]
    patient = [
        {
            "tasks": ["vision"],
            "arrivals": {"kind": "rates", "path": "rates.csv"},
            "slos": [{"latency_ms": 10_000}],
        }
    ]
    books, figures, _ = stepped(tmp_path, steps, [pool], queries=patient)
    gone, up = actions(books, "worker-gone"), actions(books, "worker-up")
    assert len(gone) == 1
    assert gone[0]["at_s"] < 40.0
    assert len(up) == 2
    assert up[1]["at_s"] > 60.0
    assert figures["good"] == figures["queries"], "the first one was held, not refused"


def test_a_pool_that_may_not_grow_above_its_cores_does_not(tmp_path: Path) -> None:
    pool = cpu("cpu-1", 1, count=1, min_workers=1, max_workers=4, start_s=1.0, max_cores=2)
    pool["sizes"] = ["cpu-2"]
    steps = [(0.0, 10.0), (10.0, 500.0), (30.0, 0.0)]
    books, _, _ = stepped(tmp_path, steps, [pool, cpu("cpu-2", 2)])
    cores = 1
    for row in books.control:
        cores += {"worker-up": 1, "worker-gone": -1}.get(row["action"], 0) if row["at_s"] else 0
        if row["action"] == "resized":
            cores += 1 if row["device"] == "cpu-2" else -1
        assert cores <= 2


def test_work_moves_to_another_kind_before_the_first_leaves(tmp_path: Path) -> None:
    devices = [
        cpu("cpu-1", 1, count=1, min_workers=0, max_workers=1, start_s=5.0),
        cpu("cpu-4", 4, min_workers=0, max_workers=1, start_s=5.0),
    ]
    steps = [(0.0, 10.0), (20.0, 0.0)]
    wants = {"scaling": {"policy": "fixed", "workers": {"cpu-1": 0, "cpu-4": 1}}}
    books, figures, _ = stepped(tmp_path, steps, devices, policies=wants)
    up = {row["worker"]: row["at_s"] for row in actions(books, "worker-up")}
    (gone,) = actions(books, "worker-gone")
    assert gone["worker"] == "cpu-1/0"
    assert gone["at_s"] > up["cpu-4/0"] >= 5.0
    assert figures["good"] == figures["queries"]


def test_a_resize_without_room_for_two_copies_is_not_done(tmp_path: Path) -> None:
    small = {"memory_mib": 150}
    one = cpu("cpu-1", 1, count=1, max_workers=1, min_workers=1, sizes=["cpu-2"], **small)
    books, _, _ = stepped(tmp_path, STEP, [one, cpu("cpu-2", 2, **small)])
    assert actions(books, "resize-failed")
    assert not actions(books, "resized")
    assert {row["device"] for row in books.ran} == {"cpu-1"}


def test_no_resizing_exceeds_the_clairvoyant_bound(tmp_path: Path) -> None:
    one = cpu("cpu-1", 1, count=1, max_workers=1, min_workers=1, sizes=["cpu-2"])
    steps = [(0.0, 400.0), (15.0, 0.0)]  # too many for any size
    fixed_bound = clairvoyant_bound(step_world(tmp_path, steps, [{**one, "sizes": []}]))
    bound = clairvoyant_bound(step_world(tmp_path, steps, [one, cpu("cpu-2", 2)]))
    assert bound.attainment > 1.5 * fixed_bound.attainment
    books, figures, _ = stepped(tmp_path, steps, [one, cpu("cpu-2", 2)])
    assert actions(books, "resized")
    assert figures["good"] / figures["queries"] <= bound.attainment


def test_sizes_must_be_alike(tmp_path: Path) -> None:
    for wrong in (["gpu"], ["no-such"]):
        one = cpu("cpu-1", 1, count=1, max_workers=1, sizes=wrong)
        with pytest.raises(InvalidInputError, match=r"devices\.0\.sizes: got .* allowed: cpu-1"):
            stepped(tmp_path, STEP, [one, {**cpu("gpu", 1), "kind": "gpu"}])
