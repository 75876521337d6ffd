"""Opening a store: SQLite or PostgreSQL behind one pair of context managers."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, StoreError
from modelless.variants.store.errors import MAKE_WRITABLE, store_error
from modelless.variants.store.schema import ensure_schema, lock_postgresql

_ALLOWED: Final = "sqlite:////path/to/store.db or postgresql+psycopg://user:password@host/database"
_RETRY_S: Final = 0.01


class Store:
    """An open store. Safe to use from several threads, each in its own session.

    Attributes:
        engine: SQLAlchemy's; its transactions begin as readers.
        shown_url: the URL without its password.
        is_read_only: whether its folder cannot be written.
    """

    def __init__(self, engine: Engine, shown_url: str, is_read_only: bool = False) -> None:
        self.engine = engine
        self.shown_url = shown_url
        self.is_read_only = is_read_only
        self._writer = engine.execution_options(sqlite_begin="IMMEDIATE")
        self._is_postgresql = engine.dialect.name == "postgresql"
        if self._is_postgresql:  # its own default is a snapshot a statement
            self.engine = engine.execution_options(isolation_level="REPEATABLE READ")
        self._finalizer = weakref.finalize(self, engine.dispose)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """One consistent view to read from; what is written in it is discarded.

        Raises:
            StoreError: the database refused.
        """
        with self._translated(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """All of the block's writes, or none: an exception of any kind undoes them.

        One runs at a time, on either database: it takes the write lock at the start, so a
        transaction that reads before it writes cannot be overtaken; keep it short.

        Raises:
            StoreConflictError: a row breaks a constraint.
            StoreError: the database refused: read-only, full, locked, damaged, unreachable.
        """
        if self.is_read_only:
            raise StoreError(f"The store {self.shown_url} is read-only. {MAKE_WRITABLE}")
        with (
            self._translated(),
            Session(self._writer, expire_on_commit=False) as session,
            session.begin(),
        ):
            connection = session.connection()  # begins here, not at the first statement
            if self._is_postgresql:
                lock_postgresql(connection)
            yield session

    def stamp(self) -> object:
        """What another change makes another one, at the price of two ``stat``; None if unknown."""
        file = self.engine.url.database
        if self.engine.dialect.name != "sqlite" or not file:
            return None
        try:
            found = [Path(file).stat(), Path(f"{file}-wal").stat()]
        except OSError:
            return None
        return [(each.st_ino, each.st_size, each.st_mtime_ns) for each in found]

    def close(self) -> None:
        """Give every connection back. The store may be used again; it then connects anew."""
        self.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeoutError) as error:  # the rest of SQLAlchemy's are bugs
            raise store_error(error, self.shown_url) from error


def open_store(url: str | URL, *, busy_timeout_s: float = 10.0) -> Store:
    """Open the store at ``url`` and bring its schema up to date, in one transaction, under a lock.

    SQLite runs in WAL mode with foreign keys checked and ``synchronous=NORMAL``: a power cut may
    lose the last transactions but cannot damage the file. A store that is read-only but current
    opens, also in a folder that cannot be written; writing to it fails. ``sqlite://`` is a store in
    memory, for one thread.

    Args:
        url: ``sqlite:///...`` or ``postgresql://...``.
        busy_timeout_s: seconds to wait for another writer's lock.

    Raises:
        InvalidInputError: the URL is malformed or names another kind of database.
        EnvironmentUnfitError: the database's driver is not installed.
        StoreError: the store cannot be opened, is not modelless's, or is from a newer modelless.
    """
    parsed = _parse(url)
    shown = parsed.render_as_string(hide_password=True)
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite:
        _check_folder(parsed, shown)
    is_read_only = sqlite and _is_read_only(parsed)
    if is_read_only:
        parsed = _without_log(parsed)
    engine = _sqlite(parsed, busy_timeout_s) if sqlite else _postgresql(parsed, busy_timeout_s)
    store = Store(engine, shown, is_read_only)
    try:
        if sqlite and not is_read_only:
            _use_wal(engine, busy_timeout_s)
        ensure_schema(engine, engine.execution_options(sqlite_begin="EXCLUSIVE"), shown)
    except DBAPIError as error:
        store.close()
        raise store_error(error, shown) from error
    except BaseException:
        store.close()
        raise
    return store


def absolute_url(url: str) -> str:
    """The URL of a store that opens, SQLite's relative path made absolute for other folders."""
    parsed = make_url(url)
    path = parsed.database
    if parsed.get_backend_name() != "sqlite" or not path or path.startswith((":", "file:")):
        return url
    return parsed.set(database=str(Path(path).absolute())).render_as_string(hide_password=False)


def _parse(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError) as error:
        raise InvalidInputError.of("store URL", url, _ALLOWED) from error
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise InvalidInputError.of("store URL", parsed.render_as_string(True), _ALLOWED)
    if backend == "postgresql" and importlib.util.find_spec("psycopg") is None:
        raise EnvironmentUnfitError(
            "PostgreSQL's driver psycopg is not installed: pip install 'modelless[postgresql]'"
        )
    return parsed


def _check_folder(url: URL, shown: str) -> None:
    """Say what is wrong with the path, which SQLite would call 'unable to open database file'."""
    if _in_memory(url):
        return
    path = Path(str(url.database).removeprefix("file:"))
    if path.is_dir():
        raise StoreError(
            f"The store {shown} is a folder. Name a file in it in MODELLESS_STORE_URL."
        )
    if not path.parent.exists():
        raise StoreError(
            f"The store {shown} cannot be opened: there is no folder {path.parent}. "
            "Create it, or name another store in MODELLESS_STORE_URL."
        )
    if not path.parent.is_dir():
        raise StoreError(
            f"The store {shown} cannot be opened: {path.parent} is not a folder. "
            "Name another store in MODELLESS_STORE_URL."
        )


def _is_read_only(url: URL) -> bool:
    """Whether the store is there, in a folder that cannot be written."""
    path = Path(str(url.database))
    return not _in_memory(url) and path.is_file() and not os.access(path.parent, os.W_OK)


def _without_log(url: URL) -> URL:
    """The URL by which SQLite reads a file without making those of its log beside it.

    While there is no log, nobody has the file open to write, and it does not change.
    """
    path = Path(str(url.database)).absolute()
    is_open = path.with_name(f"{path.name}-wal").exists()
    how = {"mode": "ro"} if is_open else {"immutable": "1"}
    return url.set(database=path.as_uri(), query={**how, "uri": "true"})


def _in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:")


def _sqlite(url: URL, busy_timeout_s: float) -> Engine:
    more: dict[str, Any] = {"poolclass": StaticPool} if _in_memory(url) else {}
    engine = create_engine(url, **more)

    @event.listens_for(engine, "connect")
    def _(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # sqlite3 shall not begin transactions by its own rules
        for pragma in (
            f"busy_timeout={int(busy_timeout_s * 1000)}",
            "foreign_keys=ON",
            "synchronous=NORMAL",
        ):
            try:
                connection.execute(f"PRAGMA {pragma}")
            except sqlite3.Error as error:  # the first to read the file; SQLAlchemy wraps none here
                raise OperationalError(f"PRAGMA {pragma}", None, error) from error

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        how = connection.get_execution_options().get("sqlite_begin", "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {how}")

    return engine


def _use_wal(engine: Engine, busy_timeout_s: float) -> None:
    """Switch the file to WAL for good; a store that is read-only stays as it is, and readable."""
    deadline = time.monotonic() + busy_timeout_s
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        while cursor.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
            try:
                cursor.execute("PRAGMA journal_mode=WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                name = str(getattr(error, "sqlite_errorname", ""))
                if name.startswith("SQLITE_READONLY"):
                    break
                # SQLite does not wait by itself here when two processes switch at once.
                if not name.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise OperationalError("PRAGMA journal_mode=WAL", None, error) from error
                time.sleep(_RETRY_S)
    except sqlite3.DatabaseError as error:
        raise OperationalError("PRAGMA journal_mode", None, error) from error
    finally:
        raw.close()


def _postgresql(url: URL, busy_timeout_s: float) -> Engine:
    given = url.query.get("options", "")
    asked = given if isinstance(given, str) else " ".join(given)
    options = f"-c timezone=utc -c lock_timeout={int(busy_timeout_s * 1000)} {asked}".rstrip()
    connect_args = {"options": options, "connect_timeout": max(2, round(busy_timeout_s))}
    return create_engine(url, pool_pre_ping=True, connect_args=connect_args)
