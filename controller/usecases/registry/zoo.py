"""The zoo: models that come with modelless or that pip installs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sqlalchemy import select

from modelless.common.errors import EnvironmentUnfitError, IntegrityError, NotFoundError
from modelless.controller.usecases.home import Home, home_folder, open_home, variant_fields
from modelless.controller.usecases.progress import Note, Progress, Step, ignore
from modelless.controller.usecases.registry.family import FamilyOrder, make_family
from modelless.variants import zoo
from modelless.variants.conversion.converted import Source
from modelless.variants.graphs.inspection import check_signature, inspect_onnx
from modelless.variants.making.recipe import parse_recipe
from modelless.variants.metrics import find_metric
from modelless.variants.registry.registry import Registry
from modelless.variants.runtimes.engines import ENGINES, engine_status
from modelless.variants.store import HistoryRow
from modelless.variants.validation import open_validation_set
from modelless.variants.validation.inputs import held_out
from modelless.variants.vocabulary import Precision, Provenance, Task, Variant

KIND: Final = "zoo-added"
"""Kind of the history's entry that says an entry was added, and which variants it has."""

_MOST_CALIBRATION: Final = 64
"""Items that ranges of variants are measured on, where ``make`` makes them."""


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
                results.append(_add(registry, entry, force, home, on_progress))
            except KeyboardInterrupt:
                count = len(registry.variants(entry.name))
                kept = f"{count} variants are registered, each whole; add it again for the rest"
                nothing = f"nothing of {entry.name} was registered"
                on_progress(Note(f"{entry.name}: {kept}" if count else nothing))
                raise
    return results


def _add(
    registry: Registry,
    entry: zoo.ZooEntry | zoo.MadeEntry,
    force: bool,
    home: Home,
    on_progress: Progress,
) -> AddedEntry:
    """Build or make all variants of an entry; nothing if they are there already."""
    if not force:
        known = _added_before(registry, entry.name)
        if known and all(_is_sound(registry, variant) for variant in known):
            return AddedEntry(entry.name, known, frozenset(), was_there=True)
    with registry.store.transaction():
        pass  # a store that cannot be written is told before the work

    before = {v.id: v for v in registry.variants(entry.name, latest_only=False)}
    if isinstance(entry, zoo.MadeEntry):
        variants = _make(registry, entry, home, on_progress)
    else:
        variants = _build(registry, entry, before.values(), on_progress)
    ids = [variant.id for variant in variants]
    with registry.store.transaction() as session:
        reason = "forced" if force else "asked for"
        session.add(
            HistoryRow(kind=KIND, subject=entry.name, reason=reason, details={"variants": ids})
        )
    return AddedEntry(entry.name, variants, frozenset(ids) - before.keys(), was_there=False)


def _build(
    registry: Registry, entry: zoo.ZooEntry, before: Iterable[Variant], on_progress: Progress
) -> tuple[Variant, ...]:
    """Build all variants of an entry, then register them."""

    def show(stage: str, done: int, total: int) -> None:
        on_progress(Step(f"adding {entry.name}", done, total, stage))

    built = []
    for one in entry.build(show):
        check_signature(inspect_onnx(one.onnx_bytes), entry.task)
        built.append(one)
    return tuple(_register(registry, entry.task, one, before) for one in built)


def _make(
    registry: Registry, entry: zoo.MadeEntry, home: Home, on_progress: Progress
) -> tuple[Variant, ...]:
    """Make an entry's variants as ``modelless make`` does, for each engine that works here."""
    task = entry.task
    metric = find_metric(task.accuracy_metric, task)
    on_cpus = [engine for engine in ENGINES if ENGINES[engine].device_kind == "cpu"]
    engines = [engine for engine in on_cpus if engine_status(engine).available]
    variants: list[Variant] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{entry.name}-items"
        on_progress(Note(f"{entry.name}: drawing {entry.items} items to measure accuracy on"))
        entry.write_items(path, entry.items)
        items = open_validation_set(path, task, metric.expects)
        calibration, count = held_out(items, _MOST_CALIBRATION)
        for model, onnx_bytes in entry.models():
            check_signature(inspect_onnx(onnx_bytes), task)
            order = FamilyOrder(
                task=task,
                model=model,
                source=Source(f"zoo {entry.name}/{model.name}", onnx_bytes),
                precision=Precision.FP32,
                resolution_px=None,
                recipe=parse_recipe(entry.recipe, f"zoo {entry.name}"),
                engines=engines,
                calibration=calibration,
                items=items,
                sample=count,
                metric=metric,
                available=count,
            )
            family = make_family(registry, home_folder(home), order, on_progress)
            variants += [member.variant for member in family.members]
            for name, why in family.left_out.items():
                on_progress(Note(f"left out: {model.name}/{name}: {why}"))
    return tuple(variants)


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
        task=task,
        model=one.model,
        name=one.name,
        precision=one.precision,
        engine=one.engine,
        accuracy=accuracy,
        artifact=one.onnx_bytes,
        resolution_px=one.resolution_px,
    )
