"""A task that wakes every minute finds its variant loaded, where a forecaster foresees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelless.controller.sim.run import simulate
from modelless.controller.sim.summary import Summary
from modelless.controller.sim.worlds.world import WorldFile, parse_world

from .books import Books, Row

LAST_S, PERIOD_S, BURST_S = 480, 60, 10
LEARNT_S = 4 * PERIOD_S
"""By then three intervals have been seen."""


def a_task(name: str, load_s: float) -> dict[str, Any]:
    """A task of one variant, which takes half of the device's memory."""
    ladder = {"kind": "ladder", "count": 1, "latency_ms": [20, 20], "memory_mib": [100, 100]}
    return {"name": name, "variants": {**ladder, "load_s": [load_s, load_s]}}


def queries(task: str, arrivals: dict[str, Any], latency_ms: float) -> dict[str, Any]:
    return {"tasks": [task], "arrivals": arrivals, "slos": [{"latency_ms": latency_ms}]}


def waking_world(folder: Path, forecast: str, eviction: str) -> WorldFile:
    """Room for two of three: one is asked for all the time, one now and then, one wakes."""
    rows = ["0,wakes,0"]
    for start_s in range(30, LAST_S - BURST_S, PERIOD_S):
        rows += [f"{start_s},wakes,3", f"{start_s + BURST_S},wakes,0"]
    rows.append(f"{LAST_S},wakes,0")
    (folder / "rates.csv").write_text("start_s,stream,rate_per_s\n" + "\n".join(rows) + "\n")
    world = {
        "name": "waking",
        "seed": 3,
        "duration_s": LAST_S,
        "devices": [{"name": "cpu-1", "count": 1, "memory_mib": 250}],
        "tasks": [a_task("steady", 4.0), a_task("rare", 4.0), a_task("waking", 8.0)],
        "queries": [
            queries("steady", {"kind": "poisson", "rate_per_s": 2}, 1000),
            queries("rare", {"kind": "poisson", "rate_per_s": 0.03}, 20_000),
            queries("waking", {"kind": "rates", "path": "rates.csv"}, 1000),
        ],
        "policies": {"scaling": "on-demand", "eviction": eviction, "forecast": forecast},
    }
    return parse_world(world, folder)


def run(folder: Path, forecast: str, eviction: str) -> tuple[Books, dict[str, Any]]:
    """The books of a run, checked, and its figures."""
    file = waking_world(folder, forecast, eviction)
    summary = Summary(3, "waking")
    simulate(file, log=folder / "log.parquet", summary=summary)
    books = Books(file, folder / "log.parquet")
    books.check(summary.figures())
    return books, summary.figures()


def refused(books: Books, task: str) -> list[Row]:
    """Queries of a task that were not served once its habits could be known."""
    return [
        row
        for row in books.rows
        if row["task"] == task and row["arrival_s"] > LEARNT_S and row["outcome"] != "served"
    ]


@pytest.mark.parametrize(("eviction", "most"), [("lru", 0.5), ("miss-cost", 1.0)])
def test_cold_starts_that_clients_see_become_fewer(
    tmp_path: Path, eviction: str, most: float
) -> None:
    reacting, before = run(tmp_path, "ewma", eviction)
    foreseeing, after = run(tmp_path, "recurring", eviction)
    assert not [row for row in reacting.control if row["reason"] == "forecast"]
    ahead = [row["at_s"] for row in foreseeing.control if row["reason"] == "forecast"]
    assert ahead
    assert min(ahead) > 3 * PERIOD_S
    assert len(refused(foreseeing, "waking")) < most * len(refused(reacting, "waking"))
    assert after["good"] >= before["good"]
