"""What goes wrong in a world is seen in its books, and nowhere else."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import parse_world

from .books import Books
from .worlds import EDGE, document


def run(tmp_path: Path, **changes: Any) -> tuple[Books, dict[str, Any]]:
    """The books and the figures of a run, balanced."""
    file = parse_world(document(**changes), tmp_path)
    summary = simulate(file, log=tmp_path / "log.parquet")
    books = Books(file, tmp_path / "log.parquet")
    books.check(summary.figures())
    return books, summary.figures()


def test_a_worker_dies_and_comes_back_empty(tmp_path: Path) -> None:
    fault = {"kind": "worker-dies", "worker": "cpu-1/0", "at_s": 2, "back_s": 5}
    books, figures = run(tmp_path, faults=[fault], duration_s=15)  # until all is loaded again
    mine = [row for row in books.ran if row["worker"] == "cpu-1/0"]
    assert any(row["start_s"] < 2.0 for row in mine)
    assert not [row for row in mine if row["finish_s"] > 2.0 and row["start_s"] < 5.0]
    assert any(row["start_s"] > 5.0 for row in mine)
    loads = [row for row in books.control if row["action"] == "load" and row["at_s"] >= 5.0]
    assert {row["worker"] for row in loads} == {"cpu-1/0"}
    assert figures["loads"] == len(loads) > 0
    assert figures["cold_start_s"] > 0.0
    assert figures["attainment"] > 0.9


def test_the_queries_of_a_dead_worker_are_tried_elsewhere(tmp_path: Path) -> None:
    fault = {"kind": "worker-dies", "worker": "cpu-1/*", "at_s": 5}
    books, figures = run(tmp_path, faults=[fault], limits={"detect_s": 0.1})
    after = [row for row in books.ran if row["start_s"] > 5.2]
    assert {row["device"] for row in after} == {"gpu"}
    assert figures["answered"] > 1000


def test_a_slow_worker_takes_longer(tmp_path: Path) -> None:
    fault = {"kind": "worker-slows", "worker": "gpu/0", "at_s": 3, "until_s": 6, "factor": 20}
    books, _ = run(tmp_path, faults=[fault])
    spans = {True: [0.0], False: [0.0]}
    for row in books.ran:
        if row["worker"] == "gpu/0" and row["variant"] == "vision/rung-04/v@1":
            busy_s = (row["finish_s"] - row["start_s"]) / row["batch_size"]
            spans[3.0 < row["start_s"] < 6.0].append(busy_s)
    assert max(spans[True]) > 5 * max(spans[False])


def test_failing_loads_are_tried_again(tmp_path: Path) -> None:
    fault = {"kind": "load-fails", "variant": "vision/rung-02/*", "at_s": 0, "until_s": 4}
    everywhere = {"scaling": "fixed"}
    books, figures = run(tmp_path, faults=[fault], warm_start=False, policies=everywhere)
    failed = [row for row in books.control if row["action"] == "load-failed"]
    assert figures["failed_loads"] == len(failed) > 4
    assert all(row["at_s"] < 4.0 for row in failed)
    loaded = [row for row in books.control if row["action"] == "loaded"]
    assert {row["worker"] for row in loaded if "rung-02" in row["variant"]} >= {"cpu-1/0"}


def test_a_cut_site_serves_nothing_until_it_is_mended(tmp_path: Path) -> None:
    fault = {"kind": "site-cut", "site": "core", "at_s": 2, "until_s": 6}
    books, figures = run(tmp_path, **EDGE, faults=[fault])
    starts = [row["dispatch_s"] for row in books.ran if row["device"] == "core-gpu"]
    assert any(at_s < 2.0 for at_s in starts)
    assert not [at_s for at_s in starts if 2.0 < at_s < 6.0]
    assert any(at_s > 6.0 for at_s in starts)
    assert "unreachable" not in figures["violations"]
    assert not [row for row in books.control if row["action"] == "worker-down"]


def test_clients_that_are_cut_off_get_nothing(tmp_path: Path) -> None:
    fault = {"kind": "site-cut", "site": "home", "at_s": 4, "until_s": 6}
    books, figures = run(tmp_path, **EDGE, faults=[fault])
    lost = [row for row in books.rows if row["outcome"] == "unreachable"]
    assert figures["violations"]["unreachable"] == len(lost) > 40
    assert all(3.8 < row["arrival_s"] < 6.0 for row in lost)
    assert {row["answered_s"] for row in lost} == {None}


def test_a_worker_that_hangs_is_given_up_and_taken_back(tmp_path: Path) -> None:
    fault = {"kind": "worker-slows", "worker": "gpu/0", "at_s": 1, "until_s": 1.2, "factor": 10_000}
    books, figures = run(tmp_path, faults=[fault], duration_s=20)
    mine = sorted(row["start_s"] for row in books.ran if row["worker"] == "gpu/0")
    gaps = [after - before for before, after in pairwise(mine)]
    assert max(gaps) > 5.0, "it hung"
    assert figures["attainment"] > 0.5
