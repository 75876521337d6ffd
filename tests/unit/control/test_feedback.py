"""Demotion by feedback: as seldom wrong as it says, soon enough, and with a way back."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from modelless.common.intervals import wilson_percent
from modelless.controller.control.feedback import (
    FallTest,
    FeedbackAccuracies,
    FeedbackRules,
)
from modelless.controller.dispatch.trials import FeedbackCounts

NAME = "animals/net/fp32@1"
LOW = 88.0  # stated: 90, from 88 to 92
RULES = FeedbackRules(alpha=0.05, tolerance_percent=2.0, retry_s=600.0)
NEEDED = 1.0 / RULES.alpha


def items_until_shown(
    rng: np.random.Generator, share: float, before: int, most: int, step: int = 25
) -> float:
    """How many items after ``before`` good ones it takes to show a fall; inf if it is not shown.

    The bound is 0.86; looked at after every ``step`` items.
    """
    test = FallTest(0.86)
    for done in range(0, before + most, step):
        right = int(rng.binomial(step, 0.9 if done < before else share))
        test.add(right, step - right)
        if test.evidence >= NEEDED:
            return done + step - before
    return float("inf")


@pytest.mark.parametrize(("share", "most_false"), [(0.86, 0.05), (0.9, 0.002)])
def test_a_variant_within_its_bound_is_demoted_as_seldom_as_it_may_be(
    share: float, most_false: float
) -> None:
    rng = np.random.default_rng(3)
    runs = 300
    found = [items_until_shown(rng, share, 0, 4_000) for _ in range(runs)]
    assert np.isfinite(found).sum() <= most_false * runs


@pytest.mark.parametrize(
    ("share", "before", "median_items"),
    [(0.8, 0, 500), (0.8, 20_000, 1100), (0.7, 0, 125), (0.7, 20_000, 225)],
)
def test_a_fall_is_found_soon_however_long_it_was_good(
    share: float, before: int, median_items: int
) -> None:
    rng = np.random.default_rng(4)
    found = [items_until_shown(rng, share, before, 10_000) for _ in range(40)]
    assert min(found) > 0.0  # not before the fall
    assert np.median(found) <= median_items


def test_scores_between_right_and_wrong_are_no_more_likely_to_demote() -> None:
    rng = np.random.default_rng(5)
    shown = 0
    for _ in range(300):
        test = FallTest(0.86)
        for _ in range(100):
            scores = rng.beta(0.86 * 4, 0.14 * 4, 25)  # 0.86 on average
            test.add(float(scores.sum()), float(25 - scores.sum()))
            if test.evidence >= NEEDED:
                shown += 1
                break
    assert shown <= RULES.alpha * 300


def made(kept: Mapping[str, object] | None = None, low: float = LOW) -> FeedbackAccuracies:
    accuracies = FeedbackAccuracies(RULES)
    accuracies.follow({NAME: low}, json.loads(json.dumps(kept or {})))
    return accuracies


def tell(accuracies: FeedbackAccuracies, right: float, wrong: float, at_s: float = 0.0) -> None:
    accuracies.add([FeedbackCounts(NAME, "shop", right, wrong)], at_s)


def demoted() -> FeedbackAccuracies:
    accuracies = made()
    for _ in range(20):
        tell(accuracies, 92, 8)
    assert accuracies.judge((), 0.0) == []
    for _ in range(10):
        tell(accuracies, 70, 30, 10.0)
        if accuracies.judge((), 10.0):
            break
    return accuracies


def test_a_variant_below_its_interval_counts_for_what_was_measured_since() -> None:
    accuracies = made()
    tell(accuracies, 950, 50)
    for _ in range(3):
        tell(accuracies, 70, 30)
    (entry,) = accuracies.judge((), 0.0)
    assert (entry.kind, entry.subject) == ("accuracy-demoted", NAME)
    assert entry.reason == (
        "of the last 300 items with feedback 70.0 % were right; stated are 88.0 % at least: "
        "it counts for 64.6 %"
    )
    assert accuracies.demoted[NAME] == round(wilson_percent(210, 300)[0], 2)
    (told,) = accuracies.status()
    assert (told["items"], told["tenants"]["shop"]["items"]) == (1300, 1300)
    assert told["demoted_to"] == accuracies.demoted[NAME]
    assert accuracies.judge((), 0.0) == []


def test_what_it_counts_for_follows_what_is_measured_further() -> None:
    accuracies = demoted()
    before = accuracies.demoted[NAME]
    for _ in range(100):
        tell(accuracies, 70, 30)
    assert accuracies.judge((), 20.0) == []
    assert before + 1.0 < accuracies.demoted[NAME] < 70.0


def test_it_returns_when_feedback_shows_it_above_the_bound() -> None:
    accuracies = demoted()
    entries = []
    for _ in range(20):
        tell(accuracies, 91, 9, 20.0)
        entries += accuracies.judge((), 20.0)
    assert [entry.kind for entry in entries] == ["accuracy-restored"]
    assert entries[0].reason == "feedback shows it above 86.0 % again"
    assert accuracies.demoted == {}


def test_between_both_nothing_changes() -> None:
    rng = np.random.default_rng(6)
    changes = 0
    for _ in range(40):
        accuracies = demoted()
        for _ in range(100):
            right = int(rng.binomial(50, 0.86))  # at the bound
            tell(accuracies, right, 50 - right, 20.0)
            changes += len(accuracies.judge((), 20.0))
    assert changes <= 0.05 * 40 + 3


def test_without_feedback_it_is_tried_again_after_ever_longer_times() -> None:
    accuracies = demoted()
    assert accuracies.judge((), 609.0) == []
    (entry,) = accuracies.judge((), 610.0)
    assert (entry.kind, entry.subject) == ("accuracy-restored", NAME)
    assert entry.reason == "for another try: no feedback came for 10 minutes"
    for _ in range(10):
        tell(accuracies, 70, 30, 700.0)
    assert [entry.kind for entry in accuracies.judge((), 700.0)] == ["accuracy-demoted"]
    assert accuracies.judge((), 1899.0) == []
    assert [entry.kind for entry in accuracies.judge((), 1900.0)] == ["accuracy-restored"]


def test_a_later_process_goes_on_where_this_one_was() -> None:
    accuracies = demoted()
    later = made(accuracies.documents())
    assert later.demoted == accuracies.demoted
    for each in (accuracies, later):
        tell(each, 30, 1, 30.0)
        each.judge((), 30.0)
    assert later.documents() == accuracies.documents()


def test_a_variant_whose_stated_accuracy_has_changed_begins_anew() -> None:
    later = made(demoted().documents(), low=65.0)
    assert later.demoted == {}
    (told,) = later.status()
    assert told["items"] > 2000
    assert later.judge((), 1e6) == []


def test_versions_on_trial_and_accuracies_of_another_kind_are_not_demoted() -> None:
    accuracies = made()
    tell(accuracies, 0, 100)
    assert accuracies.judge((NAME,), 0.0) == []
    accuracies = FeedbackAccuracies(RULES)
    accuracies.follow({}, {})
    tell(accuracies, 0, 100)
    assert accuracies.judge((), 0.0) == []
    assert accuracies.status()[0]["accuracy"] == 0.0


def test_it_can_be_switched_off() -> None:
    kept = demoted().documents()
    accuracies = FeedbackAccuracies(RULES._replace(demotes=False))
    accuracies.follow({NAME: LOW}, kept)
    tell(accuracies, 0, 100)
    assert accuracies.judge((), 0.0) == []
    assert accuracies.demoted == {}
