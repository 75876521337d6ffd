"""The CSV schema: our rows survive a round trip; other people's mistakes are named."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.profiler.devices.known_devices import find_known_device
from modelless.profiler.measure.table import (
    COLUMNS,
    TableRow,
    read_table,
    rows_of,
    write_table,
)
from modelless.variants.vocabulary import DeviceClass

GOOD: dict[str, object] = {
    "source": "somewhere",
    "task": "imagenet",
    "model": "net",
    "family": "nets",
    "device": "A CPU",
    "device_kind": "cpu",
    "engine": "torch",
    "precision": "fp32",
    "resolution_px": 224,
    "batch": 4,
    "concurrency": "",
    "params_m": 5.3,
    "gmacs": 0.4,
    "mactivations_m": "",
    "layers": "",
    "latency_ms": 40.0,
    "latency_p99_ms": 44.0,
    "throughput_per_s": 100.0,
    "memory_mib": 120,
    "accuracy": -4.5,
    "accuracy_metric": "decibels",
}


def table(path: Path, *changes: dict[str, object], columns: tuple[str, ...] = COLUMNS) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows([GOOD | change for change in changes])
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profiles.csv"


def test_the_columns_are_the_schemas() -> None:
    assert ",".join(COLUMNS) == (
        "source,task,model,family,device,device_kind,engine,precision,resolution_px,batch,"
        "concurrency,params_m,gmacs,mactivations_m,layers,latency_ms,latency_p99_ms,"
        "throughput_per_s,memory_mib,accuracy,accuracy_metric,item_shape"
    )


def test_a_card_has_its_own_name_by_which_its_peaks_are_published(make: Any) -> None:
    card = DeviceClass("gpu-1", "gpu", 1, 1 << 34, 3.0, 300.0)
    row = make.measurement(device_class="gpu-1", device_name="NVIDIA L4")
    (found,) = rows_of([row], {row.variant_id: make.variant()}, {"gpu-1": card})
    assert (found.device, found.device_kind) == ("NVIDIA L4", "gpu")
    assert find_known_device(found.device, found.device_kind) is not None


def test_writing_that_fails_leaves_the_table_that_was_there(
    path: Path, full_disk: Callable[[], None]
) -> None:
    path.write_text("before")
    full_disk()
    with pytest.raises(OSError, match="No space left"):
        write_table(path, [])
    assert path.read_text() == "before"


def test_our_measurements_survive_a_round_trip(path: Path, make: Any) -> None:
    variants = {v.id: v for v in (make.variant(), make.variant(version=2))}
    measurements = [
        make.measurement(variant_id=variant, batch=batch)
        for variant in variants
        for batch in (1, 2)
    ]
    rows = rows_of(measurements, variants, {"cpu-1": make.device()}, {"imagenet/lite0": "lite"})
    write_table(path, rows)
    again = read_table(path)
    assert [row.key for row in again] == [row.key for row in rows]
    first = again[0]
    assert (first.source, first.model, first.family) == ("modelless", "lite0", "lite")
    assert (first.device, first.device_kind) == ("A Processor 100/cpu-1", "cpu")
    assert (first.latency_ms, first.latency_p99_ms) == (10.0, 13.0)
    assert first.memory_mib == pytest.approx(2_000_000 / 2**20, rel=1e-5)
    assert (first.params_m, first.gmacs, first.layers) == (4.65, 0.385, None)
    assert again[2].model == "lite0@2"


def test_measurements_of_the_unknown_cannot_be_written(make: Any) -> None:
    variant = make.variant()
    with pytest.raises(InvalidInputError, match="variant_id"):
        rows_of([make.measurement()], {}, {"cpu-1": make.device()})
    with pytest.raises(InvalidInputError, match="device_class"):
        rows_of([make.measurement()], {variant.id: variant}, {})


def test_blanks_are_unknown_and_other_columns_ignored(path: Path) -> None:
    (row,) = read_table(table(path, {"notes": "x"}, columns=(*COLUMNS, "notes")))
    assert isinstance(row, TableRow)
    assert (row.concurrency, row.layers, row.mactivations_m) == (None, None, None)
    assert (row.batch, row.accuracy) == (4, -4.5)


@pytest.mark.parametrize(
    ("column", "value", "allowed"),
    [
        ("latency_ms", "", "not blank"),
        ("latency_ms", "nan", "more than 0"),
        ("latency_ms", "inf", "more than 0"),
        ("latency_ms", "0", "more than 0"),
        ("latency_ms", "-3", "more than 0"),
        ("latency_ms", "fast", "more than 0"),
        ("batch", "1.5", "a whole number"),
        ("batch", "0", "a whole number"),
        ("throughput_per_s", "NaN", "Leave it blank"),
        ("memory_mib", "-1", "0 or more"),
        ("accuracy", "nan", "a finite number"),
    ],
)
def test_values_that_cannot_be_true(path: Path, column: str, value: str, allowed: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_table(table(path, {}, {column: value, "model": "second"}))
    message = str(caught.value)
    assert f"{path}, line 3: {column}" in message
    assert allowed in message


def test_missing_columns_are_all_named(path: Path) -> None:
    columns = tuple(name for name in COLUMNS if name not in ("batch", "layers"))
    with pytest.raises(InvalidInputError, match="Missing: batch, layers"):
        read_table(table(path, {}, columns=columns))


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"latency_ms": 0.04, "latency_p99_ms": 0.044}, "looks like seconds"),
        ({"latency_ms": 40_000.0, "latency_p99_ms": 44_000.0, "concurrency": 1}, "microseconds"),
        ({"latency_p99_ms": 0.044, "throughput_per_s": ""}, "which is less"),
        ({"latency_ms": 0.04, "throughput_per_s": ""}, "two units"),
        (
            {"latency_ms": 0.04, "latency_p99_ms": "", "throughput_per_s": ""},
            "multiply-adds on a cpu",
        ),
        ({"latency_ms": 1e7, "latency_p99_ms": "", "throughput_per_s": ""}, "outside"),
    ],
)
def test_another_unit_is_noticed(path: Path, change: dict[str, object], hint: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_table(table(path, {}, {"model": "second"} | change))
    assert "latency_ms on line 3" in str(caught.value)
    assert hint in str(caught.value)


def test_queueing_under_concurrency_is_no_unit_error(path: Path) -> None:
    change: dict[str, object] = {
        "concurrency": 256, "latency_ms": 40.0 * 256, "latency_p99_ms": 12_000.0,
    }  # fmt: skip
    assert len(read_table(table(path, change))) == 1


def test_a_point_may_occur_several_times(path: Path) -> None:
    table(path, {}, {"batch": 8, "latency_ms": 42.0}, {"latency_ms": 43.0})
    assert len(read_table(path)) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "columns"),
        (",".join(COLUMNS).encode() + b"\n", "at least one row"),
        (b"\xff\xfe\x00", "UTF-8"),
        (",".join(COLUMNS).encode() + b"\n1,2,3\n", "22 fields"),
        (",".join((*COLUMNS, "batch")).encode() + b"\n", "each column once"),
        (",".join(COLUMNS).encode() + b'\n"never closed', "well-formed"),
    ],
)
def test_files_that_are_no_such_table(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        read_table(path)


def test_a_file_that_is_not_there(path: Path) -> None:
    with pytest.raises(InvalidInputError, match="readable CSV"):
        read_table(path)


def test_sizes_are_kept_and_may_be_missing(path: Path, make: Any) -> None:
    rows = [make.measurement(shape=shape) for shape in ("x=1", "x=2x3")]
    written = rows_of(rows, {make.variant().id: make.variant()}, {"cpu-1": make.device()})
    write_table(path, written)
    assert [row.item_shape for row in read_table(path)] == ["x=1", "x=2x3"]
    without = [",".join(line.split(",")[:-1]) for line in path.read_text().splitlines()]
    path.write_text("\n".join(without))
    assert [row.item_shape for row in read_table(path)] == ["", ""]
