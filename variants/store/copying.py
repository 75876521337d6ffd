"""All rows of a store into another one, whichever databases they are; and backups in one file."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from sqlalchemy import Table, delete, func, insert, select
from sqlalchemy.orm import Session

from modelless.common.errors import IntegrityError, InvalidInputError, StoreError
from modelless.common.files import write_whole
from modelless.variants.artifacts import ArtifactStore, check_sha256, file_sha256
from modelless.variants.store.database import Store, open_store
from modelless.variants.store.rows import made_of
from modelless.variants.store.tables import ArtifactRow, Base, LeaseRow, SchemaVersionRow

_ROWS_AT_ONCE: Final = 500
_OWN: Final = frozenset({LeaseRow.__tablename__, SchemaVersionRow.__tablename__})
"""Tables that say something of the one store they are in."""

TABLES: Final[tuple[Table, ...]] = tuple(
    table for table in Base.metadata.sorted_tables if table.name not in _OWN
)
"""The tables to copy, in an order in which no row refers to one that is not there yet."""

_STORE, _MANIFEST, _FORMAT = "store.db", "manifest.json", 1
_MAX_MANIFEST_BYTES: Final = 2**16
_MAX_STORE_BYTES: Final = 2**31
_MAX_FILE_BYTES: Final = 2**26
_ATTEMPTS: Final = 3


def copy_store(
    source: Store, target: Store, *, replace: bool = False, hint: str = "name another"
) -> dict[str, int]:
    """Copy every row as it was at one moment, all or none, and compare what arrived.

    The source may be written meanwhile.

    Args:
        replace: remove the rows of the target, in the same transaction; else it must have none.
        hint: what to do if it has some, for the error.

    Returns:
        The number of rows by table.

    Raises:
        InvalidInputError: the target has rows.
        IntegrityError: what arrived differs; the target is as it was.
        StoreError: a database refused; the target is as it was.
    """
    with source.session() as reading, target.transaction() as writing:
        if replace:
            for table in reversed(TABLES):
                writing.execute(delete(table))
        else:
            _check_empty(writing, target, hint)
        for table in TABLES:
            rows = reading.execute(select(table).execution_options(yield_per=_ROWS_AT_ONCE))
            for some in rows.mappings().partitions():
                writing.execute(insert(table), [dict(row) for row in some])
            _number_on(writing, table)
        before, after = ({t.name: _digest(s, t) for t in TABLES} for s in (reading, writing))
        for name, digest in before.items():
            if after[name] != digest:
                raise IntegrityError(
                    f"The table {name} of {source.shown_url} did not arrive whole in "
                    f"{target.shown_url}: {after[name][0]} of {digest[0]} rows, or others. Nothing "
                    "was changed there."
                )
    return {name: count for name, (count, _) in before.items()}


def _check_empty(session: Session, store: Store, hint: str) -> None:
    for table in TABLES:
        if session.execute(select(table).limit(1)).first() is not None:
            raise InvalidInputError.of(
                "target", store.shown_url, "a store without rows",
                f"Its table {table.name} has some; {hint}.",
            )  # fmt: skip


def _number_on(session: Session, table: Table) -> None:
    """Let PostgreSQL number the next row after those that came with a number."""
    column = table.autoincrement_column
    if column is not None and session.get_bind().dialect.name == "postgresql":
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        highest = select(func.max(column)).scalar_subquery()
        session.execute(select(func.setval(sequence, highest)))


def _digest(session: Session, table: Table) -> tuple[int, int]:
    """How many rows there are, and the sum of their hashes, which has no order."""
    count = total = 0
    for row in session.execute(select(table).execution_options(yield_per=_ROWS_AT_ONCE)):
        count += 1
        total += int.from_bytes(hashlib.sha256(repr(tuple(row)).encode()).digest())
    return count, total % 2**256


def write_backup(
    store: Store,
    artifacts: ArtifactStore,
    path: Path,
    on_artifact: Callable[[int, int], None],
    files: Mapping[str, Path] = MappingProxyType({}),
) -> dict[str, int]:
    """Write the store as it was at one moment, its artifacts and other files into one zip file.

    ``manifest.json`` has the format's number and the sha256 of ``store.db``, a SQLite store, and of
    each file in ``files/``; artifacts are in ``artifacts/``, named by their sha256, and with them
    what variants were made of, as far as it is there. Serving goes on meanwhile.

    Args:
        path: the file; it appears when it is whole, for this user alone.
        on_artifact: is told how many artifacts are written, and how many there are.
        files: other files by name; those that are not there are left out.

    Returns:
        The number of rows by table.

    Raises:
        InvalidInputError: there is a file of that name.
        IntegrityError: an artifact is missing or damaged.
        StoreError: the store cannot be read, or the file not written.
    """
    if path.exists():
        raise InvalidInputError.of("backup file", str(path), "a file that is not there yet")
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".backup-") as name:
            part = Path(name) / "part"
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    rows = _write_part(store, artifacts, part, on_artifact, files)
                    break
                except IntegrityError:  # perhaps removed after the moment: then once more
                    if attempt == _ATTEMPTS:
                        raise
            os.link(part, path)  # fails if another one came first
    except OSError as error:
        raise StoreError(
            f"The backup {path} cannot be written ({error.strerror or error}). "
            "Free some space, or name another file."
        ) from error
    return rows


def _write_part(
    store: Store,
    artifacts: ArtifactStore,
    part: Path,
    on_artifact: Callable[[int, int], None],
    files: Mapping[str, Path],
) -> dict[str, int]:
    database = part.with_name(_STORE)
    database.unlink(missing_ok=True)
    with open_store(f"sqlite:///{database}") as copy:
        rows = copy_store(store, copy)
        every = _artifact_bytes(copy)
        sources = _sources(copy, every)
    others = {name: each.read_bytes() for name, each in files.items() if each.exists()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in others.items()}
    manifest = {"format": _FORMAT, "store_sha256": file_sha256(database), "files_sha256": digests}
    part.touch(mode=0o600)
    with zipfile.ZipFile(part, "w") as file:
        file.writestr(_MANIFEST, json.dumps(manifest))
        file.write(database, _STORE, zipfile.ZIP_DEFLATED)
        for name, data in others.items():
            file.writestr(f"files/{name}", data, zipfile.ZIP_DEFLATED)
        for number, sha256 in enumerate(every, 1):
            file.writestr(f"artifacts/{sha256}", artifacts.read(sha256))
            on_artifact(number, len(every))
        for sha256 in sources:
            with suppress(IntegrityError):  # lost: variants serve without it
                file.writestr(f"artifacts/{sha256}", artifacts.read(sha256))
    return rows


def restore_backup(
    store: Store,
    artifacts: ArtifactStore,
    path: Path,
    on_artifact: Callable[[int, int], None],
    files: Mapping[str, Path] = MappingProxyType({}),
    *,
    replace: bool = False,
) -> dict[str, int]:
    """Bring a backup's artifacts, rows and other files back; of an older modelless's, too.

    Every hash is checked. Nothing is unpacked by a name that the file gives. The rows change in one
    transaction, so a cluster that runs meanwhile sees all or nothing of it. The files come last.

    Args:
        files: where the other files go, by name; those that the backup does not have are left as
            they are.
        replace: remove the store's rows, and write over files; else there must be none.

    Returns:
        The number of rows by table.

    Raises:
        InvalidInputError: it is no backup, or the store has rows, or one of the files is there.
        IntegrityError: it is damaged; the store is as it was.
        StoreError: the store or the artifacts cannot be written; the store is as it was. Or one of
            the other files; the rows are there.
    """
    with _opened(path) as file, tempfile.TemporaryDirectory(prefix="modelless-") as folder:
        manifest = json.loads(_member(file, _MANIFEST, _MAX_MANIFEST_BYTES))
        if manifest["format"] != _FORMAT:
            raise InvalidInputError.of(
                "backup's format", manifest["format"], str(_FORMAT), "Upgrade modelless."
            )
        others = {}
        for name, digest in manifest.get("files_sha256", {}).items():
            if name in files:
                others[name] = _checked(file, f"files/{name}", _MAX_FILE_BYTES, digest)
                if files[name].exists() and not replace:
                    raise InvalidInputError.of(
                        "target", str(files[name]), "a home without that file",
                        "--replace writes over it.",
                    )  # fmt: skip
        hint = "--replace restores over them"
        if not replace:  # before files come that no row would name
            with store.session() as session:
                _check_empty(session, store, hint)
        database = Path(folder) / _STORE
        sha256 = manifest["store_sha256"]
        database.write_bytes(_checked(file, _STORE, _MAX_STORE_BYTES, sha256))
        with open_store(f"sqlite:///{database}") as copy:
            every = _artifact_bytes(copy)
            for number, (sha256, size_bytes) in enumerate(every.items(), 1):
                most_bytes = min(size_bytes, artifacts.max_bytes)
                name = f"artifacts/{check_sha256(sha256)}"
                artifacts.put(_checked(file, name, most_bytes, sha256))
                on_artifact(number, len(every))
            for sha256 in _sources(copy, every):
                name = f"artifacts/{check_sha256(sha256)}"
                if name in file.namelist():
                    artifacts.put(_checked(file, name, artifacts.max_bytes, sha256))
            rows = copy_store(copy, store, replace=replace, hint=hint)
    for name, data in others.items():
        try:
            write_whole(files[name], data, mode=0o600)
        except OSError as error:
            raise StoreError(
                f"The rows are back, but {files[name]} cannot be written "
                f"({error.strerror or error})."
            ) from error
    return rows


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a backup; whatever a damaged zip file makes of itself is an InvalidInputError."""
    if not path.is_file():
        raise InvalidInputError.of("backup file", str(path), "a file that is there")
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except OSError as error:
        raise StoreError(
            f"Nothing was restored from {path} ({error}). Make it readable, free some space, or "
            "set TMPDIR to a folder that has some."
        ) from error
    except (
        *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
        *(AttributeError, KeyError, ValueError, TypeError, RuntimeError),
    ) as error:
        raise InvalidInputError.of(
            "backup file", str(path), f"one that 'modelless store backup' wrote, whole ({error})"
        ) from error


def _member(file: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    """The bytes of a member, of which no more are unpacked than there may be."""
    with file.open(name) as member:
        data = member.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise IntegrityError(f"The backup's {name} is larger than the {most_bytes} bytes allowed.")
    return data


def _checked(file: zipfile.ZipFile, name: str, most_bytes: int, sha256: str) -> bytes:
    """The bytes of a member that has this hash."""
    data = _member(file, name, most_bytes)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise IntegrityError(f"The backup {file.filename} is damaged: {name} has another sha256.")
    return data


def _artifact_bytes(store: Store) -> dict[str, int]:
    with store.session() as session:
        query = select(ArtifactRow.sha256, ArtifactRow.bytes).order_by(ArtifactRow.sha256)
        return {row.sha256: row.bytes for row in session.execute(query)}


def _sources(store: Store, artifacts: Collection[str]) -> list[str]:
    """The files that variants were made of and that are no artifacts of rows."""
    with store.session() as session:
        return sorted(made_of(session).difference(artifacts))
