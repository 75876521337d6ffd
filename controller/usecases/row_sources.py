"""The rows of an offline run: a Parquet or CSV table, an array, or a folder of pictures.

A source is read in one pass, in the order of its rows, and only where rows are wanted: so a run
that goes on reads what is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.common.parquet import import_pyarrow
from modelless.controller.usecases.inferring import read_tensor
from modelless.variants.signature import dtype_of
from modelless.variants.vocabulary import TensorSpec

PICTURES: Final = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
)
_READ_AT_ONCE: Final = 64  # pictures, by a few threads
_TABLE_ROWS: Final = 1024  # read from a table at once

Ranges = Sequence[tuple[int, int]]
"""First rows, and the rows after the last ones; ascending."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows, whose items have one shape.

    Attributes:
        first: the number of the first row.
        count: how many there are.
        tensors: for each input, the items.
        error: why the row cannot be read; empty if it can.
    """

    first: int
    count: int
    tensors: dict[str, NDArray[Any]]
    error: str = ""


class Source(ABC):
    """The rows of a run.

    Attributes:
        rows: how many there are.
        files: what they are read from, by names that do not depend on the folder's own.
        names: for each row, its file; None if a row is not a file.
    """

    rows: int
    files: dict[str, Path]
    names: Sequence[str] | None = None

    @abstractmethod
    def read(self, ranges: Ranges, most: int) -> Iterator[Rows]:
        """Yield the rows of these ranges, up to ``most`` at once."""


def open_source(path: Path, inputs: Sequence[TensorSpec]) -> Source:
    """The rows at a path: ``.npy``, ``.parquet``, ``.csv``, or a folder of one kind of files.

    Args:
        path: a file; or a folder with Parquet or CSV files in it, or with pictures at any depth.
        inputs: of the task.

    Raises:
        InvalidInputError: there is nothing of that kind, or it does not fit the inputs.
        EnvironmentUnfitError: a package is not installed.
    """
    kinds: dict[str, type[_Array | _Table]] = {".npy": _Array, ".parquet": _Table, ".csv": _Table}
    suffix = path.suffix.lower()
    if path.is_file() and suffix in kinds:
        return kinds[suffix]([path], inputs)
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file())
        for suffix in (".parquet", ".csv"):
            if tables := [each for each in files if each.suffix.lower() == suffix]:
                return _Table(tables, inputs)
        if pictures := [each for each in files if each.suffix.lower() in PICTURES]:
            return _Pictures(path, pictures, inputs)
    allowed = "a .npy, .parquet or .csv file, or a folder of .parquet, .csv or picture files"
    raise InvalidInputError.of("input", str(path), allowed)


class _Array(Source):
    """The items of a ``.npy`` file, which is mapped and not read as a whole."""

    def __init__(self, paths: Sequence[Path], inputs: Sequence[TensorSpec]) -> None:
        path, self._spec = paths[0], _only(inputs)
        try:
            self._array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            allowed = f"a .npy file of numbers ({error})"
            raise InvalidInputError.of("input", str(path), allowed) from None
        if not isinstance(self._array, np.ndarray):  # of an archive of several arrays
            raise InvalidInputError.of("input", str(path), "a .npy file of one array of numbers")
        if not self._array.ndim:
            allowed = f"items {list(self._spec.shape[1:])}, as many as there are rows"
            raise InvalidInputError.of("input: shape", [], allowed)
        self.rows, self.files = len(self._array), {path.name: path}
        _fit(self._array[:1], self._spec)

    def read(self, ranges: Ranges, most: int) -> Iterator[Rows]:
        for start, stop in ranges:
            for first in range(start, stop, most):
                items = _fit(self._array[first : min(first + most, stop)], self._spec)
                yield Rows(first, len(items), {self._spec.name: items})


class _Table(Source):
    """The rows of Parquet or CSV files, which have the same columns.

    An input is the column of its name. The only input may also be the only column, or, where its
    items are rows of numbers, all columns together.
    """

    def __init__(self, paths: Sequence[Path], inputs: Sequence[TensorSpec]) -> None:
        self._types = import_pyarrow()[0].types
        self._inputs, self.files = inputs, {str(n): path for n, path in enumerate(paths)}
        kind = paths[0].suffix.lower().removeprefix(".")
        self._units: list[tuple[Any, int]] = []  # parts of files, and their rows
        try:
            table = import_module("pyarrow.dataset").dataset(
                [str(path) for path in paths], format=kind
            )
            for fragment in table.get_fragments():
                if kind == "parquet":
                    groups = fragment.split_by_row_group()
                    self._units += [(group, group.row_groups[0].num_rows) for group in groups]
                else:
                    self._units.append((fragment, fragment.count_rows()))
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
            allowed = f"readable {kind} files ({error})"
            raise InvalidInputError.of("input", str(paths[0]), allowed) from None
        self._schema, self._columns = table.schema, _columns_of(table.schema.names, inputs)
        self.rows = sum(rows for _, rows in self._units)

    def read(self, ranges: Ranges, most: int) -> Iterator[Rows]:
        wanted = sorted({name for names in self._columns.values() for name in names})
        for start, stop in ranges:
            for first, batch in self._batches(start, stop, wanted):
                tensors = {
                    spec.name: _fit(self._items_of(batch, spec), spec) for spec in self._inputs
                }
                for at in range(0, batch.num_rows, most):
                    some = {name: items[at : at + most] for name, items in tensors.items()}
                    yield Rows(first + at, min(most, batch.num_rows - at), some)

    def _batches(self, start: int, stop: int, columns: list[str]) -> Iterator[tuple[int, Any]]:
        """Yield the parts of record batches between two rows, each with its first row."""
        first = 0
        for unit, rows in self._units:
            if first < stop and start < first + rows:
                at = first
                for batch in unit.to_batches(
                    schema=self._schema, columns=columns, batch_size=_TABLE_ROWS, batch_readahead=2
                ):
                    low, high = max(start - at, 0), min(stop - at, batch.num_rows)
                    if low < high:
                        yield at + low, batch.slice(low, high - low)
                    at += batch.num_rows
                    if at >= stop:
                        return
            first += rows

    def _items_of(self, batch: Any, spec: TensorSpec) -> NDArray[Any]:
        """The items in columns of numbers or of lists of numbers."""
        types, names, columns = self._types, self._columns[spec.name], []
        for name in names:
            column = batch.column(batch.schema.get_field_index(name))
            column = getattr(column, "storage", column)  # of a tensor type
            while types.is_nested(column.type) and not column.null_count:
                column = column.flatten()
            kind = column.type
            is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
            if column.null_count or not is_number:
                got = f"{kind} with {column.null_count} nulls"
                raise InvalidInputError.of(f"column {name}", got, "numbers, or lists of numbers")
            columns.append(column.to_numpy(zero_copy_only=False))
        values: NDArray[Any] = np.stack(columns, axis=1) if len(columns) > 1 else columns[0]
        try:
            return values.reshape(batch.num_rows, *spec.shape[1:])
        except ValueError:
            got = f"{values.size} numbers in {batch.num_rows} rows"
            allowed = f"items {list(spec.shape[1:])}"
            raise InvalidInputError.of(f"column {names[0]}", got, allowed) from None


class _Pictures(Source):
    """Picture files; one that cannot be read is a row with an error."""

    def __init__(self, folder: Path, paths: Sequence[Path], inputs: Sequence[TensorSpec]) -> None:
        self._paths, self._spec, self.rows = paths, _only(inputs), len(paths)
        self.names = [str(path.relative_to(folder)) for path in paths]
        self.files = dict(zip(self.names, paths, strict=True))

    def read(self, ranges: Ranges, most: int) -> Iterator[Rows]:
        with ThreadPoolExecutor(4) as pool:
            for start, stop in ranges:
                for first in range(start, stop, _READ_AT_ONCE):
                    some = self._paths[first : min(first + _READ_AT_ONCE, stop)]
                    yield from _alike(first, self._spec.name, pool.map(self._read_one, some), most)

    def _read_one(self, path: Path) -> NDArray[Any] | str:
        try:
            return read_tensor(path, self._spec)
        except InvalidInputError as error:
            return str(error)


def _alike(first: int, name: str, items: Iterable[NDArray[Any] | str], most: int) -> Iterator[Rows]:
    """Yield neighbours of one shape together."""

    def shape_of(item: NDArray[Any] | str) -> object:
        return item if isinstance(item, str) else item.shape

    for _, group in groupby(items, shape_of):
        same = list(group)
        if isinstance(same[0], str):
            yield Rows(first, len(same), {}, same[0])
        else:
            for at in range(0, len(same), most):
                some = same[at : at + most]
                yield Rows(first + at, len(some), {name: np.concatenate(some)})
        first += len(same)


def _only(inputs: Sequence[TensorSpec]) -> TensorSpec:
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise InvalidInputError.of("input", "one item a row", f"a table with the columns {names}")
    return inputs[0]


def _columns_of(there: Sequence[str], inputs: Sequence[TensorSpec]) -> dict[str, list[str]]:
    """The columns of each input."""
    found = {spec.name: [spec.name] for spec in inputs if spec.name in there}
    if len(found) < len(inputs):
        widths = (1, inputs[0].shape[-1]) if len(inputs[0].shape) == 2 else (1,)
        if len(inputs) == 1 and (len(there) in widths or widths[-1] == -1):
            return {inputs[0].name: list(there)}
        allowed = f"columns {', '.join(spec.name for spec in inputs)}"
        if len(inputs) == 1:
            allowed += ", or one column" + (f", or {widths[1]}" if len(widths) == 2 else "")
        raise InvalidInputError.of("input: columns", ", ".join(there), allowed)
    return found


def _fit(items: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """The items as the input takes them; InvalidInputError if a number would change."""
    fits = items.ndim == len(spec.shape) and all(
        wanted in (-1, size) for wanted, size in zip(spec.shape[1:], items.shape[1:], strict=True)
    )
    if not fits:
        allowed = f"items {list(spec.shape[1:])}"
        raise InvalidInputError.of("input: shape", list(items.shape), allowed)
    dtype = dtype_of(spec.datatype)
    if items.dtype == dtype:
        return np.array(items)  # read here, in a thread, where the file is mapped
    if dtype.kind in "biuf" and items.dtype.kind not in "biuf":
        raise InvalidInputError.of("input: dtype", items.dtype.name, spec.datatype)
    with np.errstate(invalid="ignore", over="ignore"):
        made = items.astype(dtype)
    is_same = np.isfinite(made) | ~np.isfinite(items) if dtype.kind == "f" else made == items
    if not is_same.all():
        raise InvalidInputError.of("input", items[~is_same].flat[0], spec.datatype)
    return made
