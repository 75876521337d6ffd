"""The registry: which tasks, models and variants there are, in which versions."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, select
from sqlalchemy.orm import Session

from modelless.common.errors import InvalidInputError, StoreError
from modelless.common.files import default_home, expanded, make_private_folder
from modelless.variants.artifacts import ArtifactStore
from modelless.variants.paths import ScopePath, not_found, parse_path
from modelless.variants.registry.catalog import Catalog, Scope
from modelless.variants.store import (
    ArtifactRow,
    HistoryRow,
    ModelRow,
    Store,
    TaskRow,
    VariantRow,
    open_store,
)
from modelless.variants.store.rows import (
    accuracy_columns,
    lines_in,
    model_of,
    task_of,
    task_row,
    variant_of,
    variant_row,
    variants_in,
)
from modelless.variants.vocabulary import (
    Accuracy,
    Engine,
    Model,
    Precision,
    Task,
    Variant,
    check_name,
)

if TYPE_CHECKING:  # what serves reads the registry, and no graph: it does without ONNX
    from modelless.variants.graphs.graph_facts import GraphFacts


def _read_facts(data: bytes, resolution_px: int | None, where: str) -> GraphFacts:
    from modelless.variants.graphs.graph_facts import read_graph_facts
    from modelless.variants.graphs.inspection import damage_refused, parse_onnx

    model = parse_onnx(data, where)
    with damage_refused(where):
        return read_graph_facts(model, resolution_px=resolution_px)


# Rows of the registry, found and added inside a transaction that somebody else opened.

_ADD: Final = "add some with: modelless zoo add"

REMOVED: Final = "removed"
RETIRED: Final = "retired"
REINSTATED: Final = "reinstated"
"""The history's kinds of rows on variants; models and tasks are removed, too."""


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
    found = variants_in(
        session, path.task, path.model, path.variant, path.version, latest_only=True
    )
    if found:
        return found[0]
    find_model(session, find_task(session, path.task).name, path.model)
    every = variants_in(session, path.task, path.model)
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


def add_variant(session: Session, variant: Variant, graph_facts: GraphFacts) -> Variant:
    """Give a variant its version; the same bytes for the same engine have the one they had.

    Raises:
        InvalidInputError: these bytes are registered under this name and engine with other facts.
    """
    every = variants_in(session, variant.task, variant.model, variant.name)
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
    new = dataclasses.replace(variant, version=_next_version(session, variant, every))
    if session.get(ArtifactRow, new.artifact_sha256) is None:
        session.add(ArtifactRow(sha256=new.artifact_sha256, bytes=new.artifact_bytes))
        session.flush()
    row = variant_row(new)
    row.graph_facts = graph_facts.document()
    if every:  # a retired variant stays out of service
        row.retired_at = session.get_one(VariantRow, every[-1].id).retired_at
    session.add(row)
    return new


def _next_version(session: Session, variant: Variant, every: Sequence[Variant]) -> int:
    """The version after all that there are and were: one that was removed is not given again."""
    name = f"{variant.task}/{variant.model}/{variant.name}@"
    removed = session.scalars(
        select(HistoryRow.subject).where(
            HistoryRow.kind == REMOVED, HistoryRow.subject.startswith(name, autoescape=True)
        )
    )
    versions = [each.version for each in every]
    versions += [int(subject.removeprefix(name)) for subject in removed]
    return max(versions, default=0) + 1


def _must_equal(what: str, known: Any, given: Any) -> None:
    """Raise InvalidInputError that tells every field in which two frozen values differ."""
    differing = _differences(known, given)
    if not differing:
        return
    hint = "It is registered already: register this one under another name."
    if isinstance(known, Variant) and known.accuracy != given.accuracy:
        hint = (
            "It is registered already: revise_accuracy ('modelless register "
            "--revise-accuracy REASON') changes what is known of its accuracy."
        )
    field = f"{what}: {', '.join(differing)}"
    if len(differing) == 1:
        ((before, now),) = differing.values()
        raise InvalidInputError.of(field, now, f"{before!r:.300}", hint)
    given_fields = {name: now for name, (_, now) in differing.items()}
    known_fields = {name: before for name, (before, _) in differing.items()}
    raise InvalidInputError.of(field, given_fields, f"{known_fields!r:.300}", hint)


def _differences(known: Any, given: Any) -> dict[str, tuple[Any, Any]]:
    """The fields in which two values differ, with both; of an accuracy its own fields."""
    found: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(known):
        before, now = getattr(known, field.name), getattr(given, field.name)
        if before == now:
            continue
        if isinstance(before, Accuracy) and isinstance(now, Accuracy):
            inner = _differences(before, now)
            found |= {f"{field.name}.{name}": both for name, both in inner.items()}
        elif isinstance(before, StrEnum):
            found[field.name] = (before.value, now.value)
        else:
            found[field.name] = (before, now)
    return found


_REINSTATE: Final = "'modelless retire --undo' takes it back into service"


class Registry:
    """Tasks, models and variants over a store and its artifacts; several threads may use it."""

    def __init__(self, store: Store, artifacts: ArtifactStore) -> None:
        self.store = store
        self.artifacts = artifacts

    def close(self) -> None:
        """Give the store's connections back."""
        self.store.close()

    def add_task(self, task: Task) -> None:
        """Add a task, or find that it is there already and equal.

        Raises:
            InvalidInputError: there is a different task of that name.
            StoreError: the store refused.
        """
        with self.store.transaction() as session:
            add_task(session, task)

    def add_model(self, model: Model) -> None:
        """Add a model, or find that it is there already and equal.

        Raises:
            NotFoundError: its task is not there.
            InvalidInputError: there is a different model of that name.
            StoreError: the store refused.
        """
        with self.store.transaction() as session:
            add_model(session, model)

    def register_variant(
        self,
        *,
        task: str | Task,
        model: str | Model,
        name: str,
        precision: Precision,
        engine: Engine,
        accuracy: Accuracy,
        artifact: bytes,
        resolution_px: int | None = None,
        also: Callable[[Session, Variant], object] | None = None,
    ) -> Variant:
        """Store a variant's file and give it a version.

        The same bytes for the same engine again get the version they have; other bytes, or another
        engine, get the next one. To offer one file under several engines at once, give each a name.

        Args:
            task, model: names of what must be there; a whole one is added together with the
                variant where it is not, so that neither is ever there without it.
            name: of the variant, e.g. ``int8-224``.
            precision, engine, accuracy, resolution_px: what it is.
            artifact: the whole file.
            also: writes in the same transaction what the variant must not be seen without.

        Raises:
            NotFoundError: the task or the model was named and is not there.
            IntegrityError: the file is not what may be run.
            InvalidInputError: its signature is not the task's, or these bytes are registered under
                this name and engine with other facts, or there is another task or model so named.
            StoreError: the store refused.
        """
        check_name("variant.name", name)
        with self.store.session() as session:
            known_task = task if isinstance(task, Task) else find_task(session, task)
            if isinstance(model, str):
                find_model(session, known_task.name, model)
        from modelless.variants.graphs.inspection import check_signature, inspect_onnx

        check_signature(inspect_onnx(artifact, max_bytes=self.artifacts.max_bytes), known_task)
        graph_facts = _read_facts(artifact, resolution_px, "ONNX file")
        variant = Variant(
            task=known_task.name,
            model=model.name if isinstance(model, Model) else model,
            name=name,
            version=1,
            precision=precision,
            resolution_px=resolution_px,
            engine=engine,
            artifact_sha256=hashlib.sha256(artifact).hexdigest(),
            artifact_bytes=len(artifact),
            accuracy=accuracy,
            parameter_count=graph_facts.parameter_count,
            multiply_adds=graph_facts.multiply_adds,
        )
        self.artifacts.put(artifact)  # first: a row never speaks of a file that is not there
        with self.store.transaction() as session:
            self.artifacts.put(artifact)  # again: another process may have removed it meanwhile
            if isinstance(task, Task):
                add_task(session, task)
            if isinstance(model, Model):
                add_model(session, model)
            added = add_variant(session, variant, graph_facts)
            if also is not None:
                also(session, added)
            return added

    def graph_facts(self, variant: Variant) -> GraphFacts:
        """The facts of a variant's graph: kept, or read from its file and then kept.

        Raises:
            NotFoundError: no such variant.
            IntegrityError: its file is damaged, or no ONNX file.
            StoreError: the store or the file cannot be read.
        """
        from modelless.variants.graphs.graph_facts import GraphFacts

        variant = self.variant(variant.id)
        with self.store.session() as session:
            kept = session.scalar(select(VariantRow.graph_facts).where(VariantRow.id == variant.id))
        known = None if kept is None else GraphFacts.of_document(kept)
        if known is not None:
            return known
        data = self.artifacts.read(variant.artifact_sha256)
        facts = _read_facts(data, variant.resolution_px, f"artifact of {variant.id}")
        # They are of use even where they cannot be kept.
        with contextlib.suppress(StoreError), self.store.transaction() as session:
            session.get_one(VariantRow, variant.id).graph_facts = facts.document()
        return facts

    def revise_accuracy(
        self,
        variant_id: str,
        accuracy: Accuracy,
        reason: str,
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> Variant:
        """Replace what is known of a variant's accuracy, and note why in the history.

        Args:
            variant_id: ``task/model/name@version``.
            accuracy: what is known now.
            reason: why it is revised.
            details: plain data that the history keeps beside what was known before, and now.

        Raises:
            NotFoundError: no such variant.
            StoreError: the store refused.
        """
        path = parse_path(variant_id)
        with self.store.transaction() as session:
            before = one_variant(session, path)
            row = session.get_one(VariantRow, before.id)
            for field, value in accuracy_columns(accuracy).items():
                setattr(row, field, value)
            session.add(
                HistoryRow(
                    kind="accuracy-revised",
                    subject=before.id,
                    reason=reason,
                    details={
                        "before": dataclasses.asdict(before.accuracy),
                        "after": dataclasses.asdict(accuracy),
                        **details,
                    },
                )
            )
            return variant_of(row)

    def tasks(self) -> tuple[Task, ...]:
        """Every task, by name."""
        with self.store.session() as session:
            return tuple(map(task_of, session.scalars(select(TaskRow).order_by(TaskRow.name))))

    def models(self, task: str) -> tuple[Model, ...]:
        """The task's models, by name. NotFoundError if there is no such task."""
        with self.store.session() as session:
            find_task(session, task)
            rows = session.scalars(
                select(ModelRow).where(ModelRow.task == task).order_by(ModelRow.name)
            )
            return tuple(map(model_of, rows))

    def variants(
        self,
        task: str | None = None,
        model: str | None = None,
        name: str | None = None,
        *,
        latest_only: bool = True,
    ) -> tuple[Variant, ...]:
        """Variants by task, model, name and version, in that order; empty if none fits.

        Args:
            task, model, name: narrow it down; None is any.
            latest_only: False for every version.
        """
        with self.store.session() as session:
            return variants_in(session, task, model, name, latest_only=latest_only)

    def variant(self, variant_id: str) -> Variant:
        """The variant of that id, ``task/model/name@version``; NotFoundError if there is none."""
        with self.store.session() as session:
            return one_variant(session, parse_path(variant_id))

    def catalog(self, *, with_retired: bool = False) -> Catalog:
        """Returns the registered things of now, as one snapshot that needs the store no more.

        Args:
            with_retired: with the variants that were taken out of service, too.
        """
        with self.store.session() as session:
            retired = set(
                session.scalars(select(VariantRow.id).where(VariantRow.retired_at.is_not(None)))
            )
            catalog = Catalog(
                map(task_of, session.scalars(select(TaskRow).order_by(TaskRow.name))),
                map(model_of, session.scalars(select(ModelRow).order_by(ModelRow.name))),
                variants_in(session),
                current={name: line.current for name, line in lines_in(session).items()},
            )
        if with_retired or not retired:
            return catalog
        current = (variant.id for variant in catalog.variants if variant.id in retired)
        return catalog.without(dict.fromkeys(current, f"it was retired: {_REINSTATE}"))

    def resolve(self, path: str, version: str | int | None = None) -> Scope:
        """The variants that ``path`` names now. A caller that resolves often keeps a ``catalog``.

        Args:
            path: ``task``, ``task/model``, ``task/model/variant`` or ``task/model/variant@2``.
            version: of the variant, if it is given apart from the path.

        Raises:
            InvalidInputError: the path is malformed.
            NotFoundError: no such task, model, variant or version, or no variant in scope; says
                which names are near and what there is.
        """
        return self.catalog().resolve(path, version)


def open_registry(home: Path | None = None) -> Registry:
    """The registry of a home folder, which is made if need be, for this user alone.

    Args:
        home: None for $MODELLESS_HOME, else ``~/.modelless``. Its store is ``store.db``, unless
            $MODELLESS_STORE_URL names another; its artifacts lie in ``artifacts``.

    Raises:
        StoreError: the folder cannot be made, or the store cannot be opened.
        InvalidInputError: $MODELLESS_STORE_URL is malformed, or the folder begins with ``~`` and no
            user's name.
    """
    folder = expanded("home", home) if home else default_home()
    try:
        make_private_folder(folder)
    except OSError as error:
        raise StoreError(
            f"The home folder {folder} cannot be made ({error.strerror}). "
            "Name another one in MODELLESS_HOME."
        ) from error
    folder = folder.resolve()
    default = URL.create("sqlite", database=str(folder / "store.db"))
    store = open_store(os.environ.get("MODELLESS_STORE_URL") or default)
    return Registry(store, ArtifactStore(folder / "artifacts"))
