"""``modelless costmodel import``, ``list`` and ``remove``."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelless.profiler.measure.table import COLUMNS, TableRow, write_table
from tests.conftest import TABLES
from tests.unit.profiler.cost_model.unmeasured.worlds import BLANK_SIZES, multiples, row

from .conftest import Ran, Run

ROWS = multiples({"a": 1.0, "rtx4090": 2.0}, device_kind="gpu", models=6)


def write(name: str, rows: Sequence[TableRow]) -> Path:
    path = Path(name)
    write_table(path, rows)
    return path


def tables(run: Run) -> dict[str, Any]:
    found = run("costmodel", "list", "--json").document["tables"]
    return {one["name"]: one for one in found}


def refused(ran: Ran, *said: str, code: int = 2) -> None:
    assert ran.code == code, ran.err
    for words in said:
        assert words in ran.err
    assert len(ran.err.splitlines()) == 1


def test_tables_are_imported_listed_and_removed(run: Run) -> None:
    assert "no tables are imported" in run("costmodel", "list").out
    path = write("lab.csv", ROWS)
    ran = run("costmodel", "import", path)
    assert ran.out == "imported lab.csv: 12 rows of 2 devices\n"
    assert "no published figures are known of a:" in ran.err
    assert tables(run)["lab.csv"]["rows"] == 12
    assert tables(run)["lab.csv"]["devices"] == ["a", "rtx4090"]
    assert "lab.csv" in run("costmodel", "list").out
    refused(run("costmodel", "remove", "lap.csv"), "'lap.csv'", "Did you mean lab.csv?", code=3)
    assert run("costmodel", "remove", "lab.csv").out == "removed lab.csv: 12 rows\n"
    assert tables(run) == {}


def test_the_same_rows_are_stored_once(run: Run) -> None:
    run("costmodel", "import", write("lab.csv", ROWS))
    first = tables(run)
    again = run("costmodel", "import", write("copy.csv", ROWS), "--json").document["tables"]
    assert [(one["name"], one["is_new"]) for one in again] == [("lab.csv", False)]
    assert tables(run) == first
    assert "holds the same 12 rows already" in run("costmodel", "import", "lab.csv").out


def test_a_table_replaces_the_older_one_of_its_name(run: Run) -> None:
    run("costmodel", "import", write("lab.csv", ROWS))
    run("costmodel", "import", write("lab.csv", ROWS[:7]))
    assert tables(run)["lab.csv"]["rows"] == 7


def test_rows_that_repeat_others_are_counted_and_kept_once(run: Run) -> None:
    ran = run("costmodel", "import", write("lab.csv", [*ROWS, *ROWS[:3]]), "--json")
    (found,) = ran.document["tables"]
    assert (found["rows"], found["repeated"]) == (12, 3)
    assert "3 rows more repeat" in run("costmodel", "import", "lab.csv").err


def test_one_row_is_a_table(run: Run) -> None:
    assert run("costmodel", "import", write("one.csv", [row()])).code == 0
    assert tables(run)["one.csv"]["rows"] == 1


def test_all_tables_are_read_before_any_is_stored(run: Run) -> None:
    good, bad = write("good.csv", ROWS), write("bad.csv", [row(device_kind="quantum")])
    refused(run("costmodel", "import", good, bad), "bad.csv")
    assert tables(run) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"latency_ms": "nan"}, "line 3: latency_ms"),
        ({"latency_ms": "-1"}, "line 3: latency_ms"),
        ({"gmacs": "-1"}, "line 3: gmacs"),
        ({"batch": "0"}, "line 3: batch"),
        ({"device_kind": "quantum"}, "device_kind on line 3: got 'quantum'"),
        ({"device_kind": "", "device": "mine"}, "device_kind on line 3: got ''"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(
    run: Run, changes: dict[str, str], said: str
) -> None:
    path = write("lab.csv", ROWS)
    with path.open(newline="") as file:
        records = list(csv.DictReader(file))
    records[1] |= changes
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(records)
    refused(run("costmodel", "import", path), said)


def test_a_blank_kind_is_that_of_the_published_device(run: Run) -> None:
    rows = [replace(one, device="NVIDIA L4", device_kind="") for one in ROWS[:6]]
    assert run("costmodel", "import", write("lab.csv", rows)).code == 0


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_unit_is_told_by_other_tables(run: Run, factor: float) -> None:
    """By the same items on another device of the kind: nothing in the rows themselves tells."""
    blank = [replace(one, **BLANK_SIZES) for one in ROWS]
    run("costmodel", "import", write("lab.csv", blank))
    other = [
        replace(one, device="b", latency_ms=factor * one.latency_ms)
        for one in blank
        if one.device == "a"
    ]
    unit = "seconds" if factor < 1.0 else "microseconds"
    refused(
        run("costmodel", "import", write("new.csv", other)),
        "new.csv: latency_ms on lines 2, 3,",
        f"looks like {unit}",
    )
    mixed = [replace(one, latency_ms=one.latency_ms / factor) for one in other]
    mixed[4] = other[4]
    refused(run("costmodel", "import", write("new.csv", mixed)), "latency_ms on line 6:", unit)


def test_a_unit_is_told_by_the_published_peak(run: Run) -> None:
    """A T4's best rate is 130 TOPS in int8; these are 20 G operations in 25 ms, and in 0.025."""
    one = row(device="NVIDIA Tesla T4", device_kind="gpu", gmacs=10.0, latency_ms=25.0)
    assert run("costmodel", "import", write("x.csv", [one])).code == 0
    seconds = replace(one, latency_ms=0.025)
    refused(run("costmodel", "import", write("x.csv", [seconds])), "published peak", "seconds")


def test_a_unit_is_told_by_the_other_rows_of_the_device(run: Run) -> None:
    rows = multiples({"mine": 1.0}, models=8)
    rows[5] = replace(rows[5], latency_ms=rows[5].latency_ms / 1e3)
    refused(run("costmodel", "import", write("x.csv", rows)), "on line 7:", "looks like seconds")


def test_one_row_a_thousand_times_too_slow_is_told_by_the_others(run: Run) -> None:
    rows = multiples({"mine": 1.0}, models=8)
    rows[5] = replace(rows[5], latency_ms=rows[5].latency_ms * 1e3)
    refused(run("costmodel", "import", write("x.csv", rows)), "on line 7:", "microseconds")


def test_a_table_in_microseconds_is_told_by_the_published_peak(run: Run) -> None:
    rows = [
        row(
            device="rtx3090", device_kind="gpu", model=f"n{n}", gmacs=0.1, batch=256, latency_ms=5.0
        )
        for n in range(5)
    ]
    assert run("costmodel", "import", write("x.csv", rows)).code == 0
    slow = [replace(one, latency_ms=1e3 * one.latency_ms) for one in rows]
    refused(run("costmodel", "import", write("x.csv", slow)), "published peak", "microseconds")


def test_rates_in_place_of_latencies_are_told_by_the_sizes(run: Run) -> None:
    rows = multiples({"mine": 1.0}, models=30)
    rates = [replace(one, latency_ms=1e3 / one.latency_ms) for one in rows]
    refused(run("costmodel", "import", write("x.csv", rates)), "looks like a rate")


def test_one_point_at_two_latencies_a_thousand_times_apart_is_refused(run: Run) -> None:
    rows = [ROWS[0], replace(ROWS[0], latency_ms=1e3 * ROWS[0].latency_ms)]
    refused(run("costmodel", "import", write("x.csv", rows)), "on lines 2, 3:", "by another row")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"latency_ms": "1,5"}, "a point before decimals"),
        ({"gmacs": "4e9"}, "gmacs: got '4e9'; allowed: a finite number, 0 or more, and 1,000,000"),
        ({"params_m": "2.5e7"}, "and 3,000,000 at most"),
        ({"batch": "9999999999"}, "batch: got '9999999999'"),
        ({"device_kind": "tpu"}, "allowed: cpu or gpu or npu. Write what computes."),
    ],
)
def test_what_is_written_otherwise_is_told_apart(
    run: Run, changes: dict[str, str], said: str
) -> None:
    test_what_cannot_be_is_refused_with_its_line(run, changes, said)


def test_kinds_may_be_in_capitals(run: Run) -> None:
    rows = [replace(one, device_kind=one.device_kind.upper()) for one in ROWS[:6]]
    assert run("costmodel", "import", write("lab.csv", rows)).code == 0


def test_another_separator_is_told(run: Run) -> None:
    path = write("lab.csv", ROWS)
    path.write_text(path.read_text().replace(",", ";"))
    refused(run("costmodel", "import", path), "Separate them by commas.")


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_public_tables_are_believed(run: Run) -> None:
    ran = run("costmodel", "import", *sorted((TABLES / "profiles").glob("*.csv")), "--json")
    assert ran.code == 0, ran.err
    assert sum(one["rows"] for one in ran.document["tables"]) > 14_000
