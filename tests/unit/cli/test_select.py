"""``modelless select``: the same decision as in service, every candidate accounted for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.control.feedback import FeedbackAccuracies, stated_low_percent
from modelless.controller.dispatch.trials import FeedbackCounts
from modelless.controller.history.feedback import write_feedback
from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import QueueView, Wait, WorkerView
from modelless.policies.views import Run as RunBatch
from modelless.profiler.cost_model.drift_history import record_drifts
from modelless.profiler.cost_model.serving_model import Drift
from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Placement

from .conftest import Run
from .tiny import add_measurements, host_facts, measurement

CHEAPEST = "modelless.policies.selection.cheapest_feasible"
LARGE, MEDIUM, SMALL = (f"pixels/mean/{name}@1" for name in ("large", "medium", "small"))


class Late(SelectionPolicy):
    """Binds when a device is idle, and first of all waits a while."""

    def __init__(self, wait_s: float = 0.5, gives_in: bool = True) -> None:
        super().__init__(EarliestDeadlineFirst())
        self.wait_s = wait_s
        self.gives_in = gives_in

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> RunBatch | Wait:
        if now_s < self.wait_s:
            return Wait(Reason.DEFERRED, self.wait_s)
        if not self.gives_in:
            return Wait(Reason.DEFERRED)
        return RunBatch(SMALL, tuple(queues[0].queries), Reason.EARLIEST_DEADLINE_FIRST)


def chosen(run: Run, *words: Any) -> str | None:
    """The choice for the task ``pixels``."""
    ran = run("select", "--task", "pixels", *words, "--json")
    assert ran.code == 0, ran.err
    variant: str = ran.document["chosen"]["variant"]
    return variant


@pytest.mark.parametrize(
    ("words", "variant"),
    [
        ((), LARGE),
        (("--latency-ms", 49), LARGE),
        (("--latency-ms", 45), MEDIUM),  # 40 ms at the median, but 45.5 at the 95th percentile
        (("--latency-ms", 7), SMALL),
        (("--batch", 4, "--latency-ms", 49), MEDIUM),
        (("--policy", "cheapest-feasible"), SMALL),
        (("--policy", "cheapest-feasible", "--min-accuracy", 72), MEDIUM),
        (
            ("--policy", "{policy: most-accurate-feasible, quantile: p50}", "--latency-ms", 41),
            LARGE,
        ),
        (("--max-cost-usd", 1.5e-7), MEDIUM),
        (("--policy", f"{__name__}:Late"), SMALL),
    ],
)
def test_the_right_one_is_chosen(run: Run, profiled: Path, words: Any, variant: str) -> None:
    assert chosen(run, *words) == variant


def test_every_candidate_is_accounted_for(run: Run, profiled: Path) -> None:
    found = run(
        "select", "-t", "pixels", "--latency-ms", 20, "--min-accuracy", 60, "--json"
    ).document
    assert (found["task"], found["latency_ms"], found["min_accuracy"]) == ("pixels", 20.0, 60.0)
    assert (found["policy"], found["reason"]) == ("best-value",) * 2
    large, medium, small = found["candidates"]
    assert [row["variant"] for row in (large, medium, small)] == [LARGE, MEDIUM, SMALL]
    assert (large["misses"], large["why"], large["chosen"]) == (["too-slow"], "too-slow", False)
    assert (medium["misses"], medium["why"], medium["chosen"]) == ([], "chosen", True)
    assert found["chosen"] == medium
    assert small["why"] == "within the limits, but 5.0 points less accurate"
    assert (medium["p50_ms"], medium["p99_ms"]) == (pytest.approx(10.0), pytest.approx(12.0))
    assert medium["cost_usd"] == pytest.approx(0.05 / 3600 * 0.010)
    assert (medium["accuracy"], medium["accuracy_provenance"]) == (75.0, "published")


@pytest.mark.parametrize("policy", ["best-value", "most-accurate-feasible", "clockwork", "static"])
@pytest.mark.parametrize("latency_ms", [9.5, 11.0, 11.5, 39.0, 41.0, 46.0, 47.0, 49.0])
def test_the_chosen_one_is_not_too_slow(
    run: Run, profiled: Path, policy: str, latency_ms: float
) -> None:
    found = run("select", "-t", "pixels", "--latency-ms", latency_ms, "--policy", policy, "--json")
    assert found.document["quantile"] in ("p50", "p95", "p99")
    assert found.document["chosen"]["misses"] == []
    slow = [row for row in found.document["candidates"] if row["planned_ms"] > latency_ms]
    assert all(row["misses"] == ["too-slow"] for row in slow)


def test_a_person_sees_the_same(run: Run, profiled: Path) -> None:
    ran = run("select", "-t", "pixels", "--latency-ms", 20)
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert [">", MEDIUM] in [row[:2] for row in rows]
    assert "75.0 % published" in ran.out
    assert f"chosen: {MEDIUM} on cpu-1 (best-value)" in ran.out
    assert "latency_ms 10000 (the default)" in run("select", "-t", "pixels").out


def test_a_refusal_names_the_nearest_limits(run: Run, profiled: Path) -> None:
    words = ("select", "-t", "pixels", "--latency-ms", 20, "--min-accuracy", 78)
    ran = run(*words)
    assert ran.code == 4
    assert re.search("nearest feasible: .*latency_ms 48.* min_accuracy 75", ran.err)
    assert "too-slow" in ran.out
    found = run(*words, "--json").document
    assert (found["exit_code"], found["chosen"], found["reason"]) == (4, None, "limits-conflict")
    assert "nearest feasible" in found["error"]
    assert len(found["candidates"]) == 3


def test_a_policy_that_waits_for_more_is_told_of(run: Run, profiled: Path) -> None:
    policy = f"{{policy: '{__name__}:Late', gives_in: false}}"
    ran = run("select", "-t", "pixels", "--policy", policy, "--json")
    assert (ran.code, ran.document["chosen"]) == (1, None)
    assert "waits" in ran.err


def test_the_scope_may_be_narrowed(run: Run, profiled: Path) -> None:
    found = run("select", "-t", "pixels/mean/small", "--json").document
    assert [row["variant"] for row in found["candidates"]] == [SMALL]
    assert run("select", "-t", SMALL, "--json").document["chosen"]["variant"] == SMALL


def test_the_settings_file_counts(run: Run, profiled: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "policies: {selection: cheapest-feasible}\nlimits: {default_latency_ms: 11, max_batch: 2}"
    )
    found = run("select", "-t", "pixels", "--config", config, "--json").document
    assert (found["chosen"]["variant"], found["latency_ms"]) == (SMALL, 11.0)
    ran = run("select", "-t", "pixels", "--config", config, "--batch", 4)
    assert (ran.code, "1 to 2" in ran.err) == (2, True)
    config.write_text("polices: {}")
    ran = run("select", "-t", "pixels", "--config", config)
    assert (ran.code, "polices" in ran.err) == (2, True)


def test_what_a_policy_s_module_prints_is_no_part_of_the_answer(
    run: Run, profiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noisy_choice.py").write_text(
        f"from {CHEAPEST} import CheapestFeasible\nprint('imported')\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ran = run("select", "-t", "pixels", "--policy", "noisy_choice:CheapestFeasible", "--json")
    assert ran.document["chosen"]
    assert "imported" in ran.err


def test_what_has_no_profile_is_pointed_out(run: Run, registered: Path) -> None:
    with closing(open_registry(registered)) as registry:
        Records(registry.store).add(measurement(SMALL, 1, 5.0))
    ran = run("select", "-t", "pixels", "--json")
    assert ran.document["without_profile"] == [LARGE, MEDIUM]
    assert ran.document["chosen"]["variant"] == SMALL
    notes = [line for line in ran.err.splitlines() if "no profile here" in line]
    assert notes == [
        f"note: no profile here, so not to be chosen: {LARGE}, {MEDIUM}; run "
        "'modelless profile pixels'"
    ]


def test_without_any_profile_it_says_what_to_run(run: Run, registered: Path) -> None:
    ran = run("select", "-t", "pixels")
    assert ran.code == 3
    assert "modelless profile pixels --device-class cpu-1" in ran.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--latency-ms", -5), 2, "latency_ms"),
        (("--latency-ms", 0), 2, "latency_ms"),
        (("--latency-ms", "nan"), 2, "latency_ms"),
        (("--latency-ms", "inf"), 2, "latency_ms"),
        (("--latency-ms", 1e9), 2, "an hour"),
        (("--min-accuracy", 101), 2, "per cent"),
        (("--min-accuracy", "nan"), 2, "min_accuracy"),
        (("--max-cost-usd", 0), 2, "max_cost_usd"),
        (("--batch", 0), 2, "1 to 8"),
        (("--task", "pixles"), 3, "Did you mean pixels"),
        (("--task", "pixels/mean/smal"), 3, "small"),
        (("--task", "pixels/"), 2, "model"),
        (("--policy", "cheapest-feasable"), 3, "cheapest-feasible"),
        (("--policy", "{policy: cheapest-feasible, quantil: p50}"), 2, "quantile"),
        (("--policy", "{policy: cheapest-feasible, quantile: p42}"), 2, "p42"),
        (("--device-class", "h200"), 2, "cpu-1"),
    ],
)
def test_what_is_wrong_is_said(
    run: Run, profiled: Path, words: tuple[Any, ...], code: int, said: str
) -> None:
    ran = run("select", "--task", "pixels", *words)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_what_took_another_time_in_service_is_told(run: Run, profiled: Path) -> None:
    with closing(open_registry(profiled)) as registry:
        drift = Drift(Placement(SMALL, "cpu-1"), 1.5, 1, 12.0)
        record_drifts(registry.store, [drift], {"cpu-1": host_facts().fingerprint})
    found = run("select", "--task", "pixels", "--json").document["candidates"]
    assert {e["variant"]: e["in_service"] for e in found if e["in_service"]} == {SMALL: 1.5}
    said = run("select", "--task", "pixels").err
    assert f"latencies are as profiled; in service it took {SMALL} on cpu-1 1.50 times" in said


def test_predicted_figures_are_marked(run: Run, registered: Path) -> None:
    add_measurements(registered, batches=(1, 2))
    words = ("select", "--task", "pixels", "--latency-ms", "2000", "--batch")
    marks = {}
    for batch in (2, 4):
        document = run(*words, batch, "--json").document
        marks[batch] = {entry["predicted"] for entry in document["candidates"]}
        assert document["chosen"]["predicted"] is (batch == 4)
    assert marks == {2: {False}, 4: {True}}
    assert "~" not in run(*words, 2).out
    shown = run(*words, 4).out
    assert shown.count("~") == 7, "two figures a variant, and what the mark means"
    assert "~ predicted, not measured" in shown


def test_a_variant_that_feedback_has_demoted_counts_for_what_was_measured(
    run: Run, profiled: Path
) -> None:
    measured = FeedbackAccuracies()
    with closing(open_registry(profiled)) as registry:
        measured.follow(stated_low_percent(registry.variants()), {})
    measured.add([FeedbackCounts(LARGE, "", 60.0, 40.0), FeedbackCounts(MEDIUM, "", 75.0, 25.0)], 0)
    measured.judge((), 0.0)
    assert set(measured.demoted) == {LARGE}
    write_feedback(profiled, measured.documents())
    assert chosen(run) == MEDIUM
    (row,) = [
        row
        for row in run("select", "--task", "pixels", "--json").document["candidates"]
        if row["variant"] == LARGE
    ]
    assert (row["accuracy"], row["accuracy_source"]) == (measured.demoted[LARGE], "feedback")
