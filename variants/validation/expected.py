"""Right answers to items: their forms, and how the words of a person are read into them."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.vocabulary import Task


class Expects(StrEnum):
    """The form in which a metric needs to know what is right.

    ``CLASS`` is an int; ``NUMBER`` a float; ``SEQUENCE`` a tuple of ints, as the characters of a
    text are classes too; ``TEXT`` a str; ``BOXES`` a ``Boxes``; ``NOTHING`` is None.
    """

    CLASS = "class"
    NUMBER = "number"
    SEQUENCE = "sequence"
    TEXT = "text"
    BOXES = "boxes"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Boxes:
    """The objects in a picture.

    Attributes:
        corners: FP64 [objects, 4]: x1, y1, x2, y2, in the coordinates of the task's ``boxes``.
        classes: INT64 [objects].
    """

    corners: NDArray[np.float64]
    classes: NDArray[np.int64]


def bytes_of(expected: Any) -> bytes:
    """The right answer to an item, as bytes to hash."""
    if isinstance(expected, Boxes):
        return expected.corners.tobytes() + expected.classes.tobytes()
    return repr(expected).encode()


@dataclass(frozen=True)
class LabelReader:
    """Reads labels of one task into one form.

    A class is written as one of the task's labels, or as its index; not as its index where all
    labels are numbers and others than their indices, as it could be either. A sequence is written
    as text whose characters are the task's labels, or as indices. A text is written as it is, with
    any characters: those that no variant can answer are errors of the variants.

    Attributes:
        task: whose labels they are.
        expects: the form; not ``BOXES``, whose parts are read one by one, as classes and numbers.
    """

    task: Task
    expects: Expects

    def read(self, written: object, where: str) -> Any:
        """The right answer, from what is written.

        Args:
            written: text, or a number or an array that a file holds.
            where: names file and row, for errors.

        Raises:
            InvalidInputError: no such class, no number, or a character that the task does not have.
        """
        if self.expects is Expects.NOTHING:
            return None
        if self.expects is Expects.NUMBER:
            return self.number(written, where)
        if self.expects is Expects.SEQUENCE:
            return self._sequence(written, where)
        if self.expects is Expects.TEXT:
            if not isinstance(written, str):
                raise InvalidInputError.of(f"{where}: label", written, "text")
            return str(written)
        return self.class_index(written, where)

    def class_index(self, written: object, where: str) -> int:
        """The index of a class that is written as its label or as its index."""
        if isinstance(written, str):
            text = written.strip()
            if text in self._indices:
                return self._indices[text]
            if text in self.task.labels:
                same = [str(i) for i, label in enumerate(self.task.labels) if label == text]
                raise InvalidInputError.of(
                    f"{where}: label", text, f"its index, as several are called so: {same}"
                )
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                raise self._unknown(text, where)
            written = int(text)
        if self._labels_are_other_numbers:
            raise InvalidInputError.of(
                f"{where}: label",
                written,
                f"a label of task {self.task.name!r} as text, as the labels are numbers that "
                "differ from the indices",
            )
        if isinstance(written, float | np.floating) and float(written).is_integer():
            written = int(written)
        if not isinstance(written, int | np.integer) or isinstance(written, bool):
            raise self._unknown(written, where)
        if not 0 <= written < self.class_count:
            raise self._unknown(int(written), where)
        return int(written)

    def number(self, written: object, where: str) -> float:
        """A finite number."""
        try:
            value = float(written)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise InvalidInputError.of(f"{where}: label", written, "a finite number")
        return value

    @cached_property
    def class_count(self) -> int:
        """How many classes there are; by the labels, else by the width of the task's outputs."""
        if self.task.labels:
            return len(self.task.labels)
        widths = [spec.shape[-1] for spec in self.task.outputs if len(spec.shape) > 1]
        return max((width for width in widths if width > 1), default=2**31)

    @cached_property
    def _labels_are_other_numbers(self) -> bool:
        return (
            all(label.removeprefix("-").isdecimal() for label in self._indices)
            and 0 < len(self._indices) == len(self.task.labels)
            and any(
                (label.lstrip("0") or "0") != str(index) for label, index in self._indices.items()
            )
        )

    @cached_property
    def _indices(self) -> dict[str, int]:
        counts = Counter(self.task.labels)
        return {label: index for index, label in enumerate(self.task.labels) if counts[label] == 1}

    def _sequence(self, written: object, where: str) -> tuple[int, ...]:
        if isinstance(written, str):
            if not self.task.labels:
                raise InvalidInputError.of(
                    "task: labels",
                    None,
                    "its characters, for answers that are texts",
                    "Give the task 'decoding' with an alphabet, or 'labels'.",
                )
            unknown = [letter for letter in written if letter not in self._indices]
            if unknown:
                raise InvalidInputError.of(
                    f"{where}: label",
                    written,
                    "text of the task's labels, which are its characters",
                    f"Not among them: {unknown[0]!r}.",
                )
            return tuple(self._indices[letter] for letter in written)
        values = np.asarray(written)
        if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
            raise InvalidInputError.of(f"{where}: label", written, "text, or a row of indices")
        return tuple(self.class_index(value, where) for value in values.tolist() if value != -1)

    def _unknown(self, written: object, where: str) -> InvalidInputError:
        allowed = f"an index of 0 to {self.class_count - 1}"
        hint = ""
        if self.task.labels:
            allowed = f"a label of task {self.task.name!r}, or {allowed}"
            near = difflib.get_close_matches(str(written), self.task.labels, n=2)
            hint = f"Did you mean {' or '.join(near)}?" if near else ""
        return InvalidInputError.of(f"{where}: label", written, allowed, hint)
