"""Translates a database's own errors into words, with the next step."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from modelless.common.errors import StoreError

_ELSEWHERE: Final = "or name another store in MODELLESS_STORE_URL"
MAKE_WRITABLE: Final = f"Make the file and its folder writable, {_ELSEWHERE}."

# Primary SQLite result code -> what happened, what to do.
_SQLITE: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_READONLY: ("is read-only", MAKE_WRITABLE),
    sqlite3.SQLITE_FULL: (
        "cannot grow: the disk is full, or the database is at its size limit",
        "Free some space and repeat the command; nothing was half-written.",
    ),
    sqlite3.SQLITE_BUSY: (
        "is locked by another process",
        "Wait until that process has finished writing, then repeat the command.",
    ),
    sqlite3.SQLITE_LOCKED: (
        "is locked by another connection",
        "Wait until it has finished writing, then repeat the command.",
    ),
    sqlite3.SQLITE_NOTADB: (
        "is not a SQLite database",
        f"Move the file away, restore it from a backup, {_ELSEWHERE}.",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged",
        f"Restore it from a backup, or move it away to begin anew, {_ELSEWHERE}.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened",
        f"Check that its folder exists and is writable, {_ELSEWHERE}.",
    ),
    sqlite3.SQLITE_PERM: ("may not be accessed", f"Check its permissions, {_ELSEWHERE}."),
    sqlite3.SQLITE_IOERR: ("cannot be read or written: disk I/O error", "Check the disk."),
}

# Beginning of a PostgreSQL SQLSTATE -> the same. The longest that fits wins.
_POSTGRESQL: Final[dict[str, tuple[str, str]]] = {
    "25006": ("is read-only", f"Connect to the primary server, {_ELSEWHERE}."),
    "42501": ("does not let this user do that", "Grant it the right to create and write tables."),
    "53100": ("is out of disk space", "Free some space and repeat; nothing was half-written."),
    "53300": ("has no connection free", "Raise max_connections or stop some clients."),
    "55P03": ("is locked by another process", "Wait until it has finished, then repeat."),
    "40": ("gave way to another writer", "Repeat the command."),
    "28": ("refuses this user or password", "Check the URL in MODELLESS_STORE_URL."),
    "3D000": ("does not exist", "Create the database, or check the URL in MODELLESS_STORE_URL."),
    "57": ("is shutting down or cancelled the work", "Repeat when the server is up."),
    "08": ("lost its connection", "Check that the server runs and can be reached."),
}


class StoreConflictError(StoreError):
    """A row breaks a constraint: another process wrote it first, or it refers to nothing."""


def store_error(error: SQLAlchemyError, shown_url: str) -> StoreError:
    """Translate ``error`` for a person. ``shown_url`` must bear no password."""
    if isinstance(error, IntegrityError):
        return StoreConflictError(
            f"The store {shown_url} refused a row: {error.orig}. Another process may have "
            "written it at the same moment: repeat the command."
        )
    what, step = _meaning(error)
    cause = error.orig if isinstance(error, DBAPIError) else error
    return StoreError(f"The store {shown_url} {what} ({_first_line(cause)}). {step}")


def _meaning(error: SQLAlchemyError) -> tuple[str, str]:
    cause = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
        if code in _SQLITE:
            return _SQLITE[code]
    elif cause is not None:
        state = str(getattr(cause, "sqlstate", None) or "")
        for length in (5, 2):
            if state[:length] in _POSTGRESQL:
                return _POSTGRESQL[state[:length]]
        if not state:  # psycopg has none when no connection came about
            return ("cannot be reached", "Check that the server runs, and MODELLESS_STORE_URL.")
    return ("failed", "This may be a bug of modelless: please report it with the text above.")


def _first_line(cause: BaseException | None) -> str:
    text = str(cause).strip().splitlines()
    return text[0][:300] if text else type(cause).__name__
