"""``modelless compare``: its table, its JSON, its report, and how it ends badly."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from modelless.common.drawing import Chart
from modelless.controller.sim.compare import compare as comparing
from modelless.controller.sim.compare.jobs import Job
from modelless.controller.sim.compare.jobs import Run as Done
from modelless.controller.sim.compare.pictures import (
    Mark,
    coarser,
    courses_chart,
    frontier_chart,
    interval_chart,
)
from modelless.controller.usecases.simulation.comparison_figures import (
    COLUMNS,
    best_of,
    cell_of,
    name_of,
    notes_of,
    plans_text,
)
from modelless.controller.usecases.simulation.comparison_page import render_page
from tests.unit.balanced import Balanced

from .conftest import Ran, Run

BOUND_MODULE = "modelless.controller.sim.bound.clairvoyant"
CHEAPEST = "modelless.policies.selection.cheapest_feasible"
TWO = "most-accurate-feasible,cheapest-feasible"
EVIL_NAME = '"><img onerror><script>&amp;'

Change = Callable[..., Path]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Change:
    """Writes a tiny world, whose bound is easily reckoned."""
    module = ModuleType(BOUND_MODULE)
    found = SimpleNamespace(value_per_query=0.9, attainment=1.0, why="It knows <all>.")
    module.clairvoyant_bound = lambda file, *, seed, home: found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, BOUND_MODULE, module)

    def write(**changes: Any) -> Path:
        document = {
            "name": "tiny",
            "duration_s": 5,
            "devices": [{"name": "cpu-1", "count": 2}],
            "tasks": [{"name": "vision", "variants": {"kind": "ladder", "count": 3}}],
            "queries": [
                {
                    "tasks": ["vision"],
                    "arrivals": {"kind": "poisson", "rate_per_s": 40},
                    "slos": [{"latency_ms": 60}],
                }
            ],
            **changes,
        }
        path = tmp_path / f"{document['name']}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    return write


def compared(run: Run, *words: object) -> Ran:
    """The command, in this process."""
    return run("compare", *words, "--processes", 1)


# -- what it says -----------------------------------------------------------------------------


def test_the_table_has_a_row_a_contender(run: Run, world: Change) -> None:
    ran = compared(run, world(), "--policies", TWO, "--seeds", 2, "--load", "0.5,1")
    assert ran.code == 0, ran.err
    for load in ("0.5", "1"):
        assert f"tiny at load {load}, 2 seeds" in ran.out
    for name in TWO.split(","):
        assert len(re.findall(rf"^ *{name} ", ran.out, re.M)) == 2
    assert "clairvoyant bound: 0.9000. It knows <all>." in ran.out
    assert "value/query" in ran.out
    assert "comparing, runs 12/12" in ran.err


def test_contenders_that_differ_in_scaling_are_told(run: Run, world: Change) -> None:
    alike = compared(run, world(), "--policies", TWO, "--seeds", 1)
    assert "differ in scaling" not in alike.err
    other = compared(
        run,
        world(),
        "--policies",
        "cheapest-feasible,clockwork-published,infaas-published",
        "--seeds",
        1,
    )
    assert "note: the contenders differ in scaling" in other.err
    assert "unserved-demand: clockwork-published; infaas-autoscaler: infaas-pub" in other.err


def test_json_is_all_there_is(run: Run, world: Change, tmp_path: Path) -> None:
    report = tmp_path / "report"
    words = (world(), "--policies", TWO, "--seeds", 2, "--report", report, "--json")
    told = compared(run, *words).document
    assert told["schema"] == "modelless-comparison/1"
    assert told["seeds"] == [1, 2]
    (scenario,) = told["scenarios"]
    assert [row["contender"] for row in scenario["rows"]] == TWO.split(",")
    assert scenario["rows"][1]["value_per_query_difference"]["high"] < 0.0
    row = scenario["rows"][0]
    share = row["value_per_query"]["mean"] / 0.9
    assert row["share_of_bound"]["mean"] == pytest.approx(share)
    assert (report / "report.json").exists()
    again = compared(run, *words)
    assert again.document == told
    assert f"6 of 6 runs were kept in {report}" in again.err


def test_a_contender_that_fails_stops_nobody(run: Run, world: Change, tmp_path: Path) -> None:
    suite = tmp_path / "bad.yaml"
    suite.write_text("selection: {policy: cheapest-feasible, colour: red}\n", encoding="utf-8")
    policies = f"cheapest-feasible,bad={suite}"
    ran = compared(run, world(), "--policies", policies, "--seeds", 1, "--report", tmp_path / "r")
    assert ran.code == 0
    assert re.search(r"bad +failed", ran.out)
    assert "bad failed: cheapest-feasible.colour: got 'red'" in ran.err
    assert "allowed: the settings quantile='p99'" in ran.err
    assert "cheapest-feasible.colour: got" in (tmp_path / "r" / "report.html").read_text("utf-8")
    assert compared(run, world(), "--policies", f"bad={suite}", "--seeds", 1).code == 1


def test_what_a_policy_s_module_prints_is_no_part_of_the_answer(
    run: Run, world: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noisy_policies.py").write_text(
        f"from {CHEAPEST} import CheapestFeasible\nprint('imported')\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ran = compared(
        run, world(), "--policies", "noisy_policies:CheapestFeasible", "--seeds", 1, "--json"
    )
    assert ran.document["seeds"] == [1]
    assert "imported" in ran.err


def test_a_report_is_written_over_an_older_one_and_can_be_removed(
    run: Run, world: Change, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    report.mkdir()
    (report / "report.json").write_text("{", encoding="utf-8")
    compared(run, world(), "--policies", "cheapest-feasible", "--seeds", 1, "--report", report)
    files = [path for path in report.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix == ".part"]
    assert all(path.stat().st_mode & 0o200 for path in files)
    assert json.loads((report / "report.json").read_text("utf-8"))["seeds"] == [1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--policies", "infas"), 3, "Did you mean 'infaas'"),
        (("--policies", " , "), 2, "policies: got"),
        (("--policies", "infaas,infaas=x.yaml"), 2, "readable YAML file"),
        (("--seeds", "0"), 2, "--seeds"),
        (("--seeds", "many"), 2, "--seeds"),
        (("--load", "0"), 2, "load: got '0'; allowed: numbers above 0"),
        (("--load", "1,x"), 2, "load: got '1,x'"),
        (("--load", "nan"), 2, "load: got 'nan'"),
        (("--load", "1,1.0"), 2, "tiny at load 1, 2 times"),
        (("--processes", "0"), 2, "--processes"),
    ],
)
def test_mistakes_are_told(
    run: Run, world: Change, words: tuple[str, ...], code: int, message: str
) -> None:
    ran = run("compare", world(), *words)
    assert ran.code == code
    assert message in ran.err
    assert ran.out == ""


def test_worlds_must_be_there_and_differ(run: Run, world: Change, tmp_path: Path) -> None:
    ran = run("compare", tmp_path / "none.yaml")
    assert ran.code == 2
    assert "readable YAML file" in ran.err
    ran = run("compare", world(), world())
    assert ran.code == 2
    assert "each world by a name of its own" in ran.err


def test_interrupted_it_says_what_is_kept(
    run: Run, world: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(jobs: list[Job], processes: int, home: Path, finish: Any) -> None:
        job = jobs[0]
        finish(job, Done(job.scenario, job.contender, job.seed, {"value_per_query": 0.5}))
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "run_all", interrupt)
    ran = compared(run, world(), "--policies", TWO, "--report", tmp_path / "r")
    assert ran.code == 130
    assert f"1 runs are kept in {tmp_path / 'r'}; the same command goes on there" in ran.err
    assert len(list((tmp_path / "r" / "runs").iterdir())) == 1


def test_a_report_that_cannot_be_written_is_told_before_anything_runs(
    run: Run, world: Change, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    for report in (file, file / "inside"):
        ran = compared(run, world(), "--policies", TWO, "--report", report)
        assert ran.code == 7
        assert f"--report {report}: allowed: a folder that can be written" in ran.err
        assert "comparing" not in ran.err


# -- the report -------------------------------------------------------------------------------


@pytest.fixture
def page(run: Run, world: Change, tmp_path: Path) -> str:
    """A report in which whatever a person names is hostile."""
    suite = tmp_path / "suite.yaml"
    suite.write_text("selection: cheapest-feasible\n", encoding="utf-8")
    report = tmp_path / "report"
    evil = "<script>alert('&')</script>"
    path = world(description=evil)
    policies = f"most-accurate-feasible,{EVIL_NAME}={suite}"
    words = ("--seeds", 2, "--load", "0.5,1", "--report", report)
    ran = compared(run, path, "--policies", policies, *words)
    assert ran.code == 0, ran.err
    return (report / "report.html").read_text(encoding="utf-8")


def test_the_report_is_well_formed_and_escaped(page: str) -> None:
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in parser.seen}
    assert "<script>alert('&')</script>" in parser.text  # as words
    assert EVIL_NAME in parser.text
    assert "It knows <all>." in parser.text


def test_the_report_needs_nothing_else(page: str) -> None:
    parser = Balanced()
    parser.feed(page)
    loads = [
        each for _, attributes in parser.seen for each in ("src", "srcset") if each in attributes
    ]
    assert loads == []
    links = {str(a["href"]) for tag, a in parser.seen if tag == "a"}
    assert links == {"report.json", "#scenario-0", "#scenario-1"}
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page


def test_every_picture_can_be_read_aloud(page: str) -> None:
    parser = Balanced()
    parser.feed(page)
    pictures = [attributes for tag, attributes in parser.seen if tag == "svg"]
    assert len(pictures) == 2 * 4  # four a scenario
    assert all(each["role"] == "img" and each["aria-label"] for each in pictures)
    assert any("clairvoyant bound 0.9000" in str(each["aria-label"]) for each in pictures)


def test_the_page_is_the_document_s_alone(run: Run, world: Change) -> None:
    told = compared(run, world(), "--policies", TWO, "--seeds", 1, "--json").document
    assert render_page(told) == render_page(told)


# -- pictures ---------------------------------------------------------------------------------

SERIES: dict[str, Any] = {
    "step_s": 1.0,
    "queries": [10, 0, 20],
    "good": [9, 0, 10],
    "answered": [10, 0, 20],
    "mean_accuracy": [80.0, None, 70.0],
    "cost_usd": [0.001, 0.0, 0.003],
    "rent_usd": [0.01, 0.01, 0.0],
}


SPACE = "http://www.w3.org/2000/svg"
SPACES = f'<svg xmlns="{SPACE}" xmlns:xlink="http://www.w3.org/1999/xlink" '


def parsed(picture: str) -> ElementTree.Element:
    """An SVG of a page, whose names of name spaces HTML knows without being told."""
    return ElementTree.fromstring(picture.replace("<svg ", SPACES, 1))  # noqa: S314 - our own


def drawn(chart: Chart) -> Any:
    """The figure with the chart on it, its layout settled."""
    figures: list[Any] = []

    def draw(figure: Any) -> None:
        chart.draw(figure)
        figures.append(figure)

    Chart(draw, chart.inches, chart.label).png()
    return figures[0]


@pytest.mark.parametrize(
    "chart",
    [
        interval_chart([], "nothing"),
        interval_chart([Mark("<a>", 1.0, None, None)], "one"),
        interval_chart([Mark("a", 0.0, 0.0, 0.0), Mark("b", 0.0, 0.0, 0.0)], "none", bound=0.0),
        interval_chart([Mark("a", -2.0, -3.0, -1.0), Mark("b", 1e9, 1e8, 2e9)], "wide"),
        frontier_chart([]),
        frontier_chart([("a & b", 1.0, 80.0)] * 20),
        frontier_chart([("a", 0.0, 80.0)], unavoidable=0.0),
        courses_chart({"a <b>": SERIES}),
        courses_chart({str(n): SERIES for n in range(4)}),
        courses_chart({"a": {**SERIES, "cost_usd": [0.0] * 3, "mean_accuracy": [None] * 3}}),
    ],
)
def test_pictures_are_well_formed(chart: Chart) -> None:
    picture = chart.svg("name")
    root = parsed(picture)
    assert root.get("role") == "img"
    assert root.get("aria-label") == chart.label
    assert "nan" not in picture
    assert " inf" not in picture
    ids = [each.attrib["id"] for each in root.iter() if "id" in each.attrib]
    assert len(ids) == len(set(ids))
    assert all(each.startswith("name-") for each in ids)


def test_long_names_leave_room_for_the_picture() -> None:
    name = "n" * 60
    for chart in (
        interval_chart([Mark(name, 1.0, 0.5, 1.5)], "t", width_in=5.4),
        frontier_chart([(name, 1.0, 80.0), ("b", 2.0, 81.0)]),
    ):
        figure = drawn(chart)
        assert figure.axes[0].get_position().width > 0.3
        shown = [each.text for each in parsed(chart.svg("long")).iter(f"{{{SPACE}}}text")]
        assert "…" + "n" * 31 in shown
        assert name in chart.label


def test_dots_stand_where_their_values_are() -> None:
    marks = [Mark("a", 1.0, 0.5, 1.5), Mark("b", 2.0, None, None)]
    (axes,) = drawn(interval_chart(marks, "t", bound=3.0)).axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert lines == [([0.5, 1.5], [0, 0]), ([1.0], [0]), ([2.0], [1]), ([3.0, 3.0], [0, 1])]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def test_what_cannot_be_negative_begins_at_zero() -> None:
    (axes,) = drawn(interval_chart([Mark("a", 1.0, -0.5, 2.5)], "t", from_zero=True)).axes
    assert axes.get_xlim()[0] == 0.0


def test_unavoidable_violations_are_a_line_left_of_everybody() -> None:
    points = [("a", 20.0, 80.0), ("b", 30.0, 81.0), ("c", 31.0, 79.0)]
    chart = frontier_chart(points, unavoidable=10.0)
    (axes,) = drawn(chart).axes
    best, bound = axes.lines
    assert list(best.get_xdata()) == [20.0, 30.0]
    assert list(bound.get_xdata()) == [10.0, 10.0]
    assert axes.collections[0].get_offsets().tolist() == [[20.0, 80.0], [30.0, 81.0], [31.0, 79.0]]
    assert "unavoidable 10.00 %" in chart.label
    assert "unavoidable" not in frontier_chart(points).label


def test_courses_have_the_same_axes_and_costs_by_the_hour() -> None:
    dearer = {**SERIES, "cost_usd": [0.02, 0.0, 0.003], "mean_accuracy": [60.0, None, 70.0]}
    chart = courses_chart({"a": SERIES, "b": dearer})
    one, other, one_cost, other_cost, one_accuracy, other_accuracy = drawn(chart).axes
    assert one.lines[0].get_ydata()[::2].tolist() == [0.9, 0.5]
    assert one_accuracy.lines[0].get_ydata()[::2].tolist() == [80.0, 70.0]
    rent, cost = (line.get_ydata().tolist() for line in one_cost.lines)
    assert rent == pytest.approx([36.0, 36.0, 0.0])
    assert cost == pytest.approx([3.6, 0.0, 10.8])
    assert one.get_ylim() == other.get_ylim()
    assert one_cost.get_ylim() == other_cost.get_ylim()
    assert one_accuracy.get_ylim() == other_accuracy.get_ylim()
    assert one_cost.get_ylim()[0] == 0.0
    assert one_cost.get_ylim()[1] > 72.0
    assert "on average 4.8 USD an hour for device time" in chart.label
    assert "24 for rent" in chart.label


def test_what_is_unavoidable_is_said_beside_the_bound(
    run: Run, world: Change, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, report = world(), tmp_path / "report"
    found = SimpleNamespace(value_per_query=0.4, attainment=0.55, why="Too few.")
    monkeypatch.setattr(sys.modules[BOUND_MODULE], "clairvoyant_bound", lambda *_, **__: found)
    ran = compared(run, path, "--policies", TWO, "--seeds", 1, "--report", report)
    said = "clairvoyant bound: 0.4000; at least 45.00 % violations for anybody. Too few."
    assert said in " ".join(ran.out.split())
    assert said in (report / "report.html").read_text("utf-8")
    told = json.loads((report / "report.json").read_text("utf-8"))["scenarios"][0]["bound"]
    assert told["unavoidable_violations_percent"]["mean"] == pytest.approx(45.0)


def test_coarser_courses_keep_their_sums_and_means() -> None:
    merged = {name: np.asarray(each).tolist() for name, each in coarser(SERIES, 2).items()}
    assert merged == {
        "step_s": 2.0,
        "queries": [10, 20],
        "good": [9, 10],
        "answered": [10, 20],
        "mean_accuracy": [80.0, 70.0],
        "cost_usd": [0.001, 0.003],
        "rent_usd": [0.02, 0.0],
    }
    assert coarser(SERIES, 1)["mean_accuracy"] == pytest.approx((10 * 80 + 20 * 70) / 30)


def test_without_matplotlib_a_report_is_refused_before_anything_runs(
    run: Run, world: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = compared(run, world(), "--policies", TWO, "--report", tmp_path / "r")
    assert ran.code == 7
    assert "pip install 'modelless[report]'" in ran.err
    assert "comparing" not in ran.err
    assert compared(run, world(), "--policies", TWO, "--seeds", 1).code == 0


# -- random worlds ----------------------------------------------------------------------------


def test_random_worlds_are_drawn_run_and_told_the_worst_first(run: Run, tmp_path: Path) -> None:
    report, kept = tmp_path / "report", tmp_path / "worlds"
    words = ("--random", 2, "--seed", 332, "--queries", 300, "--policies", TWO)
    ran = compared(run, *words, "--report", report, "--keep-worlds", kept)
    assert ran.code == 0, ran.err
    assert "Margin of most-accurate-feasible over the best other in each world" in ran.out
    assert sorted(path.name for path in kept.iterdir()) == [
        "develop-332-000.yaml", "develop-332-001.yaml"
    ]  # fmt: skip
    told = json.loads((report / "report.json").read_text(encoding="utf-8"))
    margins = [world["margin"] for world in told["regret"]["worlds"]]
    assert margins == sorted(margins)
    assert len(margins) == 2
    rows = {each["label"]: each["rows"] for each in told["scenarios"]}
    for world in told["regret"]["worlds"]:
        first, second = (row["value_per_query"]["mean"] for row in rows[world["label"]])
        assert world["margin"] == pytest.approx(100.0 * (first - second))
    html = (report / "report.html").read_text(encoding="utf-8")
    for part in ("The worst worlds", "Causes", "memory share", "develop-332-001"):
        assert part in html
    again = compared(run, *words, "--report", report, "--json")
    assert "4 of 4 runs were kept" in again.err
    assert again.document["regret"] == told["regret"]
    alone = run("simulate", kept / "develop-332-000.yaml", "--json").document
    world = yaml.safe_load((kept / "develop-332-000.yaml").read_text(encoding="utf-8"))
    assert alone["seed"] == world["seed"] == told["scenarios"][0]["runs"][0]["seed"]


def test_random_worlds_have_a_bound_when_it_is_wanted(run: Run, world: Change) -> None:
    del world  # only its bound is wanted
    words = ("--random", 1, "--seed", 332, "--queries", 200, "--policies", TWO, "--bound", "--json")
    told = compared(run, *words).document
    (one,) = told["regret"]["worlds"]
    assert one["bound"] == 0.9
    assert told["regret"]["summary"]["mean_to_bound"] == pytest.approx(
        100.0 * (one["values"]["most-accurate-feasible"] - 0.9)
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "either world files or a number of random worlds"),
        (("--random", "2", "world.yaml"), "either world files or a number of random worlds"),
        (("--random", "2", "--policies", "infaas"), "two contenders or more"),
        (("--random", "2", "--set", "train"), "'train' is not one of 'develop', 'judge'"),
    ],
)
def test_what_does_not_fit_random_worlds_is_refused(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    ran = run("compare", *words)
    assert ran.code == 2
    assert message in ran.err


# -- the columns ------------------------------------------------------------------------------


def row(name: str, mean: float | None, **more: Any) -> dict[str, Any]:
    """A row all of whose figures are alike."""
    figure = {"mean": mean, "low": None, "high": None}
    fields = {"runs": 2, "failed": 0, "error": "", "policy_problems": {}}
    return {"contender": name, **fields, **{column.key: figure for column in COLUMNS}, **more}


def test_the_best_are_bold_by_the_figure_s_direction() -> None:
    best = best_of([row("a", 1.0), row("b", 2.0), row("c", 2.0), row("d", None), row("e", 1.5)])
    assert best["value_per_query"] == {1, 2}
    assert best["violations_percent"] == {0}
    assert best["value_per_query_difference"] == set()
    assert best_of([row("a", 1.0), row("b", 1.0)])["value_per_query"] == set()


def test_half_failed_contenders_win_nothing_and_say_so() -> None:
    rows = [row("a", 1.0), row("b", 2.0), row("c", 3.0, failed=3, error="no memory")]
    assert best_of(rows)["value_per_query"] == {1}
    assert name_of(rows[2]) == "c (2 of 5 runs)"
    assert notes_of({"rows": rows}) == ["c: 3 of 5 runs failed: no memory"]


def test_cells_have_half_the_interval_s_width() -> None:
    value, difference, share = COLUMNS[:3]
    figure = {"mean": 0.5, "low": 0.4, "high": 0.6}
    told = row("a", 0.5, value_per_query=figure, share_of_bound=figure)
    assert cell_of(value, told) == "0.5000 ± 0.1000"
    assert cell_of(share, told) == "50.0 ± 10.0 %"
    assert cell_of(value, row("a", None)) == "-"
    alike = {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert cell_of(difference, row("a", 0.0, value_per_query_difference=alike)) == "none"
    worse = {"mean": -0.2, "low": -0.3, "high": -0.1}
    assert (
        cell_of(difference, row("a", 0.0, value_per_query_difference=worse)) == "-0.2000 ± 0.1000"
    )


def test_how_good_the_plans_of_an_optimiser_were_is_a_note() -> None:
    plans = {
        "count": 9, "proven": 7, "greedy": 1, "unknown": 1, "by_clock": 1,
        "mean_gap": 0.001, "worst_gap": 0.013,
    }  # fmt: skip
    (note,) = notes_of({"rows": [row("a", 1.0), row("b", 1.0, plans=plans)]})
    assert note == (
        "b: 7 of 9 plans solved to optimality, the worst within 1.3 % of the bound, 1 of which "
        "nobody knows how far from the best, 1 greedy, 1 stopped by the clock: elsewhere they may "
        "be others"
    )
    all_proven = {**plans, "proven": 9, "greedy": 0, "unknown": 0, "by_clock": 0}
    assert plans_text(all_proven) == "9 of 9 plans solved to optimality"
    assert plans_text(None) == ""
