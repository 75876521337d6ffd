"""Settings that change while modelless serves: revisions in the store, on top of the settings file.

A revision has every value that differs from the settings that modelless was started with, which are
revision 0. The control loop sees a new one within a fraction of a second and tells all gateways, as
it does with versions. One that does not fit is refused before it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import func, select

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.assembly import check_policies
from modelless.controller.config import (
    HOT,
    Settings,
    changed_by,
    flatten,
    parse_settings,
    with_changes,
)
from modelless.controller.history.audit import note_act
from modelless.variants.registry.registry import Registry, open_registry
from modelless.variants.store import HistoryRow, SettingsRow, Store, utc_now

KIND: Final = "settings-changed"
"""Of its row of history."""

_HOW: Final = {
    "upgrade": "'modelless upgrade --config FILE' changes it while modelless serves",
    "up": "'modelless down', then 'modelless up --config FILE' changes it",
}


class Revision(NamedTuple):
    """What differs from the settings at the start, by dotted key, since when, and why."""

    number: int
    changes: Mapping[str, Any]
    at: datetime | None = None
    who: str = ""
    reason: str = ""


def write_base(store: Store, settings: Settings) -> None:
    """Keep the settings that modelless is started with as revision 0; StoreError."""
    document = settings.model_dump(mode="json")
    with store.transaction() as session:
        row = SettingsRow(revision=0, at=utc_now(), who="modelless", reason="", changes=document)
        session.merge(row)


def read_base(store: Store) -> Settings:
    """The settings of the last start; the defaults if there was none."""
    with store.session() as session:
        row = session.get(SettingsRow, 0)
        return Settings() if row is None else parse_settings(row.changes, "the running settings")


def latest_number(store: Store) -> int:
    """The number of the latest revision; 0 if nothing was changed. StoreError."""
    with store.session() as session:
        return session.scalar(select(func.max(SettingsRow.revision))) or 0


def read_revision(store: Store, number: int | None = None) -> Revision:
    """A revision; default: the latest one. NotFoundError if there is none of that number."""
    number = latest_number(store) if number is None else number
    with store.session() as session:
        row = session.get(SettingsRow, number) if number else None
    if row is None and number:
        raise NotFoundError(f"there is no revision {number}: 'modelless config history' lists them")
    if row is None:
        return Revision(0, {})
    return Revision(number, row.changes, row.at, row.who, row.reason)


def read_revisions(store: Store, most: int) -> list[Revision]:
    """The newest revisions, the newest first."""
    query = select(SettingsRow).where(SettingsRow.revision > 0)
    with store.session() as session:
        rows = session.scalars(query.order_by(SettingsRow.revision.desc()).limit(most))
        return [Revision(row.revision, row.changes, row.at, row.who, row.reason) for row in rows]


def latest_revision(home: Path) -> Revision:
    """The latest revision; StoreError."""
    with closing(open_registry(home)) as registry:
        return read_revision(registry.store)


def settings_in_force(home: Path, base: Settings) -> tuple[Settings, Revision]:
    """The settings with the latest revision's changes.

    Raises:
        InvalidInputError: they do not fit together; says how to part with the changes.
        StoreError: the store cannot be read.
    """
    latest = latest_revision(home)
    try:
        settings = with_changes(base, latest.changes)
        check_policies(settings)
    except (InvalidInputError, NotFoundError) as error:
        raise InvalidInputError(
            f"revision {latest.number} of the settings ({', '.join(latest.changes)}) does not fit "
            f"the settings file: {error} 'modelless config rollback 0' parts with all changes."
        ) from error
    return settings, latest


def change_settings(
    home: Path,
    values: Mapping[str, Any],
    who: str,
    *,
    unset: Collection[str] = (),
    reason: str = "",
    expected: int | None = None,
) -> Revision:
    """Check changes as a start would, and write them as a new revision.

    Args:
        values: by dotted key, on top of the latest revision.
        who: asks for it.
        unset: keys whose changes are to end.
        expected: the latest revision, as far as the caller knows; None: whichever.

    Raises:
        InvalidInputError: an unknown key, a value out of range, one that takes an upgrade or a new
            start, or another revision than the expected one.
        NotFoundError: no such policy, or no such scope.
        StoreError: the store cannot be read or written.
    """
    for key in (*values, *unset):
        if changed_by(key) != "config set":
            where = f"{', '.join(HOT)}, and what is below them"
            hint = _HOW[changed_by(key)] if _is_known(key) else "It is no setting."
            raise InvalidInputError.of("key", key, where, hint)
    with closing(open_registry(home)) as registry:
        latest = read_revision(registry.store)
        changes = dict(latest.changes)
        for key in unset:
            if key not in changes:
                told = ", ".join(changes) or "none is changed"
                raise InvalidInputError.of("unset", key, f"a changed key: {told}")
            del changes[key]
        for key in values:  # what was said of what is below it is no more
            for below in [name for name in changes if name.startswith(f"{key}.")]:
                del changes[below]
        return _write(registry, home, latest, {**changes, **values}, who, reason, expected)


def roll_back(home: Path, who: str, *, to: int | None = None, reason: str = "") -> Revision:
    """Write a new revision with the changes of an earlier one; raises as ``change_settings``.

    Args:
        to: its number; 0: no changes; default: the one before the latest.
    """
    with closing(open_registry(home)) as registry:
        latest = read_revision(registry.store)
        if to is None and latest.number == 0:
            raise InvalidInputError.of("rollback", 0, "a revision; nothing was changed yet")
        target = read_revision(registry.store, latest.number - 1 if to is None else to)
        told = f"back to revision {target.number}" + (f": {reason}" if reason else "")
        return _write(registry, home, latest, dict(target.changes), who, told, None)


def _write(
    registry: Registry,
    home: Path,
    latest: Revision,
    changes: Mapping[str, Any],
    who: str,
    reason: str,
    expected: int | None,
) -> Revision:
    if expected not in (None, latest.number):
        allowed = f"{latest.number}, which {latest.who} made meanwhile"
        raise InvalidInputError.of("revision", expected, allowed, "Look at it, and try again.")
    base = read_base(registry.store)
    settings = with_changes(base, changes)
    check_policies(settings)
    if settings.cache.scopes:
        catalog = registry.catalog()
        for scope in settings.cache.scopes:
            catalog.resolve(scope)
    number, at = latest.number + 1, utc_now()
    before, after = (with_changes(base, each) for each in (latest.changes, changes))
    told = "; ".join(difference(before, after)) or "no change"
    note_act(home, "config", who, revision=number, changes=changes, reason=reason)
    with registry.store.transaction() as session:
        session.add(
            SettingsRow(revision=number, at=at, who=who, reason=reason, changes=dict(changes))
        )
        details = {"who": who, "why": reason, "changes": dict(changes)}
        session.add(HistoryRow(kind=KIND, subject=f"revision {number}", reason=told,
                               details=details, at=at))  # fmt: skip
    return Revision(number, changes, at, who, reason)


def difference(before: Settings, after: Settings) -> list[str]:
    """A line for each key whose value differs."""
    old, new = (flatten(each.model_dump(mode="json")) for each in (before, after))
    return [
        f"{key}: {old.get(key, 'nothing')} -> {new.get(key, 'nothing')}"
        for key in sorted({*old, *new})
        if old.get(key, ...) != new.get(key, ...)
    ]


def _is_known(key: str) -> bool:
    known = flatten(Settings().model_dump(mode="json"))
    return any(name == key or name.startswith(f"{key}.") or key.startswith(f"{name}.")
               for name in known)  # fmt: skip
