"""Profiling for commands: what is to be measured, and measuring it with progress on stderr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from modelless.common.errors import IntegrityError, ModellessError, NoisyMachineError
from modelless.controller.cli.screen import Steps, say
from modelless.variants.vocabulary import DeviceClass, Placement, Variant

if TYPE_CHECKING:
    from modelless.profiler.devices.device import DeviceFacts
    from modelless.profiler.measure.campaign import (
        CampaignResult,
        CampaignSettings,
        MeasurementStrategy,
    )
    from modelless.profiler.measure.jobs import MeasurementJob, MeasurementSink
    from modelless.profiler.measure.progress import ProgressEvent
    from modelless.variants.registry.catalog import Catalog
    from modelless.variants.registry.registry import Registry


def jobs_of(
    registry: Registry,
    catalog: Catalog,
    variants: Sequence[Variant],
    devices: Sequence[DeviceClass],
) -> tuple[list[MeasurementJob], Mapping[Placement, str]]:
    """The placements to measure, and those whose file is damaged, with what is wrong with it.

    Raises:
        IntegrityError: every file is damaged.
    """
    from modelless.profiler.measure.inputs import sample_inputs
    from modelless.profiler.measure.jobs import MeasurementJob
    from modelless.variants.runtimes.engines import ENGINES, runs_on

    jobs: list[MeasurementJob] = []
    damaged: dict[Placement, str] = {}
    error: ModellessError | None = None
    for variant in variants:
        fit = [device for device in devices if runs_on(variant.engine, device)]
        if not fit:
            kind = ENGINES[variant.engine].device_kind
            say(f"note: {variant.id} is left out: {variant.engine.value} runs on a {kind}")
            continue
        try:
            artifact = registry.artifacts.fetch(variant.artifact_sha256)
        except IntegrityError as damage:
            error = damage
            damaged.update({Placement(variant.id, d.name): str(damage) for d in fit})
            continue
        inputs = partial(sample_inputs, catalog.tasks[variant.task].inputs)
        jobs += [MeasurementJob(variant, device, artifact, inputs) for device in fit]
    if error is not None and not jobs:
        raise error
    return jobs, damaged


def measure_jobs(
    jobs: Sequence[MeasurementJob],
    records: MeasurementSink,
    facts: DeviceFacts,
    settings: CampaignSettings,
    strategy: MeasurementStrategy | None = None,
) -> CampaignResult:
    """Run the campaign with progress on stderr.

    Raises:
        NoisyMachineError: see ``run_campaign``; says which option measures all the same.
    """
    from modelless.profiler.measure.campaign import run_campaign

    with Steps("profiling") as steps:
        try:
            shown = partial(_show, steps)
            return run_campaign(jobs, records, facts, settings, shown, None, strategy)
        except NoisyMachineError as error:
            raise NoisyMachineError(f"{error} (--accept-noise)") from None
        except KeyboardInterrupt:
            steps.note("what was measured so far is kept; the same command goes on from here")
            raise


def _show(steps: Steps, event: ProgressEvent) -> None:
    now = ""
    if event.placement is not None:
        now = f"{event.placement.variant_id} on {event.placement.device_class}"
        if event.batch is not None:
            now += f", batch {event.batch}"
        if event.measurement is not None:
            now += f": {event.measurement.p50_s * 1e3:.2f} ms"
    if event.message:
        steps.note(f"failed: {now}: {event.message}")
    steps.at(event.done, event.total, now, event.eta_s)
