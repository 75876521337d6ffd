"""The inputs of a campaign: jobs, a store of measurements and a measuring environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from modelless.profiler.measure.inputs import warm_up_inputs
from modelless.profiler.measure.noise import HostNoise
from modelless.variants.runtimes import LoadedVariant, find_runtime
from modelless.variants.runtimes.resident_memory import resident_bytes
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.vocabulary import DeviceClass, Placement, Variant


@dataclass(frozen=True, slots=True)
class MeasurementJob:
    """One placement to measure.

    Attributes:
        variant, device: the placement.
        artifact: the variant's file.
        inputs: returns the tensors of a batch of so many items.
        shape, is_typical: of an item, see ``Measurement``.
    """

    variant: Variant
    device: DeviceClass
    artifact: Path
    inputs: Callable[[int], Tensors]
    shape: str = ""
    is_typical: bool = True

    @property
    def placement(self) -> Placement:
        return Placement(self.variant.id, self.device.name)


def load_job(job: MeasurementJob) -> LoadedVariant:
    """Load a job's variant with its engine, warmed up as for serving."""
    return find_runtime(job.variant.engine).load(
        job.variant, job.artifact, threads=job.device.threads, warm_up=warm_up_inputs(job.inputs)
    )


def used_bytes(kind: str) -> int:
    """Returns the memory in use for devices of ``kind``: of this process, or on the card."""
    if kind == "gpu":
        from modelless.variants.runtimes.cuda_runtime import Cuda

        return Cuda().used_bytes()
    return resident_bytes()


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class MeasuringEnvironment:
    """The clocks, engines and noise gauge of a campaign; tests substitute their own.

    Attributes:
        clock: monotonic clock, seconds; the gauge uses the same clock.
        now: returns the time of day.
        load: loads a job's variant.
        gauge: measures the noise of the machine.
        used_bytes: returns the memory in use for devices of a kind.
    """

    clock: Callable[[], float] = time.perf_counter
    now: Callable[[], datetime] = _utc_now
    load: Callable[[MeasurementJob], LoadedVariant] = load_job
    gauge: HostNoise = field(default_factory=HostNoise)
    used_bytes: Callable[[str], int] = used_bytes
