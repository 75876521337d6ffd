"""Taking variants out: retired, they stay but serve nobody; removed, they are gone.

The history keeps what was removed. A version that was removed is never given again, so that what
speaks of it, a receipt or a profile of another machine, means one file for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from modelless.common.errors import InvalidInputError
from modelless.variants.making.builder import forget_steps
from modelless.variants.paths import ScopePath, parse_path
from modelless.variants.registry.registry import (
    REINSTATED,
    REMOVED,
    RETIRED,
    Registry,
    find_model,
    find_task,
    one_variant,
)
from modelless.variants.registry.versions import Line, name_of
from modelless.variants.store.rows import (
    latest_change,
    lines_in,
    made_of,
    registered_lines,
    variants_in,
)
from modelless.variants.store.tables import (
    ArtifactRow,
    HistoryRow,
    MeasurementRow,
    ModelRow,
    PairRunRow,
    TaskRow,
    VariantRow,
    VersionLineRow,
    utc_now,
)
from modelless.variants.vocabulary import Variant

_RETIRE: Final = "Retire it first: 'modelless retire {}'; it is unloaded seconds later."


@dataclass(frozen=True, slots=True)
class Removed:
    """The versions, models and tasks that were removed.

    Attributes:
        name: of the scope.
        variants: ids of the versions.
        files, file_bytes: those that nothing else refers to, which are gone, too.
    """

    name: str
    variants: tuple[str, ...]
    files: int
    file_bytes: int


def remove(
    registry: Registry,
    name: str,
    who: str,
    reason: str,
    held: Mapping[str, str],
    work: Path,
    *,
    is_up: bool,
) -> Removed:
    """Remove a task, a model, a variant or one version, with its profiles and its files.

    Args:
        registry: to remove from.
        name: ``task``, ``task/model``, ``task/model/variant`` or ``...@version``.
        who: asks for it.
        reason: a sentence for the history.
        held: who holds a variant loaded now, by its id.
        work: the folder that variants are made in. Nobody makes any meanwhile.
        is_up: whether a cluster runs from the registry's home.

    Raises:
        NotFoundError: there is no such thing.
        InvalidInputError: it is in use; says by what, and what to do.
        StoreError: the store or the artifacts cannot be written.
    """
    path = parse_path(name)
    with registry.store.transaction() as session:
        chosen = _chosen(session, path)
        ids = [variant.id for variant in chosen]
        left = _left(session, path, ids)
        _refuse_held(ids, held)
        _refuse_in_service(session, chosen, left, is_up=is_up)
        files = {variant.artifact_sha256 for variant in chosen} | made_of(session, ids)
        number = latest_change(session)
        _delete_rows(session, ids, left)
        if path.variant is None:
            _delete_above(session, path)
        session.flush()
        gone = files - _referred_to(session)
        session.execute(delete(ArtifactRow).where(ArtifactRow.sha256.in_(list(gone))))
        for subject in ids or [str(path)]:
            details: dict[str, Any] = {"who": who, "scope": str(path), "number": number}
            session.add(HistoryRow(kind=REMOVED, subject=subject, reason=reason, details=details))
    # The files go last, so that no row ever speaks of one that is gone; another process may have
    # registered one of them again before this transaction.
    gone |= forget_steps(work, gone)
    with registry.store.transaction() as session:
        unused = gone - _referred_to(session)
        sizes = [registry.artifacts.remove(sha256) for sha256 in unused]
    return Removed(str(path), tuple(ids), sum(size > 0 for size in sizes), sum(sizes))


def retire(registry: Registry, name: str, who: str, reason: str, *, undo: bool) -> tuple[str, ...]:
    """Take the variants of a scope out of service, or with ``undo`` back into it; returns names.

    A running cluster lets in no new queries for them, and unloads them when it has answered those
    that it has.

    Args:
        registry: of the variants.
        name: ``task``, ``task/model`` or ``task/model/variant``.
        who: asks for it.
        reason: a sentence for the history.
        undo: take them back into service.

    Raises:
        NotFoundError: there is no such thing.
        InvalidInputError: a version was named, one is in a canary, or there is nothing to do.
        StoreError: the store refused.
    """
    path = parse_path(name)
    if path.version is not None:
        allowed = "a variant, a model or a task: of a variant's versions the others do not serve"
        raise InvalidInputError.of("retire", name, allowed)
    with registry.store.transaction() as session:
        chosen = _chosen(session, path)
        ids = [variant.id for variant in chosen]
        if not undo:
            _refuse_on_trial(chosen, lines_in(session))
        is_retired = VariantRow.retired_at.is_not(None)
        some = VariantRow.id.in_(ids), is_retired if undo else ~is_retired
        found = session.scalars(select(VariantRow.id).where(*some))
        changed = sorted(set(map(name_of, found)))
        if not changed:
            allowed = "one that was retired" if undo else "one that serves"
            raise InvalidInputError.of("retire", name, allowed)
        now = None if undo else utc_now()
        session.execute(update(VariantRow).where(VariantRow.id.in_(ids)).values(retired_at=now))
        for subject in changed:
            kind, details = REINSTATED if undo else RETIRED, {"who": who}
            session.add(HistoryRow(kind=kind, subject=subject, reason=reason, details=details))
    return tuple(changed)


def _chosen(session: Session, path: ScopePath) -> tuple[Variant, ...]:
    """Every version in a scope; NotFoundError if there is no such scope."""
    find_task(session, path.task)
    if path.model is not None:
        find_model(session, path.task, path.model)
    found = variants_in(session, path.task, path.model, path.variant, path.version)
    return found or (() if path.variant is None else (one_variant(session, path),))


def _left(session: Session, path: ScopePath, ids: Collection[str]) -> dict[str, list[int]]:
    """The versions that are left of each variant of which some go."""
    every = variants_in(session, path.task, path.model, path.variant)
    left: dict[str, list[int]] = {name_of(each): [] for each in ids}
    for variant in every:
        if variant.id not in ids and name_of(variant.id) in left:
            left[name_of(variant.id)].append(variant.version)
    return left


def _refuse_held(ids: Sequence[str], held: Mapping[str, str]) -> None:
    for each in ids:
        if each in held:
            raise InvalidInputError.of(
                "in use",
                each,
                f"what nothing holds; loaded by {held[each]}",
                _RETIRE.format(name_of(each)),
            )


def _refuse_on_trial(chosen: Sequence[Variant], lines: Mapping[str, Line]) -> None:
    for variant in chosen:
        line = lines.get(name_of(variant.id))
        trial = line.trial if line is not None else None
        if trial is not None and variant.version in (trial.version, trial.against):
            raise InvalidInputError.of(
                "in use", variant.id, f"a version that is not in the canary of {trial.variant_id}",
                f"End it first: modelless rollback {trial.name}.",
            )  # fmt: skip


def _refuse_in_service(
    session: Session, chosen: Sequence[Variant], left: Mapping[str, list[int]], *, is_up: bool
) -> None:
    lines: dict[str, Line] = {**registered_lines(session), **lines_in(session)}
    _refuse_on_trial(chosen, lines)
    for variant in chosen:
        line = lines[name_of(variant.id)]
        if variant.version != line.current:
            continue
        if left[line.name]:
            raise InvalidInputError.of(
                "in use", variant.id, "a version that is not the current one",
                f"Make another one current: modelless promote {line.name}@{left[line.name][-1]}; "
                f"or remove them all: modelless remove {line.name}.",
            )  # fmt: skip
        if is_up and session.get_one(VariantRow, variant.id).retired_at is None:
            raise InvalidInputError.of(
                "in use", variant.id, "what the running modelless does not serve",
                _RETIRE.format(line.name),
            )  # fmt: skip


def _referred_to(session: Session) -> set[str]:
    """The files of all variants that there are, and those that they were made of."""
    return set(session.scalars(select(VariantRow.artifact_sha256))) | made_of(session)


def _delete_rows(session: Session, ids: Sequence[str], left: Mapping[str, list[int]]) -> None:
    of_pair = PairRunRow.variant_id.in_(ids), PairRunRow.neighbour_variant_id.in_(ids)
    session.execute(delete(PairRunRow).where(or_(*of_pair)))
    session.execute(delete(MeasurementRow).where(MeasurementRow.variant_id.in_(ids)))
    session.execute(delete(VariantRow).where(VariantRow.id.in_(ids)))
    for name, versions in left.items():
        row = session.get(VersionLineRow, name)
        if row is not None and not versions:
            session.delete(row)
        elif row is not None:
            row.earlier = [each for each in row.earlier if each in versions]


def _delete_above(session: Session, path: ScopePath) -> None:
    models = delete(ModelRow).where(ModelRow.task == path.task)
    if path.model is not None:
        models = models.where(ModelRow.name == path.model)
    session.execute(models)
    if path.model is None:
        session.execute(delete(TaskRow).where(TaskRow.name == path.task))
