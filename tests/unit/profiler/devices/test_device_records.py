"""Device classes in the store: rates by machine, kept, replaced, forgotten, measured if absent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.devices.device_records import MOST_MACHINES, DeviceRecords, describe_devices
from modelless.profiler.devices.microbenchmark import DeviceRates
from modelless.variants.store import DeviceClassRow, Store
from modelless.variants.vocabulary import DeviceClass


@pytest.fixture
def records(store: Store) -> DeviceRecords:
    return DeviceRecords(store)


def rates(run_s: float = 1e-6, day: int = 1, **changes: Any) -> DeviceRates:
    values: dict[str, Any] = {
        "threads": 1,
        "engine": "onnxruntime-cpu-1.20.1",
        "copy_bytes_per_s": {"memory": 1e10},
        "run_s": run_s,
        "measured_at": f"2025-01-{day:02}T00:00:00+00:00",
    }
    return DeviceRates(**(values | changes))


def test_what_goes_in_comes_out(records: DeviceRecords, store: Store, make: Any) -> None:
    device, facts = make.device(), make.facts
    assert records.rates(device.name, facts.fingerprint) is None
    assert records.add(device, facts, rates())
    assert records.rates(device.name, facts.fingerprint) == rates()
    assert records.rates("cpu-2", facts.fingerprint) is None
    with store.session() as session:
        row = session.get_one(DeviceClassRow, "cpu-1")
    assert (row.kind, row.threads, row.memory_bytes) == ("cpu", 1, device.memory_bytes)
    assert row.facts[facts.fingerprint]["facts"]["cpu_model"] == facts.cpu_model


def test_machines_stand_side_by_side(records: DeviceRecords, make: Any) -> None:
    other = dataclasses.replace(make.facts, cpu_model="Another Processor 200")
    records.add(make.device(), make.facts, rates(1e-6))
    records.add(make.device(), other, rates(2e-6))
    for facts, expected in ((make.facts, 1e-6), (other, 2e-6)):
        found = records.rates("cpu-1", facts.fingerprint)
        assert found is not None
        assert found.run_s == expected


def test_noise_does_not_replace_what_is_trusted(records: DeviceRecords, make: Any) -> None:
    device, facts = make.device(), make.facts
    assert records.add(device, facts, rates(3e-6, trusted=False))
    assert records.add(device, facts, rates(1e-6))
    assert not records.add(device, facts, rates(9e-6, trusted=False))
    assert records.rates("cpu-1", facts.fingerprint) == rates(1e-6)
    assert records.add(device, facts, rates(2e-6))
    assert records.rates("cpu-1", facts.fingerprint) == rates(2e-6)


def test_the_oldest_machines_are_forgotten(records: DeviceRecords, make: Any) -> None:
    machines = [
        dataclasses.replace(make.facts, cpu_model=f"Processor {number}")
        for number in range(MOST_MACHINES + 2)
    ]
    for number, facts in enumerate(machines):
        at = f"2025-01-01T00:{number // 60:02}:{number % 60:02}+00:00"
        records.add(make.device(), facts, rates(measured_at=at))
    known = [records.rates("cpu-1", facts.fingerprint) is not None for facts in machines]
    assert known == [False, False] + [True] * MOST_MACHINES


class Meter:
    """Measures with set results, and counts."""

    def __init__(self, *results: DeviceRates) -> None:
        self.results = list(results)
        self.asked: list[str] = []

    def __call__(self, device: DeviceClass, facts: DeviceFacts) -> DeviceRates:
        self.asked.append(device.name)
        return self.results.pop(0)


def test_devices_are_measured_once(records: DeviceRecords, make: Any) -> None:
    devices = [make.device(1), make.device(2)]
    first = Meter(rates(1e-6), rates(2e-6))
    found = describe_devices(devices, make.facts, records, measure=first)
    assert first.asked == ["cpu-1", "cpu-2"]
    assert found == {"cpu-1": rates(1e-6), "cpu-2": rates(2e-6)}
    second = Meter()
    assert describe_devices(devices, make.facts, records, measure=second) == found
    again = Meter(rates(5e-6), rates(6e-6))
    anew = describe_devices(devices, make.facts, records, again=True, measure=again)
    assert anew == {"cpu-1": rates(5e-6), "cpu-2": rates(6e-6)}


def test_another_machine_is_measured_for_itself(records: DeviceRecords, make: Any) -> None:
    describe_devices([make.device()], make.facts, records, measure=Meter(rates()))
    other = dataclasses.replace(make.facts, cores=64)
    meter = Meter(rates(7e-6))
    assert describe_devices([make.device()], other, records, measure=meter) == {
        "cpu-1": rates(7e-6)
    }


def test_what_is_not_trusted_is_measured_again(records: DeviceRecords, make: Any) -> None:
    devices, facts = [make.device()], make.facts
    noisy = rates(9e-6, trusted=False)
    assert describe_devices(devices, facts, records, measure=Meter(noisy)) == {"cpu-1": noisy}
    quiet = Meter(rates(1e-6))
    assert describe_devices(devices, facts, records, measure=quiet) == {"cpu-1": rates(1e-6)}
    still = Meter(noisy)
    found = describe_devices(devices, facts, records, again=True, measure=still)
    assert found == {"cpu-1": rates(1e-6)}  # what is trusted stays


def test_without_an_engine_nothing_is_kept(records: DeviceRecords, make: Any) -> None:
    absent = DeviceRates(threads=1)
    found = describe_devices([make.device()], make.facts, records, measure=Meter(absent))
    assert found == {"cpu-1": absent}
    assert records.rates("cpu-1", make.facts.fingerprint) is None


def test_rates_of_another_version_of_the_engine_are_measured_anew(
    records: DeviceRecords, make: Any
) -> None:
    facts = dataclasses.replace(make.facts, engines={"onnxruntime-cpu": "1.20.1"})
    newer = dataclasses.replace(facts, engines={"onnxruntime-cpu": "1.21.0"})
    device = make.device()
    old, new = rates(), rates(engine="onnxruntime-cpu-1.21.0", trusted=False)
    assert records.add(device, facts, old)
    assert records.current([device], facts) == {device.name: old}
    assert records.current([device], newer) == {}
    found = describe_devices([device], newer, records, measure=Meter(new), accept_noise=True)
    assert found == {device.name: new}, "though noisy, as the others tell of another engine"
    assert records.current([device], newer) == found
    again = Meter(rates(5e-6))
    assert describe_devices([device], newer, records, measure=again, accept_noise=True) == found
