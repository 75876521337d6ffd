"""The zoo: models that come with modelless or that pip installs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select

from modelless.common.errors import EnvironmentUnfitError, IntegrityError, NotFoundError
from modelless.controller.usecases.home import Home, open_home, variant_fields
from modelless.controller.usecases.progress import Note, Progress, Step, ignore
from modelless.variants import zoo
from modelless.variants.graphs.inspection import check_signature, inspect_onnx
from modelless.variants.registry.registry import Registry
from modelless.variants.store import HistoryRow
from modelless.variants.vocabulary import Provenance, Task, Variant

KIND: Final = "zoo-added"
"""Kind of the history's entry that says an entry was added, and which variants it has."""


@dataclass(frozen=True, slots=True)
class AddedEntry:
    """An entry of the zoo that is registered.

    Attributes:
        new: ids of those that were not registered before.
    """

    name: str
    variants: tuple[Variant, ...]
    new: frozenset[str]
    was_there: bool

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "was_there": self.was_there,
            "new": sorted(self.new),
            "variants": [variant_fields(variant) for variant in self.variants],
        }


def list_zoo(home: Home = None) -> list[dict[str, Any]]:
    """Every entry of the zoo: what it is, what it lacks, and whether it is added; a row each."""
    rows = []
    with open_home(home) as registry:
        for name in zoo.ENTRIES:
            summary = missing = None
            try:
                summary = zoo.find_entry(name).summary
            except EnvironmentUnfitError as error:
                missing = str(error)
            rows.append(
                {
                    "name": name,
                    "summary": summary,
                    "missing": missing,
                    "added": bool(_added_before(registry, name)),
                    "registered": len(registry.variants(name)),
                }
            )
    return rows


def zoo_add(
    *names: str, force: bool = False, home: Home = None, on_progress: Progress = ignore
) -> list[AddedEntry]:
    """Build and register all variants of entries of the zoo.

    An entry that is complete is left alone; a damaged file is built again. An interruption while an
    entry is built leaves the registry as it was; while it is registered, whole variants remain, and
    the same call adds the rest.

    Args:
        names: of entries, such as ``imagenet`` and ``fashion-mnist``.
        force: build again, even if all of it is there.
        home: see ``home_folder``.
        on_progress: receives the progress.

    Raises:
        NotFoundError: an unknown entry.
        EnvironmentUnfitError: a package that the entry needs is not installed.
        IntegrityError: the entry's source is not what was published, or a graph is not allowed.
        StoreError: the store cannot be written.

    Examples:
        >>> (entry,) = modelless.zoo_add("fashion-mnist")  # doctest: +SKIP
        >>> entry.variants[0].id  # doctest: +SKIP
        'fashion-mnist/cnn-s/fp32-28@1'
    """
    entries = [zoo.find_entry(name) for name in dict.fromkeys(names)]
    results = []
    with open_home(home) as registry:
        for entry in entries:
            try:
                results.append(_add(registry, entry, force, on_progress))
            except KeyboardInterrupt:
                count = len(registry.variants(entry.name))
                kept = f"{count} variants are registered, each whole; add it again for the rest"
                nothing = f"nothing of {entry.name} was registered"
                on_progress(Note(f"{entry.name}: {kept}" if count else nothing))
                raise
    return results


def _add(registry: Registry, entry: zoo.ZooEntry, force: bool, on_progress: Progress) -> AddedEntry:
    """Build all variants of an entry, then register them; nothing if they are there already."""
    if not force:
        known = _added_before(registry, entry.name)
        if known and all(_is_sound(registry, variant) for variant in known):
            return AddedEntry(entry.name, known, frozenset(), was_there=True)
    with registry.store.transaction():
        pass  # a store that cannot be written is told before the work

    def show(stage: str, done: int, total: int) -> None:
        on_progress(Step(f"adding {entry.name}", done, total, stage))

    task = entry.task
    built = []
    for one in entry.build(show):
        check_signature(inspect_onnx(one.onnx_bytes), task)
        built.append(one)
    before = {v.id: v for v in registry.variants(task.name, latest_only=False)}
    registry.add_task(task)
    variants = tuple(_register(registry, task, one, before.values()) for one in built)
    ids = [variant.id for variant in variants]
    with registry.store.transaction() as session:
        reason = "forced" if force else "asked for"
        session.add(
            HistoryRow(kind=KIND, subject=entry.name, reason=reason, details={"variants": ids})
        )
    return AddedEntry(entry.name, variants, frozenset(ids) - before.keys(), was_there=False)


def _added_before(registry: Registry, name: str) -> tuple[Variant, ...]:
    """The variants of an entry that was added as a whole; empty if it was not, or one is gone."""
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


def _register(
    registry: Registry, task: Task, one: zoo.BuiltVariant, before: Iterable[Variant]
) -> Variant:
    """Register one variant; its accuracy is the zoo's, unless one was measured here."""
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
