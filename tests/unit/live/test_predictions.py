"""What gateways' cost models say to the control loop, and what that makes of it."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from modelless.controller.config import Settings
from modelless.controller.control.messages import MemberReport
from modelless.controller.live import knowledge
from modelless.controller.live.control.control_loop import ControlLoop
from modelless.controller.live.control.prediction_quality import DriftNotes
from modelless.policies.views import WorkerState
from modelless.profiler.cost_model.drift_history import KIND, drifted_placements
from modelless.profiler.cost_model.online.coverage import Coverage
from modelless.profiler.cost_model.serving_model import Drift
from modelless.profiler.devices.device import GpuFacts
from modelless.variants.registry.registry import open_registry
from modelless.variants.store import HistoryRow
from modelless.variants.vocabulary import Placement
from tests.unit.cli.tiny import host_facts

SMALL = Placement("pixels/mean/small@1", "cpu-1")
DRIFT = Drift(SMALL, 1.5, 1, 12.0)


def report(
    name: str, busy_share: float | None = 0.0, host: str = "here", **more: Any
) -> MemberReport:
    state = None
    if busy_share is not None:
        state = WorkerState(name, "cpu-1", 1 << 30, (), busy_share)
    return MemberReport(name, True, state, host=host, **more)


def test_members_learn_of_their_neighbours_and_clients_of_predictions(home: Path) -> None:
    async def talk() -> tuple[ControlLoop, Any]:
        loop = ControlLoop(home, Settings(), lambda effect: None)
        for name, p90 in (("a", 88.0), ("b", 92.0)):
            coverage = Coverage("cpu-1", 100, 50.0, 50.0, p90, 99.0, 5.0, 3)
            orders = await loop.exchange(report(name, 0.5, coverage=(coverage,)))
        return loop, orders

    loop, orders = asyncio.run(talk())
    assert orders.busy_neighbours == 0.5
    assert loop.status()["predictions"] == [
        {
            "device_class": "cpu-1",
            "outcomes": 200,
            "within_p50_percent": 50.0,
            "within_p90_percent": 90.0,
            "within_p99_percent": 99.0,
            "median_error_percent": 5.0,
            "ignored": 6,
        }
    ]
    assert loop.status()["drifted"] == []


def test_what_drifted_is_noted_once_and_shown(home: Path) -> None:
    async def talk() -> ControlLoop:
        loop = ControlLoop(home, Settings(), lambda effect: None)
        for _ in range(3):
            await loop.exchange(report("a", drifts=(DRIFT,)))
            await loop._drift_notes._writing
        return loop

    status = asyncio.run(talk()).status()
    assert status["drifted"] == [
        {"variant": SMALL.variant_id, "device_class": "cpu-1", "factor": 1.5}
    ]
    with closing(open_registry(home)) as registry:
        with registry.store.session() as session:
            (note,) = session.scalars(select(HistoryRow).where(HistoryRow.kind == KIND))
        assert note.subject == SMALL.variant_id
        assert "1.50 times" in note.reason
        assert set(drifted_placements(registry.store, host_facts())) == {SMALL}


def test_a_card_is_noted_under_the_fingerprint_of_cards(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = GpuFacts("A Card", 1 << 34, "570.1")
    facts = dataclasses.replace(host_facts(), gpus=(card,))
    monkeypatch.setattr(knowledge, "read_facts", lambda: facts)
    known = knowledge.read_knowledge(home, Settings())
    on_card = SMALL._replace(device_class="gpu-1")

    async def talk() -> None:
        notes = DriftNotes(home, known.fingerprints)
        notes.add([DRIFT, DRIFT._replace(placement=on_card)])
        await notes._writing

    asyncio.run(talk())
    with closing(open_registry(home)) as registry:
        for kind, noted in (("cpu", SMALL), ("gpu", on_card)):
            assert set(drifted_placements(registry.store, facts, kind)) == {noted}


def test_a_store_that_is_away_costs_the_note_and_nothing_else(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        notes = DriftNotes(home / "gone" / "store", {"cpu-1": "here"})
        for _ in range(2):
            notes.add([DRIFT])
            await notes._writing

    (home / "gone").write_text("a file where a folder should be")
    asyncio.run(talk())
    assert caplog.text.count("drifts are not noted") == 2
