"""Queries over the store's tables that say things in the vocabulary's words."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from modelless.variants.registry.versions import Line
from modelless.variants.store.conversion import line_of, variant_of
from modelless.variants.store.tables import VariantRow, VersionLineRow
from modelless.variants.vocabulary import Variant


def variants_in(
    session: Session,
    task: str | None,
    model: str | None,
    name: str | None,
    version: int | None,
    latest_only: bool,
) -> tuple[Variant, ...]:
    """Variants in order of task, model, name and version. The arguments: ``Registry.variants``."""
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
