"""Rows to words and back, and queries in the vocabulary's words: nothing else knows both."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from modelless.common.errors import StoreError
from modelless.variants.registry.versions import Line, Trial, TrialRules
from modelless.variants.store.tables import (
    HistoryRow,
    ModelRow,
    TaskRow,
    VariantRow,
    VersionLineRow,
)
from modelless.variants.vocabulary import (
    Accuracy,
    CtcDecoding,
    Engine,
    Model,
    Precision,
    Provenance,
    Task,
    TensorSpec,
    Variant,
)

MADE: Final = "variant-made"
"""The history's kind of row that says where a variant comes from."""


def task_row(task: Task) -> TaskRow:
    """A new row that holds ``task``."""
    return TaskRow(**dataclasses.asdict(task))


def task_of(row: TaskRow) -> Task:
    """The task that a row holds."""
    return Task(
        name=row.name,
        inputs=tuple(map(_spec, row.inputs)),
        outputs=tuple(map(_spec, row.outputs)),
        accuracy_metric=row.accuracy_metric,
        description=row.description,
        labels=tuple(row.labels),
        decoding=None if row.decoding is None else CtcDecoding(**row.decoding),
    )


def _spec(fields: dict[str, Any]) -> TensorSpec:
    padding = fields.get("padding")  # rows of older releases have none
    return TensorSpec(fields["name"], fields["datatype"], tuple(fields["shape"]), padding)


def model_of(row: ModelRow) -> Model:
    """The model that a row holds."""
    return Model(row.task, row.name, row.family, row.source, row.licence)


def accuracy_columns(accuracy: Accuracy) -> dict[str, Any]:
    """An accuracy as columns of ``VariantRow``."""
    fields = dataclasses.asdict(accuracy)
    fields["provenance"] = accuracy.provenance.value
    return {f"accuracy_{name}": value for name, value in fields.items()}


def variant_row(variant: Variant) -> VariantRow:
    """A new row that holds ``variant``; its artifact needs a row of its own."""
    fields = dataclasses.asdict(variant)
    del fields["accuracy"], fields["artifact_bytes"]
    fields |= {"precision": variant.precision.value, "engine": variant.engine.value}
    return VariantRow(id=variant.id, **fields, **accuracy_columns(variant.accuracy))


def variant_of(row: VariantRow) -> Variant:
    """The variant that a row holds; StoreError if this modelless knows not what it says."""
    try:
        precision, engine = Precision(row.precision), Engine(row.engine)
        provenance = Provenance(row.accuracy_provenance)
    except ValueError as error:
        raise StoreError(
            f"The store's variant {row.id} was registered by a newer modelless ({error}). "
            "Upgrade with: pip install --upgrade modelless"
        ) from error
    known = {
        field.name: getattr(row, f"accuracy_{field.name}")
        for field in dataclasses.fields(Accuracy)
        if field.name != "provenance"
    }
    return Variant(
        task=row.task,
        model=row.model,
        name=row.name,
        version=row.version,
        precision=precision,
        resolution_px=row.resolution_px,
        engine=engine,
        artifact_sha256=row.artifact_sha256,
        artifact_bytes=row.artifact.bytes,
        accuracy=Accuracy(**known, provenance=provenance),
        parameter_count=row.parameter_count,
        multiply_adds=row.multiply_adds,
    )


def line_of(row: VersionLineRow) -> Line:
    """The line that a row holds; StoreError if this modelless knows not what it says."""
    trial = None
    if row.trial is not None:
        try:
            trial = Trial(**{**row.trial, "rules": TrialRules(**row.trial["rules"])})
        except (TypeError, KeyError) as error:
            raise StoreError(
                f"The trial of {row.name} was begun by a newer modelless ({error}). "
                "Upgrade with: pip install --upgrade modelless"
            ) from error
    return Line(row.name, row.current, tuple(row.earlier), trial)


def variants_in(
    session: Session,
    task: str | None = None,
    model: str | None = None,
    name: str | None = None,
    version: int | None = None,
    *,
    latest_only: bool = False,
) -> tuple[Variant, ...]:
    """Variants in order of task, model, name and version; of the parts that are None, any."""
    key = (VariantRow.task, VariantRow.model, VariantRow.name)
    query = select(VariantRow).order_by(*key, VariantRow.version)
    for column, value in zip(key, (task, model, name), strict=True):
        if value is not None:
            query = query.where(column == value)
    if version is not None:
        query = query.where(VariantRow.version == version)
    elif latest_only:
        latest = (
            select(*key, func.max(VariantRow.version).label("version")).group_by(*key).subquery()
        )
        query = query.join(
            latest,
            (VariantRow.task == latest.c.task)
            & (VariantRow.model == latest.c.model)
            & (VariantRow.name == latest.c.name)
            & (VariantRow.version == latest.c.version),
        )
    return tuple(map(variant_of, session.scalars(query)))


def lines_in(session: Session) -> dict[str, Line]:
    """The lines that somebody changed, by ``task/model/variant``."""
    rows = session.scalars(select(VersionLineRow).order_by(VersionLineRow.name))
    return {row.name: line_of(row) for row in rows}


def registered_lines(session: Session) -> dict[str, Line]:
    """The lines of all variants as registering made them: the first version is current."""
    key = (VariantRow.task, VariantRow.model, VariantRow.name)
    query = select(*key, func.min(VariantRow.version)).group_by(*key).order_by(*key)
    named = (("/".join(names), version) for *names, version in session.execute(query))
    return {name: Line(name, version) for name, version in named}


def registered_state(session: Session) -> tuple[object, ...]:
    """A value that changes when a variant is registered, removed, retired or reinstated."""
    added, retired = VariantRow.added_at, VariantRow.retired_at
    counts = (func.count(), func.max(added), func.count(retired), func.max(retired))
    return tuple(session.execute(select(*counts).select_from(VariantRow)).one())


def latest_change(session: Session) -> int:
    """The number of the latest change to any line; 0 if there was none."""
    return session.scalar(select(func.max(VersionLineRow.number))) or 0


def made_of(session: Session, ids: Collection[str] | None = None) -> set[str]:
    """The files that variants were made of, which have no rows; None is all variants."""
    some = select(VariantRow.id) if ids is None else list(ids)
    rows = select(HistoryRow.details).where(HistoryRow.kind == MADE, HistoryRow.subject.in_(some))
    found = set()
    for details in session.scalars(rows):
        lineage = details.get("lineage", {})
        found |= {details.get("calibration_file_sha256"), lineage.get("source_sha256")}
    return {each for each in found if isinstance(each, str)}
