"""Where feedback comes in: counted, passed on, or of no use."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.api.feedback import Feedback, parse_feedback
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.dispatch.trials import TrialArms
from modelless.controller.live.front.feedback import GRACE_ORDERS, FeedbackDesk, ReceiptTags
from modelless.controller.live.orders import Orders
from modelless.policies.views import QueryView
from modelless.variants.registry.versions import Trial
from modelless.variants.vocabulary import Task, TensorSpec

TASK = Task(
    "animals",
    (TensorSpec("image", "UINT8", (-1, 2, 2, 3)),),
    (TensorSpec("scores", "FP32", (-1, 3)),),
    "top-1",
    labels=("cat", "dog", "owl"),
)
TRIAL = Trial("animals/net/fp32", 2, 1, 0.5, 7, 0.0)
SCORES = {"scores": np.array([[0.1, 0.7, 0.2], [0.9, 0.1, 0.0]], np.float32)}  # dog, cat


TAGS = ReceiptTags(b"a gateway's own")


@pytest.fixture
def desk() -> FeedbackDesk:
    """With one answer of two items, number 1, by the version on trial."""
    made = FeedbackDesk("g1", TrialArms(0, "g1", lambda _: True), {"animals": TASK}, TAGS)
    made.arms.set_trials([TRIAL])
    made.arms.assign_arm("animals", 1, "")
    query = QueryView(1, f"animals with {TRIAL.variant_id}", 0.0, 1.0, items=2)
    receipt = Receipt(query, variant_id=TRIAL.variant_id, observed_latency_s=0.01)
    made.count_answer(receipt, SCORES, TASK)
    made.arms.take_counts()
    return made


def body(*entries: dict[str, Any]) -> tuple[Feedback, ...]:
    tagged = []
    for entry in entries:
        number = int(entry["receipt_id"].rpartition("-")[2])
        tagged.append({**entry, "receipt_id": f"{entry['receipt_id']}.{TAGS.tag(number, '')}"})
    return parse_feedback(json.dumps({"feedback": tagged}).encode())


def orders(*feedback: Feedback, others: tuple[str, ...] = (), is_settled: bool = True) -> Orders:
    members = [{"id": name, "role": "gateway"} for name in ("g1", *others)]
    members.append({"id": "w1", "role": "worker"})
    return Orders((), (), {}, {"members": members}, feedback=feedback, is_settled=is_settled)


def test_its_own_counts_once(desk: FeedbackDesk) -> None:
    told = body({"receipt_id": "g1-1", "label": ["dog", "dog"]})
    assert desk.accept_feedback(told) == {"counted": 1, "passed_on": 0, "ignored": 0}
    assert desk.accept_feedback(told) == {"counted": 0, "passed_on": 0, "ignored": 1}
    (counts,) = desk.arms.take_counts()
    assert (counts.tried.labelled, counts.tried.wrong) == (2, 1)


def test_others_are_passed_on_once(desk: FeedbackDesk) -> None:
    became = desk.accept_feedback(body({"receipt_id": "g2-1", "correct": True}))
    assert became == {"counted": 0, "passed_on": 1, "ignored": 0}
    assert desk.for_others() == (Feedback("g2", 1, (True,), None, TAGS.tag(1, "")),)
    assert desk.for_others() == ()


def test_what_was_passed_on_counts_or_is_dropped_without_harm(desk: FeedbackDesk) -> None:
    tag, other = TAGS.tag(1, ""), TAGS.tag(99, "")
    desk.obey(
        orders(Feedback("g1", 1, (True,), None, tag), Feedback("g1", 99, (True,), None, other))
    )
    desk.obey(orders(Feedback("g1", 1, (True, True), None, other)))  # not its receipt's tag
    desk.obey(orders(Feedback("g1", 1, (True, True), None, tag, "shop")))  # nor its owner
    assert desk.arms.take_counts() == ()  # one entry for two items, and an unknown answer
    desk.obey(orders(Feedback("g1", 1, (True, True), None, tag)))
    (counts,) = desk.arms.take_counts()
    assert (counts.tried.labelled, counts.tried.wrong) == (2, 0)


def test_an_entry_that_does_not_fit_can_be_told_again(desk: FeedbackDesk) -> None:
    with pytest.raises(InvalidInputError, match="one for each of the query's 2 items"):
        desk.accept_feedback(body({"receipt_id": "g1-1", "label": "dog"}))
    assert (
        desk.accept_feedback(body({"receipt_id": "g1-1", "label": ["dog", "cat"]}))["counted"] == 1
    )


def test_what_nobody_can_have_answered_is_refused_before_anything_counts(
    desk: FeedbackDesk,
) -> None:
    desk.obey(orders(others=("g2",)))
    mine, others = ({"receipt_id": f"{name}-1", "correct": [True] * 2} for name in ("g1", "g2"))
    for name in ("nosuch", "w1"):
        with pytest.raises(NotFoundError, match=rf"^feedback\.2\.receipt_id: '{name}-7': got"):
            desk.accept_feedback(body(mine, others, {"receipt_id": f"{name}-7", "correct": True}))
    bad = [{"receipt_id": f"nosuch-{number + 1}", "correct": True} for number in range(10)]
    with pytest.raises(NotFoundError, match=r"'nosuch-1', .*'nosuch-8' and 2 more: got"):
        desk.accept_feedback(body(mine, *bad))
    assert desk.for_others() == ()
    assert desk.accept_feedback(body(mine, others)) == {"counted": 1, "passed_on": 1, "ignored": 0}


def test_a_gateway_is_not_taken_for_gone_before_everybody_could_report(desk: FeedbackDesk) -> None:
    told = body({"receipt_id": "g2-1", "correct": True})
    desk.obey(orders(is_settled=False))
    assert desk.accept_feedback(told)["passed_on"] == 1
    desk.obey(orders(others=("g2",)))
    desk.obey(orders(others=("g3",), is_settled=False))  # a new control loop, which begins anew
    assert desk.accept_feedback(told)["passed_on"] == 1
    assert desk.accept_feedback(body({"receipt_id": "g3-1", "correct": True}))["passed_on"] == 1
    for _ in range(GRACE_ORDERS):  # it may only be silent
        assert desk.accept_feedback(told)["passed_on"] == 1
        desk.obey(orders(others=("g3",)))
    with pytest.raises(NotFoundError, match="'g2-1': got a receipt of a gateway that is not known"):
        desk.accept_feedback(told)
