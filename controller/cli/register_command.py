"""``modelless register``: an ONNX file, or what can be made one, becomes a variant."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelless.controller.cli.screen import (
    Json,
    accuracy_fields,
    accuracy_text,
    emit,
    home_of,
    say,
)
from modelless.variants.errors import InvalidInputError
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
    from modelless.variants.registry import Registry

EPILOG = (
    "Example: modelless register net.onnx --task imagenet --model mynet --name fp32-224 "
    "--precision fp32 --resolution 224 --accuracy 75.1 --provenance published "
    '--accuracy-source "the paper, table 2"'
)
UNKNOWN_SOURCE = "not stated when it was registered; counts as 0 until it is"


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
    name: Annotated[str, typer.Option("--name", help="Name of the variant, e.g. int8-224.")],
    precision: Annotated[Precision, typer.Option("--precision", help="Its number format.")],
    task: Annotated[str | None, typer.Option("--task", "-t", help="Task it performs.")] = None,
    task_file: Annotated[
        Path | None,
        typer.Option("--task-file", metavar="FILE", help="A new task, described in YAML."),
    ] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="What runs it; see 'modelless engines'.")
    ] = Engine.ONNXRUNTIME_CPU,
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
        typer.Option("--framework", help="Of the source, where it cannot be told by itself."),
    ] = None,
    family: Annotated[str, typer.Option("--family", help="A new model's architecture.")] = "",
    source: Annotated[str, typer.Option("--source", help="Where a new model comes from.")] = "",
    licence: Annotated[str, typer.Option("--licence", help="A new model's licence.")] = "",
    as_json: Json = False,
) -> None:
    """Register an ONNX file as a variant of a task.

    The file is inspected and held against the task's inputs and outputs before anything is stored.
    Another framework's model is converted and held against itself on the validation set's inputs.
    The same bytes for the same engine again get the version they have; other bytes, or another
    engine, under the same name the next one. Names of their own keep several engines side by side.
    """
    from modelless.controller.cli.task_files import read_task
    from modelless.variants.inspection import check_signature, inspect_onnx
    from modelless.variants.registry import open_registry

    check_name("name", name)
    new_task = read_task(task_file) if task_file is not None else None
    with closing(open_registry(home_of(ctx))) as registry:
        of_task = _find_task(registry, task, new_task)
        of_model = _find_model(registry, of_task, model, family, source, licence)
        known_accuracy = _accuracy(of_task, accuracy, provenance, accuracy_source, accuracy_samples)
        if validation is not None and known_accuracy.source != UNKNOWN_SOURCE:
            raise InvalidInputError("--validation measures the accuracy: leave out --accuracy")
        if resolution is not None and not 1 <= resolution <= 65_536:
            raise InvalidInputError.of("resolution", resolution, "1 to 65536 (pixels)")
        data = _read(file, framework, of_task, validation)
        facts = inspect_onnx(data)
        check_signature(facts, of_task)
        details: Mapping[str, object] = {}
        if validation is not None:
            planned = Variant(
                of_task.name, model, name, 1, precision, resolution, Engine.ONNXRUNTIME_CPU,
                hashlib.sha256(data).hexdigest(), len(data), known_accuracy,
            )  # fmt: skip
            known_accuracy, details = _measured(planned, data, of_task, validation)

        variant = _revise(
            registry, of_task, model, name, engine, data, known_accuracy, revise, details
        )
        if variant is None:
            registry.add_task(of_task)
            registry.add_model(of_model)
            variant = registry.register_variant(
                task=of_task.name,
                model=model,
                name=name,
                precision=precision,
                engine=engine,
                accuracy=known_accuracy,
                artifact=data,
                resolution_px=resolution,
                parameter_count=facts.parameter_count,
                multiply_adds=facts.multiply_adds,
                inspect=False,
            )
            if details:
                reason = "measured when it was registered"
                registry.revise_accuracy(variant.id, known_accuracy, reason, details)
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
    from modelless.variants.inspection import read_onnx

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


def _find_task(registry: Registry, name: str | None, new: Task | None) -> Task:
    if new is not None:
        if name is not None and name != new.name:
            raise InvalidInputError.of("--task", name, f"{new.name!r}, as the task file says")
        return new
    if name is None:
        raise InvalidInputError("--task: say which task it performs, or describe it: --task-file")
    tasks = {task.name: task for task in registry.tasks()}
    if name not in tasks:
        from modelless.variants.paths import not_found

        raise not_found("task", name, tasks, "describe one in a file and give --task-file.")
    return tasks[name]


def _find_model(
    registry: Registry, task: Task, name: str, family: str, source: str, licence: str
) -> Model:
    known = {}
    if any(found.name == task.name for found in registry.tasks()):
        known = {model.name: model for model in registry.models(task.name)}
    if name in known and not (family or source or licence):
        return known[name]
    return Model(task.name, name, family or name, source, licence)


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
    from modelless.variants.intervals import wilson_percent

    low, high = wilson_percent(round(percent / 100.0 * samples), samples)
    return replace(stated, low_percent=low, high_percent=high, sample_count=samples)


def _measured(
    planned: Variant, data: bytes, task: Task, validation: Path
) -> tuple[Accuracy, Mapping[str, object]]:
    """The accuracy of a file on a validation set, and what the history keeps of it."""
    from modelless.controller.cli.measuring import measure_file
    from modelless.variants.outcomes import details_of

    found, metric = measure_file(planned, data, task, validation)
    return found.accuracy, details_of(found, metric)


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
