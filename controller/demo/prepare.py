"""Profiling the demo's variants before anything is served."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.campaign import CampaignResult, CampaignSettings, run_campaign
from modelless.profiler.measure.inputs import sample_inputs
from modelless.profiler.measure.jobs import MeasurementJob
from modelless.profiler.measure.progress import Progress
from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry
from modelless.variants.runtimes.engines import runs_on


def profile_all(
    home: Path, tasks: Sequence[str], device_class: str, budget_s: float, progress: Progress
) -> CampaignResult:
    """Measure every variant of ``tasks``, noise or not; what is known and trusted is kept.

    Args:
        home: where the store is.
        tasks: names.
        device_class: to measure on.
        budget_s: time for all of it.
        progress: told of every step.
    """
    facts = read_facts()
    classes = {known.name: known for known in default_device_classes(facts)}
    with closing(open_registry(home)) as registry:
        catalog = registry.catalog()
        jobs = [
            MeasurementJob(
                variant,
                classes[device_class],
                registry.artifacts.fetch(variant.artifact_sha256),
                partial(sample_inputs, catalog.tasks[variant.task].inputs),
            )
            for name in tasks
            for variant in catalog.resolve(name).variants
            if runs_on(variant.engine, classes[device_class])
        ]
        settings = CampaignSettings(budget_s=budget_s, accept_noise=True)
        return run_campaign(jobs, Records(registry.store), facts, settings, progress)
