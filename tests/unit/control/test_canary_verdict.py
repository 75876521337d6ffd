"""What a trial's evidence decides, and that the reason says why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.control.canary_verdict import (
    SLOW_FROM,
    Decision,
    TrialEvidence,
    judge,
    slow_above_s,
)
from modelless.controller.dispatch.trials import ArmCounts, TrialCounts, latency_step, step_s
from modelless.variants.registry.versions import Trial, TrialRules

TRIAL = Trial("imagenet/lite0/int8", 2, 1, 0.1, 7, 1000.0)
NOW_S = 1060.0
QUICK = latency_step(0.010)


def arm(queries: int, *, latency_s: float = 0.010, **counts: int) -> ArmCounts:
    failed = counts.get("failed", 0)
    answered = queries - failed
    return ArmCounts(queries, {latency_step(latency_s): answered}, answered, **counts)


def evidence(tried: ArmCounts, standing: ArmCounts) -> TrialEvidence:
    """As counted after it was settled what is slow."""
    found = TrialEvidence()
    found.add(TrialCounts(7, ArmCounts(), arm(SLOW_FROM)))
    found.add(TrialCounts(7, tried, standing))
    return found


def test_a_good_version_without_feedback_is_promoted() -> None:
    verdict = judge(TRIAL, evidence(arm(3000), arm(30_000)), NOW_S)
    assert verdict.decision is Decision.PROMOTE
    assert "errors: 0 of 3000 bad" in verdict.reason
    assert "accuracy" not in verdict.reason


def test_where_feedback_comes_it_must_have_shown_something() -> None:
    few = evidence(arm(3000, labelled=10, wrong=1), arm(30_000, labelled=90, wrong=9))
    verdict = judge(TRIAL, few, NOW_S)
    assert (verdict.decision, verdict.reason) == (Decision.GO_ON, "not decided yet: accuracy")


@pytest.mark.parametrize(
    ("tried", "guard"),
    [
        (arm(500, failed=40), "errors"),
        (arm(500, labelled=500, wrong=150), "accuracy"),
        (arm(500, latency_s=0.050), "latency"),
        (ArmCounts(500, {QUICK: 350}, 350), "latency"),  # the rest were refused
    ],
)
def test_each_guard_rolls_back(tried: ArmCounts, guard: str) -> None:
    verdict = judge(TRIAL, evidence(tried, arm(5000, labelled=5000, wrong=500)), NOW_S)
    assert verdict.decision is Decision.ROLL_BACK
    assert verdict.reason.startswith("worse beyond the tolerance of ")
    assert f"{guard}: " in verdict.reason


def test_a_version_that_is_better_is_promoted() -> None:
    better = arm(3000, labelled=3000, wrong=100)
    verdict = judge(TRIAL, evidence(better, arm(30_000, labelled=30_000, wrong=3000)), NOW_S)
    assert verdict.decision is Decision.PROMOTE


@pytest.mark.parametrize(
    "rules", [TrialRules(min_queries=5000), TrialRules(min_labels=1)], ids=["queries", "labels"]
)
def test_not_before_it_has_served_enough(rules: TrialRules) -> None:
    verdict = judge(replace(TRIAL, rules=rules), evidence(arm(3000), arm(30_000)), NOW_S)
    assert verdict.decision is Decision.GO_ON


@pytest.mark.parametrize(
    ("rules", "now_s"), [(TrialRules(max_s=60.0), 1060.0), (TrialRules(max_queries=101), 1001.0)]
)
def test_undecided_it_is_rolled_back_and_says_so(rules: TrialRules, now_s: float) -> None:
    verdict = judge(replace(TRIAL, rules=rules), evidence(arm(110), arm(1000)), now_s)
    assert verdict.decision is Decision.ROLL_BACK
    assert verdict.reason.startswith("undecided after 110 queries")
    assert "open: errors" in verdict.reason


def test_what_is_slow_is_taken_from_queries_that_it_does_not_judge() -> None:
    found = TrialEvidence()
    for _ in range(3):
        found.add(TrialCounts(7, arm(10, latency_s=1.0), arm(SLOW_FROM // 4)))
        assert found.slow_step is None
    spread = ArmCounts(50, {QUICK: 29, QUICK + 5: 21}, 50)
    found.add(TrialCounts(7, arm(10, latency_s=1.0), spread))
    assert found.slow_step == QUICK + 5  # nine of ten of the 200 are below
    assert slow_above_s(found) == pytest.approx(step_s(QUICK + 5))
    assert (found.tried.timed, found.standing.timed) == (0, 0)
    assert found.tried.queries == 40
    found.add(TrialCounts(7, arm(10, latency_s=1.0), arm(10)))
    assert (found.tried.timed, found.tried.slow) == (10, 10)
    assert (found.standing.timed, found.standing.slow) == (10, 0)


def test_evidence_survives_being_written_down() -> None:
    found = evidence(arm(300, labelled=30, wrong=3), arm(2000))
    for each in (found, TrialEvidence(first={3: 4})):
        assert TrialEvidence.kept(json.loads(json.dumps(each.document()))) == each


def test_figures_are_plain_data() -> None:
    verdict = judge(TRIAL, evidence(arm(3000), arm(30_000)), NOW_S)
    shown = json.loads(json.dumps([guard.document() for guard in verdict.guards]))
    assert [each["guard"] for each in shown] == ["errors", "accuracy", "latency"]
    assert shown[0]["fine_percent"] >= 100.0


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"accuracy_tolerance": 1.0}, "accuracy_tolerance"),
        ({"min_queries": -1}, "min_queries"),
        ({"min_queries": 10, "max_queries": 10}, "max_queries"),
        ({"max_s": 0.0}, "max_s"),
    ],
)
def test_rules_that_make_no_sense(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{field}: got"):
        TrialRules(**wrong)
