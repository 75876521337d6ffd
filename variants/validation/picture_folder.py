"""A folder of labelled files: ``folder/LABEL/*.jpg``, or a ``labels.csv`` that names the files.

A file holds a picture or, where the task's input is none, an array (``.npy``). Sizes that the task
leaves free may differ from file to file.

``labels.csv`` has the columns ``file`` and ``label``; for boxes also ``x1``, ``y1``, ``x2`` and
``y2``, a row a box, and a row without label and box for a picture that shows none.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.artifacts import file_sha256
from modelless.variants.signature import check_inputs
from modelless.variants.validation.expected import Boxes, Expects, LabelReader, bytes_of
from modelless.variants.validation.pictures import MOST_FILE_BYTES, PictureInput
from modelless.variants.validation.table_file import Table, read_table
from modelless.variants.validation.validation_set import (
    Item,
    ValidationSet,
    check_count,
)
from modelless.variants.vocabulary import Task

LABELS: Final = "labels.csv"
_CORNERS: Final = ("x1", "y1", "x2", "y2")


class ArrayInput:
    """The task's only input, where it is no picture.

    Attributes:
        name: of the tensor.
        suffixes: of the files that hold an item of it.
    """

    suffixes = frozenset({".npy"})

    def __init__(self, task: Task) -> None:
        self._task = task
        self.name = task.inputs[0].name

    def read(self, path: Path, where: str) -> NDArray[Any]:
        """The item in a ``.npy`` file; no pickled object is ever read.

        Raises:
            InvalidInputError: unreadable, too large, or not what the task's input takes.
        """
        try:
            if path.stat().st_size > MOST_FILE_BYTES:
                raise InvalidInputError.of(
                    f"{where}: bytes", path.stat().st_size, f"up to {MOST_FILE_BYTES}"
                )
            # A mapped file cannot say that it is larger than it is.
            array = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
        except OSError as error:
            raise InvalidInputError(f"{where}: cannot be read ({error.strerror}).") from None
        except (ValueError, EOFError):
            raise InvalidInputError(
                f"{where}: not a .npy file of numbers, or not a whole one. Write it with "
                "numpy.save; arrays of Python objects are never read."
            ) from None
        try:
            clean, _ = check_inputs(self._task, {self.name: array[None]})
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}: {error}") from None
        item: NDArray[Any] = clean[self.name][0]
        return item


def _input_of(task: Task) -> PictureInput | ArrayInput:
    try:
        return PictureInput.of(task)
    except InvalidInputError:
        if len(task.inputs) != 1:
            raise
        return ArrayInput(task)


class PictureFolder(ValidationSet):
    """The pictures, or arrays, of a folder, by name.

    Args:
        folder: where they lie.
        task: that they are of.
        expects: what a metric needs.

    Raises:
        InvalidInputError: the task has several inputs, there is no file of its kind, or a label is
            unknown; names the file.
    """

    def __init__(self, folder: Path, task: Task, expects: Expects) -> None:
        self._folder = folder
        self.name = folder.resolve().name
        self._input = _input_of(task)
        reader = LabelReader(task, expects)
        table = folder / LABELS
        if expects is Expects.NOTHING:
            found: dict[str, Any] = dict.fromkeys(self._files_under(folder))
        elif not table.is_file():
            found = self._by_folder(reader)
        elif expects is Expects.BOXES:
            found = self._boxes(read_table(table), reader)
        else:
            found = self._by_table(read_table(table), reader)
        check_count(str(folder), len(found))
        self._files = tuple(sorted(found))
        self._expected = tuple(found[name] for name in self._files)

    @cached_property
    def sha256(self) -> str:
        """Of the files' names, bytes and labels; reads every file once."""
        digest = hashlib.sha256()
        for name, expected in zip(self._files, self._expected, strict=True):
            content = file_sha256(self._folder / name)
            digest.update(f"{name}\0{content}\0".encode() + bytes_of(expected) + b"\n")
        return digest.hexdigest()

    def __len__(self) -> int:
        """The number of pictures."""
        return len(self._files)

    def item(self, index: int) -> Item:
        """See ``ValidationSet.item``."""
        path = self._folder / self._files[index]
        return Item({self._input.name: self._input.read(path, str(path))}, self._expected[index])

    def _by_folder(self, reader: LabelReader) -> dict[str, Any]:
        if reader.expects is Expects.BOXES:
            raise InvalidInputError(
                f"{self._folder}: boxes need a file {LABELS} beside the pictures."
            )
        labels = sorted(path for path in self._folder.iterdir() if path.is_dir())
        if not labels:
            raise InvalidInputError(
                f"{self._folder}: has neither {LABELS} nor a folder for each label with "
                f"files ({', '.join(sorted(self._input.suffixes))}) in it."
            )
        found: dict[str, Any] = {}
        for folder in labels:
            expected = reader.read(folder.name, str(folder))
            found |= {f"{folder.name}/{name}": expected for name in self._files_under(folder)}
        return found

    def _by_table(self, table: Table, reader: LabelReader) -> dict[str, Any]:
        files, labels = table.column("file"), table.column("label")
        found: dict[str, Any] = {}
        for row, (name, label) in enumerate(zip(files, labels, strict=True)):
            where = table.where(row)
            if name in found:
                raise InvalidInputError.of(f"{where}: file", name, "each file once")
            self._check_file(name, where)
            found[name] = reader.read(label, where)
        return found

    def _boxes(self, table: Table, reader: LabelReader) -> dict[str, Any]:
        corners = [table.column(name) for name in _CORNERS]
        objects: dict[str, list[tuple[list[float], int]]] = {}
        for row, (name, label) in enumerate(
            zip(table.column("file"), table.column("label"), strict=True)
        ):
            where = table.where(row)
            if name not in objects:
                self._check_file(name, where)
            mine = objects.setdefault(name, [])
            if label or any(column[row] for column in corners):
                box = [reader.number(column[row], where) for column in corners]
                if not (box[0] < box[2] and box[1] < box[3]):
                    raise InvalidInputError.of(f"{where}: box", box, "x1 < x2 and y1 < y2")
                mine.append((box, reader.class_index(label, where)))
        return {
            name: Boxes(
                np.array([box for box, _ in mine], np.float64).reshape(-1, 4),
                np.array([index for _, index in mine], np.int64),
            )
            for name, mine in objects.items()
        }

    def _check_file(self, name: str, where: str) -> None:
        path = self._folder / name
        inside = path.resolve().is_relative_to(self._folder.resolve())
        fits = path.suffix.lower() in self._input.suffixes
        if not name or not inside or not fits or not path.is_file():
            allowed = f"one in the folder ({', '.join(sorted(self._input.suffixes))})"
            raise InvalidInputError.of(f"{where}: file", name, allowed)

    def _files_under(self, folder: Path) -> list[str]:
        """Names of the files of its kind in ``folder`` and below, relative to it."""
        found = []
        for place, _, names in os.walk(folder):
            here = Path(place).relative_to(folder)
            found += [
                (here / name).as_posix()
                for name in names
                if Path(name).suffix.lower() in self._input.suffixes
            ]
        return found
