"""The profiles of the demo's variants: measured before anything is served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelless.common.errors import NotFoundError
from modelless.controller.cli.screen import show_progress
from modelless.controller.usecases.home import find_variants, open_home
from modelless.controller.usecases.measuring.profiling import find_jobs, measure_jobs
from modelless.controller.usecases.progress import Note
from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.campaign import CampaignResult, CampaignSettings
from modelless.profiler.measure.records import Records
from modelless.profiler.report import tradeoffs
from modelless.profiler.report.profiles import Profile, profiles_of
from modelless.variants.vocabulary import DeviceClass, Task


@dataclass(frozen=True, slots=True)
class Profiles:
    """Everything the demo knows before anything is served.

    Attributes:
        by_task: the variants that have a profile, quickest first.
        cores: of this host that may be used.
    """

    tasks: Mapping[str, Task]
    by_task: Mapping[str, Sequence[Profile]]
    device_class: DeviceClass
    cores: int
    cpu_model: str


def short_name(variant_id: str) -> str:
    """``imagenet/efficientnet-lite0/int8-224@1`` as ``lite0 int8-224``, fit for a table."""
    _, model, name = variant_id.rpartition("@")[0].split("/")
    return f"{model.removeprefix('efficientnet-').removeprefix('cnn-')} {name}"


def is_trusted(profile: Profile) -> bool:
    """Whether the machine was quiet enough at every point."""
    return all(point.trusted for point in profile.points)


def frontier(profiles: Iterable[Profile]) -> list[Profile]:
    """Those that no other equals or beats in both p99 and accuracy, quickest first."""
    return tradeoffs.frontier(profiles, lambda p: (p.points[0].p99_s, p.variant.accuracy.percent))


def measure_profiles(
    home: Path, tasks: Sequence[str], device_class: str, budget_s: float
) -> tuple[Profiles, CampaignResult]:
    """Measure every variant of ``tasks``, noise or not; what is known and trusted is kept.

    Without the strategy of ``modelless profile``, so that each variant gets a part of the budget.

    Raises:
        NotFoundError: a task is not registered, or no variant of it could be measured.
    """
    facts = read_facts()
    device = {known.name: known for known in default_device_classes(facts)}[device_class]
    with open_home(home) as registry, show_progress() as progress:
        catalog = registry.catalog()
        variants = find_variants(catalog, tasks)
        records = Records(registry.store)
        jobs, damaged = find_jobs(registry, catalog, variants, [device], progress)
        for placement, message in damaged.items():
            progress(Note(f"failed: {placement.variant_id}: {message}"))
        settings = CampaignSettings(budget_s=budget_s, accept_noise=True)
        result = measure_jobs(jobs, records, facts, settings, None, progress)
        rows = [row for row in records.current(facts) if row.device_class == device_class]
    found = profiles_of(rows, variants, {device.name: device})
    by_task = {
        name: sorted((p for p in found if p.variant.task == name), key=lambda p: p.points[0].p99_s)
        for name in tasks
    }
    for name, profiles in by_task.items():
        if not profiles:
            raise NotFoundError(
                f"no variant of {name!r} has a profile on {device_class}: run 'modelless profile'"
            )
    known_tasks = {name: catalog.tasks[name] for name in tasks}
    return Profiles(known_tasks, by_task, device, facts.cores, facts.cpu_model), result
