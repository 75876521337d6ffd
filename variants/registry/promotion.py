"""Changing which version of a variant serves: promote, try on a share, take back.

Each change is one transaction: the pointer, and a row of history that says who, when, why and from
what to what. A running cluster sees it within a fraction of a second; without one it holds from the
next start.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from modelless.common.errors import InvalidInputError
from modelless.variants.paths import ScopePath, not_found, parse_path
from modelless.variants.registry.registry import REMOVED
from modelless.variants.registry.versions import EARLIER_KEPT, Line, Trial, TrialRules
from modelless.variants.store.database import Store
from modelless.variants.store.rows import (
    latest_change,
    lines_in,
    registered_lines,
    registered_state,
    variants_in,
)
from modelless.variants.store.tables import HistoryRow, VariantRow, VersionLineRow, utc_now

PROMOTED, ROLLED_BACK = "promoted", "rolled-back"
TRIAL_BEGUN, TRIAL_WON, TRIAL_LOST = "canary-begun", "canary-promoted", "canary-rolled-back"
KINDS = (PROMOTED, ROLLED_BACK, TRIAL_BEGUN, TRIAL_WON, TRIAL_LOST)
"""Of the rows of history that are written here."""

Details = Mapping[str, Any]
_NO_DETAILS: Details = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class Lines:
    """Every variant's line at one moment.

    Attributes:
        number: of the latest change.
        by_name: by ``task/model/variant``; of variants that nobody promoted, too.
        changed: those that somebody promoted, rolled back or put on trial.
    """

    number: int
    by_name: Mapping[str, Line]
    changed: frozenset[str]


def read_lines(store: Store) -> Lines:
    """The lines now. StoreError if the store cannot be read."""
    with store.session() as session:
        changed = lines_in(session)
        every = {**registered_lines(session), **changed}
        return Lines(latest_change(session), every, frozenset(changed))


def read_change(store: Store) -> tuple[int, object]:
    """The number of the latest change to a line, and what differs after one to what is registered.

    This is what to ask often. StoreError if it cannot be read.
    """
    with store.session() as session:
        return latest_change(session), registered_state(session)


def read_evidence(store: Store, trial: Trial) -> Mapping[str, Any] | None:
    """The kept evidence of a trial; None if there is none, or if it is over."""
    with store.session() as session:
        row = session.get(VersionLineRow, trial.name)
        if row is None or row.trial is None or row.trial["number"] != trial.number:
            return None
        return row.evidence


def keep_evidence(store: Store, trial: Trial, evidence: Mapping[str, Any]) -> None:
    """Keep what is known of a trial so far, unless it is over."""
    with store.transaction() as session:
        session.execute(
            update(VersionLineRow)
            .where(VersionLineRow.name == trial.name, VersionLineRow.number == trial.number)
            .values(evidence=dict(evidence))
        )


def promote(store: Store, variant_id: str, who: str, reason: str) -> Line:
    """Make a version the current one; a trial of it is over with this.

    Args:
        variant_id: ``task/model/variant@version``.
        who: asks for it.
        reason: a sentence for the history.

    Raises:
        NotFoundError: no such version.
        InvalidInputError: no version was named, it is current already, another is on trial, or the
            variant is retired.
        StoreError: the store refused.
    """
    path, version = _versioned(variant_id)
    with store.transaction() as session:
        line = _line(session, path)
        _refuse_retired(session, "promote", line, version)
        if line.trial is not None and line.trial.version != version:
            raise InvalidInputError.of(
                "promote",
                variant_id,
                f"{line.trial.variant_id}, which is on trial, or any version after "
                f"'modelless rollback {line.name}' has ended the trial",
            )
        if line.current == version:
            raise InvalidInputError.of(
                "promote", variant_id, f"a version other than the current one, {line.current}"
            )
        after = _advanced(line, version)
        return _change(session, line, after, PROMOTED, who, reason, _NO_DETAILS)


def rollback(store: Store, name: str, who: str, reason: str) -> Line:
    """Take back what was done last: a trial that is on, else the latest promotion.

    Args:
        name: ``task/model/variant``.
        who: asks for it.
        reason: a sentence for the history.

    Raises:
        NotFoundError: no such variant.
        InvalidInputError: there is nothing to take back, or a version was named.
        StoreError: the store refused.
    """
    path = parse_path(name)
    if path.variant is None or path.version is not None:
        raise InvalidInputError.of("rollback", name, "task/model/variant, without a version")
    with store.transaction() as session:
        line = _line(session, path)
        if line.trial is None and not line.earlier:
            raise InvalidInputError.of(
                "rollback",
                name,
                f"a variant with a trial or a predecessor; its version {line.current} has none",
                f"To serve another version: modelless promote {name}@VERSION",
            )
        if line.trial is not None:
            after = dataclasses.replace(line, trial=None)
        else:
            after = Line(line.name, line.earlier[-1], line.earlier[:-1])
        return _change(session, line, after, ROLLED_BACK, who, reason, _NO_DETAILS)


def begin_trial(
    store: Store,
    variant_id: str,
    share: float,
    rules: TrialRules,
    who: str,
    reason: str,
    against: int | None = None,
) -> Trial:
    """Try a version on a share of the queries, beside the current one.

    Args:
        variant_id: ``task/model/variant@version``.
        share: of the queries, above 0 and below 1.
        rules: when it ends.
        who: asks for it.
        reason: a sentence for the history.
        against: the version to compare with, where it must be said; else the current one.

    Raises:
        NotFoundError: no such version.
        InvalidInputError: it is current already, ``against`` is not, a trial of the task is on, or
            the variant is retired.
        StoreError: the store refused.
    """
    path, version = _versioned(variant_id)
    with store.transaction() as session:
        lines = lines_in(session)
        for other in lines.values():
            if other.trial is not None and other.trial.task == path.task:
                raise InvalidInputError.of(
                    "canary",
                    variant_id,
                    f"one trial a task at a time; {other.trial.variant_id} is on trial",
                    f"To end it: modelless rollback {other.name}",
                )
        line = _line(session, path)
        _refuse_retired(session, "canary", line, version)
        if version == line.current or against not in (None, line.current):
            raise InvalidInputError.of(
                "canary",
                f"{variant_id} against @{against or line.current}",
                f"a version other than the current one, against the current one, {line.current}",
                f"To make another one current: modelless promote {line.name}@VERSION",
            )
        number = _next_number(session)
        trial = Trial(line.name, version, line.current, share, number, time.time(), rules)
        details = {"share": share, "against": line.current}
        after = dataclasses.replace(line, trial=trial)
        _change(session, line, after, TRIAL_BEGUN, who, reason, details)
        return trial


def end_trial(
    store: Store, trial: Trial, who: str, reason: str, details: Details, *, promoted: bool
) -> Line | None:
    """End a trial as its evidence says; None if somebody ended it before.

    Raises:
        StoreError: the store refused.
    """
    with store.transaction() as session:
        line = lines_in(session).get(trial.name)
        if line is None or line.trial is None or line.trial.number != trial.number:
            return None
        after = _advanced(line, trial.version) if promoted else dataclasses.replace(
            line, trial=None
        )  # fmt: skip
        kind = TRIAL_WON if promoted else TRIAL_LOST
        return _change(session, line, after, kind, who, reason, details)


def _versioned(variant_id: str) -> tuple[ScopePath, int]:
    path = parse_path(variant_id)
    if path.variant is None or path.version is None:
        raise InvalidInputError.of("variant", variant_id, "task/model/variant@version")
    return path, path.version


def _line(session: Session, path: ScopePath) -> Line:
    """The variant's line; NotFoundError if there is no such variant, or not in that version."""
    name = f"{path.task}/{path.model}/{path.variant}"
    registered = registered_lines(session)
    if name not in registered:
        raise not_found("variant", name, registered, "add some with: modelless zoo add.")
    known = variants_in(session, path.task, path.model, path.variant)
    versions = [variant.version for variant in known]
    if path.version is not None and path.version not in versions:
        raise not_found(f"version of {name}", str(path.version), map(str, versions), "")
    return lines_in(session).get(name) or registered[name]


def _refuse_retired(session: Session, what: str, line: Line, version: int) -> None:
    for variant_id in (line.current_id, f"{line.name}@{version}"):
        if session.get_one(VariantRow, variant_id).retired_at is not None:
            raise InvalidInputError.of(
                what, f"{line.name}@{version}", "a variant that is not retired",
                f"Take it back into service first: modelless retire --undo {line.name}",
            )  # fmt: skip


def _next_number(session: Session) -> int:
    """The number after all that there are and were: lines may have been removed."""
    removed = session.scalars(select(HistoryRow.details).where(HistoryRow.kind == REMOVED))
    numbers: list[int] = [each.get("number", 0) for each in removed]
    return max(latest_change(session), *numbers, 0) + 1


def _advanced(line: Line, version: int) -> Line:
    earlier = tuple(each for each in (*line.earlier, line.current) if each != version)
    return Line(line.name, version, earlier[-EARLIER_KEPT:])


def _change(
    session: Session, before: Line, after: Line, kind: str, who: str, reason: str, details: Details
) -> Line:
    """Write the line and its history."""
    number = _next_number(session)
    row = session.get(VersionLineRow, after.name) or VersionLineRow(name=after.name)
    row.current, row.earlier = after.current, list(after.earlier)
    row.trial = dataclasses.asdict(after.trial) if after.trial is not None else None
    row.evidence = None
    row.number = number
    row.changed_at = utc_now()
    session.add(row)
    told = {"who": who, "before": _told(before), "after": _told(after), **details}
    session.add(HistoryRow(kind=kind, subject=after.name, reason=reason, details=told))
    return after


def _told(line: Line) -> dict[str, int | None]:
    return {"current": line.current, "canary": line.trial.version if line.trial else None}
