"""Items that lie in arrays: a NumPy ``.npz`` file, or the columns of a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.common.npz import NPZ_ERRORS, read_arrays
from modelless.variants.artifacts import file_sha256
from modelless.variants.signature import TEXT, check_inputs, dtype_of
from modelless.variants.validation.expected import Boxes, Expects, LabelReader
from modelless.variants.validation.table_file import Table, read_table
from modelless.variants.validation.validation_set import (
    MOST_ITEMS,
    Item,
    ValidationSet,
    check_count,
)
from modelless.variants.vocabulary import Task

_LABEL: Final = "label"


class ArraySet(ValidationSet):
    """Items in arrays, all of one shape.

    Args:
        name: what people call it.
        task: that they are of.
        inputs: arrays by name, items along axis 0.
        expected: item by item; see ``Expects``.
        digest: gives its file's sha256; called once, when it is asked for.

    Raises:
        InvalidInputError: no items, or inputs that are not of the task's signature.
    """

    def __init__(
        self,
        name: str,
        task: Task,
        inputs: Mapping[str, NDArray[Any]],
        expected: Sequence[Any],
        digest: Callable[[], str],
    ) -> None:
        check_count(name, len(expected))
        try:
            self._inputs, count = check_inputs(task, inputs, max_items=MOST_ITEMS)
        except InvalidInputError as error:
            raise InvalidInputError(f"{name}: {error}") from None
        if count != len(expected):
            raise InvalidInputError.of(f"{name}: labels", len(expected), f"{count}, one an item")
        self.name = name
        self._expected = expected
        self._digest = digest

    @cached_property
    def sha256(self) -> str:
        """Of the file."""
        return self._digest()

    def __len__(self) -> int:
        """The number of items."""
        return len(self._expected)

    def item(self, index: int) -> Item:
        """See ``ValidationSet.item``."""
        return Item(
            {name: array[index, ...] for name, array in self._inputs.items()}, self._expected[index]
        )


def read_npz(path: Path, task: Task, expects: Expects) -> ArraySet:
    """A ``.npz`` file: an array an input, by name, or ``inputs`` if there is one input; ``labels``.

    Labels are numbers, or text of a fixed width. Sequences are rows of indices, filled up with -1,
    or text. Boxes are ``boxes`` [M, 4] (x1, y1, x2, y2), ``box_labels`` [M] and ``box_items`` [M],
    the index of the item each is in. No pickled object is ever read.

    Raises:
        InvalidInputError: unreadable, too large, an array that is missing or unfit, a wrong label.
    """
    arrays = _load(path)
    names = [spec.name for spec in task.inputs]
    if len(names) == 1 and names[0] not in arrays and "inputs" in arrays:
        arrays[names[0]] = arrays["inputs"]
    inputs = {name: _array(arrays, name, path) for name in names}
    count = min((len(array) for array in inputs.values() if array.ndim), default=0)
    check_count(str(path), count)
    reader = LabelReader(task, expects)
    expected: Sequence[Any]
    if expects is Expects.NOTHING:
        expected = [None] * count
    elif expects is Expects.BOXES:
        expected = _boxes(arrays, path, count, reader)
    else:
        labels = _array(arrays, "labels", path)
        if labels.ndim < 1 or (labels.ndim > 1 and expects is not Expects.SEQUENCE):
            raise InvalidInputError.of(f"{path}: labels: shape", labels.shape, "one label an item")
        rows = labels if labels.ndim > 1 else labels.tolist()
        expected = [reader.read(row, f"{path}, item {index}") for index, row in enumerate(rows)]
    return ArraySet(path.name, task, inputs, expected, lambda: file_sha256(path))


def read_csv(path: Path, task: Task, expects: Expects) -> ArraySet:
    """A CSV file: a row an item, with a column ``label``.

    The other columns are the task's inputs by name where each input is one number or text; the
    numbers or texts of the one input, in the file's order, where it is a row [-1, numbers].

    Raises:
        InvalidInputError: not such a file, a column missing or too many, no number; names the line.
    """
    table = read_table(path)
    reader = LabelReader(task, expects)
    if expects is Expects.BOXES:
        raise InvalidInputError(f"{path}: boxes cannot be told in rows of features: use .npz.")
    expected = [None] * len(table.frame)
    if expects is not Expects.NOTHING:
        expected = [
            reader.read(cell, table.where(row)) for row, cell in enumerate(table.column(_LABEL))
        ]
    columns = [str(name) for name in table.frame.columns if name != _LABEL]
    inputs = {}
    if len(task.inputs) == 1 and len(task.inputs[0].shape) == 2:
        spec = task.inputs[0]
        if spec.shape[1] not in (-1, len(columns)) or not columns:
            raise InvalidInputError.of(
                f"{path}: columns beside {_LABEL!r}",
                len(columns),
                f"{spec.shape[1]}, the numbers of input {spec.name!r}",
            )
        cells = [_values(table, name, spec.datatype) for name in columns]
        inputs[spec.name] = np.stack(cells, axis=1)
    else:
        for spec in task.inputs:
            if spec.shape not in ((-1,), (-1, 1)):
                raise InvalidInputError.of(
                    f"task {task.name!r}: input {spec.name!r}",
                    list(spec.shape),
                    "a number, or a row of numbers as the only input, for a CSV file",
                    "Put other arrays into an .npz file.",
                )
            column = _values(table, spec.name, spec.datatype)
            inputs[spec.name] = column.reshape([-1] + [1] * (len(spec.shape) - 1))
    return ArraySet(path.name, task, inputs, expected, lambda: file_sha256(path))


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return read_arrays(path)
    except NPZ_ERRORS as error:
        raise InvalidInputError(
            f"{path}: not an .npz file of plain arrays ({error}). Write it with numpy.savez; "
            "arrays of Python objects are never read."
        ) from None


def _array(arrays: Mapping[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    if name not in arrays:
        raise InvalidInputError.of(f"{path}: arrays", sorted(arrays), f"one called {name!r}")
    return arrays[name]


def _boxes(
    arrays: Mapping[str, NDArray[Any]], path: Path, count: int, reader: LabelReader
) -> list[Boxes]:
    names = ("boxes", "box_labels", "box_items")
    corners, labels, items = (_array(arrays, name, path) for name in names)
    shapes = (labels.shape, items.shape)
    if corners.shape[1:] != (4,) or shapes != (corners.shape[:1],) * 2:
        raise InvalidInputError.of(
            f"{path}: shapes of {', '.join(names)}",
            (corners.shape, *shapes),
            "[M, 4], [M] and [M]",
        )
    if (
        items.dtype.kind == "f" and (items == np.rint(items)).all()
    ):  # as arrays with empty lists are
        items = items.astype(np.int64)
    if corners.dtype.kind not in "iuf" or items.dtype.kind not in "iu":
        raise InvalidInputError.of(
            f"{path}: types of boxes and box_items",
            f"{corners.dtype} and {items.dtype}",
            "real numbers and whole numbers",
        )
    wrong = ~(np.isfinite(corners).all(axis=1) & (corners[:, :2] < corners[:, 2:]).all(axis=1))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidInputError.of(f"{path}: boxes[{row}]", corners[row], "x1 < x2 and y1 < y2")
    outside = (items < 0) | (items >= count)
    if outside.any():
        row = int(np.argmax(outside))
        raise InvalidInputError.of(f"{path}: box_items[{row}]", items[row], f"0 to {count - 1}")
    classes = np.array(
        [
            reader.class_index(label, f"{path}, box {row}")
            for row, label in enumerate(labels.tolist())
        ],
        np.int64,
    )
    order = np.argsort(items, kind="stable")
    parts = np.split(order, np.searchsorted(items[order], np.arange(1, count)))
    return [Boxes(corners[part].astype(np.float64), classes[part]) for part in parts]


def _values(table: Table, name: str, datatype: str) -> NDArray[Any]:
    """A column as numbers or texts of an Open Inference Protocol datatype."""
    import pandas as pd

    cells = table.column(name)
    if datatype == TEXT:
        return np.array(cells, np.object_)
    dtype = dtype_of(datatype)
    values: NDArray[Any]
    if np.issubdtype(dtype, np.floating):
        values = pd.to_numeric(pd.Series(cells, dtype=object), errors="coerce").to_numpy(np.float64)
        wrong = ~np.isfinite(values)
        allowed = "a finite number"
    else:
        is_bool = dtype == np.bool_
        low, high = (0, 1) if is_bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        values = np.array([_whole(cell, low, high) for cell in cells], np.object_)
        wrong = np.array([value is None for value in values])
        allowed = f"a whole number, {low} to {high}"
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidInputError.of(f"{table.where(row)}: {name}", cells[row], allowed)
    return values.astype(dtype)


def _whole(cell: str, low: int, high: int) -> int | None:
    """The whole number that is written in a cell, exactly; None if there is none in this range."""
    try:
        if cell.isdecimal() and cell.isascii() and len(cell) < 20:  # most are, and this is quicker
            return int(cell) if low <= int(cell) <= high else None
        number = Decimal(cell)
        whole = int(number) if low <= number <= high else None
    except InvalidOperation:
        return None
    return whole if whole == number else None
