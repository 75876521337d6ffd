"""Rows to words and back: the only place that knows how the vocabulary lies in the tables."""

from __future__ import annotations

import dataclasses
from typing import Any

from modelless.common.errors import StoreError
from modelless.variants.registry.versions import Line, Trial, TrialRules
from modelless.variants.store.tables import ModelRow, TaskRow, VariantRow, VersionLineRow
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
