"""Bringing a store to the schema this modelless knows, and refusing one that is newer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, func, insert, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

import modelless
from modelless.common.errors import StoreError
from modelless.variants.store.tables import SchemaVersionRow, utc_now

REVISIONS: Final[tuple[str, ...]] = (
    *("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010"),
)
"""Every schema revision, oldest first; here, so that opening a current store imports no Alembic."""

VERSION_TABLE: Final = "modelless_revision"
"""Alembic's own table, under a name that no other application in the same database uses."""

_POSTGRESQL_LOCK: Final = 0x6D6F64656C6C  # an arbitrary number that all modelless processes share
_ONE_AT_A_TIME = threading.Lock()  # Alembic keeps its context in module globals


def lock_postgresql(connection: Connection) -> None:
    """Wait for PostgreSQL's lock of those who write, and hold it until the transaction ends."""
    connection.execute(select(func.pg_advisory_xact_lock(_POSTGRESQL_LOCK)))


def ensure_schema(engine: Engine, exclusive: Engine, shown_url: str) -> None:
    """Migrate the store to ``REVISIONS[-1]``, in one transaction, unless it is there already.

    Args:
        engine: begins transactions that only read.
        exclusive: the same database; begins transactions that lock others out.
        shown_url: the store's URL without its password, for errors.

    Raises:
        StoreError: the store is from a newer modelless, or belongs to another application.
        SQLAlchemyError: the database refused; nothing was changed.
    """
    with engine.connect() as connection:
        if _current_revision(connection, shown_url) == REVISIONS[-1]:
            return
    with _ONE_AT_A_TIME, exclusive.connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            lock_postgresql(connection)
        # Another process may have migrated while this one waited for the lock.
        if _current_revision(connection, shown_url) != REVISIONS[-1]:
            _upgrade(connection)


def _current_revision(connection: Connection, shown_url: str) -> str | None:
    """The store's revision; None if it is empty."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables and connection.dialect.name == "sqlite":
            raise StoreError(
                f"The store {shown_url} is a database of another application: it holds the tables "
                f"{', '.join(sorted(tables)[:5])}. Name another store in MODELLESS_STORE_URL."
            )
        return None
    revision = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608
    if revision is not None and revision not in REVISIONS:
        raise StoreError(
            f"The store {shown_url} was written by modelless {_writer(connection, revision)} "
            f"(schema {revision}), which is newer than this modelless {modelless.__version__} "
            f"(schema {REVISIONS[-1]}). Upgrade with: pip install --upgrade modelless; "
            "or name another store in MODELLESS_STORE_URL. Nothing was changed."
        )
    return None if revision is None else str(revision)


def _writer(connection: Connection, revision: str) -> str:
    """The version that brought the store to ``revision``, as far as the store says."""
    try:
        with connection.begin_nested():
            query = select(SchemaVersionRow.modelless_version)
            found = connection.scalar(query.where(SchemaVersionRow.revision == revision))
    except SQLAlchemyError:
        found = None
    return found or "of an unknown version"


def _upgrade(connection: Connection) -> None:
    # Slow to import and needed once in a store's life.
    from alembic import command
    from alembic.config import Config

    config = Config()
    folder = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.execute(
        insert(SchemaVersionRow).values(
            revision=REVISIONS[-1], modelless_version=modelless.__version__, applied_at=utc_now()
        )
    )
