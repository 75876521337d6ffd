"""``modelless device``: facts and rates of this machine, measured once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.microbenchmark import DeviceRates

from .conftest import Run
from .tiny import host_facts, rates


def test_facts_and_rates_as_json(run: Run, registered: Path) -> None:
    ran = run("device", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = ran.document
    assert found["facts"]["fingerprint"] == host_facts().fingerprint
    assert found["facts"]["cores"] == host_facts().cores
    assert found["facts"]["isa"] == list(host_facts().isa)
    names = [device.name for device in default_device_classes(host_facts())]
    assert [each["name"] for each in found["device_classes"]] == names
    first = found["device_classes"][0]
    assert first["rates"]["copy_bytes_per_s"] == {"L2": 60e9, "memory": 10e9}
    assert first["rates"]["spread"]["product fp32"] == 0.03


def test_a_table_for_a_person(run: Run, registered: Path) -> None:
    out = run("device").out
    assert host_facts().cpu_model in out
    assert "copy in memory, GB/s" in out
    assert "10 (10%)" in out
    assert "matrix product fp32, 10^9 multiply-adds/s" in out
    assert "50 (3%)" in out
    assert "one more operator, us" in out
    assert "1 (4%)" in out


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call asked for everything anew; what is found is noisy, then absent."""
    calls: list[bool] = []

    def describe(devices: Any, *_: Any, again: bool) -> dict[str, DeviceRates]:
        calls.append(again)
        found = rates(trusted=False, noise=3.0) if not again else DeviceRates(threads=1)
        return {device.name: found for device in devices}

    monkeypatch.setattr(
        "modelless.controller.usecases.measuring.profiling.describe_devices", describe
    )
    return calls


def test_noise_is_said(run: Run, registered: Path, asked: list[bool]) -> None:
    ran = run("device")
    assert asked == [False]
    assert "cpu-1 *" in ran.out
    assert "not trusted: it was too noisy" in ran.err


def test_an_absent_engine_is_said(run: Run, registered: Path, asked: list[bool]) -> None:
    ran = run("device", "--again")
    assert (ran.code, asked) == (0, [True])
    assert "pip install 'modelless[cpu]'" in ran.err
    assert "multiply-adds" not in ran.out
