"""Comparisons are paired, resume, run in parallel, and say what failed."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from math import inf, nan
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.sim.compare import jobs
from modelless.controller.sim.compare.compare import Scenario, compare, scenarios_of, with_policies
from modelless.controller.sim.compare.comparison import document_of, interval, table
from modelless.controller.sim.compare.contenders import Contender, contenders_of
from modelless.controller.sim.compare.jobs import BOUND, Job, Run, run_all
from modelless.controller.sim.compare.kept_runs import KeptRuns
from modelless.controller.sim.compare.sources import Sources, data_files, policy_modules
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.systems import systems

from .worlds import world

NAMES = ("most-accurate-feasible", "cheapest-feasible")
BOUND_MODULE = "modelless.controller.sim.bound.clairvoyant"


class Crashes(CheapestFeasible):
    """Raises when it is built, and no error of the package's."""

    def __init__(self) -> None:
        raise RuntimeError("no such table")


class Dies(CheapestFeasible):
    """Takes its process down."""

    def __init__(self) -> None:
        os._exit(1)


def scenarios(**changes: Any) -> list[Scenario]:
    """The small world, for five seconds unless told otherwise."""
    return scenarios_of([world(**{"duration_s": 5, **changes})])


def ran(runs: list[Run]) -> list[Run]:
    """The contenders' runs."""
    return [run for run in runs if run.contender != BOUND]


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A bound that is quick to reckon and easy to compare with."""
    module = ModuleType(BOUND_MODULE)
    found = SimpleNamespace(value_per_query=0.8, attainment=1.0, why="Said so.")
    module.clairvoyant_bound = lambda file, *, seed, home: found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, BOUND_MODULE, module)
    return module


# -- pairing and intervals --------------------------------------------------------------------


def test_runs_are_paired_and_the_table_says_so(tmp_path: Path) -> None:
    runs = compare(scenarios(), contenders_of(NAMES), [1, 2, 3], folder=tmp_path)
    assert [(run.seed, run.contender) for run in runs] == [
        (seed, name) for seed in (1, 2, 3) for name in (BOUND, *NAMES)
    ]
    accurate, cheap = table(runs)
    assert accurate["attainment_difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert cheap["mean_accuracy_difference"]["high"] < 0.0
    assert cheap["cost_usd_difference"]["high"] < 0.0
    queries: dict[int, set[int]] = {}
    for run in ran(runs):
        assert run.figures is not None
        queries.setdefault(run.seed, set()).add(run.figures["queries"])
    assert [len(each) for each in queries.values()] == [1, 1, 1]
    assert len(set.union(*queries.values())) == 3


def told(value: float, queries: int = 100, **more: Any) -> dict[str, Any]:
    """A run's figures, as far as they are compared."""
    figures = {
        "value_per_query": value,
        "attainment": value,
        "violated": queries - round(value * queries),
        "queries": queries,
        "mean_accuracy": 80.0,
        "cost_usd": 0.001,
        "rent_usd": 0.1,
        "cold_start_s": 0.0,
        "policy_problems": {},
    }
    return {**figures, **more}


def test_the_table_against_a_reckoning_by_hand() -> None:
    mine, other = {1: 0.70, 2: 0.80, 3: 0.60}, {1: 0.66, 2: 0.74, 3: 0.58}
    runs = [Run("w", BOUND, seed, {"value_per_query": 0.8}) for seed in mine]
    runs += [Run("w", "mine", seed, told(value)) for seed, value in mine.items()]
    runs += [Run("w", "other", seed, told(value)) for seed, value in other.items()]
    first, second = table(runs)
    # Differences -0.04, -0.06, -0.02: mean -0.04, deviation 0.02, t(2) 4.3027, over the root of 3.
    difference = second["value_per_query_difference"]
    assert difference["mean"] == pytest.approx(-0.04)
    assert difference["high"] == pytest.approx(-0.04 + 4.302652730 * 0.02 / 3**0.5)
    assert difference["low"] == pytest.approx(-0.04 - 4.302652730 * 0.02 / 3**0.5)
    # Unpaired, the deviation is 0.1: pairing is what makes the difference known.
    assert first["value_per_query"]["high"] == pytest.approx(0.7 + 4.302652730 * 0.1 / 3**0.5)
    assert first["share_of_bound"]["mean"] == pytest.approx(0.7 / 0.8)
    assert first["violations_percent"]["mean"] == pytest.approx(30.0)
    assert first["cost_usd_per_million"]["mean"] == pytest.approx(10.0)


def test_differences_are_over_the_seeds_that_both_have() -> None:
    runs = [
        Run("w", "mine", 1, told(0.5)),
        Run("w", "mine", 2, None, "broken"),
        Run("w", "other", 1, told(0.6)),
        Run("w", "other", 2, told(0.9)),
    ]
    mine, other = table(runs)
    assert (mine["runs"], mine["failed"], mine["error"]) == (1, 1, "broken")
    assert other["value_per_query"]["mean"] == pytest.approx(0.75)
    assert other["value_per_query_difference"]["mean"] == pytest.approx(0.1)


def test_a_world_without_queries_has_no_shares() -> None:
    nothing = told(0.0, queries=0, value_per_query=None, attainment=None, mean_accuracy=None)
    (row,) = table([Run("w", BOUND, 1, {"value_per_query": None}), Run("w", "mine", 1, nothing)])
    unknown = {"mean": None, "low": None, "high": None}
    assert row["value_per_query"] == row["violations_percent"] == row["share_of_bound"] == unknown


def test_intervals() -> None:
    assert interval([]) == {"mean": None, "low": None, "high": None}
    assert interval([2.0]) == {"mean": 2.0, "low": None, "high": None}
    known = interval([1.0, 2.0, 3.0])
    assert known["mean"] == 2.0
    assert known["high"] == pytest.approx(2.0 + 4.302652730 / 3**0.5)
    assert interval([1.0] * 40)["low"] == 1.0
    many = interval([float(n % 2) for n in range(122)])
    assert many["high"] - 0.5 == pytest.approx(1.9798 * (0.25 * 122 / 121 / 122) ** 0.5, rel=1e-4)


# -- resuming ---------------------------------------------------------------------------------


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    seen: list[str] = []

    def progress(done: int, total: int, run: Run | None) -> None:
        seen.append(f"{done}/{total}" if run is None else f"{run.contender} {run.seed}")

    few = contenders_of(NAMES)
    first = compare(scenarios(duration_s=1), few, [1], folder=tmp_path)
    again = compare(scenarios(duration_s=1), few, [1, 2], folder=tmp_path, progress=progress)
    assert seen == ["3/6", f"{BOUND} 2", *(f"{name} 2" for name in NAMES)]
    assert [run for run in again if run.seed == 1] == first
    changed = compare(scenarios(duration_s=1.5), few, [1], folder=tmp_path)
    assert ran(changed)[0].figures != ran(first)[0].figures


def test_a_policy_that_was_changed_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "tuned_policies"
    package.mkdir()
    files = {name: package / f"{name}.py" for name in ("__init__", "mine", "helper", "other")}
    for path in files.values():
        path.touch()
    files["mine"].write_text("from .helper import WEIGHT\n", encoding="utf-8")
    suite = {"selection": {"policy": "tuned_policies.mine:Mine", "weight": 2}}
    assert policy_modules(suite) == {"tuned_policies.mine"}
    before = Sources().digest(policy_modules(suite))
    files["other"].write_text("UNUSED = 1\n", encoding="utf-8")
    assert Sources().digest(policy_modules(suite)) == before
    files["helper"].write_text("WEIGHT = 2\n", encoding="utf-8")
    assert Sources().digest(policy_modules(suite)) != before


def test_a_trace_that_was_changed_is_run_again(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s\n0.5\n", encoding="utf-8")
    document = {"queries": [{"arrivals": {"kind": "trace", "path": "trace.csv"}}]}
    assert data_files(document, tmp_path) == {trace}
    before = Sources().digest([], [trace])
    trace.write_text("arrival_s\n0.6\n", encoding="utf-8")
    assert Sources().digest([], [trace]) != before


def test_an_interrupted_comparison_keeps_what_is_done(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, run: Run | None) -> None:
        if done == 2:
            raise KeyboardInterrupt

    for processes in (1, 2):
        folder = tmp_path / str(processes)
        with pytest.raises(KeyboardInterrupt):
            compare(
                scenarios(duration_s=1),
                contenders_of(NAMES),
                [1, 2],
                folder=folder,
                processes=processes,
                progress=interrupt,
            )
        assert len(list((folder / "runs").glob("*.json"))) == 2


# -- loads and worlds -------------------------------------------------------------------------


def test_loads_multiply_the_world_s_own() -> None:
    found = scenarios_of([world(load=2.0, duration_s=5)], [0.5, 1.5])
    assert [each.label for each in found] == ["small at load 0.5", "small at load 1.5"]
    assert [each.file.world.load for each in found] == [1.0, 3.0]
    runs = ran(compare(found, contenders_of(NAMES[:1]), [1]))
    low, high = (run.figures["queries"] for run in runs if run.figures)
    assert high == pytest.approx(3 * low, rel=0.15)
    with pytest.raises(InvalidInputError, match="small at load 1, 2 times"):
        scenarios_of([world()], [1.0, 1.0])


def test_the_document_has_a_part_for_each_scenario() -> None:
    few = contenders_of(NAMES)
    found = scenarios_of([world(duration_s=2), world(duration_s=2, name="other")], [1.0])
    document = document_of(found, few, [1, 2], compare(found, few, [1, 2]))
    assert [each["world"] for each in document["scenarios"]] == ["small", "other"]
    for scenario in document["scenarios"]:
        assert [row["contender"] for row in scenario["rows"]] == list(NAMES)
        assert scenario["bound"]["value_per_query"]["mean"] == 0.8
        assert scenario["bound"]["why"] == "Said so."
        series = scenario["series"]["contenders"][NAMES[0]]
        figures = next(r for r in scenario["runs"] if r["contender"] == NAMES[0])["figures"]
        assert sum(series["queries"]) == figures["queries"]
        assert sum(series["good"]) == figures["good"]
        assert sum(series["answered"]) == figures["answered"]


def test_what_yaml_can_say_is_made_fit_for_json() -> None:
    odd = {"selection": {"policy": NAMES[0], "a": inf, "b": [nan, 1.5], "c": date(2026, 1, 2)}}
    few = [Contender("odd", odd)]
    runs = [Run("small at load 1", "odd", 1, None, "no such settings")]
    (told,) = document_of(scenarios(), few, [1], runs)["contenders"]
    plain = {"policy": NAMES[0], "a": "inf", "b": ["nan", 1.5], "c": "2026-01-02"}
    assert told["policies"] == {"selection": plain}


# -- the bound --------------------------------------------------------------------------------


def test_what_attainment_cannot_reach_is_unavoidable(bound: ModuleType) -> None:
    def reckoned(file: Any, *, seed: int, home: Path | None) -> SimpleNamespace:
        return SimpleNamespace(value_per_query=0.5, attainment=1.0 - seed / 10.0, why="Said so.")

    bound.clairvoyant_bound = reckoned  # type: ignore[attr-defined]
    few = contenders_of(NAMES[:1])
    runs = compare(scenarios(duration_s=1), few, [1, 2])
    (scenario,) = document_of(scenarios(duration_s=1), few, [1, 2], runs)["scenarios"]
    told = scenario["bound"]
    assert told["attainment"]["mean"] == pytest.approx(0.85)
    assert told["unavoidable_violations_percent"] == pytest.approx(interval([10.0, 20.0]))


def test_the_course_has_what_it_cost() -> None:
    few = contenders_of(NAMES)
    runs = compare(scenarios(), few, [1])
    (scenario,) = document_of(scenarios(), few, [1], runs)["scenarios"]
    for run in ran(runs):
        course = scenario["series"]["contenders"][run.contender]
        assert run.figures is not None
        assert sum(course["cost_usd"]) == pytest.approx(run.figures["cost_usd"])
        assert len(course["rent_usd"]) == len(course["queries"])
        assert sum(course["rent_usd"]) == pytest.approx(run.figures["rent_usd"], rel=0.1)


def test_without_a_bound_the_reason_is_told(bound: ModuleType) -> None:
    def raises(file: Any, *, seed: int, home: Path | None) -> None:
        raise InvalidInputError("only for a single task")

    bound.clairvoyant_bound = raises  # type: ignore[attr-defined]
    few = contenders_of(NAMES[:1])
    runs = compare(scenarios(duration_s=1), few, [1])
    (scenario,) = document_of(scenarios(duration_s=1), few, [1], runs)["scenarios"]
    assert scenario["bound"]["missing"] == "only for a single task"
    assert scenario["bound"]["value_per_query"]["mean"] is None
    assert scenario["bound"]["unavoidable_violations_percent"]["mean"] is None
    assert scenario["rows"][0]["share_of_bound"]["mean"] is None


# -- failures ---------------------------------------------------------------------------------


def test_what_fails_is_told_and_costs_only_itself() -> None:
    few = [
        Contender("absent", {"selection": "no-such"}),
        Contender("crashes", {"selection": f"{__name__}:Crashes"}),
        *contenders_of(NAMES[:1]),
    ]
    absent, crashes, fine = ran(compare(scenarios(duration_s=1), few, [1]))
    assert absent.figures is None
    assert "does not exist" in absent.error
    assert crashes.error.endswith("it cannot be built: RuntimeError: no such table")
    assert fine.figures is not None
    with pytest.raises(InvalidInputError, match="policies: choosing"):
        compare(scenarios(), [Contender("x", {"choosing": "y"})], [1])
    with pytest.raises(InvalidInputError, match="runs"):
        table([])


def test_a_policy_that_exits_ends_neither_the_run_nor_the_comparison() -> None:
    few = [
        Contender("quits", {"selection": "tests.sim.policies:Quitting"}),
        Contender("never begins", {"selection": "tests.sim.policies:QuittingAtOnce"}),
    ]
    quits, never = ran(compare(scenarios(duration_s=1), few, [1]))
    assert quits.figures is not None
    assert quits.figures["violations"] == {"policy-failed": quits.figures["queries"]}
    assert list(quits.figures["policy_problems"]) == ["Quitting.on_arrival raised SystemExit: 3"]
    assert never.error.endswith("it cannot be built: SystemExit: 3")


def test_ctrl_c_says_which_runs_were_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(job: Job, home: Path | None) -> Run:
        if job.contender == NAMES[0]:
            raise KeyboardInterrupt
        return Run(job.scenario, job.contender, job.seed, None, "not tried")

    monkeypatch.setattr(jobs, "run_one", interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped:
        compare(scenarios(), contenders_of(NAMES), [1])
    assert stopped.value.__notes__ == ["most-accurate-feasible in small at load 1, seed 1"]


def test_ctrl_c_before_any_run_has_begun_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoneBegun:
        def __init__(self, *_: object) -> None:
            self.submitted = 0

        def submit(self, *_: object) -> Future[Run]:
            self.submitted += 1
            if self.submitted == 2:
                raise KeyboardInterrupt
            return Future()

        def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
            assert (wait, cancel_futures) == (False, True)

    monkeypatch.setattr(jobs, "ProcessPoolExecutor", NoneBegun)
    with pytest.raises(KeyboardInterrupt) as stopped:
        compare(scenarios(), contenders_of(NAMES), [1], processes=2)
    assert not getattr(stopped.value, "__notes__", [])


def test_two_comparisons_may_keep_the_same_run_at_once(tmp_path: Path) -> None:
    job = Job("small at load 1", "n" * 300, world(), 1)
    kept = KeptRuns(tmp_path)
    assert kept.read(job) is None  # now it knows the file's name: CPython parses in no two threads
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(kept.write, job, told(0.5)) for _ in range(40)]
    assert [write.exception() for write in writes] == [None] * 40
    assert KeptRuns(tmp_path).read(job) == told(0.5)
    assert len(list(tmp_path.iterdir())) == 1


def test_processes_change_nothing_and_one_that_dies_takes_no_other_run_along() -> None:
    small = world(duration_s=1)
    dies, *others = (
        Job("w", name, with_policies(small, {"selection": name}), 1)
        for name in (f"{__name__}:Dies", *NAMES)
    )
    done: dict[str, Run] = {}
    run_all([dies, *others], 2, None, lambda job, run: done.__setitem__(job.contender, run))
    assert "process died" in done.pop(dies.contender).error
    alone: dict[str, Run] = {}
    run_all(others, 1, None, lambda job, run: alone.__setitem__(job.contender, run))
    assert [run.error for run in alone.values()] == ["", ""]
    assert done == alone


# -- contenders -------------------------------------------------------------------------------


def test_contenders_by_name() -> None:
    system, policy, own = contenders_of(["clockwork", "slack-fit", f"{__name__}:Crashes"])
    assert system.policies == systems()["clockwork"].policies
    assert policy.policies == {"selection": "slack-fit"}
    assert own.policies == {"selection": f"{__name__}:Crashes"}
    assert [each.name for each in contenders_of(["all"])] == list(systems())


def test_contenders_from_files(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    suite = {"selection": {"policy": "clipper", "mode": "high-accuracy"}, "eviction": "gdsf"}
    for document in (suite, {"policies": suite, "seed": 3}):
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        (mine,) = contenders_of([f"mine={path}"])
        assert (mine.name, mine.policies) == ("mine", suite)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("selection: lrv", "'lrv' does not exist"),
        ("selecting: lru", "Did you mean 'selection'"),
        ("[1, 2]", "a mapping of some of selection"),
        ("{", "not YAML"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((InvalidInputError, NotFoundError), match=message):
        contenders_of([f"mine={path}"])


def test_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"'infas'.*Did you mean 'infaas'"):
        contenders_of(["infas"])
    with pytest.raises(InvalidInputError, match="each name once"):
        contenders_of(["infaas", "all"])
    with pytest.raises(InvalidInputError, match="readable YAML file"):
        contenders_of([f"mine={tmp_path}/none.yaml"])
    with pytest.raises(InvalidInputError, match="NAME=FILE"):
        contenders_of(["=x.yaml"])
    for name in (BOUND, "n" * 61, "a\nb"):
        with pytest.raises(InvalidInputError, match="a name of at most 60 letters"):
            contenders_of([f"{name}=x.yaml"])


def test_what_was_known_of_plans_is_summed_up_over_runs() -> None:
    first = {
        "count": 4, "proven": 3, "greedy": 0, "unknown": 0, "by_clock": 0,
        "mean_gap": 0.01, "worst_gap": 0.04,
    }  # fmt: skip
    second = {**first, "count": 3, "proven": 1, "unknown": 1, "mean_gap": 0.025, "worst_gap": 0.05}
    runs = [Run("w", "a", seed, told(0.7, plans=p)) for seed, p in enumerate((first, second, None))]
    (row,) = table(runs)
    assert row["plans"] == {
        "count": 7, "proven": 4, "greedy": 0, "unknown": 1, "by_clock": 0,
        "mean_gap": pytest.approx(0.015), "worst_gap": 0.05,
    }  # fmt: skip
    (without,) = table([Run("w", "a", 1, told(0.7))])
    assert without["plans"] is None
