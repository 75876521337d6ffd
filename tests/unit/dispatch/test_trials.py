"""Dealing queries out to two versions, and counting what became of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from modelless.controller.dispatch import trials
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.dispatch.trials import (
    Answer,
    FeedbackCounts,
    TrialArms,
    is_in_share,
    latency_step,
    step_s,
)
from modelless.policies.reasons import Reason
from modelless.policies.scopes import base_of, in_scope
from modelless.variants.registry.versions import Trial
from modelless.variants.vocabulary import Placement

from .world import make_query

NAME = "imagenet/lite0/int8"
TRIAL = Trial(NAME, 2, 1, 0.25, 7, 0.0)
OLD, NEW, OTHER = f"{NAME}@1", f"{NAME}@2", "imagenet/lite2/fp32@1"


def make_arms(*, ready: bool = True) -> TrialArms:
    made = TrialArms(0, "gateway", lambda _: ready)
    made.set_trials([TRIAL])
    return made


def receipt(scope: str, variant_id: str, query_id: int = 1, *, items: int = 1) -> Receipt:
    query = make_query(query_id, 0.0, scope=scope, items=items)
    return Receipt(query, variant_id=variant_id, observed_latency_s=0.010)


def arms() -> tuple[str, str]:
    """The scopes of the two arms of the task: that of the trial and the other."""
    dealt = {make_arms().assign_arm("imagenet", query_id, "") for query_id in range(100)}
    tried, standing = sorted(dealt, key=lambda scope: not in_scope(NEW, scope))
    return tried, standing


def test_arms_differ_in_the_version_alone() -> None:
    tried, standing = arms()
    assert [in_scope(each, tried) for each in (OLD, NEW, OTHER)] == [False, True, True]
    assert [in_scope(each, standing) for each in (OLD, NEW, OTHER)] == [True, False, True]
    assert base_of(tried) == base_of(standing) == "imagenet"


def test_a_share_of_all_queries_tries_it() -> None:
    made = make_arms()
    dealt = Counter(made.assign_arm("imagenet", query_id, "") for query_id in range(20_000))
    tried, _ = arms()
    assert dealt[tried] == pytest.approx(5000, abs=4 * (20_000 * 0.25 * 0.75) ** 0.5)
    assert len(dealt) == 2


def test_the_same_query_is_always_dealt_alike_and_trials_differ() -> None:
    one = [is_in_share(TRIAL, "g", number, "") for number in range(200)]
    assert one == [is_in_share(TRIAL, "g", number, "") for number in range(200)]
    assert one != [is_in_share(replace(TRIAL, number=8), "g", number, "") for number in range(200)]


@pytest.mark.parametrize(
    "scope", [NEW, OLD, "imagenet/lite2", "imagenet/lite0/fp32", "fashion-mnist"]
)
def test_others_and_who_names_a_version_are_let_be(scope: str) -> None:
    assert make_arms().assign_arm(scope, 1, "") == scope


def test_until_it_is_ready_nobody_tries_it_and_nothing_counts() -> None:
    made = make_arms(ready=False)
    _, standing = arms()
    assert {made.assign_arm("imagenet", query_id, "") for query_id in range(100)} == {standing}
    made.count_answer(receipt(standing, OLD, 99), lambda: (3,))
    assert made.take_counts() == ()


def test_counts_of_both_arms() -> None:
    made = make_arms()
    tried, standing = arms()
    made.assign_arm("imagenet", 1, "")
    made.count_answer(receipt(tried, NEW, 1), lambda: (3,))
    made.count_answer(receipt(tried, OTHER, 2), lambda: (3,))  # counts, but is not the version's
    made.count_answer(receipt(standing, OLD, 3, items=2), lambda: (3, 4))
    failed = receipt(tried, NEW, 4)
    failed.reason = Reason.EXECUTION_FAILED
    made.count_refusal(failed)
    refused = receipt(standing, "", 5)
    refused.reason = Reason.TOO_SLOW
    made.count_refusal(refused)
    (counts,) = made.take_counts()
    assert (counts.tried.queries, counts.tried.answered, counts.tried.failed) == (3, 1, 1)
    assert (counts.standing.queries, counts.standing.answered, counts.standing.failed) == (2, 1, 0)
    assert counts.tried.latencies == {latency_step(0.010): 2}
    assert made.take_counts() == ()


def test_feedback_counts_once_and_for_the_right_arm() -> None:
    made = make_arms()
    tried, standing = arms()
    made.assign_arm("imagenet", 1, "")
    made.count_answer(receipt(tried, NEW, 1), lambda: (3,))
    made.count_answer(receipt(standing, OLD, 2, items=2), lambda: (3, 4))
    made.take_counts()

    def right_if_3(answer: Answer) -> list[bool]:
        assert answer.classes is not None
        return [each == 3 for each in answer.classes]

    assert made.count_feedback(1, right_if_3)
    assert made.count_feedback(2, right_if_3)
    assert not made.count_feedback(2, right_if_3)
    assert not made.count_feedback(3, right_if_3)
    (counts,) = made.take_counts()
    assert (counts.tried.labelled, counts.tried.wrong) == (1, 0)
    assert (counts.standing.labelled, counts.standing.wrong) == (2, 1)


def test_answers_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "ANSWERS_KEPT", 10)
    made = make_arms()
    tried, _ = arms()
    made.assign_arm("imagenet", 1, "")
    for query_id in range(1, 13):
        made.count_answer(receipt(tried, NEW, query_id), lambda: None)
    assert not made.count_feedback(2, lambda _: [True])
    assert made.count_feedback(3, lambda _: [True])


def test_what_is_over_leaves_nothing_behind() -> None:
    made = make_arms()
    tried, _ = arms()
    made.assign_arm("imagenet", 1, "")
    made.count_answer(receipt(tried, NEW, 1), lambda: None)
    made.set_trials([])
    assert made.take_counts() == ()
    assert made.count_feedback(1, lambda _: [True])
    assert made.assign_arm("imagenet", 2, "") == "imagenet"
    made.count_answer(receipt(tried, NEW, 2), lambda: None)  # in flight when it ended
    assert made.take_counts() == ()


def test_feedback_on_all_answers_counts_for_the_variant_and_the_tenant() -> None:
    made = make_arms()
    made.set_trials([])
    for query_id in (1, 2, 3):
        made.count_answer(receipt("imagenet", OTHER, query_id, items=2), lambda: (3, 4))
    assert made.count_feedback(1, lambda _: [True, False], "shop")
    assert made.count_feedback(2, lambda _: [0.25, 1.0], "shop")
    assert made.count_feedback(3, lambda _: [True, True])
    assert not made.count_feedback(3, lambda _: [True, True])
    assert made.take_feedback() == (
        FeedbackCounts(OTHER, "shop", 2.25, 1.75),
        FeedbackCounts(OTHER, "", 2.0, 0.0),
    )
    assert made.take_feedback() == made.take_counts() == ()


def test_a_plans_shares_are_told_for_the_arms() -> None:
    tried, standing = arms()
    shares = {"imagenet": {Placement(OLD, "cpu-1"): 0.7, Placement(OTHER, "cpu-1"): 0.3}}
    told = make_arms().add_arms(shares)
    assert told[standing] == told["imagenet"] == shares["imagenet"]
    assert told[tried] == {Placement(NEW, "cpu-1"): 0.7, Placement(OTHER, "cpu-1"): 0.3}


@pytest.mark.parametrize("latency_s", [0.0, 1e-5, 1e-4, 0.0123, 1.0, 3600.0])
def test_steps_of_latency_are_a_tenth(latency_s: float) -> None:
    longest_s = step_s(latency_step(latency_s))
    assert max(latency_s, 1e-4) <= longest_s * (1 + 1e-9)
    assert longest_s <= max(latency_s, 1e-4) * 1.1 * (1 + 1e-9)
