"""The books on file: one row a query, one row a control decision, written in bounded chunks.

``FILE.parquet`` needs pyarrow; ``FILE.csv`` needs nothing. Control decisions go beside it, into
``FILE.control.parquet`` or ``FILE.control.csv``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.common.parquet import import_pyarrow

QUERY_COLUMNS: dict[str, type] = {
    "query_id": int,
    "task": str,
    "arrival_s": float,
    "deadline_s": float,
    "min_accuracy": float,
    "variant": str,
    "device": str,
    "worker": str,
    "dispatch_s": float,
    "start_s": float,
    "finish_s": float,
    "batch_id": int,
    "batch_size": int,
    "accuracy": float,
    "outcome": str,
    "reason": str,
    "answered_s": float,
    "items": int,
    "tenant": str,
    "max_cost_usd": float,
    "cost_usd": float,
}
"""Seconds since the world began; accuracy in per cent. ``device`` is the device class,
``batch_size`` counts items. ``finish_s`` is when the device was done, ``answered_s`` when the
client had its answer or its refusal: that is what the deadline is for. Columns of what did not
happen are blank."""

CONTROL_COLUMNS: dict[str, type] = {
    "at_s": float,
    "action": str,
    "worker": str,
    "device": str,
    "variant": str,
    "count": int,
    "memory_bytes": int,
    "for_variant": str,
    "reason": str,
}
"""``action``: ``load`` (it starts), ``loaded``, ``load-failed`` and ``unload`` (the memory is free)
tell of a worker's variants; ``resize``, ``resized``, ``resize-failed`` of its size; decisions are
``scale`` and ``plan`` (of a policy that optimises: how good it is known to be is its reason);
``worker-up``, ``worker-down`` and ``worker-gone`` happened to workers; the reason of
``policy-problem`` is the problem."""

_CHUNK = 20_000

Row = tuple[Any, ...]


class TableLog:
    """Writes rows in chunks: a value, or None, a column. What was written is whole, however the
    run ended.

    Args:
        write: writes a chunk.
        end: closes the file.
    """

    def __init__(
        self, path: Path, write: Callable[[Sequence[Row]], object], end: Callable[[], object]
    ) -> None:
        self._path, self._write, self._end = path, write, end
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= _CHUNK:
            self._flush()

    def close(self) -> None:
        """Write what is left."""
        with _blamed_on(self._path):
            try:
                self._flush()
            finally:
                self._end()

    def _flush(self) -> None:
        with _blamed_on(self._path):
            self._write(self._rows)
        self._rows.clear()


def _open_csv(path: Path, columns: dict[str, type]) -> TableLog:
    """A CSV file: floats as exactly as Python has them, None blank."""
    file = path.open("w", encoding="utf-8", newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    return TableLog(path, writer.writerows, file.close)


def _open_parquet(path: Path, columns: dict[str, type]) -> TableLog:
    """A Parquet file, a row group a chunk."""
    arrow, parquet = import_pyarrow()
    kinds = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
    writer = parquet.ParquetWriter(str(path), schema)

    def write(rows: Sequence[Row]) -> None:
        if rows:
            by_name = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
            writer.write_table(arrow.table(by_name, schema=schema))

    return TableLog(path, write, writer.close)


class Log:
    """Both tables of a run; a context manager, so that they are whole however it ends.

    Args:
        path: of the queries' table, ending in ``.parquet`` or ``.csv``.

    Raises:
        InvalidInputError: another ending.
        EnvironmentUnfitError: Parquet without pyarrow, or a file that cannot be written, now or
            later.
    """

    def __init__(self, path: Path) -> None:
        open_table = log_kind(path)
        self.path = path
        self.control_path = control_path(path)
        opened: list[TableLog] = []
        try:
            with _blamed_on(path):
                opened.append(open_table(path, QUERY_COLUMNS))
                opened.append(open_table(self.control_path, CONTROL_COLUMNS))
        except EnvironmentUnfitError:
            for each in opened:
                each.close()
            raise
        self.queries, self.control = opened

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.queries.close()
        finally:
            self.control.close()


@contextmanager
def _blamed_on(path: Path) -> Iterator[None]:
    """Around what a log does with its file, and nothing else: what fails there is told with it."""
    try:
        yield
    except OSError as error:
        raise EnvironmentUnfitError(f"log {path}: {error.strerror or error}") from None


def control_path(path: Path) -> Path:
    """Where the control decisions of the queries' table go."""
    return path.with_suffix(f".control{path.suffix}")


def log_kind(path: Path) -> Callable[[Path, dict[str, type]], TableLog]:
    """What opens a file of this ending; raises as ``Log`` does."""
    if path.suffix == ".csv":
        return _open_csv
    if path.suffix == ".parquet":
        import_pyarrow()
        return _open_parquet
    raise InvalidInputError.of("log", str(path), "a name ending in .parquet or .csv")
