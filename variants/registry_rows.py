"""Rows of the registry, found and added inside a transaction that somebody else opened."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from modelless.variants.errors import InvalidInputError
from modelless.variants.paths import ScopePath, not_found
from modelless.variants.store import ArtifactRow, ModelRow, TaskRow
from modelless.variants.store.conversion import (
    model_of,
    task_of,
    task_row,
    variant_row,
)
from modelless.variants.store.queries import variants_in
from modelless.variants.vocabulary import Accuracy, Model, Task, Variant

if TYPE_CHECKING:
    from modelless.variants.graph_facts import GraphFacts

_ADD: Final = "add some with: modelless zoo add"


def find_task(session: Session, name: str) -> Task:
    """The task of that name; NotFoundError if there is none."""
    row = session.get(TaskRow, name)
    if row is None:
        raise not_found("task", name, session.scalars(select(TaskRow.name)), f"{_ADD}.")
    return task_of(row)


def find_model(session: Session, task: str, name: str) -> Model:
    """The task's model of that name; NotFoundError if there is none."""
    row = session.get(ModelRow, (task, name))
    if row is None:
        known = session.scalars(select(ModelRow.name).where(ModelRow.task == task))
        raise not_found(f"model of task {task!r}", name, known, f"{_ADD} {task}.")
    return model_of(row)


def one_variant(session: Session, path: ScopePath) -> Variant:
    """The variant that a whole path names: its version, or the latest."""
    if path.model is None or path.variant is None:
        raise InvalidInputError.of("variant", str(path), "task/model/variant@version")
    found = variants_in(session, path.task, path.model, path.variant, path.version, True)
    if found:
        return found[0]
    find_model(session, find_task(session, path.task).name, path.model)
    every = variants_in(session, path.task, path.model, None, None, False)
    versions = [str(variant.version) for variant in every if variant.name == path.variant]
    if versions:
        what = f"version of variant {path.task}/{path.model}/{path.variant}"
        raise not_found(what, str(path.version), versions, "")
    names = {variant.name for variant in every}
    raise not_found(
        f"variant of model {path.task}/{path.model}", path.variant, names, f"{_ADD} {path.task}."
    )


def add_task(session: Session, task: Task) -> None:
    """Add a task, or find it there and equal; InvalidInputError if another one is so named."""
    row = session.get(TaskRow, task.name)
    if row is None:
        session.add(task_row(task))
        session.flush()
    else:
        _must_equal(f"task {task.name!r}", task_of(row), task)


def add_model(session: Session, model: Model) -> None:
    """Add a model, or find it there and equal.

    Raises:
        NotFoundError: its task is not there.
        InvalidInputError: another model is so named.
    """
    find_task(session, model.task)
    row = session.get(ModelRow, (model.task, model.name))
    if row is None:
        session.add(ModelRow(**dataclasses.asdict(model)))
        session.flush()
    else:
        _must_equal(f"model {model.task}/{model.name}", model_of(row), model)


def add_variant(session: Session, variant: Variant, graph_facts: GraphFacts | None) -> Variant:
    """Give a variant its version; the same bytes for the same engine have the one they had.

    Raises:
        InvalidInputError: these bytes are registered under this name and engine with other facts.
    """
    # The model's row is locked, so that two processes cannot take the same version number.
    # (SQLite, which has no row locks, has the whole store locked by now.)
    session.get(ModelRow, (variant.task, variant.model), with_for_update=True)
    every = variants_in(session, variant.task, variant.model, variant.name, None, False)
    for known in every:
        if (known.artifact_sha256, known.engine) == (variant.artifact_sha256, variant.engine):
            # Counts follow from the bytes; a later modelless may know how to count more.
            again = dataclasses.replace(
                variant,
                version=known.version,
                parameter_count=known.parameter_count,
                multiply_adds=known.multiply_adds,
            )
            _must_equal(f"variant {known.id} of the same bytes", known, again)
            return known
    new = dataclasses.replace(variant, version=every[-1].version + 1 if every else 1)
    if session.get(ArtifactRow, new.artifact_sha256) is None:
        session.add(ArtifactRow(sha256=new.artifact_sha256, bytes=new.artifact_bytes))
        session.flush()
    row = variant_row(new)
    row.graph_facts = None if graph_facts is None else graph_facts.document()
    session.add(row)
    return new


def _must_equal(what: str, known: Any, given: Any) -> None:
    """Raise InvalidInputError for the first field in which two frozen values differ.

    Of an accuracy only what differs in it is told.
    """
    for field in dataclasses.fields(known):
        before, now = getattr(known, field.name), getattr(given, field.name)
        if before != now:
            hint = "It is registered already: register this one under another name."
            if isinstance(before, Accuracy) and isinstance(now, Accuracy):
                hint = (
                    "It is registered already: revise_accuracy ('modelless register "
                    "--revise-accuracy REASON') changes what is known of it."
                )
                before, now = _differences(before, now)
            raise InvalidInputError.of(f"{what}: {field.name}", now, repr(before), hint)


def _differences(one: Accuracy, other: Accuracy) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields in which they differ, of each."""
    first, second = dataclasses.asdict(one), dataclasses.asdict(other)
    named = [name for name in first if first[name] != second[name]]
    return {name: first[name] for name in named}, {name: second[name] for name in named}
