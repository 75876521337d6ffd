"""The SQL store: opening, migrating, refusing; every failure on a real database."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import alembic.command
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event, make_url, select, text
from sqlalchemy.exc import StatementError

import modelless
from modelless.common.errors import (
    EnvironmentUnfitError,
    InvalidInputError,
    ModellessError,
    StoreError,
)
from modelless.variants.store import (
    HistoryRow,
    MeasurementRow,
    ModelRow,
    Store,
    StoreConflictError,
    TaskRow,
    VariantRow,
    database,
    open_store,
    schema,
)
from modelless.variants.store.tables import Base, SchemaVersionRow

# Imports first, so that four processes reach the empty store within a moment.
OPEN_AT_ONCE = """
import os, sys
import alembic.command
from modelless.variants.store import open_store
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        open_store(sys.argv[1]).close()
        os._exit(0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


A_VARIANT_OF_0001 = """
INSERT INTO tasks VALUES ('pixels', '[]', '[]', 'top-1', '', '[]', '2025-01-01 00:00:00');
INSERT INTO models VALUES ('pixels', 'mean', 'tiny', '', '', '2025-01-01 00:00:00');
INSERT INTO artifacts VALUES ('ab', 2, '2025-01-01 00:00:00');
INSERT INTO variants VALUES ('pixels/mean/fp32@1', 'pixels', 'mean', 'fp32', 1, 'fp32', NULL,
    'onnxruntime-cpu', 'ab', 50.0, 'top-1', 'measured', 'made up', NULL, NULL, NULL, 12, 12,
    '2025-01-01 00:00:00');
INSERT INTO measurements VALUES (1, 'pixels/mean/fp32@1', 'cpu-1', 1, 1, 'e-1', 'cpu', 9, 0.1, 0.1,
    0.1, 0.1, 10.0, 1, 0.1, 1, 0.0, '2025-01-01 00:00:00', 'here');
INSERT INTO history VALUES (1, '2025-01-01 00:00:00', 'kept', 'kept', '', '{}');
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def sqlite_store(path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{path}") as store:
        yield store


def note(subject: str = "x", **more: object) -> HistoryRow:
    return HistoryRow(kind="test", subject=subject, reason="because", details={}, **more)


def add(store: Store, *rows: Base) -> None:
    """Write ``rows`` in one transaction."""
    with store.transaction() as session:
        session.add_all(rows)


def subjects(store: Store) -> list[str]:
    with store.session() as session:
        return list(session.scalars(select(HistoryRow.subject).order_by(HistoryRow.id)))


def differences(store: Store) -> list[object]:
    """How the store's schema differs from ``tables.py``."""
    with store.engine.connect() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        return list(
            compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)
        )


class TestSchema:
    def test_migrations_lead_to_the_tables(self, empty_url: str) -> None:
        with open_store(empty_url) as store:
            assert differences(store) == []
        open_store(empty_url).close()

    def test_the_list_of_revisions_is_the_folder_of_migrations(self) -> None:
        folder = Path(schema.__file__).parent / "migrations"
        config = Config()
        config.set_main_option("script_location", str(folder))
        found = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
        assert tuple(reversed(found)) == schema.REVISIONS

    def test_it_says_who_wrote_it(self, store: Store) -> None:
        with store.session() as session:
            row = session.scalars(select(SchemaVersionRow)).one()
        assert (row.revision, row.modelless_version) == (
            schema.REVISIONS[-1],
            modelless.__version__,
        )
        assert datetime.now(UTC) - row.applied_at < timedelta(hours=1)

    def test_a_store_of_the_first_schema_is_upgraded_in_place(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            upgrade = alembic.command.upgrade
            patch.setattr(alembic.command, "upgrade", lambda config, _: upgrade(config, "0001"))
            patch.setattr(schema, "REVISIONS", ("0001",))
            open_store(f"sqlite:///{path}").close()
        with closing(sqlite3.connect(path)) as raw:
            raw.executescript(A_VARIANT_OF_0001)
        with open_store(f"sqlite:///{path}") as store:
            assert differences(store) == []
            with store.session() as session:
                assert session.get_one(VariantRow, "pixels/mean/fp32@1").graph_facts is None
                assert session.get_one(TaskRow, "pixels").decoding is None
                measured = session.get_one(MeasurementRow, 1)
                assert (measured.shape, measured.is_typical, measured.p50_s) == ("", True, 0.1)
                written = session.scalars(select(SchemaVersionRow.revision)).all()
            assert subjects(store) == ["kept"]
        assert sorted(written) == ["0001", schema.REVISIONS[-1]]

    def test_a_current_store_is_not_migrated_again(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(schema, "_upgrade")
        open_store(store.engine.url).close()

    def test_an_interrupted_migration_leaves_nothing(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(schema, "utc_now", interrupt)  # called after the last table is made
            with pytest.raises(KeyboardInterrupt):
                open_store(f"sqlite:///{path}")
        with closing(sqlite3.connect(path)) as raw:
            assert raw.execute("SELECT name FROM sqlite_master").fetchall() == []
        with open_store(f"sqlite:///{path}") as store:
            assert differences(store) == []

    def test_processes_opening_at_once(self, empty_url: str) -> None:
        command = [sys.executable, "-c", OPEN_AT_ONCE, empty_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        with open_store(empty_url) as store:
            assert differences(store) == []

    def test_a_newer_store_says_which_version_wrote_it(self, store: Store) -> None:
        with store.transaction() as session:
            session.execute(text("UPDATE modelless_revision SET version_num = '0099'"))
            session.add(SchemaVersionRow(revision="0099", modelless_version="7.8.9"))
        with pytest.raises(StoreError) as caught:
            open_store(store.engine.url)
        assert "written by modelless 7.8.9 (schema 0099)" in str(caught.value)
        assert "pip install --upgrade modelless" in str(caught.value)
        assert differences(store) == []

    def test_a_newer_store_that_does_not_say_who_wrote_it(self, store: Store) -> None:
        with store.transaction() as session:
            session.execute(text("UPDATE modelless_revision SET version_num = '0099'"))
            session.execute(text("DROP TABLE schema_versions"))
        with pytest.raises(StoreError, match="of an unknown version"):
            open_store(store.engine.url)

    def test_another_application_s_database_is_left_alone(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as raw:
            raw.execute("CREATE TABLE bookmarks (url)")
        with pytest.raises(StoreError, match="another application: it holds the tables bookmarks"):
            open_store(f"sqlite:///{path}")


class TestTransactions:
    def test_its_stamp_changes_with_every_change_and_with_nothing_else(
        self, sqlite_store: Store, path: Path
    ) -> None:
        stamps = [sqlite_store.stamp()]
        with open_store(f"sqlite:///{path}") as other:
            for number in range(3):
                add(other, note(str(number)))
                stamps.append(sqlite_store.stamp())
        assert len({str(stamp) for stamp in stamps}) == 4
        subjects(sqlite_store)
        assert sqlite_store.stamp() == stamps[-1]
        with open_store("sqlite://") as in_memory:
            assert in_memory.stamp() is None

    def test_sqlite_runs_as_documented(self, sqlite_store: Store) -> None:
        with sqlite_store.engine.connect() as connection:
            found = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
            }
        assert found == {
            "journal_mode": "wal",
            "foreign_keys": 1,
            "synchronous": 1,
            "busy_timeout": 10_000,
        }

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
    def test_any_exception_undoes_the_block(self, store: Store, kind: type[BaseException]) -> None:
        def write_and_fail() -> None:
            with store.transaction() as session:
                session.add(note())
                session.flush()
                raise kind

        with pytest.raises(kind):
            write_and_fail()
        assert subjects(store) == []

    def test_a_refused_row_undoes_the_others(self, store: Store) -> None:
        with pytest.raises(StoreConflictError):
            add(store, note(), ModelRow(task="-", name="m", family="f", source="", licence=""))
        assert subjects(store) == []

    def test_a_reading_session_writes_nothing(self, store: Store) -> None:
        with store.session() as session:
            session.add(note())
            session.flush()
        assert subjects(store) == []

    def test_a_reader_sees_one_state_while_another_writes(self, store: Store) -> None:
        query = select(HistoryRow.subject)
        with store.session() as session:
            assert session.scalars(query).all() == []
            add(store, note("later"))
            assert session.scalars(query).all() == []
        assert subjects(store) == ["later"]

    def test_foreign_keys_are_checked(self, store: Store) -> None:
        row = ModelRow(task="no-such", name="m", family="f", source="", licence="")
        with pytest.raises(StoreConflictError, match=r"(?i)foreign key"):
            add(store, row)

    def test_threads_wait_for_one_another(self, store: Store) -> None:
        def write(number: int) -> None:
            with store.transaction() as session:
                count = len(session.scalars(select(HistoryRow.id)).all())
                session.add(note(f"{count}"))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(24)))
        assert subjects(store) == [str(number) for number in range(24)]

    def test_times_are_utc_whatever_zone_they_came_in(self, store: Store) -> None:
        noon = datetime(2024, 7, 1, 12, 30, tzinfo=timezone(timedelta(hours=2)))
        add(store, note(at=noon))
        with store.session() as session:
            found = session.scalars(select(HistoryRow.at)).one()
        assert found == noon
        assert found.tzinfo is UTC

    def test_a_time_without_a_zone_is_refused(self, store: Store) -> None:
        with (
            pytest.raises(StatementError, match="has no time zone"),
            store.transaction() as session,
        ):
            session.add(note(at=datetime(2024, 7, 1, 12, 30)))

    def test_a_store_in_memory(self) -> None:
        with open_store("sqlite://") as store:
            add(store, note("here"))
            assert subjects(store) == ["here"]


class TestRefusals:
    """Each failure is provoked so that it strikes the superuser as well."""

    def test_a_read_only_store_can_be_read(self, sqlite_store: Store, path: Path) -> None:
        add(sqlite_store, note("before"))
        with open_store(f"sqlite:///file:{path}?mode=ro&uri=true") as read_only:
            assert subjects(read_only) == ["before"]
            with pytest.raises(StoreError, match=r"is read-only.*MODELLESS_STORE_URL"):
                add(read_only, note("after"))
        assert subjects(sqlite_store) == ["before"]

    def test_a_read_only_store_that_would_have_to_be_made(self, path: Path) -> None:
        sqlite3.connect(path).close()
        with pytest.raises(StoreError, match="is read-only"):
            open_store(f"sqlite:///file:{path}?mode=ro&uri=true")

    @pytest.mark.parametrize("is_open", [False, True])
    def test_a_folder_that_cannot_be_written(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
    ) -> None:
        writer = open_store(f"sqlite:///{path}")
        add(writer, note("before"))
        if not is_open:
            writer.close()
        there = sorted(path.parent.iterdir())
        assert len(there) == (3 if is_open else 1)
        # The superuser may write everywhere, but on what is mounted read-only.
        monkeypatch.setattr(os, "access", lambda where, _: Path(where) != path.parent)
        with open_store(f"sqlite:///{path}") as store:
            assert subjects(store) == ["before"]
            assert sorted(path.parent.iterdir()) == there
            with pytest.raises(StoreError, match=r"is read-only.*folder writable.*STORE_URL"):
                add(store, note("after"))
        writer.close()

    def test_a_full_disk_leaves_nothing_half_written(self, sqlite_store: Store, path: Path) -> None:
        with open_store(f"sqlite:///{path}") as full:
            event.listen(
                full.engine, "connect", lambda raw, _: raw.execute("PRAGMA max_page_count=1")
            )
            full.close()  # SQLite keeps the limit to the pages that there are
            with pytest.raises(StoreError, match=r"disk is full.*nothing was half-written"):
                add(full, *(note("x" * 5000) for _ in range(100)))
        assert subjects(sqlite_store) == []

    def test_a_locked_store(self, store: Store) -> None:
        with open_store(store.engine.url, busy_timeout_s=0.1) as other, store.transaction():
            with pytest.raises(StoreError, match="is locked by another process"):
                add(other, note())
            assert subjects(other) == []

    def test_a_file_that_is_no_database(self, path: Path) -> None:
        path.write_bytes(b"this is not a database, but it is long enough to be looked at\n" * 50)
        with pytest.raises(StoreError, match="is not a SQLite database"):
            open_store(f"sqlite:///{path}")

    def test_a_damaged_database(self, sqlite_store: Store, path: Path) -> None:
        with sqlite_store.engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        sqlite_store.close()
        content = path.read_bytes()
        path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
        with pytest.raises(StoreError, match=r"is damaged.*backup"):
            open_store(f"sqlite:///{path}")

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=f"there is no folder {tmp_path}/no/such"):
            open_store(f"sqlite:///{tmp_path}/no/such/store.db")

    def test_a_file_in_place_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="is not a folder"):
            open_store(f"sqlite:///{tmp_path}/file/store.db")

    def test_a_folder_in_place_of_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="is a folder"):
            open_store(f"sqlite:///{tmp_path}")

    @pytest.mark.parametrize(
        "url", ["", "store.db", "mysql://h/d", "sqlite+aiosqlite:///a.db", "x://"]
    )
    def test_other_urls(self, url: str) -> None:
        with pytest.raises(InvalidInputError, match="store URL"):
            open_store(url)

    def test_a_missing_driver_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(EnvironmentUnfitError, match=r"modelless\[postgresql\]"):
            open_store("postgresql://localhost/modelless")

    def test_passwords_are_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("psycopg", reason="psycopg is not installed")
        with pytest.raises(ModellessError, match="cannot be reached") as caught:
            open_store("postgresql://ann:s3cret@127.0.0.1:1/modelless", busy_timeout_s=2.0)
        assert "s3cret" not in str(caught.value)


class TestPostgreSQLRefuses:
    @pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
    def test_a_read_only_server(self, empty_url: str) -> None:
        open_store(empty_url).close()
        options = {"options": "-cdefault_transaction_read_only=on"}
        with open_store(make_url(empty_url).update_query_dict(options)) as store:
            assert subjects(store) == []
            with pytest.raises(StoreError, match="is read-only"):
                add(store, note())

    def test_a_missing_database(self, postgresql: str) -> None:
        with pytest.raises(StoreError, match="does not exist"):
            open_store(make_url(postgresql).set(database="no_such"))
