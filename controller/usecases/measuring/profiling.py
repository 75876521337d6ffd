"""Profiling: what variants cost on this machine, alone and beside each other; and the machine."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from modelless.common.errors import IntegrityError, InvalidInputError, ModellessError
from modelless.controller.usecases.home import (
    AnyPath,
    Home,
    accuracy_fields,
    check_writable,
    find_variants,
    open_home,
    path_or_none,
    pick_device_classes,
    writing,
)
from modelless.controller.usecases.progress import Note, Progress, Step, ignore
from modelless.profiler.cost_model.drift_history import drifted_placements
from modelless.profiler.cost_model.serving_model import best_points
from modelless.profiler.cost_model.slowdowns import PairRun
from modelless.profiler.devices.device import DeviceFacts, default_device_classes
from modelless.profiler.devices.device_records import DeviceRecords, describe_devices
from modelless.profiler.devices.host import read_facts
from modelless.profiler.devices.known_devices import KnownDevice, find_known_device
from modelless.profiler.devices.microbenchmark import TYPICAL_S, DeviceRates
from modelless.profiler.measure.campaign import (
    BATCHES,
    CampaignResult,
    CampaignSettings,
    EventKind,
    MeasurementStrategy,
    ProgressEvent,
    run_campaign,
)
from modelless.profiler.measure.inputs import FREE_AXIS, sample_inputs
from modelless.profiler.measure.item_shapes import (
    ItemShape,
    free_sizes,
    has_free_axes,
    parse_shapes,
    write_shape,
)
from modelless.profiler.measure.jobs import MeasurementJob
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.neighbours import choose_representatives, run_pairs
from modelless.profiler.measure.records import PairRecords, Records
from modelless.profiler.measure.table import rows_of, write_table
from modelless.variants.registry.catalog import Catalog
from modelless.variants.registry.outcomes import latest_item_shapes, latest_item_texts
from modelless.variants.registry.registry import Registry
from modelless.variants.runtimes.engines import ENGINES, engine_status, runs_on
from modelless.variants.signature import TEXT
from modelless.variants.vocabulary import DeviceClass, Placement, Task, Variant

DEVICE_SHARE = 0.1
"""The part of a budget that measuring the device itself may take."""


@dataclass(frozen=True)
class Profiles:
    """The figures of some placements on this machine.

    Attributes:
        families: of models, by ``task/model``.
        measurements: all of the placements on this machine, a row a batch and size.
        campaign: what was measured now, what was skipped, and why.
        rates: what the device classes compute in a second, as far as it is known, by name.
        pairs: runs of two placements side by side.
    """

    variants: Mapping[str, Variant]
    devices: Mapping[str, DeviceClass]
    families: Mapping[str, str]
    measurements: Sequence[Measurement]
    campaign: CampaignResult
    failed: Mapping[Placement, str]
    rates: Mapping[str, DeviceRates]
    pairs: Sequence[PairRun] = ()

    def by_placement(self) -> Iterator[tuple[Placement, str, dict[int, Measurement]]]:
        """Each placement and size with its measurements by batch, small sizes first."""
        found: dict[Placement, dict[str, dict[int, Measurement]]] = {}
        for row in sorted(self.measurements, key=lambda row: row.elements):
            found.setdefault(row.placement, {}).setdefault(row.shape, {})[row.batch] = row
        for placement in (Placement(v, device) for v in self.variants for device in self.devices):
            for shape, by_batch in found.get(placement, {}).items():
                yield placement, shape, by_batch

    def document(self) -> dict[str, Any]:
        measured = {(row.placement, row.shape, row.batch) for row in self.campaign.measured}
        first = self.measurements[0] if self.measurements else None
        return {
            "device": first and first.device_name,
            "fingerprint": first and first.fingerprint,
            "rates": {name: rates_document(each) for name, each in self.rates.items()},
            "elapsed_s": self.campaign.elapsed_s,
            "measured": len(self.campaign.measured),
            "placements": [
                {
                    **_placement_fields(placement),
                    **accuracy_fields(self.variants[placement.variant_id].accuracy),
                    "item_shape": shape or None,
                    "is_typical": all(row.is_typical for row in by_batch.values()),
                    "batches": [
                        {**_point(row), "measured_now": (placement, shape, row.batch) in measured}
                        for row in by_batch.values()
                    ],
                }
                for placement, shape, by_batch in self.by_placement()
            ],
            "skipped": [
                {**_placement_fields(placement), "batch": batch, "reason": reason.value}
                for (placement, batch), reason in self.campaign.skipped.items()
            ],
            "failed": [
                {**_placement_fields(placement), "error": message}
                for placement, message in self.failed.items()
            ],
            "neighbours": [_pair(run) for run in self.pairs],
        }

    def write_csv(self, path: Path) -> None:
        """Write the measurements in the schema that all profiles share.

        Raises:
            InvalidInputError: the file cannot be written.
        """
        rows = rows_of(self.measurements, self.variants, self.devices, self.families)
        with writing("--csv", path, "file"):
            write_table(path, rows)


def profile(
    *scopes: str,
    device_classes: Sequence[str] = ("cpu-1",),
    batches: Sequence[int] = BATCHES,
    shapes: Mapping[str, Sequence[Sequence[int]]] | None = None,
    budget_s: float | None = None,
    target_error: float | None = None,
    accept_noise: bool = False,
    again: bool = False,
    drifted: bool = False,
    neighbours: bool = False,
    csv: AnyPath | None = None,
    home: Home = None,
    on_progress: Progress = ignore,
) -> Profiles:
    """Measure what variants cost on this machine: latency by batch, throughput, memory, load time.

    Trusted measurements of this machine are not repeated, so an interrupted run goes on where it
    stopped.

    Args:
        scopes: ``task``, ``task/model`` or ``task/model/variant``; none is everything.
        device_classes: names, such as ``cpu-1``.
        batches: sizes to measure, ascending.
        shapes: of an item by input, where tasks leave sizes free, e.g. ``{"image": [(48, 320)]}``;
            default: some of those that accuracy was measured on. The middle one counts as typical;
            the others are measured at the smallest and the largest batch.
        budget_s: time for all of it, spent on the measurements that improve predictions most.
        target_error: stop when the rest is predicted this well: median relative error, 0.05 is 5 %.
        accept_noise: do not wait a moment for a quiet machine. On one that stays noisy, the
            latencies are wider, and the measurements are not trusted.
        again: measure again what is measured already.
        drifted: measure again only what was slower or quicker in service than its profile.
        neighbours: also run a few placements in pairs.
        csv: write the measurements to this file.
        home: see ``home_folder``.
        on_progress: receives the progress.

    Raises:
        NotFoundError: an unknown scope, or nothing is registered.
        InvalidInputError: an unknown device class, or a file that cannot be written.

    Examples:
        >>> profiles = modelless.profile("imagenet", budget_s=90)  # doctest: +SKIP
        >>> [(row.variant_id, row.batch, row.p50_s) for row in profiles.measurements]
        ... # doctest: +SKIP
    """
    csv_file = path_or_none(csv)
    if csv_file is not None:  # checked before anything is measured
        check_writable("--csv", csv_file)
    facts = read_facts()
    devices = pick_device_classes(device_classes, default_device_classes(facts))
    kinds = sorted({device.kind for device in devices})
    with open_home(home) as registry:
        catalog = registry.catalog()
        variants = find_variants(catalog, scopes)
        records = Records(registry.store)
        jobs, damaged = find_jobs(registry, catalog, variants, devices, on_progress, shapes or {})
        device_records = DeviceRecords(registry.store)
        device_records.note(devices)
        rates, spent_s = _describe(devices, facts, device_records, budget_s)
        if budget_s is not None:
            budget_s -= spent_s
        settings = CampaignSettings(
            batches=tuple(batches),
            budget_s=budget_s,
            accept_noise=accept_noise,
            again=again or drifted,
        )
        chosen = jobs
        if drifted:
            changed = {p for kind in kinds for p in drifted_placements(registry.store, facts, kind)}
            chosen = [job for job in jobs if job.placement in changed]
            if not chosen:
                on_progress(Note("nothing was slower or quicker in service than its profile"))
        strategy = None
        if target_error is not None or budget_s is not None:
            typical = [job for job in chosen if job.is_typical]
            strategy = _strategy(registry, catalog, typical, facts, batches, target_error, rates)
        result = measure_jobs(chosen, records, facts, settings, strategy, on_progress)
        wanted = {Placement(v.id, device.name) for v in variants for device in devices}
        rows = [row for row in records.every_size(facts) if row.placement in wanted]
        pairs: list[PairRun] = []
        if neighbours:
            kept = PairRecords(registry.store)
            pairs = _measure_pairs(jobs, records, kept, facts, accept_noise, on_progress)
    profiles = Profiles(
        {variant.id: variant for variant in variants},
        {device.name: device for device in devices},
        {f"{model.task}/{model.name}": model.family for model in catalog.models.values()},
        rows,
        result,
        {**damaged, **result.failed},
        rates,
        pairs,
    )
    if csv_file is not None:
        profiles.write_csv(csv_file)
        on_progress(Note(f"wrote {len(rows)} rows to {csv_file}"))
    return profiles


def find_jobs(
    registry: Registry,
    catalog: Catalog,
    variants: Sequence[Variant],
    devices: Sequence[DeviceClass],
    on_progress: Progress,
    shapes: Mapping[str, Sequence[Sequence[int]]] = MappingProxyType({}),
) -> tuple[list[MeasurementJob], Mapping[Placement, str]]:
    """The placements to measure, at each size of their items, and the errors of damaged files.

    Args:
        registry: holds the files, and sizes and texts of the items that accuracy was measured on.

    Raises:
        IntegrityError: every file is damaged.
        InvalidInputError: no task takes such shapes.
    """
    tasks = {catalog.tasks[variant.task] for variant in variants}
    shapes_of = _shapes_of(registry, tasks, shapes, on_progress)
    texts_of = {task.name: _texts_of(registry, task, on_progress) for task in tasks}
    jobs: list[MeasurementJob] = []
    damaged: dict[Placement, str] = {}
    error: ModellessError | None = None
    for variant in variants:
        fit = [device for device in devices if runs_on(variant.engine, device)]
        if not fit:
            only = f"{variant.engine.value} runs on a {ENGINES[variant.engine].device_kind}"
            on_progress(Note(f"note: {variant.id} is left out: {only}"))
            continue
        try:
            artifact = registry.artifacts.fetch(variant.artifact_sha256)
        except IntegrityError as damage:
            error = damage
            damaged.update({Placement(variant.id, d.name): str(damage) for d in fit})
            continue
        specs, texts = catalog.tasks[variant.task].inputs, texts_of[variant.task]
        inputs = partial(sample_inputs, specs, texts=texts)
        for place, shape in enumerate(shapes_of[variant.task] or [None]):
            if shape is None:
                jobs += [MeasurementJob(variant, device, artifact, inputs) for device in fit]
                continue
            sizes = free_sizes(specs, shape)
            sized, name = partial(inputs, free_axes=sizes), write_shape(shape)
            jobs += [MeasurementJob(variant, d, artifact, sized, name, place == 0) for d in fit]
    if error is not None and not jobs:
        raise error
    return jobs, damaged


def _shapes_of(
    registry: Registry,
    tasks: Collection[Task],
    shapes: Mapping[str, Sequence[Sequence[int]]],
    on_progress: Progress,
) -> dict[str, list[ItemShape]]:
    """The shapes to measure by task, the typical one first; none where nothing is known."""
    free = {task.name: task for task in tasks if has_free_axes(task.inputs)}
    takers = {
        name for name, t in free.items() if {spec.name for spec in t.inputs}.intersection(shapes)
    }
    if shapes and not takers:
        inputs = sorted({spec.name for task in free.values() for spec in task.inputs})
        raise InvalidInputError.of("shape", sorted(shapes), f"inputs with free sizes: {inputs}")
    found: dict[str, list[ItemShape]] = {task.name: [] for task in tasks}
    for name, task in sorted(free.items()):
        if name in takers:
            ascending = parse_shapes(task.inputs, shapes)
            middle = ascending.pop(len(ascending) // 2)
            found[name] = [middle, *ascending]
        else:
            known = latest_item_shapes(registry.store, name)
            found[name] = [shape for shape in known if _fits(task, shape)]
        if not found[name]:
            on_progress(
                Note(
                    f"note: items of task {name} may be of any size and none is known: measured at "
                    f"{FREE_AXIS}; name sizes with --shape, or measure accuracy on your own items"
                )
            )
    return found


def _texts_of(registry: Registry, task: Task, on_progress: Progress) -> Mapping[str, Sequence[str]]:
    """Texts to measure with, by input; none where nothing is known."""
    wanted = [spec.name for spec in task.inputs if spec.datatype == TEXT]
    known = latest_item_texts(registry.store, task.name) if wanted else {}
    if set(wanted) - set(known):
        on_progress(
            Note(
                f"note: no texts of task {task.name} are known: measured with short numbers; "
                "measure accuracy on your own items first"
            )
        )
    return known


def _fits(task: Task, shape: ItemShape) -> bool:
    """Whether items of this shape are the task's, which may have been described anew."""
    try:
        free = {spec.name for spec in task.inputs if min(spec.shape[1:], default=1) < 0}
        given = {name: [sizes] for name, sizes in shape.items() if name in free}
        return parse_shapes(task.inputs, given) == [shape]
    except InvalidInputError:
        return False


_BUSY: Final = (
    "Latencies come out wider and are not trusted; once it is quiet, the same command measures "
    "them again"
)


def measure_jobs(
    jobs: Sequence[MeasurementJob],
    records: Records,
    facts: DeviceFacts,
    settings: CampaignSettings,
    strategy: MeasurementStrategy | None,
    on_progress: Progress,
) -> CampaignResult:
    """Run a campaign and report its progress: at typical sizes first, then at the others."""
    is_noisy = False

    def show(event: ProgressEvent) -> None:
        nonlocal is_noisy
        if event.kind is EventKind.NOISY:
            if not is_noisy:
                on_progress(Note(f"note: measured on a busy machine: {event.message}. {_BUSY}"))
            is_noisy = True
            return
        now = ""
        if event.placement is not None:
            now = f"{event.placement.variant_id} on {event.placement.device_class}"
            if event.batch is not None:
                now += f", batch {event.batch}"
            if event.measurement is not None:
                now += f": {event.measurement.p50_s * 1e3:.2f} ms"
        if event.message:
            on_progress(Note(f"failed: {now}: {event.message}"))
        on_progress(Step("profiling", event.done, event.total, now, event.eta_s))

    typical, *others = _rounds(jobs) or [[]]
    budget_s = settings.budget_s
    if budget_s is not None:  # the other sizes have half as many points, or fewer
        settings = replace(settings, budget_s=budget_s / (1.0 + len(others) / 2.0))
    ends = tuple(dict.fromkeys((settings.batches[0], settings.batches[-1])))
    try:
        result = run_campaign(typical, records, facts, settings, show, None, strategy)
        settings = replace(settings, batches=ends)
        for place, some in enumerate(others):
            if budget_s is not None:
                share_s = (budget_s - result.elapsed_s) / (len(others) - place)
                settings = replace(settings, budget_s=max(1e-3, share_s))
            more = run_campaign(some, records, facts, settings, show)
            result = CampaignResult(
                (*result.measured, *more.measured),
                {**more.skipped, **result.skipped},
                {**result.failed, **more.failed},
                result.elapsed_s + more.elapsed_s,
            )
        return result
    except KeyboardInterrupt:
        on_progress(Note("what was measured so far is kept; the same command goes on from here"))
        raise


def _rounds(jobs: Sequence[MeasurementJob]) -> list[list[MeasurementJob]]:
    """Each placement's first job, then each one's second, and so on."""
    rounds: defaultdict[int, list[MeasurementJob]] = defaultdict(list)
    seen: Counter[Placement] = Counter()
    for job in jobs:
        rounds[seen[job.placement]].append(job)
        seen[job.placement] += 1
    return list(rounds.values())


def rates_document(rates: DeviceRates) -> dict[str, Any]:
    """Rates as plain data."""
    return {name: value for name, value in rates.document().items() if name != "benchmark"}


def _measure_pairs(
    jobs: Sequence[MeasurementJob],
    measured: Records,
    records: PairRecords,
    facts: DeviceFacts,
    accept_noise: bool,
    on_progress: Progress,
) -> list[PairRun]:
    """Run a few placements in pairs, at typical sizes; each run is kept as soon as it ends."""
    typical = [job for job in jobs if job.is_typical]
    representatives = choose_representatives(typical, best_points(measured.current(facts)))
    total = sum(o.job.device == e.job.device for o in representatives for e in representatives)
    runs: list[PairRun] = []
    for run in run_pairs(representatives, facts, accept_noise=accept_noise):
        records.add(run)
        runs.append(run)
        on_progress(Step("running pairs", len(runs), total, run.placement.variant_id))
    return runs


def _describe(
    devices: Sequence[DeviceClass],
    facts: DeviceFacts,
    records: DeviceRecords,
    budget_s: float | None,
) -> tuple[Mapping[str, DeviceRates], float]:
    """The rates of the devices, and the seconds that measuring them took.

    A tight budget goes to the variants: the rates are then those that are known already.
    """
    if budget_s is not None and budget_s < TYPICAL_S * len(devices) / DEVICE_SHARE:
        return records.current(devices, facts), 0.0
    started_s = time.perf_counter()
    return describe_devices(devices, facts, records), time.perf_counter() - started_s


def _strategy(
    registry: Registry,
    catalog: Catalog,
    jobs: Sequence[MeasurementJob],
    facts: DeviceFacts,
    batches: Sequence[int],
    target_error: float | None,
    rates: Mapping[str, DeviceRates],
) -> MeasurementStrategy:
    """A strategy that measures first what improves the predictions of all jobs most."""
    from modelless.profiler.cost_model.knowledge_base import read_knowledge_base
    from modelless.profiler.cost_model.placement_facts import describe_placements
    from modelless.profiler.cost_model.unmeasured.experiment_design import BayesianDesign
    from modelless.profiler.cost_model.unmeasured.prior import shipped_prior

    variants = {job.variant.id: job.variant for job in jobs}.values()
    devices = {job.device.name: job.device for job in jobs}.values()
    models = catalog.models.values()
    subjects = describe_placements(variants, devices, facts, models, registry.graph_facts, rates)
    return BayesianDesign(
        shipped_prior(),
        subjects,
        batches,
        target_error,
        knowledge=read_knowledge_base(registry, facts),
    )


def _placement_fields(placement: Placement) -> dict[str, Any]:
    return {"variant": placement.variant_id, "device_class": placement.device_class}


def _point(row: Measurement) -> dict[str, Any]:
    return {
        "batch": row.batch,
        "p50_ms": row.p50_s * 1e3,
        "p90_ms": row.p90_s * 1e3,
        "p99_ms": row.p99_s * 1e3,
        "throughput_per_s": row.throughput_per_s,
        "memory_bytes": row.memory_bytes,
        "load_s": row.load_s,
        "repeats": row.repeats,
        "trusted": row.trusted,
        "noise": row.noise,
        "measured_at": row.measured_at.isoformat(),
    }


def _pair(run: PairRun) -> dict[str, Any]:
    return {
        **_placement_fields(run.placement),
        "kind": run.kind.value,
        "neighbour": run.neighbour.variant_id,
        "neighbour_kind": run.neighbour_kind.value,
        "alone_ms": run.alone_s * 1e3,
        "beside_ms": run.beside_s * 1e3,
        "slowdown": run.slowdown,
        "repeats": run.repeats,
        "trusted": run.trusted,
    }


@dataclass(frozen=True)
class Machine:
    """This machine.

    Attributes:
        rates: what each device class computes in a second, by name.
        published: what is published of its processor; None if the processor is unknown.
    """

    facts: DeviceFacts
    device_classes: Sequence[DeviceClass]
    rates: Mapping[str, DeviceRates]
    published: KnownDevice | None

    def document(self) -> dict[str, Any]:
        return {
            "facts": {**asdict(self.facts), "fingerprint": self.facts.fingerprint},
            "published": None if self.published is None else asdict(self.published),
            "device_classes": [
                {**asdict(each), "rates": rates_document(self.rates[each.name])}
                for each in self.device_classes
            ],
        }


def describe_machine(*, again: bool = False, home: Home = None) -> Machine:
    """The hardware of this machine, and the rates of its device classes.

    Args:
        again: measure the rates again, also where they are known.
    """
    facts = read_facts()
    devices = default_device_classes(facts)
    with open_home(home) as registry:
        rates = describe_devices(devices, facts, DeviceRecords(registry.store), again=again)
    return Machine(facts, devices, rates, find_known_device(facts.cpu_model, "cpu"))


def list_engines() -> list[dict[str, Any]]:
    """Every engine, whether it works here, and what to install if it does not: a row each."""
    return [
        {
            "engine": status.engine.value,
            "available": status.available,
            "version": status.version,
            "device_kind": status.entry.device_kind,
            "summary": status.entry.summary,
            "install": status.entry.install,
            "missing": status.missing or None,
        }
        for status in map(engine_status, ENGINES)
    ]
