"""What feedback said goes through the control loop into gateways, replies and the home."""

from __future__ import annotations

import asyncio
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

from modelless.controller.config import Settings
from modelless.controller.control.messages import EntryKind, MemberReport
from modelless.controller.dispatch.messages import AccuraciesRevised
from modelless.controller.dispatch.trials import FeedbackCounts
from modelless.controller.history.entries import Wanted, read_entries
from modelless.controller.history.feedback import FEEDBACK, read_feedback
from modelless.controller.live.control.control_loop import ControlLoop
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from modelless.variants.registry.registry import open_registry

from .front import INFER, Front, query, serving

LARGE = "pixels/mean/large@1"


def report(right: float, wrong: float) -> MemberReport:
    told = (FeedbackCounts(LARGE, "shop", right, wrong),)
    return MemberReport("g", True, None, interval_s=1.0, feedback=told)


def test_a_demotion_reaches_gateways_metrics_and_history_and_outlives_the_control_loop(
    home: Path,
) -> None:
    async def talk() -> tuple[str, list[dict[str, Any]]]:
        loop = ControlLoop(home, Settings(), None)
        before = await loop.versions("")
        assert before.accuracies_percent == {}
        await loop.exchange(report(40.0, 60.0))  # stated are 80
        after = await loop.versions(before.token)
        assert after.accuracies_percent == {LARGE: loop.status()["feedback"][0]["demoted_to"]}
        loop._versions._number = -1  # as if a version had changed
        await loop._versions.look()
        assert loop._versions.latest.service.accuracies_percent == after.accuracies_percent
        (text, _), status = await loop.metrics(""), loop.status()["feedback"]
        await loop.close()
        again = ControlLoop(home, Settings(), None)
        assert (await again.versions("")).accuracies_percent == after.accuracies_percent
        assert again.status()["feedback"] == status
        return text.decode(), status

    text, (row,) = asyncio.run(talk())
    assert (row["items"], row["accuracy"], row["stated_low"]) == (100, 40.0, 80.0)
    labels = f'tenant="shop",variant="{LARGE}",verdict="wrong"'
    assert f"modelless_feedback_items_total{{{labels}}} 60.0" in text
    assert f'modelless_demoted_accuracy_ratio{{variant="{LARGE}"}} 0.3' in text
    assert stat.S_IMODE((home / FEEDBACK).stat().st_mode) == 0o600
    with closing(open_registry(home)) as registry:
        (told,) = read_entries(registry.store, Wanted(kinds=(EntryKind.ACCURACY_DEMOTED,)))
    assert told.entry.subject == LARGE
    assert told.entry.details["counts_for"] == row["demoted_to"]


def test_a_file_that_cannot_be_read_is_as_good_as_none(home: Path) -> None:
    for text in ("", "[]", '{"a/b/c@1": {"tenants": 3}}'):
        (home / FEEDBACK).write_text(text)
        assert read_feedback(home) == {}


def test_replies_say_what_a_demoted_variant_counts_for(home: Path) -> None:
    knowledge: Knowledge = read_knowledge(home, Settings())

    async def ask(front: Front, **limits: float) -> tuple[int, dict[str, Any]]:
        answer = await front.send("POST", INFER, query(**limits))
        return answer.status, answer.document.get("parameters", {})

    async def talk() -> None:
        async with serving(knowledge, home) as front:
            assert (await ask(front, min_accuracy=78.0))[1]["variant"] == LARGE
            front.frontend.decide(AccuraciesRevised({LARGE: 72.5}))
            assert (await ask(front, min_accuracy=78.0))[0] == 422
            answer = await front.send("POST", f"/v2/models/{LARGE.split('@')[0]}/infer", query())
            said = answer.document["parameters"]
            assert (said["accuracy"], said["accuracy_provenance"]) == (72.5, "measured")
            front.frontend.decide(AccuraciesRevised({}))
            assert (await ask(front, min_accuracy=78.0))[1]["accuracy"] == 80.0

    asyncio.run(talk())
