"""Registering: a trained model becomes a variant of a task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy.orm import Session

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.common.intervals import wilson_percent
from modelless.controller.config import load_settings
from modelless.controller.control.feedback import VariantFeedback
from modelless.controller.history.audit import user_name
from modelless.controller.history.feedback import read_feedback
from modelless.controller.usecases.home import (
    AnyPath,
    Home,
    find_variants,
    home_folder,
    open_home,
    path_or_none,
    variant_fields,
)
from modelless.controller.usecases.progress import Note, Progress, ignore
from modelless.controller.usecases.registry.task_file import read_task
from modelless.controller.usecases.registry.validating import (
    measure_file,
    remark_on_guessing,
    remark_on_precision,
    remark_on_steps,
)
from modelless.profiler.cost_model.dominated import dominated_by_device, dominated_everywhere
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.records import Records
from modelless.variants.conversion.converted import ONNX, Source, framework_of, read_source
from modelless.variants.graphs.inspection import check_signature, inspect_onnx, read_onnx
from modelless.variants.metrics import Metric
from modelless.variants.paths import not_found
from modelless.variants.registry.outcomes import details_of, first_measured, latest_outcomes
from modelless.variants.registry.promotion import read_lines
from modelless.variants.registry.registry import Registry
from modelless.variants.registry.versions import Line, name_of
from modelless.variants.runtimes.engines import check_texts, engine_status, parse_engine
from modelless.variants.store import HistoryRow
from modelless.variants.validation import open_validation_set
from modelless.variants.validation.expected import Expects
from modelless.variants.validation.inputs import arrays_of, first_inputs
from modelless.variants.validation.measuring import MeasuredAccuracy
from modelless.variants.vocabulary import (
    Accuracy,
    Engine,
    Model,
    Precision,
    Provenance,
    Task,
    Variant,
    check_name,
)

Member = TypeVar("Member", bound=StrEnum)

REGISTERED = "registered"
"""Kind of the history's entry that says who registered a variant, and from what."""

_MOST_SAMPLES: Final = 10**12

UNKNOWN_SOURCE = "not stated when it was registered; counts as 0 until it is"


def register(
    source: str | Path,
    *,
    model: str,
    name: str,
    precision: str,
    task: str | None = None,
    task_file: AnyPath | None = None,
    engine: str = "onnxruntime-cpu",
    resolution_px: int | None = None,
    accuracy_percent: float | None = None,
    provenance: str | None = None,
    accuracy_source: str | None = None,
    accuracy_samples: int | None = None,
    validation: AnyPath | None = None,
    revise: str | None = None,
    framework: str | None = None,
    family: str = "",
    model_source: str = "",
    licence: str = "",
    home: Home = None,
    on_progress: Progress = ignore,
) -> Variant:
    """Register one variant of a trained model, and return it.

    The graph is held against the task's inputs and outputs before anything is stored. The same
    bytes for the same engine get the version that they have; other bytes, or another engine, under
    the same name get the next version.

    Args:
        source: an ONNX file; or a ``.pt2`` or ``.skops`` file or ``package.module:attribute``,
            which is converted.
        model: the model that it is a form of; made if new.
        name: of the variant, e.g. ``int8-224``.
        precision: its number format, e.g. ``fp32``.
        task: the task that it performs.
        task_file: describes a new task, in YAML.
        engine: the engine that runs it.
        resolution_px: side of the network's input.
        accuracy_percent: in the task's metric; None counts as 0.
        provenance: of the accuracy: ``measured``, ``published`` or ``derived``.
        accuracy_source: validation set, page, or how the accuracy was derived.
        accuracy_samples: items that it was measured on.
        validation: measure the accuracy on this validation set instead.
        revise: replace the accuracy that these very bytes are registered with, for this reason.
        framework: of the source, where it cannot be told.
        family, model_source, licence: of a new model.
        home: see ``home_folder``.
        on_progress: receives the progress, and remarks on the accuracy and the engine.

    Raises:
        InvalidInputError: an argument does not fit, or the graph does not fit the task.
        NotFoundError: an unknown task.
        IntegrityError: the graph is not allowed.

    Examples:
        >>> modelless.register(
        ...     "net.onnx", task="imagenet", model="mynet", name="fp32", precision="fp32",
        ...     validation="photos",
        ... ).id  # doctest: +SKIP
        'imagenet/mynet/fp32@1'
    """
    check_name("name", name)
    number_format = member_of(Precision, "--precision", precision)
    runs_on = parse_engine(engine)
    with open_home(home) as registry:
        of_task = find_task(registry, task, path_or_none(task_file))
        if of_task is None:
            how, known = "describe one in a file and give --task-file.", registry.tasks()
            unknown = not_found("task", str(task), [each.name for each in known], how)
            raise NotFoundError(f"{unknown} For a new one, {how}") if known else unknown
        check_texts(runs_on, of_task)
        stated = any((family, model_source, licence))
        of_model = (None if stated else known_model(registry, of_task, model)) or Model(
            of_task.name, model, family or model, model_source, licence
        )
        accuracy = _stated_accuracy(
            of_task, accuracy_percent, provenance, accuracy_source, accuracy_samples
        )
        if validation is not None and accuracy.source != UNKNOWN_SOURCE:
            raise InvalidInputError("--validation measures the accuracy: leave out --accuracy")
        check_resolution(resolution_px)
        labelled = path_or_none(validation)
        data = read_model(str(source), framework, of_task, labelled, on_progress).onnx_bytes
        check_signature(inspect_onnx(data), of_task)
        measured: tuple[MeasuredAccuracy, Metric] | None = None
        if labelled is not None:
            measurable = _engine_to_measure(runs_on, on_progress)
            planned = Variant(
                of_task.name, model, name, 1, number_format, resolution_px, measurable,
                hashlib.sha256(data).hexdigest(), len(data), accuracy,
            )  # fmt: skip
            measured = measure_file(planned, data, of_task, labelled, on_progress)
            accuracy = measured[0].accuracy
            remarks = (
                remark_on_steps(measured[1], of_task),
                remark_on_precision(*measured, None),
                remark_on_guessing(accuracy, of_task),
            )
            for remark in filter(None, remarks):
                on_progress(Note(f"note: {remark}"))
        every = registry.variants(of_task.name, model, name, latest_only=False)
        before = {known.id for known in every}

        def note(session: Session, variant: Variant) -> None:
            if variant.id in before:
                return
            told = {"who": user_name(), "source": str(source), "sha256": variant.artifact_sha256}
            came = f"registered from {source}"
            session.add(HistoryRow(kind=REGISTERED, subject=variant.id, reason=came, details=told))
            if measured is not None:
                reason = "measured when it was registered"
                session.add(first_measured(variant, *measured, reason))

        if revise is not None:
            details = {} if measured is None else details_of(*measured)
            path = f"{of_task.name}/{model}/{name}"
            variant = _revise(registry, path, every, runs_on, data, accuracy, revise, details)
        else:
            variant = registry.register_variant(
                task=of_task,
                model=of_model,
                name=name,
                precision=number_format,
                engine=runs_on,
                accuracy=accuracy,
                artifact=data,
                resolution_px=resolution_px,
                also=note,
            )
        current = registry.catalog(with_retired=True).resolve(name_of(variant.id)).variants[0]
        is_retired = current.id not in {each.id for each in registry.catalog().variants}
    if variant.id in before and revise is None:
        on_progress(Note(f"note: these very bytes are {variant.id} already: nothing has changed"))
    elif current.id != variant.id:
        how = f"modelless promote {variant.id}"
        if is_retired:
            how = f"take the variant back first: modelless retire --undo {name_of(variant.id)}"
        on_progress(Note(f"note: {current.id} stays the current version: to change that, {how}"))
    if accuracy_percent is None and validation is None:
        effect = "it is never chosen for a query that asks for any"
        on_progress(Note(f"note: no --accuracy was given, so it counts as 0 %: {effect}"))
    if absent := engine_status(runs_on).missing:
        on_progress(Note(f"note: it cannot be profiled or served here: {absent}"))
    return variant


def remarks_on_sets(variants: Iterable[Variant]) -> list[str]:
    """A remark for each task whose accuracies were measured on several validation sets."""
    measured: dict[str, dict[str, list[Variant]]] = {}
    for variant in variants:
        if variant.accuracy.provenance is Provenance.MEASURED:
            sets = measured.setdefault(variant.task, {})
            sets.setdefault(variant.accuracy.set_name, []).append(variant)
    return [
        f"accuracies of task {task} are of {len(sets)} validation sets, which cannot be compared: "
        + "; ".join(
            f"{_some([each.id for each in some])} on {some[0].accuracy.source}"
            for some in sets.values()
        )
        + f". To renew all on one: modelless validate --task {task} --data PATH"
        for task, sets in measured.items()
        if len(sets) > 1
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


@dataclass(frozen=True, slots=True)
class RegisteredVariant:
    """A registered variant, and how it stands among the others of its task.

    Attributes:
        dominated_by: the variant that dominates it, by device class.
        state: ``current``, ``on trial``, ``earlier`` (current before), ``registered`` (never
            current) or ``retired``.
        feedback: its accuracy by feedback, as ``VariantFeedback.status``; None if there is none.
    """

    variant: Variant
    profiled_on: tuple[str, ...]
    dominated_by: Mapping[str, str]
    is_served: bool
    state: str = "current"
    feedback: Mapping[str, Any] | None = None

    def document(self) -> dict[str, object]:
        return {
            **variant_fields(self.variant),
            "profiled_on": list(self.profiled_on),
            "dominated_by": dict(self.dominated_by),
            "served": self.is_served,
            "state": self.state,
            "feedback": self.feedback,
        }


def list_variants(
    *scopes: str, all_versions: bool = False, config: Path | None = None, home: Home = None
) -> list[RegisteredVariant]:
    """The registered variants of some scopes, or all of them, and which variants dominate them.

    Args:
        scopes: names; none is everything.
        all_versions: list every version, and what was retired; not only what is current.

    Raises:
        NotFoundError: an unknown scope, or nothing is registered.
        InvalidInputError: the settings file is wrong.
    """
    settings = load_settings(config)
    with open_home(home) as registry:
        catalog = registry.catalog()
        among = registry.catalog(with_retired=True) if all_versions else catalog
        found = find_variants(among, scopes, every_version=all_versions)
        lines = read_lines(registry.store).by_name
        rows = Records(registry.store).current(read_facts())
        outcomes = latest_outcomes(registry.store, [variant.id for variant in catalog.variants])
    victors = dominated_by_device(catalog.variants, rows, outcomes)
    left_out = (
        {} if settings.serve_dominated else dominated_everywhere(victors, settings.device_classes)
    )
    listed = []
    feedback = read_feedback(home_folder(home))
    for variant in found:
        mine = dict(sorted(victors.get(variant.id, {}).items()))
        others = {device: by for device, by in mine.items() if by != variant.id}
        is_served = variant.id in victors and variant.id not in left_out
        state = _state(variant, lines[name_of(variant.id)])
        if name_of(variant.id) not in {name_of(each.id) for each in catalog.variants}:
            state = "retired"
        kept = feedback.get(variant.id)
        told = VariantFeedback.kept(kept).status(variant.id) if kept is not None else None
        listed.append(RegisteredVariant(variant, tuple(mine), others, is_served, state, told))
    return listed


def _state(variant: Variant, line: Line) -> str:
    if variant.version == line.current:
        return "current"
    if line.trial is not None and line.trial.version == variant.version:
        return "on trial"
    return "earlier" if variant.version in line.earlier else "registered"


def find_task(registry: Registry, name: str | None, task_file: Path | None) -> Task | None:
    """The task that a file describes or that is registered; None if it is new.

    Raises:
        InvalidInputError: there is no name and no file, or the file describes another task.
    """
    if task_file is not None:
        found = read_task(task_file)
        if name not in (None, found.name):
            raise InvalidInputError.of("--task", name, f"{found.name!r}, as the task file says")
        return found
    if name is None:
        raise InvalidInputError("--task: say which task it performs, or describe it: --task-file")
    return next((task for task in registry.tasks() if task.name == name), None)


def known_model(registry: Registry, task: Task, name: str) -> Model | None:
    """The model as it is registered; None where it, or its task, is new."""
    if all(each.name != task.name for each in registry.tasks()):
        return None
    return next((model for model in registry.models(task.name) if model.name == name), None)


def check_resolution(side_px: int | None) -> None:
    """Raise InvalidInputError if no picture has such a side; None is allowed."""
    if side_px is not None and not 1 <= side_px <= 65_536:
        raise InvalidInputError.of("resolution", side_px, "1 to 65536 (pixels)")


def read_model(
    source: str,
    framework: str | None,
    task: Task | None,
    validation: Path | None,
    on_progress: Progress,
) -> Source:
    """An ONNX file; or another framework's model, converted and held against itself on the inputs
    of the validation set. The task is None if it is new.

    Raises:
        InvalidInputError: the source, or there is no validation set to convert with.
        IntegrityError: the file is not allowed.
    """
    kind = framework_of(source, framework)
    if kind == ONNX:
        return Source(source, read_onnx(source))
    if validation is None:
        allowed = f"a validation set: on its inputs the model is converted from {kind} and compared"
        raise InvalidInputError.of("--validation", None, allowed)
    on_progress(Note(f"converting {source} from {kind}, and holding the result against it"))
    if task is None:
        return read_source(source, kind, lambda: arrays_of(validation))
    items = open_validation_set(validation, task, Expects.NOTHING)
    return read_source(source, kind, lambda: first_inputs(items))


def _engine_to_measure(engine: Engine, on_progress: Progress) -> Engine:
    """The engine itself; if it does not work here, the one that always does."""
    if engine_status(engine).available:
        return engine
    on_progress(Note(f"note: its accuracy is measured on {Engine.ONNXRUNTIME_CPU.value}"))
    return Engine.ONNXRUNTIME_CPU


def member_of(kind: type[Member], field: str, value: str) -> Member:
    """The member of an enumeration with that value; InvalidInputError names the allowed ones."""
    if value not in list(kind):
        raise InvalidInputError.of(field, value, ", ".join(kind))
    return kind(value)


def _stated_accuracy(
    task: Task,
    percent: float | None,
    provenance: str | None,
    source: str | None,
    samples: int | None,
) -> Accuracy:
    if percent is None:
        if (provenance, source, samples) != (None, None, None):
            raise InvalidInputError("--accuracy: give it too, or leave out what describes it")
        return Accuracy(0.0, task.accuracy_metric, Provenance.DERIVED, UNKNOWN_SOURCE)
    if provenance is None or not source:
        raise InvalidInputError(
            f"--accuracy {percent:g}: say how it is known: --provenance measured, published or "
            "derived, and --accuracy-source"
        )
    stated = Accuracy(
        percent, task.accuracy_metric, member_of(Provenance, "--provenance", provenance), source
    )
    if stated.provenance is not Provenance.MEASURED:
        if samples is not None:
            raise InvalidInputError("--accuracy-samples: only a measured accuracy has them")
        return stated
    if samples is None or not 1 <= samples <= _MOST_SAMPLES:
        raise InvalidInputError.of(
            "--accuracy-samples",
            samples,
            f"1 to {_MOST_SAMPLES}",
            "They give what was measured its interval.",
        )
    low, high = wilson_percent(round(percent / 100.0 * samples), samples)
    return replace(stated, low_percent=low, high_percent=high, sample_count=samples)


def _revise(
    registry: Registry,
    path: str,
    known: Sequence[Variant],
    engine: Engine,
    data: bytes,
    accuracy: Accuracy,
    reason: str,
    details: Mapping[str, object],
) -> Variant:
    """The variant of these bytes and this engine, with its accuracy replaced."""
    sha256 = hashlib.sha256(data).hexdigest()
    for variant in known:
        if (variant.artifact_sha256, variant.engine) == (sha256, engine):
            return registry.revise_accuracy(variant.id, accuracy, reason, details)
    allowed = f"a variant that was registered from these very bytes for {engine.value}"
    hint = "Leave it out to register a new one."
    raise InvalidInputError.of("--revise-accuracy", path, allowed, hint)
