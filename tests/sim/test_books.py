"""The books balance, in every kind of world."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.sim.run import simulate
from modelless.controller.sim.world import load_world, parse_world

from .books import Books
from .worlds import DRIFT, EDGE, FAULTS, document

OVERLOAD = [
    {
        "tasks": ["vision"],
        "arrivals": {
            "kind": "bursts",
            "low_per_s": 50,
            "high_per_s": 1500,
            "mean_low_s": 1,
            "mean_high_s": 0.5,
        },
        "slos": [{"latency_ms": 80}],
    }
]
WORLDS: dict[str, dict[str, Any]] = {
    "small": {},
    "overload": {"queries": OVERLOAD},
    "cheapest": {"policies": {"selection": "cheapest-feasible"}},
    "edge": EDGE,
    "edge, cut": {
        **EDGE,
        "faults": [
            {"kind": "site-cut", "site": "core", "at_s": 2, "until_s": 5},
            {"kind": "site-cut", "site": "home", "at_s": 4, "until_s": 6},
            {"kind": "site-cut", "site": "core", "at_s": 7, "until_s": 7.3},
        ],
    },
    "drift": DRIFT,
    "faults": {"faults": FAULTS},
    "one deadline": {"limits": {"max_queued": 5, "max_batch": 3, "default_latency_ms": 30}},
}
SHIPPED = sorted((Path(__file__).parents[2] / "benchmarks" / "worlds").glob("*.yaml"))


@pytest.mark.parametrize("name", WORLDS)
def test_the_books_balance(name: str, tmp_path: Path) -> None:
    file = parse_world(document(**WORLDS[name]), tmp_path)
    log = tmp_path / "log.csv"
    summary = simulate(file, log=log)
    books = Books(file, log)
    assert len(books.rows) > 100
    books.check(summary.figures())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_books_of_shipped_worlds_balance(path: Path, tmp_path: Path) -> None:
    file = load_world(path)
    needed = [getattr(task.variants, "path", ()) for task in file.world.tasks]
    needed += [getattr(stream.arrivals, "path", ()) for stream in file.world.queries]
    tables = [name for path in needed for name in ([path] if isinstance(path, str) else path)]
    missing = [name for name in tables if not (file.folder / name).exists()]
    if missing:
        pytest.skip(f"{path.name} needs {', '.join(missing)}, not part of the package")
    world = file.world.model_copy(update={"duration_s": 4.0})
    file = type(file)(world, file.folder)
    log = tmp_path / "log.csv"
    summary = simulate(file, log=log)
    Books(file, log).check(summary.figures())


FORGERIES: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "a query lost": lambda rows: rows.pop(50),
    "a query served twice": lambda rows: rows.append(dict(rows[50])),
    "started before it was dispatched": lambda rows: _first(rows).update(start_s=-1.0),
    "on a busy device": lambda rows: _overlap(rows),
    "a batch too large": lambda rows: _first(rows).update(batch_size=99.0),
    "too quick for its profile": lambda rows: _shift(rows, 0.001),
    "too slow for its profile": lambda rows: _shift(rows, 100.0),
    "a better accuracy": lambda rows: _first(rows).update(accuracy=99.0),
    "late, but said to be served": lambda rows: _first(rows).update(answered_s=1e6),
    "another cost": lambda rows: _first(rows).update(cost_usd=5.0),
}


def _first(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in rows if row["outcome"] == "served" and row["batch_size"] == 1)


def _shift(rows: list[dict[str, Any]], factor: float) -> None:
    row = _first(rows)
    row["finish_s"] = row["start_s"] + factor * (row["finish_s"] - row["start_s"])
    row["answered_s"] = max(row["answered_s"], row["finish_s"])


def _overlap(rows: list[dict[str, Any]]) -> None:
    ran = [row for row in rows if row["batch_id"] is not None]
    one = _first(rows)
    other = next(
        row for row in ran if row["worker"] == one["worker"] and row["start_s"] > one["finish_s"]
    )
    other.update({name: one[name] for name in ("dispatch_s", "start_s", "finish_s")}, arrival_s=0.0)


@pytest.mark.parametrize("name", FORGERIES)
def test_the_checker_notices(name: str, tmp_path: Path) -> None:
    file = parse_world(document(duration_s=3), tmp_path)
    summary = simulate(file, log=tmp_path / "log.csv")
    books = Books(file, tmp_path / "log.csv")
    FORGERIES[name](books.rows)
    books.group()
    with pytest.raises(AssertionError):
        books.check(summary.figures())


CONTROL_FORGERIES: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "memory that is not there": lambda rows: [
        row.update(memory_bytes=3 * row["memory_bytes"]) for row in rows if row["action"] == "load"
    ],
    "never loaded": lambda rows: [
        row.update(action="noted") for row in rows if row["action"] == "loaded"
    ],
    "loaded twice": lambda rows: rows.append(
        dict(next(row for row in rows if row["action"] == "load"))
    ),
    "unloaded while it ran": lambda rows: rows.extend(
        [{**row, "action": "unload", "at_s": 0.01} for row in rows if row["action"] == "load"]
    ),
}


@pytest.mark.parametrize("name", CONTROL_FORGERIES)
def test_the_checker_notices_in_the_control_log(name: str, tmp_path: Path) -> None:
    file = parse_world(document(duration_s=3), tmp_path)
    simulate(file, log=tmp_path / "log.csv")
    books = Books(file, tmp_path / "log.csv")
    CONTROL_FORGERIES[name](books.control)
    with pytest.raises(AssertionError):
        books.memory_suffices_and_holds_what_runs()


def test_a_run_leaves_the_garbage_collector_as_it_was_even_if_it_fails() -> None:
    before = gc.get_threshold()
    seen = []

    def look(at_s: float, count: int) -> None:
        seen.append(gc.get_threshold())
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        simulate(parse_world(document(), Path()), progress=look)
    assert seen[0] != before
    assert gc.get_threshold() == before
