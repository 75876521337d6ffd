"""Adding a zoo entry to the registry: built and checked as a whole first, registered then."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from modelless.common.errors import IntegrityError, NotFoundError
from modelless.variants.graphs.inspection import check_signature, inspect_onnx
from modelless.variants.registry.registry import Registry
from modelless.variants.store import HistoryRow
from modelless.variants.vocabulary import Provenance, Task, Variant
from modelless.variants.zoo import BuiltVariant, ZooEntry

KIND: Final = "zoo-added"
"""Of the history's row that says an entry was added, and which variants it has."""

OnProgress = Callable[[str, int, int], None]
"""Told what is being done, how many variants are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Added:
    """What came of adding an entry.

    Attributes:
        variants: the entry's, in its order.
        new: ids of those that were not registered before.
        was_there: nothing had to be built.
    """

    variants: tuple[Variant, ...]
    new: frozenset[str]
    was_there: bool


def add_entry(
    registry: Registry, entry: ZooEntry, on_progress: OnProgress, *, force: bool = False
) -> Added:
    """Build all of an entry's variants, then register them; nothing if they are there already.

    An interruption while building, which is what takes the time, leaves the registry untouched.
    While registering it leaves whole variants; adding again brings the others. A damaged file of
    the entry is made anew.

    Args:
        force: build even if all is there.

    Raises:
        EnvironmentUnfitError: a package that the entry needs is not installed.
        IntegrityError: what it is built from is not what was published, or a graph is not allowed.
        StoreError: the store refused.
    """
    if not force:
        known = added_before(registry, entry.name)
        if known and all(_is_sound(registry, variant) for variant in known):
            return Added(known, frozenset(), was_there=True)
    task = entry.task
    built = list(_checked(entry.build(on_progress), task))
    before = {v.id: v for v in registry.variants(task.name, latest_only=False)}
    registry.add_task(task)
    variants = tuple(_register(registry, task, one, before.values()) for one in built)
    ids = [variant.id for variant in variants]
    with registry.store.transaction() as session:
        session.add(
            HistoryRow(
                kind=KIND,
                subject=entry.name,
                reason="forced" if force else "asked for",
                details={"variants": ids},
            )
        )
    return Added(variants, frozenset(ids) - before.keys(), was_there=False)


def added_before(registry: Registry, name: str) -> tuple[Variant, ...]:
    """The variants of an entry that was added as a whole; none if it was not, or they have gone."""
    query = (
        select(HistoryRow)
        .where(HistoryRow.kind == KIND, HistoryRow.subject == name)
        .order_by(HistoryRow.id.desc())
        .limit(1)
    )
    with registry.store.session() as session:
        row = session.scalars(query).first()
    if row is None:
        return ()
    try:
        return tuple(registry.variant(variant_id) for variant_id in row.details["variants"])
    except NotFoundError:
        return ()


def _is_sound(registry: Registry, variant: Variant) -> bool:
    try:
        registry.artifacts.fetch(variant.artifact_sha256)
    except IntegrityError:
        return False
    return True


def _checked(built: Iterable[BuiltVariant], task: Task) -> Iterable[BuiltVariant]:
    for one in built:
        check_signature(inspect_onnx(one.onnx_bytes), task)
        yield one


def _register(
    registry: Registry, task: Task, one: BuiltVariant, before: Iterable[Variant]
) -> Variant:
    """Register one variant; the zoo knows best of its own files, but not what was measured here."""
    registry.add_model(one.model)
    accuracy = one.accuracy
    key = (one.model.name, one.name, one.engine, hashlib.sha256(one.onnx_bytes).hexdigest())
    for variant in before:
        if (variant.model, variant.name, variant.engine, variant.artifact_sha256) != key:
            continue
        measured = Provenance.MEASURED
        if variant.accuracy.provenance is measured and accuracy.provenance is not measured:
            accuracy = variant.accuracy
        elif variant.accuracy != accuracy:
            registry.revise_accuracy(variant.id, accuracy, "the zoo knows better")
    return registry.register_variant(
        task=task.name,
        model=one.model.name,
        name=one.name,
        precision=one.precision,
        engine=one.engine,
        accuracy=accuracy,
        artifact=one.onnx_bytes,
        resolution_px=one.resolution_px,
        parameter_count=one.parameter_count,
        multiply_adds=one.multiply_adds,
        inspect=False,  # done as it was built
    )
