"""Measurements in a store: replaced by better ones, read back as they were, checked on the way."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError, StoreError
from modelless.profiler.measure.campaign import run_campaign
from modelless.profiler.measure.records import Records
from modelless.variants.store import MeasurementRow, Store


def test_what_is_added_is_read_back(store: Store, make: Any) -> None:
    records = Records(store)
    rows = [make.measurement(batch=batch, variant_id=name) for name in "ab" for batch in (1, 2)]
    for row in reversed(rows):
        assert records.add(row)
    records.add(make.measurement(fingerprint="another"))
    assert records.current(make.facts) == rows
    assert len(records.everything()) == 5


def test_those_of_all_kinds_of_devices_are_current(store: Store, make: Any) -> None:
    records = Records(store)
    on_cpu = make.measurement()
    on_card = make.measurement(device_class="gpu-1", fingerprint=make.facts.fingerprint_of("gpu"))
    for row in (on_cpu, on_card):
        assert records.add(row)
    assert records.current(make.facts) == [on_cpu, on_card]
    assert records.current(make.facts, "gpu") == [on_card]


def test_of_several_sizes_the_typical_one_is_current(store: Store, make: Any) -> None:
    records = Records(store)
    small, typical = (
        make.measurement(shape="x=1", is_typical=False), make.measurement(shape="x=2")
    )  # fmt: skip
    other = make.measurement(variant_id="other")
    for row in (other, small, typical):
        assert records.add(row)
    assert records.current(make.facts) == records.everything() == [typical, other]
    assert records.every_size(make.facts) == [small, typical, other]
    later = make.measurement(shape="x=1", measured_at=datetime(2026, 1, 1, tzinfo=UTC))
    records.add(later)
    assert records.current(make.facts) == [later, other]
    assert records.every_size(make.facts) == [later, typical, other]


def test_a_newer_measurement_takes_the_place_of_an_older(store: Store, make: Any) -> None:
    records = Records(store)
    untrusted, trusted, newer = (
        make.measurement(trusted=False),
        make.measurement(p50_s=0.009),
        make.measurement(p50_s=0.008, measured_at=datetime(2026, 1, 1, tzinfo=UTC)),
    )
    for row in (untrusted, trusted, newer):
        assert records.add(row)
        assert records.current(make.facts) == [row]
    assert not records.add(untrusted)
    assert records.current(make.facts) == [newer]


def test_another_version_of_an_engine_makes_only_its_own_measurements_old(
    store: Store, make: Any
) -> None:
    records = Records(store)
    cpu = make.measurement(variant_id="a")
    openvino = make.measurement(variant_id="b", engine="openvino-2025.1")
    for row in (cpu, openvino):
        records.add(row)
    both = dataclasses.replace(
        make.facts, engines={"onnxruntime-cpu": "1.20.1", "openvino": "2025.1"}
    )
    assert records.current(make.facts) == [cpu]
    assert records.current(both) == [cpu, openvino]
    newer = dataclasses.replace(both, engines={"onnxruntime-cpu": "1.21", "openvino": "2025.1"})
    assert records.current(newer) == [openvino]
    again = make.measurement(variant_id="a", engine="onnxruntime-cpu-1.21", trusted=False)
    assert records.add(again)
    assert records.current(newer) == [again, openvino]


def test_a_campaign_resumes_from_the_store(store: Store, bench: Any, make: Any) -> None:
    records = Records(store)
    first = run_campaign(make.jobs(2), records, make.facts, environment=bench.environment)
    assert len(first.measured) == 8
    assert (
        run_campaign(make.jobs(2), records, make.facts, environment=bench.environment).measured
        == ()
    )


def test_a_row_that_cannot_be_true_is_named(store: Store, make: Any) -> None:
    records = Records(store)
    records.add(make.measurement())
    with store.transaction() as session:
        session.query(MeasurementRow).update({"p50_s": -1.0})
    with pytest.raises(StoreError, match=r"cannot be true.*p50_s"):
        records.current(make.facts)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"repeats": 0},
        {"p50_s": math.nan},
        {"mean_s": 0.0},
        {"throughput_per_s": math.inf},
        {"memory_bytes": -1},
        {"noise": math.nan},
        {"p90_s": 0.001},
        {"measured_at": datetime(2025, 1, 1)},
    ],
)
def test_a_measurement_that_cannot_be_true_is_refused(make: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        make.measurement(**wrong)
