"""The books balance, in every kind of world."""

from __future__ import annotations

import copy
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import WorldFile, load_world, parse_world
from modelless.policies.systems import systems

from .books import Books
from .totals import check_totals
from .worlds import DRIFT, EDGE, FAULTS, SHIPPED, document

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


@pytest.mark.parametrize("name", WORLDS)
def test_the_books_balance(name: str, tmp_path: Path) -> None:
    books, _ = balanced(parse_world(document(**WORLDS[name]), tmp_path), tmp_path)
    assert len(books.rows) > 100


def balanced(file: WorldFile, folder: Path) -> tuple[Books, dict[str, Any]]:
    """The books of a run, checked, and its figures."""
    log = folder / "log.parquet"
    figures = simulate(file, log=log).figures()
    books = Books(file, log)
    books.check(figures)
    return books, figures


# -- worlds as they are shipped ---------------------------------------------------------------

SYSTEMS = [
    "modelless",
    *(pytest.param(each, marks=pytest.mark.slow) for each in ("infaas", "proteus", "clockwork")),
]
EXTENTS: dict[str, tuple[float, float]] = {
    "steady": (6, 1),
    "noisy-neighbours": (6, 1),
    "edge-core": (4, 1),
    "bursty": (40, 1),
    "elastic": (70, 0.5),
    "flash-crowd": (60, 0.5),
    "failures": (100, 0.3),
    "diurnal": (80, 0.2),
    "drift": (70, 0.8),
    "mixed-fleet": (3, 1),
    "servegen-week": (20, 1),
}
"""How long each is run, seconds, and with how much of its load: until what it is there for has
happened; see ``HAPPENED``."""


def _peak_over_mean(books: Books) -> float:
    by_second = Counter(int(row["arrival_s"]) for row in books.rows)
    return max(by_second.values()) * books.world.duration_s / len(books.rows)


def _actions(books: Books) -> Counter[str]:
    return Counter(row["action"] for row in books.control)


HAPPENED: dict[str, Callable[[Books], bool]] = {
    "noisy-neighbours": lambda books: books.world.devices[0].contention > 0.05,
    "edge-core": lambda books: {row["tenant"] for row in books.rows} == {None, "home"},
    "bursty": lambda books: _peak_over_mean(books) > 5.0,
    "flash-crowd": lambda books: _peak_over_mean(books) > 2.0,
    "failures": lambda books: (
        _actions(books)["worker-down"] == 2
        and max(row["start_s"] for row in books.ran) > 95.0
        and not [r for r in books.ran if r["device"] == "rack-b" and 81.0 < r["dispatch_s"] < 95.0]
    ),
    "elastic": lambda books: books.world.devices[0].max_workers == 8,
    "diurnal": lambda books: {row["task"] for row in books.ran} == {"vision", "speech"},
    "drift": lambda books: _actions(books)["loaded"] > books.world.devices[0].count,
}


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("path", SHIPPED)
def test_the_books_of_shipped_worlds_balance(path: Path, system: str, tmp_path: Path) -> None:
    file = load_world(path)
    duration_s, load = EXTENTS[path.stem]
    policies = file.world.policies.model_copy(update=dict(systems()[system].policies))
    changes = {"duration_s": float(duration_s), "load": load * file.world.load}
    world = file.world.model_copy(update={**changes, "policies": policies})
    books, _ = balanced(WorldFile(world, file.folder), tmp_path)
    assert HAPPENED.get(path.stem, lambda books: len(books.rows) > 100)(books)


# -- workers that come, go and change ---------------------------------------------------------

GROWING: dict[str, Any] = {
    "duration_s": 90,
    "devices": [
        {
            "name": "cpu-1",
            "count": 1,
            "min_workers": 0,
            "max_workers": 3,
            "start_s": 3,
            "sizes": ["cpu-2"],
            "max_cores": 5,
            "per_host": 3,
            "contention": 0.05,
            "memory_mib": 700,
            "price_usd_per_hour": 0.05,
        },
        {
            "name": "cpu-2",
            "count": 0,
            "max_workers": 0,
            "threads": 2,
            "memory_mib": 700,
            "price_usd_per_hour": 0.1,
        },
        {
            "name": "gpu",
            "kind": "gpu",
            "count": 0,
            "min_workers": 0,
            "max_workers": 1,
            "start_s": 6,
            "memory_mib": 700,
            "price_usd_per_hour": 0.5,
            "power_w": 200,
        },
    ],
    "tasks": [
        {
            "name": "vision",
            "variants": {
                "kind": "ladder",
                "count": 3,
                "latency_ms": [10, 40],
                "memory_mib": [60, 150],
                "load_s": [0.3, 1],
                "speeds": {"cpu-1": 1, "cpu-2": 2, "gpu": 8},
            },
        }
    ],
    "queries": [
        {
            "tasks": ["vision"],
            "arrivals": {
                "kind": "flash-crowd",
                "base_per_s": 15,
                "peak_per_s": 250,
                "at_s": 10,
                "rise_s": 10,
                "hold_s": 20,
                "fall_s": 5,
            },
            "slos": [{"latency_ms": 300}, {"latency_ms": 600, "min_accuracy": 70}],
        }
    ],
    "faults": [
        {"kind": "worker-slows", "worker": "cpu-1/0", "at_s": 12, "until_s": 25, "factor": 3},
        {"kind": "worker-dies", "worker": "cpu-1/0", "at_s": 30, "back_s": 40},
        {"kind": "load-fails", "worker": "*", "at_s": 20, "until_s": 24},
    ],
}
ELASTIC = {"policy": "expected-value", "pools": {"down_after_s": 5.0, "zero_after_s": 10.0}}
SCALING: dict[str, tuple[Any, set[str]]] = {
    "elastic": (ELASTIC, {"resized", "worker-up", "worker-down", "worker-gone", "load-failed"}),
    "ongoing-requests": (
        {"policy": "ongoing-requests", "upscale_delay_s": 2.0, "downscale_delay_s": 5.0},
        {"worker-up", "worker-gone"},
    ),
}


@pytest.mark.parametrize("name", SCALING)
@pytest.mark.parametrize(
    "selection", ["best-value", pytest.param("clockwork", marks=pytest.mark.slow)]
)
def test_the_books_balance_while_workers_come_and_go(
    name: str, selection: str, tmp_path: Path
) -> None:
    scaling, expected = SCALING[name]
    policies = {"selection": selection, "scaling": scaling}
    books, _ = balanced(parse_world(document(**GROWING, policies=policies), tmp_path), tmp_path)
    assert expected <= set(_actions(books)), _actions(books)
    assert _actions(books)["worker-up"] > 2


# -- what the checker notices -----------------------------------------------------------------

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
    "another limit": lambda rows: _first(rows).update(min_accuracy=1.0),
    "another deadline": lambda rows: _first(rows).update(deadline_s=1e9),
    "the last query lost": lambda rows: rows.pop(),
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
    summary = simulate(file, log=tmp_path / "log.parquet")
    books = Books(file, tmp_path / "log.parquet")
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
    "loaded in no time": lambda rows: [
        row.update(at_s=row["at_s"] - 0.1) for row in rows if row["action"] == "loaded"
    ],
    "a worker that was not there": lambda rows: [
        row.update(at_s=2.0) for row in rows if row["action"] == "worker-up"
    ],
    "too many workers": lambda rows: rows.append(
        {**dict.fromkeys(rows[0]), "action": "scale", "device": "cpu-1", "count": 5}
    ),
    "another size": lambda rows: rows.append(
        {**rows[0], "action": "resized", "device": "gpu", "worker": "cpu-1/0", "at_s": 2.0}
    ),
}


@pytest.mark.parametrize("name", CONTROL_FORGERIES)
def test_the_checker_notices_in_the_control_log(name: str, tmp_path: Path) -> None:
    file = parse_world(document(duration_s=3, warm_start=False), tmp_path)
    books, figures = balanced(file, tmp_path)
    CONTROL_FORGERIES[name](books.control)
    with pytest.raises((AssertionError, KeyError)):
        books.check(figures)


def test_the_checker_notices_any_figure_that_is_another(tmp_path: Path) -> None:
    """All that the summary tells is in the logs, or in the world."""
    changes = copy.deepcopy({**DRIFT, "duration_s": 8, "faults": FAULTS[3:]})
    changes["faults"][0].update(worker="cpu-1/*", at_s=1)
    changes["queries"][0]["slos"][0].update(tenant="one", max_cost_usd=1e-7)
    books, figures = balanced(parse_world(document(**changes), tmp_path), tmp_path)
    assert min(figures[n] for n in ("loads", "failed_loads", "evictions", "answered")) > 0
    forged = list(_forged(figures))
    assert len(forged) > 60
    assert [name for wrong, name in forged if _add_up(books, wrong)] == []


def _add_up(books: Books, figures: dict[str, Any]) -> bool:
    try:
        check_totals(books.world, books.rows, books.control, figures)
    except AssertionError:
        return False
    return True


def _forged(figures: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The figures with one number changed by 3 %, and its name; one after the other."""
    for name, value in figures.items():
        if isinstance(value, dict):
            for inner, path in _forged(value):
                yield {**figures, name: inner}, f"{name}.{path}"
        elif isinstance(value, (int, float)) and name != "seed":
            yield {**figures, name: value * 1.03 if value else 1.0}, name


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
