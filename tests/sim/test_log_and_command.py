"""The log's files, the summary's quantiles, and ``modelless simulate``."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import typer.main
import yaml

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, NotFoundError
from modelless.controller.cli.app import app
from modelless.controller.sim.log import CONTROL_COLUMNS, QUERY_COLUMNS, Log
from modelless.controller.sim.run import simulate
from modelless.controller.sim.summary import LatencySketch, Summary
from tests.unit.cli.tiny import add_measurements, add_variants

from .books import read
from .worlds import document, world

PYARROW = importlib.util.find_spec("pyarrow") is not None
ASKED_FOR = (
    "query_id task arrival_s deadline_s min_accuracy variant device worker dispatch_s start_s "
    "finish_s batch_id batch_size accuracy outcome reason"
)


def run(*words: str) -> int:
    """The exit code of a command."""
    command = typer.main.get_command(app)
    return int(command.main(args=list(words), standalone_mode=False) or 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A world file."""
    path = tmp_path / "world.yaml"
    path.write_text(yaml.safe_dump(document(duration_s=2)), encoding="utf-8")
    return path


def test_columns_begin_as_promised() -> None:
    assert list(QUERY_COLUMNS)[:16] == ASKED_FOR.split()


def test_quantiles_of_the_sketch_are_within_a_hundredth() -> None:
    values = np.random.default_rng(0).lognormal(-3, 1.5, 20_000)
    sketch = LatencySketch()
    for value in values.tolist():
        sketch.add(value)
    sketch.add(0.0)
    for level in (0.01, 0.5, 0.9, 0.99, 0.999):
        assert sketch.quantile(level) == pytest.approx(np.quantile(values, level), rel=0.02)
    assert sketch.quantile(0.0) == 0.0
    assert LatencySketch().quantile(0.5) is None


@pytest.mark.skipif(PYARROW, reason="pyarrow is there")
def test_parquet_without_pyarrow_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match=r"pip install 'modelless\[parquet\]'"):
        simulate(world(duration_s=0.1), log=tmp_path / "log.parquet")


@pytest.mark.skipif(not PYARROW, reason="pyarrow is not there")
def test_parquet_holds_what_csv_holds(tmp_path: Path) -> None:
    parquet = importlib.import_module("pyarrow.parquet")
    for kind in ("csv", "parquet"):
        simulate(world(duration_s=2), log=tmp_path / f"log.{kind}")
    for name, columns in (("log", QUERY_COLUMNS), ("log.control", CONTROL_COLUMNS)):
        table = parquet.read_table(tmp_path / f"{name}.parquet")
        assert table.column_names == list(columns)
        assert read(tmp_path / f"{name}.parquet") == read(tmp_path / f"{name}.csv")


def test_other_endings_and_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"\.parquet or \.csv"):
        Log(tmp_path / "log.txt")
    with pytest.raises(EnvironmentUnfitError, match="No such file"):
        Log(tmp_path / "nowhere" / "log.csv")


def test_the_command_says_what_the_library_says(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.csv"
    assert run("simulate", str(path), "--seed", "3", "--json", "--log", str(log)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("log") == str(log)
    expected = simulate(world(duration_s=2), seed=3).figures()
    assert printed == json.loads(json.dumps(expected))
    assert log.with_suffix(".control.csv").exists()


def test_the_table_names_tasks_and_tenants(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("simulate", str(path)) == 0
    shown = capsys.readouterr()
    for word in ("small, seed 7", "vision", "tenant careful", "attained", "cold-start"):
        assert word in shown.out
    assert "simulating" in shown.err


def test_mistakes_end_with_their_codes(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: x\ncolour: red\n", encoding="utf-8")
    assert run("simulate", str(bad)) == 2
    assert "colour: got 'red'" in capsys.readouterr().err
    assert run("simulate", str(path), "--log", "log.txt") == 2
    assert run("simulate", str(path), "--seed", "-1") == 2
    bad.write_text(yaml.safe_dump(document(policies={"selection": "no-such"})), encoding="utf-8")
    assert run("simulate", str(bad)) == 3
    assert run("simulate", str(tmp_path / "missing.yaml")) == 2


def test_receipts_that_cannot_be_written_are_told_before_anything_runs(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder.parquet"
    folder.mkdir()
    for file in (tmp_path / "nowhere" / "receipts.parquet", folder):
        assert run("simulate", str(path), "--receipts", str(file)) == 2
        told = capsys.readouterr().err
        assert f"--receipts: got '{file}'; allowed: a file" in told
        assert "simulating" not in told


def test_an_interrupted_run_keeps_its_books(tmp_path: Path) -> None:
    def interrupt(now_s: float, queries: int) -> None:
        if now_s > 2.5:
            raise KeyboardInterrupt

    log = tmp_path / "log.csv"
    summary = Summary(7, "small")
    with pytest.raises(KeyboardInterrupt):
        simulate(world(), log=log, progress=interrupt, summary=summary)
    rows = read(log)
    assert len(rows) == summary.total.queries > 200
    assert all(row["outcome"] for row in rows)


def test_a_task_of_the_store_runs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    add_variants(home)
    add_measurements(home)
    file = world(
        duration_s=2,
        devices=[{"name": "cpu-1", "count": 2}],
        tasks=[{"name": "pixels", "variants": {"kind": "store"}}],
        queries=[{"tasks": ["pixels"], "arrivals": {"kind": "poisson", "rate_per_s": 20}}],
    )
    assert simulate(file, home=home).figures()["good"] > 10
    with pytest.raises(InvalidInputError, match=r"tasks\.0\.variants: kind: got 'store'"):
        simulate(file)
    with pytest.raises(NotFoundError, match="tasks"):
        simulate(
            world(
                devices=[{"name": "cpu-1"}],
                tasks=[{"name": "vision", "variants": {"kind": "store"}}],
            ),
            home=home,
        )


def test_the_log_is_not_written_over_what_the_world_reads(tmp_path: Path) -> None:
    trace = tmp_path / "t.control.csv"
    trace.write_text("arrival_s\n0.5\n", encoding="utf-8")
    arrivals = {"kind": "trace", "path": "t.control.csv"}
    file = world(tmp_path, queries=[{"tasks": ["vision"], "arrivals": arrivals}])
    for log in (trace, tmp_path / "t.csv"):  # the second one's control log would be the trace
        with pytest.raises(InvalidInputError, match=r"log: got .*t\.control\.csv.*does not read"):
            simulate(file, log=log)
    assert trace.read_text(encoding="utf-8") == "arrival_s\n0.5\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_with_the_file(tmp_path: Path, path: Path) -> None:
    log = tmp_path / "full.csv"
    log.symlink_to("/dev/full")
    with pytest.raises(EnvironmentUnfitError, match=r"log .*full\.csv: No space left"):
        simulate(world(duration_s=1), log=log)
    assert run("simulate", str(path), "--log", str(log)) == 7


def test_only_what_befalls_the_log_is_blamed_on_it(tmp_path: Path) -> None:
    def no_reader(now_s: float, queries: int) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        simulate(world(), log=tmp_path / "log.csv", progress=no_reader)


def test_what_a_policy_prints_is_no_part_of_the_answer(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = {"selection": "tests.sim.policies:Talkative"}
    path.write_text(yaml.safe_dump(document(duration_s=1, policies=policies)), encoding="utf-8")
    assert run("simulate", str(path), "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["queries"] > 0
    assert "look at me" in told.err


def test_a_world_in_which_nobody_asks_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "quiet.yaml"
    queries = [{"tasks": ["vision"], "arrivals": {"kind": "poisson", "rate_per_s": 0}}]
    path.write_text(yaml.safe_dump(document(queries=queries)), encoding="utf-8")
    assert run("simulate", str(path)) == 0
    assert "note: no query came within 10 s" in capsys.readouterr().err
