"""``modelless profile``: measures what variants cost on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelless.common.errors import (
    InvalidInputError,
)
from modelless.controller.cli.arguments import (
    DeviceClasses,
    Scopes,
    batches_of,
    names_of,
    seconds_of,
    share_of,
)
from modelless.controller.cli.campaigns import jobs_of, measure_jobs
from modelless.controller.cli.screen import Json, emit, home_of, say
from modelless.variants.vocabulary import DeviceClass, Placement, Variant

if TYPE_CHECKING:
    from modelless.profiler.devices.device import DeviceFacts
    from modelless.profiler.devices.device_records import DeviceRecords
    from modelless.profiler.devices.microbenchmark import DeviceRates
    from modelless.profiler.measure.campaign import MeasurementStrategy
    from modelless.profiler.measure.jobs import MeasurementJob, MeasurementSink
    from modelless.profiler.measure.measurement import Measurement
    from modelless.variants.registry.catalog import Catalog
    from modelless.variants.registry.registry import Registry

DEVICE_SHARE = 0.1
"""The part of a budget that measuring the device itself may take."""

EPILOG = (
    "Examples: modelless profile imagenet --budget 90s --csv imagenet.csv; "
    "modelless profile report imagenet (pictures of what was measured); "
    "modelless profile -- report (a task called report)"
)


def profile(
    ctx: typer.Context,
    scopes: Scopes = None,
    device_class: DeviceClasses = "cpu-1",
    batches: Annotated[
        str, typer.Option("--batches", metavar="N,...", help="Batch sizes to measure.")
    ] = "1,2,4,8",
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Time for all of it, e.g. 60s: spent on the measurements that improve "
            "predictions most.",
        ),
    ] = None,
    target_error: Annotated[
        str | None,
        typer.Option(
            "--target-error",
            metavar="PERCENT",
            help="Stop when the rest is predicted this well (median error), e.g. 5%.",
        ),
    ] = None,
    accept_noise: Annotated[
        bool,
        typer.Option(
            "--accept-noise", help="Measure on a noisy machine too; marked as not trusted."
        ),
    ] = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the measurements as CSV.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure what is measured already, too.")
    ] = False,
    drifted: Annotated[
        bool,
        typer.Option(
            "--drifted",
            help="Measure again only what was slower or quicker in service than its profile.",
        ),
    ] = False,
    neighbours: Annotated[
        bool,
        typer.Option(
            "--neighbours",
            help="Also run a few in pairs: what devices of one host cost each other.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure what variants cost on this machine.

    Latency by batch, throughput, memory, load time. What was measured here before is not measured
    again, so an interrupted run goes on where it was left; --drifted measures only what was slower
    or quicker in service since. A machine too noisy to be trusted is refused with exit
    code 10. The device itself is measured first, once: see 'modelless device'.
    """
    sizes = batches_of(batches)
    budget_s = None if budget is None else seconds_of("budget", budget)
    target = None if target_error is None else share_of("target-error", target_error)
    class_names = names_of("device-class", device_class)
    if csv_file is not None:
        _check_writable(csv_file)

    from modelless.controller.cli import profile_neighbours, profile_summary
    from modelless.profiler.cost_model.drift_history import drifted_placements
    from modelless.profiler.devices.device import default_device_classes
    from modelless.profiler.devices.device_records import DeviceRecords
    from modelless.profiler.devices.host import read_facts
    from modelless.profiler.measure.campaign import CampaignSettings
    from modelless.profiler.measure.pair_records import PairRecords
    from modelless.profiler.measure.records import Records
    from modelless.variants.registry.registry import open_registry

    facts = read_facts()
    devices = pick_device_classes(class_names, default_device_classes(facts))
    with closing(open_registry(home_of(ctx))) as registry:
        catalog = registry.catalog()
        variants = in_scopes(catalog, scopes or [])
        records = Records(registry.store)
        jobs, damaged = jobs_of(registry, catalog, variants, devices)
        device_records = DeviceRecords(registry.store)
        device_records.note(devices)
        rates, spent_s = _describe(devices, facts, device_records, budget_s)
        if budget_s is not None:
            budget_s -= spent_s
        settings = CampaignSettings(batches=sizes, budget_s=budget_s, accept_noise=accept_noise)
        wrong: set[Placement] = set()
        if drifted:
            for kind in {device.kind for device in devices}:
                wrong |= drifted_placements(registry.store, facts, kind)
        chosen = [job for job in jobs if not drifted or job.placement in wrong]
        strategy = None
        if target is not None or budget_s is not None:
            strategy = _agenda(registry, catalog, chosen, facts, sizes, target, rates)
        sink = _Anew(records) if again or drifted else records
        result = measure_jobs(chosen, sink, facts, settings, strategy)
        wanted = {Placement(v.id, device.name) for v in variants for device in devices}
        kinds = sorted({device.kind for device in devices})
        rows = [
            row for kind in kinds for row in records.current(facts, kind) if row.placement in wanted
        ]
        pairs = []
        if neighbours:
            pairs = profile_neighbours.measure_neighbours(
                jobs, rows, PairRecords(registry.store), facts, accept_noise=accept_noise
            )
    failed = {**damaged, **result.failed}
    summary = profile_summary.Summary(
        {variant.id: variant for variant in variants},
        {device.name: device for device in devices},
        {f"{model.task}/{model.name}": model.family for model in catalog.models.values()},
        rows,
        result,
        failed,
        rates,
    )
    if csv_file is not None:
        summary.write_csv(csv_file)
        say(f"wrote {len(rows)} rows to {csv_file}")
    if as_json:
        emit({**summary.document(), "neighbours": profile_neighbours.neighbours_document(pairs)})
    else:
        summary.show()
        if pairs:
            profile_neighbours.show_neighbours(pairs)
    if drifted and not chosen:
        say("nothing was slower or quicker in service than its profile")
    for line in summary.remarks():
        say(line)
    if failed:
        raise typer.Exit(1)


def in_scopes(catalog: Catalog, scopes: Sequence[str]) -> tuple[Variant, ...]:
    """The variants that the names take in, each once; all of them without names.

    Raises:
        NotFoundError: an unknown name, or nothing is registered.
    """
    names = list(scopes) or list(catalog.tasks)
    if not names:
        from modelless.common.errors import NotFoundError

        raise NotFoundError(
            "nothing is registered yet: 'modelless zoo list' shows what can be added"
        )
    found = {variant.id: variant for name in names for variant in catalog.resolve(name).variants}
    return tuple(found.values())


def pick_device_classes(
    names: Sequence[str], known: Sequence[DeviceClass]
) -> tuple[DeviceClass, ...]:
    """The device classes of those names; InvalidInputError says which this machine has."""
    by_name = {device.name: device for device in known}
    for name in names:
        if name not in by_name:
            raise InvalidInputError.of("device-class", name, ", ".join(by_name))
    return tuple(by_name[name] for name in names)


@dataclass(frozen=True, slots=True)
class _Anew:
    """Records that seem empty, so that everything is measured; what was there stays until then."""

    records: MeasurementSink

    def current(self, facts: DeviceFacts, kind: str = "cpu") -> Sequence[Measurement]:
        """Nothing."""
        del facts, kind
        return ()

    def add(self, measurement: Measurement) -> object:
        """See ``Records.add``."""
        return self.records.add(measurement)


def _describe(
    devices: Sequence[DeviceClass],
    facts: DeviceFacts,
    records: DeviceRecords,
    budget_s: float | None,
) -> tuple[Mapping[str, DeviceRates], float]:
    """What the devices do in a second, and the seconds it took to find out.

    Within a tight budget they are left as they are known: variants come first.
    """
    from modelless.profiler.devices.device_records import describe_devices
    from modelless.profiler.devices.microbenchmark import TYPICAL_S

    if budget_s is not None and budget_s < TYPICAL_S * len(devices) / DEVICE_SHARE:
        return records.current(devices, facts), 0.0
    started_s = time.perf_counter()
    return describe_devices(devices, facts, records), time.perf_counter() - started_s


def _agenda(
    registry: Registry,
    catalog: Catalog,
    jobs: Sequence[MeasurementJob],
    facts: DeviceFacts,
    batches: Sequence[int],
    target_error: float | None,
    rates: Mapping[str, DeviceRates],
) -> MeasurementStrategy:
    """Measures what tells most of all the jobs."""
    from modelless.profiler.cost_model.learned.experiment_design import BayesianDesign
    from modelless.profiler.cost_model.learned.prior import shipped_prior
    from modelless.profiler.cost_model.placement_facts import describe_placements

    variants = {job.variant.id: job.variant for job in jobs}
    devices = {job.device.name: job.device for job in jobs}
    subjects = describe_placements(
        variants.values(),
        devices.values(),
        facts,
        catalog.models.values(),
        registry.graph_facts,
        rates,
    )
    return BayesianDesign(shipped_prior(), subjects, batches, target_error)


def _check_writable(path: Path) -> None:
    """Raise now, not after a minute of measuring, if the file cannot be written."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidInputError.of("--csv", str(path), "a file in a folder that can be written")
