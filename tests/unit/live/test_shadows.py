"""Shadows: what is run again, what the comparison counts, and what it must never cost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.controller.api.keys import KeyRing, make_key
from modelless.controller.config import Settings, parse_settings
from modelless.controller.control.feedback import VariantFeedback
from modelless.controller.dispatch.messages import AccuraciesRevised
from modelless.controller.dispatch.trials import SHADOW
from modelless.controller.live.front.interfaces import RunBatch
from modelless.controller.live.front.shadows import MOST_BYTES, MOST_OPEN, score
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from modelless.variants.vocabulary import Accuracy, Provenance

from .front import INFER, Front, query, serving, until

SMALL, LARGE = "pixels/mean/small@1", "pixels/mean/large@1"
CHEAP = {"max_cost_usd": 1e-7}  # only the small one


@pytest.fixture
def knowledge(home: Path) -> Knowledge:
    return read_knowledge(home, Settings())


def serve(knowledge: Knowledge, folder: Path, test: Any, share: float = 0.2) -> None:
    async def inside() -> None:
        settings = parse_settings({"feedback": {"shadow_share": share}})
        async with serving(knowledge, folder, settings=settings) as front:
            front.frontend._shadows.share = 5.0 * share  # all of them
            await test(front)

    asyncio.run(inside())


def answer_as(front: Front, classes: dict[str, int]) -> None:
    """Have each variant put its class first."""

    def finish(batch: RunBatch) -> None:
        scores = np.eye(4, dtype=np.float32)[[classes[batch.variant_id]]]
        outputs = [{"scores": scores} for _ in batch.inputs]
        front.frontend.on_batch_done(batch.batch_id, 0.001, outputs, lost=False)

    front.finish = finish  # type: ignore[method-assign]


@pytest.mark.parametrize(("wanted", "right"), [(1, 3.0), (2, 3 * 20 / 50)])
def test_the_best_variant_answers_again_and_judges(
    knowledge: Knowledge, home: Path, wanted: int, right: float
) -> None:
    async def test(front: Front) -> None:
        answer_as(front, {SMALL: 1, LARGE: wanted})
        for _ in range(3):
            assert (await front.send("POST", INFER, query(**CHEAP))).status == 200
            await until(lambda: not front.has_open)
        assert [batch.variant_id for batch in front.ran] == [SMALL, LARGE] * 3
        (told,) = front.frontend._desk.arms.take_feedback()
        assert told[:2] == (SMALL, SHADOW)
        assert (told.right, told.wrong) == pytest.approx((right, 3 - right))  # 70 % and 80 %
        outcomes = front.frontend._dispatcher.take_counters().outcomes
        assert sum(count for key, count in outcomes.items() if "offline-served" in str(key)) == 3

    serve(knowledge, home, test)


def test_by_default_for_the_best_itself_and_offline_there_are_none(
    knowledge: Knowledge, home: Path
) -> None:
    async def test(front: Front) -> None:
        assert (await front.send("POST", INFER, query(**limits))).status == 200
        await until(lambda: not front.has_open)
        assert len(front.ran) == 1

    limits: dict[str, float] = CHEAP
    serve(knowledge, home, test, share=0.0)
    limits = {"min_accuracy": 80.0}
    serve(knowledge, home, test)
    limits = {**CHEAP, "priority": -1}
    serve(knowledge, home, test)


@pytest.mark.parametrize(("scopes", "shadows"), [(("infer",), 0), (("infer", "feedback"), 1)])
def test_keys_that_may_give_no_feedback_cause_none(
    knowledge: Knowledge, home: Path, scopes: tuple[str, ...], shadows: int
) -> None:
    async def test(front: Front) -> None:
        key, secret = make_key("shop", scopes, 0, 0.0, None)
        front.ring = KeyRing([key])
        bearer = {"authorization": f"Bearer {secret}"}
        assert (await front.send("POST", INFER, query(**CHEAP), bearer)).status == 200
        await until(lambda: not front.has_open)
        assert len(front.ran) == 1 + shadows

    serve(knowledge, home, test)


def test_labels_take_its_place_and_a_demoted_variant_waits_for_them(
    knowledge: Knowledge, home: Path
) -> None:
    async def test(front: Front) -> None:
        front.frontend._desk.arms._labelled[SMALL] = 0
        await front.send("POST", INFER, query(**CHEAP))
        front.frontend._desk.arms._labelled.clear()
        front.frontend.decide(AccuraciesRevised({SMALL: 60.0}))
        await front.send("POST", INFER, query(**CHEAP))
        front.frontend.decide(AccuraciesRevised({LARGE: 75.0}))
        await front.send("POST", INFER, query(**CHEAP))
        await until(lambda: not front.has_open)
        ran = [batch.variant_id for batch in front.ran]
        assert ran == [SMALL] * 3 + ["pixels/mean/medium@1"]  # the best that is not demoted

    serve(knowledge, home, test)


def test_they_are_few_and_small_and_one_that_fails_is_forgotten(
    knowledge: Knowledge, home: Path
) -> None:
    async def test(front: Front) -> None:
        front.answers_at_once = False
        asked = asyncio.create_task(front.send("POST", INFER, query(**CHEAP)))
        await until(lambda: len(front.ran) == 1)
        front.finish(front.ran[0])
        assert (await asked).status == 200
        shadows, batch = front.frontend._shadows, front.ran[1]
        assert len(shadows.classes) == 1
        front.frontend.on_batch_done(batch.batch_id, 0.0, ValueError("broken"), lost=False)
        await until(lambda: not front.has_open)
        assert not shadows.classes
        assert front.frontend._desk.arms.take_feedback() == ()
        assert shadows.is_drawn(MOST_BYTES)
        assert not shadows.is_drawn(MOST_BYTES + 1)
        shadows.classes |= {-number: ... for number in range(MOST_OPEN)}  # type: ignore[misc]
        assert not shadows.is_drawn(1)
        shadows.classes.clear()

    serve(knowledge, home, test)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_a_variant_as_accurate_as_stated_scores_that_at_least(
    both: int, first: int, second: int, neither: int
) -> None:
    """However right and wrong answers coincide; where both are wrong, they may differ."""
    total = both + first + second + neither
    if total == 0 or second < first:  # the reference is the better one
        return
    stated = Accuracy(100.0 * (both + first) / total, "top-1", Provenance.MEASURED, "here")
    best = Accuracy(100.0 * (both + second) / total, "top-1", Provenance.MEASURED, "here")
    answered = [1] * both + [1] * first + [0] * second + [0] * neither
    wanted = [1] * both + [2] * first + [1] * second + [2] * neither
    mean = np.mean(score(answered, wanted, stated, best))
    assert 100.0 * mean >= stated.percent - 1e-6


def test_shadows_are_shown_and_are_no_measured_accuracy() -> None:
    told = VariantFeedback({SHADOW: [40.0, 10.0], "shop": [3.0, 1.0]}).status("a/b/c@1")
    assert (told["items"], told["tenants"][SHADOW]["items"]) == (4.0, 50.0)
    assert VariantFeedback({SHADOW: [4.0, 1.0]}).status("a/b/c@1")["items"] == 0.0
