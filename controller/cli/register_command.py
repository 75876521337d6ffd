"""``modelless register``: an ONNX file, or what can be made one, becomes a variant."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.cli.make_command import make
from modelless.controller.cli.named import check_resolution, described_task, known_model, who
from modelless.controller.cli.screen import (
    Json,
    accuracy_fields,
    accuracy_text,
    emit,
    home_of,
    say,
)
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

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from modelless.variants.metrics import Metric
    from modelless.variants.registry.registry import Registry
    from modelless.variants.validation.measuring import MeasuredAccuracy

EPILOG = (
    "Examples: modelless register net.onnx --task imagenet --model mynet --validation photos; "
    "modelless register net.onnx --task imagenet --model mynet --name fp32-224 "
    "--precision fp32 --resolution 224 --accuracy 75.1 --provenance published "
    '--accuracy-source "the paper, table 2"'
)
REGISTERED = "registered"
"""Of the history's row that says who registered a variant, and from what."""

UNKNOWN_SOURCE = "not stated when it was registered; counts as 0 until it is"


def _parse_engine(name: str) -> Engine:
    from modelless.variants.runtimes.engines import parse_engine

    return parse_engine(name)


def register(
    ctx: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The ONNX file; or a .pt2 or .skops file or package.module:attribute to convert.",
        ),
    ],
    model: Annotated[str, typer.Option("--model", help="Model it is a form of; made if new.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="Name of the one variant, e.g. int8-224; without it a family is made."
        ),
    ] = None,
    precision: Annotated[
        Precision | None, typer.Option("--precision", help="Its number format.")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="Task it performs.")] = None,
    task_file: Annotated[
        Path | None,
        typer.Option("--task-file", metavar="FILE", help="A new task, described in YAML."),
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            "--engine",
            parser=_parse_engine,
            metavar="ENGINE",
            help="What runs it; default: onnxruntime-cpu. See 'modelless engines'.",
        ),
    ] = None,
    resolution: Annotated[
        int | None, typer.Option("--resolution", metavar="PX", help="Side of the network's input.")
    ] = None,
    accuracy: Annotated[
        float | None, typer.Option("--accuracy", help="Per cent, in the task's metric.")
    ] = None,
    accuracy_source: Annotated[
        str | None,
        typer.Option("--accuracy-source", help="Validation set, page, or how it was derived."),
    ] = None,
    accuracy_samples: Annotated[
        int | None,
        typer.Option(
            "--accuracy-samples", help="Items it was measured on; they give its interval."
        ),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            "--validation", metavar="PATH", help="Measure the accuracy on this set instead."
        ),
    ] = None,
    provenance: Annotated[
        Provenance | None, typer.Option("--provenance", help="How the accuracy is known.")
    ] = None,
    revise: Annotated[
        str | None,
        typer.Option(
            "--revise-accuracy",
            metavar="REASON",
            help="Replace the accuracy that these very bytes are registered with.",
        ),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework",
            help="Framework of SOURCE where it cannot be told: scikit-learn, pytorch, tensorflow "
            "or onnx.",
        ),
    ] = None,
    family: Annotated[str, typer.Option("--family", help="A new model's architecture.")] = "",
    source: Annotated[str, typer.Option("--source", help="Where a new model comes from.")] = "",
    licence: Annotated[str, typer.Option("--licence", help="A new model's licence.")] = "",
    as_json: Json = False,
) -> None:
    """Register a trained model: one variant of it, or with no --name the whole family.

    Without --name every variant is made, as by 'modelless make', and measured on --validation.
    The file is inspected and held against the task's inputs and outputs before anything is stored.
    Another framework's model is converted and held against itself on the validation set's inputs.
    The same bytes for the same engine again get the version they have; other bytes, or another
    engine, under the same name the next one. Names of their own keep several engines side by side.
    """
    if name is None:
        of_one = {
            "--accuracy": accuracy, "--accuracy-source": accuracy_source,
            "--accuracy-samples": accuracy_samples, "--provenance": provenance,
            "--revise-accuracy": revise, "--family": family, "--source": source,
            "--licence": licence,
        }  # fmt: skip
        _check_for_family(validation, [option for option, value in of_one.items() if value])
        assert validation is not None  # noqa: S101  (just checked)
        make(
            ctx, file, validation, task, task_file, None, model, framework,
            precision or Precision.FP32, resolution, engine=engine and engine.value,
            as_json=as_json,
        )  # fmt: skip
        return
    from modelless.controller.cli.measuring import (
        measure_file,
        remark_on_guessing,
        remark_on_precision,
    )
    from modelless.variants.graphs.inspection import check_signature, inspect_onnx
    from modelless.variants.registry.outcomes import details_of, first_measured
    from modelless.variants.registry.registry import open_registry
    from modelless.variants.store.history import record

    check_name("name", name)
    if precision is None:
        raise InvalidInputError.of(
            "--precision", None, ", ".join(Precision), "It goes with --name."
        )
    engine = engine or Engine.ONNXRUNTIME_CPU
    new_task = described_task(task_file, task) if task_file is not None else None
    with closing(open_registry(home_of(ctx))) as registry:
        of_task = new_task or _find_task(registry, task)
        stated = any((family, source, licence))
        of_model = (None if stated else known_model(registry, of_task, model)) or Model(
            of_task.name, model, family or model, source, licence
        )
        known_accuracy = _accuracy(of_task, accuracy, provenance, accuracy_source, accuracy_samples)
        if validation is not None and known_accuracy.source != UNKNOWN_SOURCE:
            raise InvalidInputError("--validation measures the accuracy: leave out --accuracy")
        check_resolution(resolution)
        data = _read(file, framework, of_task, validation)
        facts = inspect_onnx(data)
        check_signature(facts, of_task)
        measured: tuple[MeasuredAccuracy, Metric] | None = None
        if validation is not None:
            planned = Variant(
                of_task.name, model, name, 1, precision, resolution, _engine_to_measure(engine),
                hashlib.sha256(data).hexdigest(), len(data), known_accuracy,
            )  # fmt: skip
            measured = measure_file(planned, data, of_task, validation)
            known_accuracy = measured[0].accuracy
            remarks = (
                remark_on_precision(*measured, None),
                remark_on_guessing(known_accuracy, of_task),
            )
            for remark in filter(None, remarks):
                say(f"note: {remark}")
        every = registry.variants(of_task.name, model, name, latest_only=False)
        before = {known.id for known in every}

        def note(session: Session, variant: Variant) -> None:
            if variant.id in before:
                return
            told = {"who": who(), "source": file, "sha256": variant.artifact_sha256}
            record(session, REGISTERED, variant.id, f"registered from {file}", told)
            if measured is not None:
                reason = "measured when it was registered"
                session.add(first_measured(variant, *measured, reason))

        details = {} if measured is None else details_of(*measured)
        variant = _revise(
            registry, of_task, model, name, engine, data, known_accuracy, revise, details
        )
        if variant is None:
            variant = registry.register_variant(
                task=of_task,
                model=of_model,
                name=name,
                precision=precision,
                engine=engine,
                accuracy=known_accuracy,
                artifact=data,
                resolution_px=resolution,
                parameter_count=facts.parameter_count,
                multiply_adds=facts.multiply_adds,
                inspect=False,
                also=note,
            )
    if accuracy is None and validation is None:
        say(
            "note: no --accuracy was given, so it counts as 0 %: it is never chosen for a query "
            "that asks for any"
        )
    _remark_on(engine)
    if as_json:
        emit(variant_fields(variant))
        return
    typer.echo(
        f"registered {variant.id}: {variant.artifact_bytes} bytes, "
        f"sha256 {variant.artifact_sha256[:12]}, accuracy {accuracy_text(variant.accuracy)}"
    )
    say(f"next: modelless profile {variant.task}/{variant.model}/{variant.name}")


def _read(source: str, framework: str | None, task: Task, validation: Path | None) -> bytes:
    """The ONNX file, or what another framework's model was converted to."""
    from modelless.variants.conversion.sources import ONNX, framework_of, read_source
    from modelless.variants.graphs.inspection import read_onnx

    kind = framework_of(source, framework)
    if kind == ONNX:
        return read_onnx(source)
    if validation is None:
        raise InvalidInputError.of(
            "--validation",
            None,
            f"a validation set: on its inputs the model is converted from {kind} and compared",
        )
    from modelless.controller.cli.family_order import conversion_inputs

    say(f"converting {source} from {kind}, and holding the result against it")
    return read_source(source, kind, lambda: conversion_inputs(validation, task)).onnx_bytes


def _remark_on(engine: Engine) -> None:
    from modelless.variants.runtimes.engines import engine_status

    status = engine_status(engine)
    if not status.available:
        say(f"note: it cannot be profiled or served here: {status.missing}")


def variant_fields(variant: Variant) -> dict[str, object]:
    """A variant as plain data."""
    return {
        "variant": variant.id,
        "task": variant.task,
        "model": variant.model,
        "name": variant.name,
        "version": variant.version,
        "precision": variant.precision.value,
        "resolution_px": variant.resolution_px,
        "engine": variant.engine.value,
        "sha256": variant.artifact_sha256,
        "bytes": variant.artifact_bytes,
        "parameters": variant.parameter_count,
        "multiply_adds": variant.multiply_adds,
        **accuracy_fields(variant.accuracy),
    }


def _check_for_family(validation: Path | None, of_one: Sequence[str]) -> None:
    """Refuse what says nothing of a family.

    Raises:
        InvalidInputError: there is nothing to measure it on, or an option is about one variant.
    """
    if validation is None:
        raise InvalidInputError(
            "--name: say what the variant is called; or give --validation, and a whole family is "
            "made and measured on it"
        )
    if of_one:
        raise InvalidInputError(
            f"{', '.join(of_one)}: goes with --name, for one variant; without it a family is made, "
            "and its accuracies are measured"
        )


def _engine_to_measure(engine: Engine) -> Engine:
    """The engine itself; where it does not work here the one that always does, and it is told."""
    from modelless.variants.runtimes.engines import engine_status

    if engine_status(engine).available:
        return engine
    say(f"note: its accuracy is measured on {Engine.ONNXRUNTIME_CPU.value}")
    return Engine.ONNXRUNTIME_CPU


def _find_task(registry: Registry, name: str | None) -> Task:
    if name is None:
        raise InvalidInputError("--task: say which task it performs, or describe it: --task-file")
    tasks = {task.name: task for task in registry.tasks()}
    if name not in tasks:
        from modelless.variants.paths import not_found

        how = "describe one in a file and give --task-file."
        missing = not_found("task", name, tasks, how)
        raise NotFoundError(f"{missing} For a new one, {how}") if tasks else missing
    return tasks[name]


def _accuracy(
    task: Task,
    percent: float | None,
    provenance: Provenance | None,
    source: str | None,
    samples: int | None,
) -> Accuracy:
    if percent is None:
        if provenance is not None or source is not None or samples is not None:
            raise InvalidInputError("--accuracy: give it too, or leave out what describes it")
        return Accuracy(0.0, task.accuracy_metric, Provenance.DERIVED, UNKNOWN_SOURCE)
    if provenance is None or not source:
        raise InvalidInputError(
            f"--accuracy {percent:g}: say how it is known: --provenance measured, published or "
            "derived, and --accuracy-source"
        )
    stated = Accuracy(percent, task.accuracy_metric, provenance, source)
    if provenance is not Provenance.MEASURED:
        if samples is not None:
            raise InvalidInputError("--accuracy-samples: only a measured accuracy has them")
        return stated
    if samples is None or samples < 1:
        raise InvalidInputError.of(
            "--accuracy-samples", samples, "1 or more", "They give what was measured its interval."
        )
    from modelless.common.intervals import wilson_percent

    low, high = wilson_percent(round(percent / 100.0 * samples), samples)
    return replace(stated, low_percent=low, high_percent=high, sample_count=samples)


def _revise(
    registry: Registry,
    task: Task,
    model: str,
    name: str,
    engine: Engine,
    data: bytes,
    accuracy: Accuracy,
    reason: str | None,
    details: Mapping[str, object],
) -> Variant | None:
    """The variant of these bytes and engine, its accuracy replaced; None if nobody asked for it."""
    if reason is None:
        return None
    sha256 = hashlib.sha256(data).hexdigest()
    for variant in registry.variants(task.name, model, name, latest_only=False):
        if (variant.artifact_sha256, variant.engine) == (sha256, engine):
            return registry.revise_accuracy(variant.id, accuracy, reason, details)
    raise InvalidInputError.of(
        "--revise-accuracy",
        f"{task.name}/{model}/{name}",
        f"a variant that was registered from these very bytes for {engine.value}",
        "Leave it out to register a new one.",
    )
