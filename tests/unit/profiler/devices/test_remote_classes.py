"""A machine knows the device classes of other machines by their measurements."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.config import PoolSettings, Settings
from modelless.controller.live.knowledge import read_knowledge
from modelless.profiler.devices.device_records import DeviceRecords, read_remote_classes
from modelless.profiler.measure.records import Records
from modelless.variants.estimates import Load
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import DeviceClass, Placement
from tests.unit.cli.tiny import add_measurements, add_variants, measurement

CARD = DeviceClass("gpu-7", "gpu", 1, 1 << 34, 3.0, 300.0)
SMALL = "pixels/mean/small@1"


def on_the_card(fingerprint: str, day: int, p50_ms: float) -> Any:
    return measurement(
        SMALL,
        1,
        p50_ms,
        device_class=CARD.name,
        fingerprint=fingerprint,
        measured_at=datetime(2025, 1, day, tzinfo=UTC),
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    add_variants(tmp_path)
    add_measurements(tmp_path)
    with closing(open_registry(tmp_path)) as registry:
        records = Records(registry.store)
        records.add(on_the_card("older", 1, 9.0))
        records.add(on_the_card("newer", 2, 0.5))
    return tmp_path


def test_the_machine_that_was_measured_last_speaks_for_the_class(home: Path) -> None:
    with closing(open_registry(home)) as registry:
        assert read_remote_classes(registry.store, [CARD.name]) == [], "nobody described it"
        DeviceRecords(registry.store).note([CARD])
        DeviceRecords(registry.store).note([CARD])
        (there,) = read_remote_classes(registry.store, [CARD.name, "never-seen"])
        assert read_remote_classes(registry.store, []) == []
    assert there.device == CARD
    assert there.fingerprint == "newer"
    assert [row.p50_s for row in there.measured] == [0.0005]


def test_a_gateway_without_a_card_chooses_for_a_pool_with_one(home: Path) -> None:
    settings = Settings(pools=(PoolSettings(device_class=CARD.name),), serve_dominated=True)
    with closing(open_registry(home)) as registry:
        DeviceRecords(registry.store).note([CARD])
    knowledge = read_knowledge(home, settings)
    assert knowledge.device_class(CARD.name) == CARD
    assert knowledge.fingerprints[CARD.name] == "newer"
    found = knowledge.cost_model.estimate([Placement(SMALL, CARD.name)], 1, Load())
    assert found.p50_s[0] == pytest.approx(0.0005)
    (facts,) = [each for each in knowledge.variant_facts(2) if each.variant_id == SMALL]
    assert set(facts.memory_bytes) == {"cpu-1", CARD.name}
