"""Fakes at the production seams: a manual clock, a variant with set latencies, a set noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.jobs import MeasurementJob, MeasuringEnvironment
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.noise import Noise
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.vocabulary import (
    Accuracy,
    DeviceClass,
    Precision,
    Provenance,
    Variant,
)
from tests import builders


@dataclass
class ManualClock:
    """A clock that moves only when told to."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeLoaded:
    """A LoadedVariant whose runs take ``latencies_s(batch)`` of the manual clock."""

    variant: Variant
    threads: int
    clock: ManualClock
    latencies_s: Callable[[int], Iterator[float]]
    memory_bytes: int = 1000
    load_s: float = 0.25
    fail_at_batch: int | None = None
    unloaded: bool = False
    runs: list[int] = field(default_factory=list)
    _streams: dict[int, Iterator[float]] = field(default_factory=dict)

    def infer(self, inputs: Tensors) -> dict[str, np.ndarray[Any, Any]]:
        assert not self.unloaded
        batch = len(next(iter(inputs.values())))
        if batch == self.fail_at_batch:
            raise RuntimeError("no such batch")
        self.runs.append(batch)
        stream = self._streams.setdefault(batch, self.latencies_s(batch))
        self.clock.now_s += next(stream)
        return {}

    def unload(self) -> None:
        self.unloaded = True


@dataclass
class FakeGauge:
    """Noise as the test sets it: for the first probe, before a placement, during a point."""

    first: Noise = field(default_factory=Noise)
    during: Noise = field(default_factory=Noise)
    probes: int = 0
    queued: list[Noise] = field(default_factory=list)

    def probe(self, threads: int, runs: int) -> Noise:
        self.probes += 1
        return self.queued.pop(0) if self.queued else self.first

    def since(self, start_s: float, threads: int, spread: float) -> Noise:
        return Noise(spread, self.during.steal, self.during.contention)


@dataclass
class MemorySink:
    """Measurements kept in a list."""

    rows: list[Measurement] = field(default_factory=list)

    def current(self, facts: DeviceFacts, kind: str = "cpu") -> Sequence[Measurement]:
        return [
            row
            for row in self.rows
            if row.fingerprint == facts.fingerprint_of(kind) and row.engine in facts.engine_names
        ]

    def add(self, measurement: Measurement) -> None:
        self.rows.append(measurement)


def make_variant(name: str = "int8-224", model: str = "lite0", version: int = 1) -> Variant:
    return builders.make_variant(
        f"imagenet/{model}/{name}@{version}",
        precision=Precision.INT8,
        resolution_px=224,
        artifact_bytes=500,
        accuracy=Accuracy(74.4, "top-1", Provenance.PUBLISHED, "a page"),
        parameter_count=4_650_000,
        multiply_adds=385_000_000,
    )


def make_device(threads: int = 1) -> DeviceClass:
    return DeviceClass(f"cpu-{threads}", "cpu", threads, 1 << 30, 0.05 * threads, 8.0 * threads)


FACTS = DeviceFacts(
    cpu_model="A Processor 100",
    architecture="x86_64",
    cores=2,
    quota_cores=None,
    isa=("avx2",),
    cache_bytes={"L2": 1 << 20},
    memory_bytes=8 << 30,
    engines={"onnxruntime-cpu": "1.20.1"},
)


def make_measurement(**changes: Any) -> Measurement:
    values: dict[str, Any] = {
        "variant_id": "imagenet/lite0/int8-224@1",
        "device_class": "cpu-1",
        "batch": 1,
        "threads": 1,
        "engine": "onnxruntime-cpu-1.20.1",
        "device_name": FACTS.cpu_model,
        "repeats": 30,
        "p50_s": 0.010,
        "p90_s": 0.011,
        "p99_s": 0.013,
        "mean_s": 0.0102,
        "throughput_per_s": 1 / 0.0102,
        "memory_bytes": 2_000_000,
        "load_s": 0.3,
        "trusted": True,
        "noise": 0.1,
        "measured_at": datetime(2025, 1, 1, tzinfo=UTC),
        "fingerprint": FACTS.fingerprint,
    }
    return Measurement(**(values | changes))


@dataclass
class Bench:
    """A campaign's environment in the hand of a test.

    ``latency_s`` maps (variant id, batch) to the seconds of each run, which then varies by +-1 %.
    """

    latency_s: Callable[[str, int], float] = lambda _variant, batch: 0.010 * batch
    load_s: float = 0.1
    clock: ManualClock = field(default_factory=ManualClock)
    gauge: FakeGauge = field(default_factory=FakeGauge)
    fail_load: str | None = None
    fail_at_batch: int | None = None
    loaded: list[FakeLoaded] = field(default_factory=list)

    def load(self, job: MeasurementJob) -> FakeLoaded:
        if job.variant.id == self.fail_load:
            raise RuntimeError("cannot be loaded")
        self.clock.now_s += self.load_s
        one = FakeLoaded(
            job.variant,
            job.device.threads,
            self.clock,
            lambda batch: (
                self.latency_s(job.variant.id, batch) * wobble
                for wobble in cycle((1.0, 1.01, 0.99, 1.005, 0.995))
            ),
            load_s=self.load_s,
            fail_at_batch=self.fail_at_batch,
        )
        self.loaded.append(one)
        return one

    @property
    def environment(self) -> MeasuringEnvironment:
        return MeasuringEnvironment(
            clock=self.clock,
            now=lambda: datetime(2025, 1, 1, tzinfo=UTC),
            load=self.load,
            gauge=self.gauge,
            used_bytes=lambda kind: 10_000,
        )

    @property
    def runs(self) -> list[int]:
        return [batch for one in self.loaded for batch in one.runs]


def make_jobs(count: int = 3, threads: int = 1) -> list[MeasurementJob]:
    return [
        MeasurementJob(
            make_variant(f"v{number}"),
            make_device(threads),
            Path("none.onnx"),
            lambda batch: {"image": np.zeros((batch, 1), np.uint8)},
        )
        for number in range(count)
    ]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture(scope="session")
def make() -> Any:
    """The makers of this file, for tests that want variations."""

    class Makers:
        variant = staticmethod(make_variant)
        device = staticmethod(make_device)
        measurement = staticmethod(make_measurement)
        jobs = staticmethod(make_jobs)
        facts = FACTS
        clock = ManualClock
        loaded = FakeLoaded
        gauge = FakeGauge
        bench = Bench
        sink = MemorySink

    return Makers
