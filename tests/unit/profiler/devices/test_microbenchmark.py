"""The device's own benchmark: its arithmetic with a clock in hand, and once for real."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import onnx
import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.profiler.devices.microbenchmark import (
    MEMORY_BYTES,
    SAMPLES,
    BenchmarkEnvironment,
    DeviceRates,
    Probe,
    Quantity,
    host_environment,
    measure_rates,
    probes,
)
from modelless.profiler.measure.noise import Noise
from modelless.variants.graphs.item_graph import read_item_graph
from modelless.variants.graphs.multiply_adds import count_multiply_adds

# What the fake device does in a second, by quantity; a run costs 10 us besides.
RATES = {
    Quantity.COPY: 10e9,
    Quantity.PRODUCT: 50e9,
    Quantity.DEPTHWISE: 5e9,
    Quantity.RUN: 1e6,
    Quantity.CHAIN: 1e6,
}


@dataclass
class FakeDevice:
    """Runs probes by moving a manual clock; every ``slow_each``-th run takes ten times as long."""

    clock: Any
    gauge: Any
    absent: set[str] = field(default_factory=set)
    slow_each: int = 0
    run_s: float = 0.0
    runs: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def open_probe(self, probe: Probe, threads: int) -> Callable[[], None]:
        if probe.name in self.absent:
            raise EnvironmentUnfitError("no such kernel")
        self.threads.add(threads)

        def run() -> None:
            self.runs.append(probe.name)
            slow = self.slow_each and len(self.runs) % self.slow_each == 0
            duration_s = probe.work / RATES[probe.quantity] + self.run_s
            self.clock.now_s += duration_s * (10.0 if slow else 1.0)

        return run

    @property
    def environment(self) -> BenchmarkEnvironment:
        return BenchmarkEnvironment(
            self.open_probe, self.clock, self.gauge, lambda: datetime(2025, 1, 1, tzinfo=UTC)
        )


@pytest.fixture
def fake(make: Any) -> FakeDevice:
    return FakeDevice(make.clock(), make.gauge())


def test_rates_are_work_over_time(fake: FakeDevice, make: Any) -> None:
    rates = measure_rates(make.device(2), make.facts, environment=fake.environment)
    assert fake.threads == {2}
    assert rates.threads == 2
    assert rates.engine == "onnxruntime-cpu-1.20.1"
    assert rates.copy_bytes_per_s == pytest.approx({"memory": 10e9, "L2": 10e9, "L3": 10e9})
    assert rates.product_multiply_adds_per_s == pytest.approx(
        {"fp32": 50e9, "fp16": 50e9, "int8": 50e9}
    )
    assert rates.depthwise_multiply_adds_per_s == pytest.approx({"fp32": 5e9, "int8": 5e9})
    assert rates.operator_s == pytest.approx(1e-6)
    assert rates.run_s == pytest.approx(1e-6)
    assert (rates.trusted, rates.measured_at) == (True, "2025-01-01T00:00:00+00:00")
    assert all(spread == pytest.approx(0.0, abs=1e-6) for spread in rates.spread.values())


def test_what_a_run_costs_is_not_put_on_the_operators(fake: FakeDevice, make: Any) -> None:
    fake.run_s = 1e-5
    rates = measure_rates(make.device(), make.facts, environment=fake.environment)
    assert rates.run_s == pytest.approx(1.1e-5)
    assert rates.operator_s == pytest.approx(1e-6)


def test_bursts_spoil_no_median_and_show_in_the_spread(fake: FakeDevice, make: Any) -> None:
    wanted = [probe for probe in probes({}) if probe.name == "copy memory"]
    fake.slow_each = 4  # of the nine timed runs, which follow two others, two or three
    rates = measure_rates(make.device(), make.facts, environment=fake.environment, wanted=wanted)
    assert len(fake.runs) == SAMPLES + 2
    assert rates.copy_bytes_per_s == pytest.approx({"memory": 10e9})
    assert rates.spread["copy memory"] == pytest.approx(9.0)
    assert not rates.trusted


def test_probes_take_turns(fake: FakeDevice, make: Any) -> None:
    wanted = [probe for probe in probes({}) if probe.name in ("copy memory", "copy L3")]
    measure_rates(make.device(), make.facts, environment=fake.environment, wanted=wanted)
    changes = sum(a != b for a, b in zip(fake.runs, fake.runs[1:], strict=False))
    assert changes == 2 * SAMPLES + 1


def test_a_noisy_machine_is_not_trusted(fake: FakeDevice, make: Any) -> None:
    fake.gauge.during = Noise(contention=0.5)
    rates = measure_rates(make.device(), make.facts, environment=fake.environment)
    assert (rates.trusted, rates.noise) == (False, pytest.approx(2.0))


def test_what_the_engine_has_not_is_left_out(fake: FakeDevice, make: Any) -> None:
    fake.absent = {"product fp16", "depthwise int8", "chain"}
    rates = measure_rates(make.device(), make.facts, environment=fake.environment)
    assert set(rates.product_multiply_adds_per_s) == {"fp32", "int8"}
    assert set(rates.depthwise_multiply_adds_per_s) == {"fp32"}
    assert (rates.operator_s, rates.run_s) == (None, None)


def test_without_an_engine_there_are_no_rates(make: Any) -> None:
    environment = BenchmarkEnvironment(
        None, make.clock(), make.gauge(), lambda: datetime(2025, 1, 1, tzinfo=UTC)
    )
    rates = measure_rates(make.device(), make.facts, environment=environment)
    assert (rates.engine, rates.copy_bytes_per_s, rates.spread) == ("", {}, {})


def test_through_json_and_back(fake: FakeDevice, make: Any) -> None:
    rates = measure_rates(make.device(), make.facts, environment=fake.environment)
    document = json.loads(json.dumps(rates.document()))
    assert DeviceRates.of_document(document) == rates
    assert DeviceRates.of_document(document | {"benchmark": 99}) is None


@pytest.mark.parametrize("probe", probes({}), ids=lambda probe: probe.name)
def test_probes_do_the_work_they_say(probe: Probe) -> None:
    model = onnx.load_model_from_string(probe.model)
    onnx.checker.check_model(model, full_check=True)
    if probe.quantity in (Quantity.PRODUCT, Quantity.DEPTHWISE):
        assert count_multiply_adds(model) == probe.work
    if probe.quantity is Quantity.COPY:
        assert 2 * probe.feeds["x0"].nbytes * len(model.graph.node) == probe.work
    if probe.quantity in (Quantity.RUN, Quantity.CHAIN):
        assert len(model.graph.node) == probe.work
    assert read_item_graph(model).tensors["x1"].shape == probe.feeds["x0"].shape


def test_copies_fit_the_caches_they_are_named_after() -> None:
    sizes = {"L2": 2 << 20, "L3": 480 << 20}
    found = {probe.of: probe.feeds["x0"].nbytes for probe in probes(sizes) if "copy" in probe.name}
    assert found["L2"] <= sizes["L2"] // 2
    assert sizes["L2"] < found["L3"] <= 32 << 20  # a tenant's share of a large shared cache
    assert found["memory"] == MEMORY_BYTES


def test_for_real(make: Any) -> None:
    pytest.importorskip("onnxruntime")
    wanted = [probe for probe in probes({}) if probe.quantity is not Quantity.COPY]
    rates = measure_rates(make.device(), make.facts, environment=host_environment(), wanted=wanted)
    assert rates.engine
    # Wide enough for any machine of today, busy or not; a unit's mistake is far outside.
    assert 1e8 < rates.product_multiply_adds_per_s["fp32"] < 1e13
    assert 1e8 < rates.product_multiply_adds_per_s["int8"] < 1e14
    assert 1e7 < rates.depthwise_multiply_adds_per_s["fp32"] < 1e13
    assert rates.operator_s is not None
    assert rates.run_s is not None
    assert 1e-8 < rates.operator_s < 1e-4
    assert 1e-7 < rates.run_s < 1e-2
    assert np.isfinite(list(rates.spread.values())).all()
