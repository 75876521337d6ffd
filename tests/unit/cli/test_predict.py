"""``modelless costmodel predict``: what a model would cost on a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelless.profiler.measure.table import write_table
from tests.unit.profiler.cost_model.unmeasured.worlds import multiples

from .conftest import Run
from .tiny import tiny_bytes

ROWS = multiples({"a": 1.0, "b": 3.0}, models=8, gmacs=1e-6)


@pytest.fixture
def predict(run: Run, tmp_path: Path) -> Any:
    """Runs the command on a tiny model."""
    (tmp_path / "net.onnx").write_bytes(tiny_bytes())

    def predict(device: str, *words: object) -> Any:
        return run(
            *("costmodel", "predict", "--model", "net.onnx", "--device-class", device, *words)
        )

    return predict


def imported(run: Run) -> None:
    write_table(Path("lab.csv"), ROWS)
    assert run("costmodel", "import", "lab.csv").code == 0


def test_a_class_of_this_machine_is_predicted_from_its_measurements(
    predict: Any, profiled: Path
) -> None:
    del profiled
    found = predict("cpu-1", "--json", "--batches", "1,4").document
    assert (found["model"], found["device"], found["device_kind"]) == ("net.onnx", "cpu-1", "cpu")
    assert found["shots"] == 12
    assert found["load_s"] == pytest.approx(0.05, rel=0.1)
    assert found["devices"] == []
    one, four = found["batches"]
    assert (one["batch"], four["batch"]) == (1, 4)
    assert one["low_ms"] < one["p50_ms"] < one["high_ms"]
    # Variants of the same shape take 5, 10 and 40 ms an item.
    assert 4.0 < one["p50_ms"] < 50.0
    assert 2.0 < four["p50_ms"] / one["p50_ms"] < 5.0
    assert one["memory_bytes"] == pytest.approx(3 << 20, rel=0.1)
    shown = predict("cpu-1")
    assert "80 % band ms" in shown.out
    assert "load time: 0.05 s" in shown.out
    assert "see 'modelless costmodel import'" in shown.err


def test_of_very_many_measurements_so_many_are_used_as_time_allows(
    predict: Any, tmp_path: Path
) -> None:
    """Each was once predicted at the batch sizes of all others."""
    rows = [replace(row, batch=1 + n, latency_ms=1.0 + n) for n in range(90) for row in ROWS[:8]]
    write_table(tmp_path / "many.csv", rows)
    assert predict("NVIDIA L4", "--shots", "many.csv", "--json").document["shots"] == 600


def test_devices_that_are_learned_from_are_named(predict: Any, run: Run) -> None:
    imported(run)
    found = predict("a", "--json").document
    assert {one["name"]: one["rows"] for one in found["devices"]} == {"a": 8, "b": 8}
    assert (found["device_kind"], found["is_published"], found["load_s"]) == ("cpu", False, None)
    shown = predict("a")
    assert "learned from b (cpu): 8 rows" in shown.out
    assert "no published figures are known of a" in shown.err


def test_a_published_device_is_of_its_kind(predict: Any) -> None:
    found = predict("NVIDIA L4", "--json").document
    assert (found["device_kind"], found["is_published"], found["shots"]) == ("gpu", True, 0)


def test_an_unknown_device_is_said_to_be_unknown(predict: Any, run: Run) -> None:
    imported(run)
    ran = predict("NVIDIA L5")
    assert ran.code == 3
    assert "is called 'NVIDIA L5'" in ran.err
    assert "NVIDIA L4" in ran.err


def test_shots_narrow_the_band_and_set_the_level(predict: Any, run: Run) -> None:
    imported(run)
    shots = [replace(one, device="new", latency_ms=7.0 * one.latency_ms) for one in ROWS[:4]]
    write_table(Path("shots.csv"), shots)
    before = predict("NVIDIA L4", "--json").document["batches"][0]
    found = predict("NVIDIA L4", "--shots", "shots.csv", "--json").document
    assert found["shots"] == 4
    after = found["batches"][0]
    assert after["high_ms"] / after["low_ms"] < before["high_ms"] / before["low_ms"]
    write_table(Path("shots.csv"), [*shots, replace(ROWS[0], device="other")])
    ran = predict("a", "--shots", "shots.csv")
    assert ran.code == 2
    assert "measurements of one device" in ran.err


def test_what_is_no_model_is_refused(predict: Any) -> None:
    Path("net.onnx").write_bytes(b"nothing")
    assert predict("cpu-1").code == 5
    Path("net.onnx").unlink()
    ran = predict("cpu-1")
    assert ran.code != 0
    assert "net.onnx" in ran.err
