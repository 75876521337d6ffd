"""A policy beside the one in charge says what it would have done, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from modelless.controller.assembly import build_changed, build_control
from modelless.controller.config import parse_settings
from modelless.controller.control.advice import NOTE_S, AdviceTotals
from modelless.controller.control.messages import EntryKind
from modelless.controller.usecases.simulation.simulating import simulate
from modelless.policies import advisory
from modelless.policies.advisory import MOST_KINDS, MOST_PER_S, SWITCHED_OFF, Advisory
from modelless.policies.seams import ScalingPolicy, SelectionPolicy

WORLD: dict[str, Any] = {
    "name": "advised",
    "duration_s": 15.0,
    "devices": [{"name": "cpu-1", "count": 2, "memory_mib": 100}],
    "tasks": [
        {
            "name": "vision",
            "variants": {
                "kind": "ladder", "count": 4, "latency_ms": [15, 90], "accuracy": [60, 80],
                "memory_mib": [15, 60],
            },
        }
    ],
    "queries": [
        {"tasks": ["vision"], "arrivals": {"kind": "poisson", "rate_per_s": 40},
         "slos": [{"latency_ms": 300}]}
    ],
}  # fmt: skip


class Breaks(SelectionPolicy, ScalingPolicy):
    """Raises at every call."""

    def on_arrival(self, *_: object) -> Any:
        raise ValueError("no idea")

    def targets(self, *_: object) -> Any:
        raise ValueError("no idea")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], int]:
    """All that is counted, of both seams."""
    counts: dict[tuple[str, str], int] = {}
    add = advisory.add_advice

    def add_both(into: dict[tuple[str, str], int], more: Mapping[tuple[str, str], int]) -> None:
        add(into, more)
        add(counts, more)

    monkeypatch.setattr(advisory, "add_advice", add_both)
    return counts


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        ({"selection": "best-value"}, lambda done, would: done == would),
        ({"selection": "most-accurate-feasible"}, lambda done, would: "on cpu-1" in would),
        ({"selection": "random", "scaling": "fixed"}, lambda _, would: " and not " in would),
        ({"scaling": "expected-value"}, lambda done, would: done == would == "as planned"),
        ({"selection": f"{__name__}:Breaks"}, lambda done, would: "no idea" in would),
        ({"scaling": f"{__name__}:Breaks"}, lambda done, would: "no idea" in would),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_it_changes_nothing(
    noted: dict[tuple[str, str], int], beside: dict[str, Any], says: Any
) -> None:
    alone = simulate(WORLD)
    assert not noted
    assert simulate({**WORLD, "policies": {"advisory": beside}}) == alone
    assert any(says(*pair) for pair in noted), noted
    if "Breaks" in str(beside):
        assert [done for done, _ in noted] == [SWITCHED_OFF]
        assert sum(noted.values()) == 1


def test_the_same_policy_beside_itself_agrees(noted: dict[tuple[str, str], int]) -> None:
    """One that has no randomness and is asked as often."""
    policies = {"selection": "cheapest-feasible", "advisory": {"selection": "cheapest-feasible"}}
    simulate({**WORLD, "policies": policies})
    assert sum(noted.values()) > 100
    assert all(done == would for done, would in noted)


def test_calls_within_a_second_are_bounded() -> None:
    asked = Advisory("policy")
    for second in (0, 1):
        for number in range(3 * MOST_PER_S):
            asked.note(second + number / 1e4, "x", lambda _: "y")
    assert asked.take() == {("x", "y"): 2 * MOST_PER_S}
    assert asked.take() == {}


def test_kinds_are_bounded() -> None:
    counts: dict[tuple[str, str], int] = {}
    for number in range(3 * MOST_KINDS):
        advisory.add_advice(counts, {(str(number), "x"): 1})
    assert len(counts) == MOST_KINDS + 1
    assert counts["other", "other things"] == 2 * MOST_KINDS


def test_the_history_has_an_entry_a_minute() -> None:
    totals = AdviceTotals()
    totals.add("selection", {("a", "a"): 3, ("a", "b"): 1})
    (entry,) = totals.entries(0.0)
    assert (entry.kind, entry.subject) == (EntryKind.ADVICE, "selection")
    assert entry.reason == "agreed 3 times of 4"
    totals.add("selection", {(SWITCHED_OFF, "raised ValueError: x"): 1})
    assert totals.entries(NOTE_S - 1.0) == []
    (entry,) = totals.entries(NOTE_S)
    assert entry.reason == "switched off: it raised ValueError: x"
    assert totals.entries(10 * NOTE_S) == []
    (told,) = totals.status()
    assert (told["asked"], told["agreed"]) == (5, 3)
    assert told["advice"][0] == {"done": "a", "would": "a", "count": 3}


def test_it_begins_and_ends_while_serving() -> None:
    none, some = (
        parse_settings({"policies": {"advisory": {"scaling": name}}}) for name in (None, "fixed")
    )
    control = build_control(none, ["cpu-1"], (), 0.0)
    planner = control._planner
    assert planner.advisory is None
    planner.change(build_changed(none, some))
    begun = planner.advisory
    assert begun is not None
    planner.change(build_changed(some, some))
    assert planner.advisory is begun
    planner.change(build_changed(some, none))
    assert planner.advisory is not begun
    planner.advisory.note(0.0, "x", lambda _: "y")
    assert planner.advisory.take() == {}
