"""Making: one trained model becomes a family of variants, measured, profiled and compared."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from modelless.common.errors import EnvironmentUnfitError, IntegrityError, InvalidInputError
from modelless.common.files import write_whole
from modelless.controller.usecases.home import (
    AnyPath,
    Home,
    check_writable,
    home_folder,
    open_home,
    path_or_none,
    pick_device_classes,
    variant_fields,
    writing,
)
from modelless.controller.usecases.measuring.profile_report import check_can_draw, draw
from modelless.controller.usecases.measuring.profiling import find_jobs, measure_jobs
from modelless.controller.usecases.progress import Note, Progress, ignore
from modelless.controller.usecases.registry.family import Family, FamilyOrder, Member, make_family
from modelless.controller.usecases.registry.registering import (
    check_resolution,
    find_task,
    known_model,
    member_of,
    read_model,
)
from modelless.profiler.cost_model.dominated import dominated_by_device
from modelless.profiler.cost_model.model_inputs import read_measurements
from modelless.profiler.devices.device import DeviceFacts, default_device_classes
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.campaign import BATCHES, CampaignSettings
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.variants.conversion.converted import Source
from modelless.variants.decoding import find_ctc
from modelless.variants.graphs.inspection import OnnxFacts, check_signature, inspect_onnx
from modelless.variants.making.origins import rebuild_variant
from modelless.variants.making.recipe import default_recipe, load_recipe
from modelless.variants.metrics import find_metric
from modelless.variants.registry.outcomes import latest_outcomes
from modelless.variants.registry.registry import Registry
from modelless.variants.runtimes.engines import ENGINES, engine_status, runs_on
from modelless.variants.validation import open_validation_set
from modelless.variants.validation.expected import Expects
from modelless.variants.validation.inputs import first_inputs, held_out
from modelless.variants.vocabulary import (
    DeviceClass,
    Engine,
    Model,
    Precision,
    Task,
    Variant,
    check_name,
)

_MOST_CALIBRATION: Final = 1024
"""Items of a calibration set; all are kept beside the variants."""

_METRIC: Final = "top-1"
"""Of a new task, unless another is named."""

_TEXT_METRIC: Final = "exact-match"
"""The same, where the model's metadata hold the characters that it reads."""


@dataclass(slots=True)
class MadeFamily:
    """A family beside all other variants of its task.

    Attributes:
        measurements: of the smallest measured batch, by variant id and device class.
        victors: the variant that dominates a variant, by device class; itself if none does.
        failed: what went wrong while profiling, by placement.
        report: folder of the report; None if none was drawn.
        elapsed_s: seconds that all of it took.
    """

    order: FamilyOrder
    family: Family
    devices: Sequence[DeviceClass]
    measurements: Mapping[tuple[str, str], Measurement]
    victors: Mapping[str, Mapping[str, str]]
    failed: Mapping[str, str]
    report: Path | None = None
    elapsed_s: float = 0.0

    @property
    def variants(self) -> list[Variant]:
        return [member.variant for member in self.family.members]

    @property
    def calibration_items(self) -> int:
        """Items that ranges were measured on."""
        return sum(len(next(iter(feed.values()))) for feed in self.order.calibration.feeds)

    def dominated_by(self, member: Member) -> dict[str, str]:
        """The variant that dominates a member, by device class; empty if none does."""
        name = member.variant.id
        return {
            device.name: by
            for device in self.devices
            if (by := self.victors.get(name, {}).get(device.name, name)) != name
        }

    def document(self) -> dict[str, Any]:
        """All of it as plain data."""
        order, source, items = self.order, self.order.source, self.order.items
        return {
            "task": order.task.name,
            "model": order.model.name,
            "source": {
                "name": source.name, "framework": source.framework, "tools": dict(source.tools)
            },
            "calibration_items": self.calibration_items,
            "validation_set": {
                "name": items.name, "sha256": items.sha256, "items": len(items),
                "measured_on": order.sample,
            },
            "engines": [engine.value for engine in order.engines],
            "variants": [self._fields(member) for member in self.family.members],
            "left_out": dict(self.family.left_out),
            "report": None if self.report is None else str(self.report),
            "elapsed_s": round(self.elapsed_s, 3),
        }  # fmt: skip

    def _fields(self, member: Member) -> dict[str, Any]:
        origin = member.origin
        return {
            **variant_fields(member.variant),
            "chain": origin.chain,
            "steps": [asdict(step) for step in origin.lineage.steps],
            "notes": list(origin.notes),
            "fidelity": asdict(origin.fidelity),
            "was_there": member.was_there,
            "profiled": {
                device.name: {
                    "batch": row.batch,
                    "p50_ms": row.p50_s * 1e3,
                    "p99_ms": row.p99_s * 1e3,
                    "memory_bytes": row.memory_bytes,
                    "trusted": row.trusted,
                }
                for device in self.devices
                if (row := self.measurements.get((member.variant.id, device.name))) is not None
            },
            "dominated_by": self.dominated_by(member),
        }


def make(
    source: AnyPath,
    validation: AnyPath,
    *,
    task: str | None = None,
    task_file: AnyPath | None = None,
    metric: str | None = None,
    model: str | None = None,
    framework: str | None = None,
    precision: str = "fp32",
    resolution_px: int | None = None,
    calibration: AnyPath | None = None,
    recipe: AnyPath | None = None,
    engines: Sequence[str] | None = None,
    sample: int | None = None,
    device_classes: Sequence[str] = ("cpu-1",),
    batches: Sequence[int] = BATCHES,
    budget_s: float | None = None,
    accept_noise: bool = False,
    report: AnyPath | None = None,
    draws_report: bool = False,
    home: Home = None,
    on_progress: Progress = ignore,
) -> MadeFamily:
    """Make a family of variants of one trained model: verified, measured, profiled, compared.

    An interrupted run goes on where it stopped.

    Args:
        source: an ``.onnx``, ``.pt2`` or ``.skops`` file, ``package.module:attribute``, or a
            registered variant.
        validation: labelled items; see ``validate``.
        task: the task that the model performs; a new one is read off the graph.
        task_file: describes a new task, in YAML.
        metric: of a task read off the graph; default: top-1.
        model: the model's name; made if new.
        framework: of the source, where it cannot be told.
        precision: the source's number format.
        resolution_px: side of the source's own input.
        calibration: inputs to measure ranges on; default: a part of the validation set, held out.
        recipe: the variants to make, a YAML file; default: the usual ones.
        engines: names; default: all that work here.
        sample: measure accuracy on so many random items at most.
        device_classes: to profile on.
        batches: sizes to profile, ascending.
        budget_s: time for profiling.
        accept_noise: do not wait a moment for a quiet machine to profile; see ``profile``.
        report: draw the family to this folder.
        draws_report: without a ``report``, draw it to ``MODEL-report`` if Matplotlib is installed.
        home: see ``home_folder``.
        on_progress: receives the progress.

    Raises:
        ModellessError: what is wrong with the source, the task, the recipe, the data or the
            variants.

    Examples:
        >>> made = modelless.make("net.onnx", "photos", task="imagenet", model="mynet")
        ... # doctest: +SKIP
        >>> [variant.id for variant in made.variants]  # doctest: +SKIP
        ['imagenet/mynet/fp32@1', 'imagenet/mynet/fp16@1', 'imagenet/mynet/int8@1']
    """
    started_s = time.monotonic()
    settings = CampaignSettings(
        batches=tuple(batches), budget_s=budget_s, accept_noise=accept_noise
    )
    facts = read_facts()
    devices = pick_device_classes(device_classes, default_device_classes(facts))
    chosen_engines = _pick_engines(engines, devices)
    folder = path_or_none(report)
    if folder is not None:
        check_can_draw(folder)
    check_resolution(resolution_px)
    if sample is not None and sample < 1:
        raise InvalidInputError.of("sample", sample, "1 or more items")
    chosen_recipe = default_recipe() if recipe is None else load_recipe(Path(recipe))
    name, validation = str(source), Path(validation)
    number_format = member_of(Precision, "--precision", precision)
    with open_home(home) as registry:
        parent = _registered(registry, name, framework)
        if parent is not None:
            task, model = task or parent.task, model or parent.model
        if task is not None and task_file is None:
            check_name("task", task)
        known_task = find_task(registry, task, path_or_none(task_file))
        if model is None:
            raise InvalidInputError("--model: say what the model shall be called")
        check_name("model", model)
        if parent is not None:
            read = Source(parent.id, registry.artifacts.read(parent.artifact_sha256))
            number_format, resolution_px = parent.precision, parent.resolution_px
        else:
            read = read_model(name, framework, known_task, validation, on_progress)
        graph = inspect_onnx(read.onnx_bytes)
        if known_task is None:
            known_task = _read_task_off(str(task), graph, metric)
            on_progress(Note(f"note: the task {task} is new; its signature is read off the graph"))
            if (decoding := known_task.decoding) is not None:
                on_progress(
                    Note(
                        f"note: its output {decoding.output!r} is read as a text (CTC), with the "
                        f"{len(known_task.labels) - 1} characters of the model's metadata; its "
                        f"metric is {known_task.accuracy_metric}"
                    )
                )
        elif metric not in (None, known_task.accuracy_metric):
            raise InvalidInputError.of(
                "--metric",
                metric,
                f"{known_task.accuracy_metric}, the metric of the task {known_task.name}",
                "Another one is measured by: modelless validate ... --metric.",
            )
        check_signature(graph, known_task)
        judge = find_metric(known_task.accuracy_metric, known_task)
        items = open_validation_set(validation, known_task, judge.expects)
        if calibration is None:
            feeds, count = held_out(items)
        else:
            unlabelled = open_validation_set(Path(calibration), known_task, Expects.NOTHING)
            feeds, count = first_inputs(unlabelled, _MOST_CALIBRATION), len(items)
        order = FamilyOrder(
            task=known_task,
            model=known_model(registry, known_task, model)
            or Model(known_task.name, model, family=model, source=read.name),
            source=read,
            precision=number_format,
            resolution_px=resolution_px,
            recipe=chosen_recipe,
            engines=chosen_engines,
            calibration=feeds,
            items=items,
            sample=min(count, sample or count),
            metric=judge,
            available=count,
        )
        family = make_family(registry, home_folder(home), order, on_progress)
        variants = [member.variant for member in family.members]
        failed = _profile(registry, variants, devices, facts, settings, on_progress)
        least, victors = _compare(registry, known_task, devices, facts)
        made = MadeFamily(order, family, devices, least, victors, failed)
        if folder is not None or draws_report:
            folder = folder or Path(f"{order.model.name}-report")
            try:
                made.report = draw(registry, variants, folder, on_progress)
            except EnvironmentUnfitError as error:  # raised earlier if a report was asked for
                on_progress(Note(f"note: nothing is drawn: {error}"))
    made.elapsed_s = time.monotonic() - started_s
    return made


def rebuild(
    variant: str, *, output: Path | None = None, home: Home = None
) -> tuple[Variant, int, str]:
    """Rebuild a variant bit for bit from what ``make`` kept; restores a damaged stored file.

    Args:
        variant: ``task/model/variant``, or with its ``@version``.

    Returns:
        The variant; the size of its file, bytes; and what was wrong with the stored file, which is
        whole again, or nothing.

    Raises:
        IntegrityError: a tool, the kind of processor or what it was made of has changed.
        NotFoundError: there is no such variant, or ``make`` did not make it.
        InvalidInputError: the output cannot be written.
    """
    damage = ""
    if output is not None:
        check_writable("--output", output)
    with open_home(home) as registry:
        found = registry.variant(variant)
        made = rebuild_variant(registry.store, registry.artifacts, found)
        try:
            registry.artifacts.fetch(found.artifact_sha256)
        except IntegrityError as error:
            damage = str(error)
            registry.artifacts.put(made)
    if output is not None:
        with writing("--output", output, "file"):
            write_whole(output, made)
    return found, len(made), damage


def _pick_engines(
    names: Sequence[str] | None, devices: Sequence[DeviceClass]
) -> tuple[Engine, ...]:
    """The engines of those names; without names, all that work here on one of the devices."""
    fit = [engine for engine in ENGINES if any(runs_on(engine, device) for device in devices)]
    if names is None:
        statuses = [engine_status(engine) for engine in fit]
        found = tuple(status.engine for status in statuses if status.available)
        if not found:
            reasons = "; ".join(status.missing for status in statuses)
            raise EnvironmentUnfitError(f"no engine works here: {reasons}")
        return found
    for name in names:
        if name not in fit:
            allowed = f"{', '.join(fit)}, on these device classes"
            raise InvalidInputError.of("--engine", name, allowed)
    chosen = tuple(map(Engine, names))
    for engine in chosen:
        if missing := engine_status(engine).missing:
            raise EnvironmentUnfitError(missing)
    return chosen


def _registered(registry: Registry, source: str, framework: str | None) -> Variant | None:
    """The registered variant that the source names; None if it is something else."""
    if framework is not None or "/" not in source or ":" in source or Path(source).exists():
        return None
    if Path(source).suffix.lower() in (".onnx", ".pt2", ".skops"):
        return None
    scope = registry.resolve(source)
    if len(scope.variants) != 1:
        raise InvalidInputError.of("source", source, "one variant: task/model/variant")
    return scope.variants[0]


def _read_task_off(name: str, facts: OnnxFacts, metric: str | None) -> Task:
    """A new task with the signature of the graph, and the characters of its metadata."""
    hint = (
        f"Export it with a free first axis; or, if task {name!r} was meant to exist, see "
        "'modelless variants'."
    )
    for spec in (*facts.inputs, *facts.outputs):
        if spec.shape[:1] != (-1,):
            field, shape = f"the graph's {spec.name!r}: shape", list(spec.shape)
            raise InvalidInputError.of(field, shape, "-1 first, which counts items", hint)
    found = find_ctc(facts.outputs, facts.metadata)
    if found is None:
        return Task(name, facts.inputs, facts.outputs, metric or _METRIC)
    decoding, labels = found
    return Task(name, facts.inputs, facts.outputs, metric or _TEXT_METRIC, "", labels, decoding)


def _profile(
    registry: Registry,
    variants: Sequence[Variant],
    devices: Sequence[DeviceClass],
    facts: DeviceFacts,
    settings: CampaignSettings,
    on_progress: Progress,
) -> dict[str, str]:
    """Measure what the variants cost; returns what went wrong, by placement."""
    gc.collect()  # so that no variant is measured in the memory that making left behind
    jobs, damaged = find_jobs(registry, registry.catalog(), variants, devices, on_progress)
    result = measure_jobs(jobs, Records(registry.store), facts, settings, None, on_progress)
    return {
        f"{placement.variant_id} on {placement.device_class}": reason
        for placement, reason in {**damaged, **result.failed}.items()
    }


def _compare(
    registry: Registry, task: Task, devices: Sequence[DeviceClass], facts: DeviceFacts
) -> tuple[dict[tuple[str, str], Measurement], Mapping[str, Mapping[str, str]]]:
    """The ``measurements`` and ``victors`` of all variants of a task: see ``MadeFamily``."""
    of_task = [v for v in registry.catalog().variants if v.task == task.name]
    measured = read_measurements(registry, devices, facts)
    outcomes = latest_outcomes(registry.store, [variant.id for variant in of_task])
    largest_first = sorted(measured, key=lambda row: -row.batch)
    least = {(row.variant_id, row.device_class): row for row in largest_first}
    return least, dominated_by_device(of_task, measured, outcomes)
