"""``modelless costmodel evaluate``: its answer, what it is told that is wrong, how it ends."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.evaluation import hold_out
from modelless.profiler.cost_model.evaluation.baselines import BASELINES
from modelless.profiler.cost_model.unmeasured import prior as prior_module
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import COLUMNS, TableRow, write_table
from tests.unit.profiler.cost_model.unmeasured.worlds import BLANK_SIZES, multiples, one_thread, row

from .conftest import Ran, Run

METHODS = {"modelless", *BASELINES}
ROWS = multiples({"a": 1.0, "b": 2.0, "c": 0.1}, models=12)
FIGURES = (
    "mape_percent",
    "median_error_percent",
    "within_10_percent",
    "rank_correlation",
    "band_coverage_percent",
)
MAY_BE_UNDEFINED = ("rank_correlation", "band_coverage_percent")
"""Of baselines: all may be predicted alike, and there are no bands."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three devices that are multiples of one another."""
    path = tmp_path / "table.csv"
    write_table(path, ROWS)
    return path


def written(path: Path, rows: Sequence[TableRow]) -> Path:
    write_table(path, rows)
    return path


def evaluated(run: Run, *words: object, shots: str = "0", seeds: int = 1) -> Ran:
    return run("costmodel", "evaluate", *words, "--shots", shots, "--seeds", seeds, "--json")


def results(ran: Ran) -> list[dict[str, Any]]:
    assert ran.code == 0, ran.err

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    found: list[dict[str, Any]] = json.loads(ran.out, parse_constant=refuse)["results"]
    return found


def refused(ran: Ran, *said: str, code: int = 2) -> str:
    """One line on stderr besides progress, the same as JSON, and the exit code."""
    assert ran.code == code, ran.err
    message = str(ran.document["error"])
    assert ran.document["exit_code"] == code
    assert ran.err.splitlines()[-1] == f"error: {message}"
    for words in said:
        assert words in message
    return message


def test_every_device_shots_and_method_has_its_figures(run: Run, table: Path) -> None:
    ran = evaluated(run, table, shots="5,0,5", seeds=2)
    found = results(ran)
    assert {(one["device"], one["shots"], one["method"]) for one in found} == {
        (device, shots, method) for device in "abc" for shots in (0, 5) for method in METHODS
    }
    assert len(found) == 3 * 2 * (1 + len(BASELINES))
    for one in found:
        assert one["points"] == 12 - one["shots"]
        assert one["seeds"] == 2
        for name in FIGURES:
            if one["method"] == "modelless" or name not in MAY_BE_UNDEFINED:
                assert math.isfinite(one[name]), name
        if one["method"] != "modelless":
            assert one["band_coverage_percent"] is None
    document = ran.document
    assert document["tables"] == [str(table)]
    assert (document["shots"], document["seeds"]) == ([0, 5], 2)
    assert document["prior"] == shipped_prior().version
    assert document["draw"] == "random"


def test_the_same_again_is_the_same(run: Run, table: Path) -> None:
    first, second = (evaluated(run, table, shots="0,5").out for _ in range(2))
    assert first == second


def test_people_see_tables(run: Run, table: Path) -> None:
    ran = run("costmodel", "evaluate", table, "--shots", "0,3", "--seeds", 1)
    assert ran.code == 0
    for device in "abc":
        for shots, points in ((0, 12), (3, 9)):
            assert (
                f"{device} (lab), {shots} random measurements given, {points} points predicted"
                in ran.out
            )
    assert ran.out.count("modelless") == 6
    assert "predicting 3/3" in ran.err


def test_shots_are_chosen_on_demand(run: Run, table: Path) -> None:
    words = ("costmodel", "evaluate", table, "--shots", "4", "--seeds", 1, "--draw", "chosen")
    ran = run(*words)
    assert ran.code == 0
    assert "a (lab), 4 chosen measurements given, 8 points predicted" in ran.out
    document = run(*words, "--json").document
    assert document["draw"] == "chosen"
    at_random = {
        (one["device"], one["method"]): one for one in results(evaluated(run, table, shots="4"))
    }
    others = [
        one
        for one in document["results"]
        if one != at_random[one["device"], one["method"]] and one["method"] != "modelless"
    ]
    assert others, "the baselines got other shots"


def test_training_tables_are_learned_from_and_not_judged(run: Run, table: Path) -> None:
    new = written(table.with_name("new.csv"), multiples({"x": 3.0}, models=8, seed=2))
    more = written(table.with_name("more.csv"), multiples({"d": 7.0}, models=5))
    for words in (
        [new, "--train", table, more],
        [new, "--train", table, "--train", more],
        ["--train", table, more, "--holdout", "device=x", new],
    ):
        ran = evaluated(run, *words)
        assert {one["device"] for one in results(ran)} == {"x"}
        assert ran.document["train"] == [str(table), str(more)]
        assert ran.document["tables"] == [str(new)]


def test_training_tables_may_follow_an_equals_sign(run: Run, table: Path) -> None:
    new = written(table.with_name("new.csv"), multiples({"x": 3.0}, models=8, seed=2))
    more = written(table.with_name("more.csv"), multiples({"d": 7.0}, models=5))
    found = results(evaluated(run, new, f"--train={table}", more))
    assert {one["device"] for one in found} == {"x"}


NAMES = [
    "QCS8550 (Proxy)",
    "a=b",
    "[red]bold[/red]",
    "[/nothing]",
    "ネット \u202e☃",
    "x" * 3000,
    "two\nlines",
    "-x",
    "%s {0}",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_taken_as_they_are(run: Run, table: Path, name: str) -> None:
    rows = [
        replace(one, device=name, model=f"{name}{one.model}", family=name, engine=name)
        if one.device == "b"
        else one
        for one in ROWS
    ]
    written(table, rows)
    for part in ("device", "family", "engine"):
        found = results(evaluated(run, table, "--holdout", f"{part}={name}"))
        assert {one["device"] for one in found} == {name}
    ran = run("costmodel", "evaluate", table, "--shots", "0", "--seeds", 1)
    assert ran.code == 0
    assert "\n" in name or f"{name[:40]}" in "".join(ran.out.split("\n"))


def test_parts_are_held_out(run: Run, table: Path) -> None:
    assert {
        one["points"] for one in results(evaluated(run, table, "--holdout", "family=family-1"))
    } == {3}
    several = evaluated(run, table, "--holdout", "device=a", "--holdout", "device=c")
    assert {one["device"] for one in results(several)} == {"a", "c"}
    assert several.document["holdout"] == ["device=a", "device=c"]


def test_a_holdout_that_leaves_nothing_to_learn_from_makes_wide_bands(
    run: Run, table: Path
) -> None:
    ran = evaluated(run, table, "--holdout", "source=lab")
    for one in results(ran):
        if one["method"] == "modelless":
            assert one["band_width"] > 100.0
            assert one["band_coverage_percent"] >= 80.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--holdout", "device=z"], ["--holdout device", "'z'", "one of a, b, c"]),
        (["--holdout", "device"], ["--holdout", "device=..."]),
        (["--holdout", "device="], ["--holdout", "device=..."]),
        (["--holdout", "latency_ms=3"], ["--holdout", "family=..."]),
        (["--shots", "-1"], ["--shots"]),
        (["--shots", ""], ["--shots"]),
        (["--shots", "1.5"], ["--shots", "whole numbers"]),
        (["--shots", "ten"], ["--shots", "whole numbers"]),
        (["--shots", "1000000"], ["--shots", "100000"]),
        (["--shots", "12,50"], ["--shots", "11 at most"]),
        (["--draw", "best"], ["--draw", "'best'", "one of random, chosen"]),
        (["--seeds", "0"], ["--seeds"]),
        (["--seeds", "many"], ["--seeds"]),
        (["--train", "none.csv"], ["none.csv", "readable CSV"]),
        (["none.csv"], ["none.csv", "readable CSV"]),
        (["."], ["readable CSV"]),
        (["--prior", "none.json"], ["none.json", "readable prior"]),
        (["--prior", "table.csv"], ["table.csv", "a prior file"]),
        (["--nonsense"], ["--nonsense", "modelless costmodel evaluate --help"]),
        pytest.param(
            ["--shots", "1" * 5000],
            ["--shots"],
            id="5000-digits",
        ),
    ],
)
def test_what_is_wrong_is_said(run: Run, table: Path, words: list[str], said: list[str]) -> None:
    refused(run("costmodel", "evaluate", table, "--json", *words), *said)


def test_without_a_table_the_usage_is_told(run: Run) -> None:
    assert run("costmodel", "evaluate").code == 2
    assert "TABLE" in run("costmodel", "evaluate").err


def test_shots_that_were_left_out_are_told(run: Run, table: Path) -> None:
    ran = evaluated(run, table, shots="0,12")
    assert {one["shots"] for one in results(ran)} == {0}
    assert "12" in ran.err


def rewritten(path: Path, column: str, *values: object) -> Path:
    """The table with some values of a column changed, in its rows from the first."""
    with path.open(newline="") as file:
        records = list(csv.DictReader(file))
    for record, value in zip(records, values, strict=False):
        record[column] = str(value)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(records)
    return path


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("latency_ms", "nan"),
        ("latency_ms", "inf"),
        ("latency_ms", "0"),
        ("latency_ms", ""),
        ("latency_ms", "1e7"),
        ("latency_ms", "1e-9"),
        ("gmacs", "nan"),
        ("batch", "0"),
        ("batch", ""),
        ("model", ""),
        ("device", " "),
        ("layers", "many"),
    ],
)
@pytest.mark.parametrize("is_training", [False, True])
def test_values_that_cannot_be_are_refused(
    run: Run, table: Path, column: str, value: str, is_training: bool
) -> None:
    bad = rewritten(written(table.with_name("bad.csv"), ROWS), column, value)
    words = [table, "--train", bad] if is_training else [bad]
    refused(evaluated(run, *words), "bad.csv", "line 2", column)


def test_a_missing_column_is_named(run: Run, table: Path) -> None:
    table.write_text("model,device,batch,latency_ms\nnet,a,1,3\n")
    refused(evaluated(run, table), "Missing: source", "gmacs")


@pytest.mark.parametrize("known", ["throughput_per_s", "gmacs", "latency_p99_ms"])
def test_seconds_are_noticed(run: Run, table: Path, known: str) -> None:
    """By any one of the other columns: throughput, arithmetic, a p99 that is milliseconds still."""
    rows = [
        replace(
            one,
            latency_ms=one.latency_ms / 1e3,
            gmacs=one.gmacs if known == "gmacs" else None,
            throughput_per_s=1e3 / one.latency_ms if known == "throughput_per_s" else None,
            latency_p99_ms=1.1 * one.latency_ms if known == "latency_p99_ms" else None,
        )
        for one in multiples({"a": 1.0, "b": 2.0})
    ]
    refused(evaluated(run, written(table, rows)), "table.csv: latency_ms")


def test_seconds_are_noticed_beside_the_training_table(run: Run, table: Path) -> None:
    """The same device and models, some in seconds: nothing else in the row can tell."""
    rows = multiples({"a": 1.0, "b": 2.0}, **BLANK_SIZES)
    written(table, rows)
    seconds = written(
        table.with_name("seconds.csv"),
        [replace(one, latency_ms=one.latency_ms / 1e3, batch=2) for one in rows],
    )
    ran = evaluated(run, seconds, "--train", table, shots="5")
    assert "seconds" in ran.err.replace("seconds.csv", "")


@pytest.mark.parametrize("kind", ["quantum", ""])
def test_an_unknown_kind_is_said_to_be_unknown(run: Run, table: Path, kind: str) -> None:
    written(table, [replace(one, device_kind=kind) for one in ROWS])
    ran = evaluated(run, table)
    assert ran.code == 0
    assert f"unknown device_kind {kind!r}" in ran.err
    assert "cpu, gpu, npu" in ran.err


def test_points_that_were_measured_twice_are_kept(run: Run, table: Path) -> None:
    twice = [*ROWS, *(replace(one, latency_ms=1.1 * one.latency_ms) for one in ROWS)]
    found = results(evaluated(run, written(table, twice)))
    assert {one["points"] for one in found} == {24}


def test_the_same_table_twice_is_refused_or_read_once(run: Run, table: Path) -> None:
    ran = evaluated(run, table, table, shots="5")
    assert ran.code == 2 or {one["points"] for one in results(ran)} == {7}


def test_a_training_table_that_holds_what_is_judged_is_not_believed(run: Run, table: Path) -> None:
    ran = evaluated(run, table, "--train", table)
    alone = {(one["device"], one["method"]): one for one in results(evaluated(run, table))}
    assert ran.code == 2 or all(
        one["mape_percent"] > 0.5 * alone[one["device"], one["method"]]["mape_percent"]
        for one in results(ran)
        if one["method"] == "modelless"
    )


@pytest.mark.parametrize(
    "rows",
    [
        [row()],
        [row(), row(device="b")],
        [row(), row(model="other"), row(device="b")],
        multiples({"a": 1.0, "b": 1.0}, models=6, latency_ms=5.0),
        multiples({"a": 1e-4, "b": 1e4}, models=6, device_kind=""),
        multiples({"a": 1.0, "b": 2.0}, models=6, **BLANK_SIZES),
        multiples({"a": 1.0, "b": 2.0}, models=6, family="", device_kind="", engine="", task=""),
        multiples({"a": 1.0, "b": 2.0}, models=6, gmacs=1.0, params_m=0.0, layers=1),
        multiples({"a": 1.0, "b": 2.0}, models=6, device_kind="quantum"),
        pytest.param(
            [*multiples({"a": 1.0, "b": 2.0}, models=6), row(model="net" + "9" * 400)],
            id="400-digits",
        ),
        pytest.param(
            [
                row(model="x", gmacs=0.5, latency_ms=1e-3, device_kind=""),
                row(model="y", gmacs=0.6, latency_ms=3e6, device_kind=""),
                row(device="b", model="z", gmacs=1e6, latency_ms=1e6, device_kind=""),
            ],
            id="steep",
        ),
    ],
)
def test_strange_tables_are_answered_in_finite_numbers(
    run: Run, table: Path, rows: list[TableRow]
) -> None:
    found = results(evaluated(run, written(table, rows), shots="0,1,5", seeds=2))
    assert {one["method"] for one in found} == METHODS


def test_people_see_two_devices_of_one_name_apart(run: Run, table: Path) -> None:
    written(table, [*ROWS, *(replace(one, source="other") for one in ROWS)])
    ran = run("costmodel", "evaluate", table, "--shots", "0", "--seeds", 1, "--holdout", "device=a")
    assert ran.code == 0
    assert ran.out.count("12 points predicted") == 2


def test_a_damaged_package_is_told(run: Run, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged() -> object:
        return prior_module.parse_prior(b"{}", "the package's prior.json")

    monkeypatch.setattr("modelless.controller.usecases.measuring.cost_model.shipped_prior", damaged)
    with pytest.raises(InvalidInputError):
        damaged()
    refused(evaluated(run, table), "the package's prior.json", "Install modelless again")


def test_a_prior_of_ones_own_is_named(run: Run, table: Path) -> None:
    document = json.loads((Path(prior_module.__file__).parent / "data" / "prior.json").read_bytes())
    document["version"] = "mine"
    del document["sha256"]
    document["sha256"] = prior_module.digest_of(document)
    path = table.with_name("prior.json")
    path.write_text(json.dumps(document))
    ran = evaluated(run, table, "--prior", path)
    assert ran.document["prior"] == "mine"
    path.write_text(json.dumps(document | {"version": "changed"}))
    refused(evaluated(run, table, "--prior", path), "sha256")


def test_rows_that_are_not_drawn_are_told_before_what_they_leave_out(
    run: Run, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_out, "MOST_JUDGED", 3)
    said = evaluated(run, table, shots="0,3").err
    drawn = said.index("a has 12 rows: 3 of them are drawn")
    assert drawn < said.index("a has 3 drawn rows: left out: 3 shots")
