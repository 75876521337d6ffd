"""From what was written on the command line to what is to be made: everything checked first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.controller.cli.family import FamilyOrder
from modelless.controller.cli.named import check_resolution, described_task, known_model
from modelless.controller.cli.screen import say
from modelless.variants.conversion.sources import ONNX, Source, framework_of, read_source
from modelless.variants.graphs.inspection import OnnxFacts, check_signature, inspect_onnx
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.recipe import default_recipe, load_recipe
from modelless.variants.metrics import find_metric
from modelless.variants.registry.registry import Registry
from modelless.variants.runtimes.engines import ENGINES, engine_status, runs_on
from modelless.variants.validation import open_validation_set
from modelless.variants.validation.expected import Expects
from modelless.variants.validation.inputs import arrays_of, first_inputs, held_out
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
"""Items of a set that was given to calibrate with; all are kept beside the variants."""

_METRIC: Final = "top-1"
"""Of a new task, where nobody says another."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line of ``modelless make``; see its help."""

    source: str
    framework: str | None
    task: str | None
    task_file: Path | None
    metric: str | None
    model: str | None
    precision: Precision
    resolution_px: int | None
    validation: Path
    calibration: Path | None
    sample: int | None
    recipe: Path | None
    engines: Sequence[Engine]


def pick_engines(names: Sequence[str] | None, devices: Sequence[DeviceClass]) -> tuple[Engine, ...]:
    """The engines of those names; without names all that work here, on devices of these classes.

    Raises:
        InvalidInputError: no such engine, or one that runs on none of the devices.
        EnvironmentUnfitError: it does not work here, or none does.
    """
    fit = [engine for engine in ENGINES if any(runs_on(engine, device) for device in devices)]
    if names is None:
        found = tuple(engine for engine in fit if engine_status(engine).available)
        if not found:
            reasons = "; ".join(engine_status(engine).missing for engine in fit)
            raise EnvironmentUnfitError(f"no engine works here: {reasons}")
        return found
    for name in names:
        if name not in [engine.value for engine in fit]:
            allowed = ", ".join(engine.value for engine in fit)
            raise InvalidInputError.of("--engine", name, f"{allowed}, on these device classes")
    chosen = tuple(Engine(name) for name in names)
    for engine in chosen:
        if missing := engine_status(engine).missing:
            raise EnvironmentUnfitError(missing)
    return chosen


def order_of(registry: Registry, asked: Asked) -> FamilyOrder:
    """What is to be made; nothing is registered yet.

    Raises:
        ModellessError: whatever is wrong with the source, the task, the recipe or the data.
    """
    check_resolution(asked.resolution_px)
    if asked.sample is not None and asked.sample < 1:
        raise InvalidInputError.of("sample", asked.sample, "1 or more items")
    recipe = default_recipe() if asked.recipe is None else load_recipe(asked.recipe)
    parent = _registered(registry, asked)
    task = _known_task(registry, asked, parent)
    model = asked.model or (parent.model if parent is not None else None)
    if model is None:
        raise InvalidInputError("--model: say what the model shall be called")
    check_name("model", model)
    if parent is not None:
        source = Source(parent.id, registry.artifacts.read(parent.artifact_sha256))
    else:
        source = _read(asked, task)
    facts = inspect_onnx(source.onnx_bytes)
    if task is None:
        task = _task_of(str(asked.task), facts, asked.metric or _METRIC)
    elif asked.metric not in (None, task.accuracy_metric):
        raise InvalidInputError.of(
            "--metric",
            asked.metric,
            f"{task.accuracy_metric}, the metric of the task {task.name}",
            "Another one is measured by: modelless validate ... --metric.",
        )
    check_signature(facts, task)
    metric = find_metric(task.accuracy_metric, task)
    items = open_validation_set(asked.validation, task, metric.expects)
    if asked.calibration is None:
        calibration, count = held_out(items)
    else:
        unlabelled = open_validation_set(asked.calibration, task, Expects.NOTHING)
        calibration, count = first_inputs(unlabelled, _MOST_CALIBRATION), len(items)
    return FamilyOrder(
        task=task,
        model=known_model(registry, task, model)
        or Model(task.name, model, family=model, source=source.name),
        source=source,
        precision=parent.precision if parent is not None else asked.precision,
        resolution_px=parent.resolution_px if parent is not None else asked.resolution_px,
        recipe=recipe,
        engines=asked.engines,
        calibration=calibration,
        items=items,
        sample=min(count, asked.sample or count),
        metric=metric,
    )


def conversion_inputs(validation: Path, task: Task | None) -> CalibrationData:
    """Real inputs to convert with: some of a validation set's.

    Raises:
        InvalidInputError: see ``open_validation_set`` and, of a task that is new, ``arrays_of``.
    """
    if task is None:
        return arrays_of(validation)
    return first_inputs(open_validation_set(validation, task, Expects.NOTHING))


def _registered(registry: Registry, asked: Asked) -> Variant | None:
    """The registered variant that the source names; None if it is something else."""
    text = asked.source
    if asked.framework is not None or "/" not in text or ":" in text or Path(text).exists():
        return None
    if Path(text).suffix.lower() in (".onnx", ".pt2", ".skops"):
        return None
    scope = registry.resolve(text)
    if len(scope.variants) != 1:
        raise InvalidInputError.of("source", text, "one variant: task/model/variant")
    return scope.variants[0]


def _known_task(registry: Registry, asked: Asked, parent: Variant | None) -> Task | None:
    """The task, if it is registered or described in a file."""
    name = asked.task or (parent.task if parent is not None else None)
    if asked.task_file is not None:
        return described_task(asked.task_file, name)
    if name is None:
        raise InvalidInputError("--task: say which task it performs, or describe it: --task-file")
    check_name("task", name)
    return next((task for task in registry.tasks() if task.name == name), None)


def _read(asked: Asked, task: Task | None) -> Source:
    kind = framework_of(asked.source, asked.framework)
    if kind != ONNX:
        say(f"converting {asked.source} from {kind}, and holding the result against it")
    return read_source(asked.source, kind, lambda: conversion_inputs(asked.validation, task))


def _task_of(name: str, facts: OnnxFacts, metric: str) -> Task:
    """A new task of the graph's own signature.

    Raises:
        InvalidInputError: the graph does not take items along a free first axis.
    """
    for spec in (*facts.inputs, *facts.outputs):
        if not spec.shape or spec.shape[0] != -1:
            raise InvalidInputError.of(
                f"the graph's {spec.name!r}: shape",
                list(spec.shape),
                "-1 first, which counts items",
                f"Export it with a free first axis; or, if task {name!r} was meant to exist, see "
                "'modelless variants'.",
            )
    say(f"note: the task {name} is new; its signature is read off the graph")
    return Task(name, facts.inputs, facts.outputs, metric)
