"""Comparisons are paired, resume, run in parallel, and say what failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelless.controller.sim.compare import (
    Contender,
    Run,
    compare,
    contenders_of,
    interval,
    table,
)
from modelless.variants.errors import InvalidInputError

from .worlds import world

NAMES = ("most-accurate-feasible", "cheapest-feasible")


def test_runs_are_paired_and_the_table_says_so(tmp_path: Path) -> None:
    runs = compare(world(duration_s=2), contenders_of(NAMES), [1, 2, 3], folder=tmp_path)
    assert [(run.contender, run.seed) for run in runs] == [(n, s) for n in NAMES for s in (1, 2, 3)]
    accurate, cheap = table(runs)
    assert accurate["attainment_difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert cheap["mean_accuracy_difference"]["high"] < 0.0
    assert cheap["cost_usd_difference"]["high"] < 0.0
    queries = {run.seed: run.figures["queries"] for run in runs[:3] if run.figures}
    assert all(run.figures and run.figures["queries"] == queries[run.seed] for run in runs)


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    file, seen = world(duration_s=1), list[str]()
    first = compare(file, contenders_of(NAMES), [1], folder=tmp_path)
    again = compare(
        file,
        contenders_of(NAMES),
        [1, 2],
        folder=tmp_path,
        progress=lambda done, total, run: seen.append(f"{run.contender} {run.seed}"),
    )
    assert seen == [f"{name} 2" for name in NAMES]
    assert [run.figures for run in again if run.seed == 1] == [run.figures for run in first]
    changed = compare(world(duration_s=1.5), contenders_of(NAMES), [1], folder=tmp_path)
    assert changed[0].figures != first[0].figures


def test_processes_change_nothing(tmp_path: Path) -> None:
    file = world(duration_s=1)
    alone = compare(file, contenders_of(NAMES), [1])
    assert compare(file, contenders_of(NAMES), [1], processes=2) == alone


def test_what_fails_is_told_and_costs_only_itself() -> None:
    runs = compare(world(duration_s=1), contenders_of(["no-such", NAMES[0]]), [1])
    assert runs[0].figures is None
    assert "does not exist" in runs[0].error
    assert runs[1].figures is not None
    assert [row["runs"] for row in table(runs)] == [0, 1]
    with pytest.raises(InvalidInputError, match="policies: choosing"):
        compare(world(), [Contender("x", {"choosing": "y"})], [1])
    with pytest.raises(InvalidInputError, match="runs"):
        table([])


def test_intervals() -> None:
    assert interval([]) == {"mean": None, "low": None, "high": None}
    assert interval([2.0]) == {"mean": 2.0, "low": None, "high": None}
    known = interval([1.0, 2.0, 3.0])
    assert known["mean"] == 2.0
    assert known["high"] == pytest.approx(2.0 + 4.30 / 3**0.5)
    assert interval([1.0] * 40)["low"] == 1.0
    assert Run("a", 1, None).error == ""
