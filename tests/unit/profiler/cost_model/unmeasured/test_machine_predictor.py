"""The model that serves: this machine's measurements, and what is known of other devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modelless.profiler.cost_model.unmeasured.device_predictor import MOST_TRAINING_POINTS
from modelless.profiler.cost_model.unmeasured.machine_predictor import (
    ExpectedLatency,
    ItemNames,
    MachinePredictor,
)
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import SOURCE, PlacementFacts, TableRow
from modelless.variants.vocabulary import DeviceClass, Placement

from .worlds import multiples, row

ONE = DeviceClass("cpu-1", "cpu", 1, 1 << 30, 0.05, 8.0)
TWO = DeviceClass("cpu-2", "cpu", 2, 1 << 31, 0.10, 16.0)
THERE = multiples({"there": 1.0, "elsewhere": 4.0}, models=16, batch=1)


def placements_of(
    make: Any, rows: Sequence[TableRow], *devices: DeviceClass
) -> dict[Placement, PlacementFacts]:
    found = {}
    for one in rows:
        variant = replace(
            make.variant("fp32", model=one.model),
            multiply_adds=round(1e9 * (one.gmacs or 0.0)),
            parameter_count=round(1e6 * (one.params_m or 0.0)),
        )
        for device in devices:
            subject = PlacementFacts(variant, device, "a processor", "onnxruntime-cpu-1.20.1")
            found[Placement(variant.id, device.name)] = subject
    return found


def measured(
    make: Any, placements: Sequence[Placement], rows: Sequence[TableRow], factor: float
) -> list[Measurement]:
    """Each placement takes ``factor`` times the latency of its row."""
    return [
        make.measurement(
            variant_id=placement.variant_id,
            device_class=placement.device_class,
            batch=1,
            **dict.fromkeys(("p50_s", "p90_s", "p99_s", "mean_s"), factor * one.latency_ms / 1e3),
        )
        for placement, one in zip(placements, rows, strict=True)
    ]


def errors(found: ExpectedLatency, rows: Sequence[TableRow], factor: float) -> Any:
    truth_s = np.array([factor * one.latency_ms / 1e3 for one in rows])
    return np.abs(found.median_s / truth_s - 1.0)


def test_what_other_devices_measured_tells_of_a_new_one(make: Any) -> None:
    rows = [one for one in THERE if one.device == "there"]
    subjects = placements_of(make, rows, ONE)
    known = measured(make, list(subjects)[:4], rows[:4], 2.5)
    medians = {}
    for name, knowledge in (("alone", []), ("fleet", THERE)):
        model = MachinePredictor(shipped_prior(), subjects, (1,), knowledge)
        found = model.fit(known).predict(model.rows((one, 1) for one in list(subjects)[4:]))
        medians[name] = float(np.median(errors(found, rows[4:], 2.5)))
    assert medians["fleet"] < 0.03
    assert medians["alone"] > 3.0 * medians["fleet"]


def test_classes_of_one_machine_tell_of_each_other(make: Any) -> None:
    rows = [one for one in THERE if one.device == "there"]
    subjects = placements_of(make, rows, ONE, TWO)
    one, two = (
        [each for each in subjects if each.device_class == name] for name in ("cpu-1", "cpu-2")
    )
    known = measured(make, one, rows, 1.0) + measured(make, two[:4], rows[:4], 0.6)
    model = MachinePredictor(shipped_prior(), subjects, (1,))
    found = model.fit(known).predict(model.rows((each, 1) for each in two[4:]))
    assert float(np.median(errors(found, rows[4:], 0.6))) < 0.05


def test_devices_that_are_learned_from_are_named_the_nearest_first(make: Any) -> None:
    rows = [one for one in THERE if one.device == "there"]
    strangers = multiples({"card": 0.1}, models=5, device_kind="gpu", source="other", model="else")
    model = MachinePredictor(
        shipped_prior(), placements_of(make, rows, ONE), (1,), [*strangers, *THERE]
    )
    found = [(one.name, one.same_items) for one in model.learned_from("cpu-1")]
    assert set(found[:2]) == {("there", 16), ("elsewhere", 16)}
    assert found[2] == ("card", 0)


def test_no_more_is_learned_from_than_time_allows(make: Any) -> None:
    many = multiples({f"d{n}": 1.0 + n for n in range(6)}, models=300)
    rows = many[:3]
    model = MachinePredictor(shipped_prior(), placements_of(make, rows, ONE), (1,), many)
    found = model.learned_from("cpu-1")
    assert sum(one.rows for one in found) == MOST_TRAINING_POINTS
    assert all(one.same_items == 3 for one in found)


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({"model": "Net_1"}, True),
        ({"resolution_px": None}, True),
        ({"gmacs": 0.6}, True),
        ({"gmacs": None, "params_m": None}, True),
        ({"resolution_px": 256}, False),
        ({"gmacs": 1.5}, False),
        ({"params_m": 50.0}, False),
        ({"model": "net-11"}, False),
    ],
)
def test_an_item_is_the_same_by_name_resolution_and_size(
    changes: dict[str, Any], is_same: bool
) -> None:
    own = row(source=SOURCE, task="mine", model="net-1", device="here")
    theirs = row(**{"model": "net-1", "task": "theirs", "family": "nets", **changes})
    found = ItemNames([theirs], [own]).rename(own)
    if is_same:
        assert (found.source, found.task, found.model) == ("lab", "theirs", theirs.model)
        assert found.resolution_px == theirs.resolution_px
    else:
        assert found == own


def test_rows_of_a_registry_keep_one_source() -> None:
    own = [row(source=SOURCE, model=f"net-{n}") for n in range(3)]
    names = ItemNames(
        [row(source="a", model="net-1"), *(row(source="b", model=f"net-{n}") for n in (0, 1))], own
    )
    assert [names.rename(one).source for one in own] == ["b", "b", "b"]
    other = row(source="a")
    assert names.rename(other) is other
