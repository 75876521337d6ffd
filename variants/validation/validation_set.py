"""The seam of validation sets: what accuracy is measured on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError

MOST_ITEMS: Final = 10_000_000
"""Most items that a set may have."""


@dataclass(frozen=True, slots=True)
class Item:
    """One labelled item.

    Attributes:
        inputs: arrays of the task's inputs by name, without the axis that counts items.
        expected: what is right, in the form that ``Expects`` says.
    """

    inputs: dict[str, NDArray[Any]]
    expected: Any


@dataclass(frozen=True, slots=True)
class Batch:
    """Items of equal shapes.

    Attributes:
        inputs: as a variant takes them, items along axis 0.
        expected: what is right, item by item.
    """

    inputs: dict[str, NDArray[Any]]
    expected: tuple[Any, ...]


class ValidationSet(ABC):
    """Labelled items of a task, in an order that does not change.

    Attributes:
        name: for people.
    """

    name: str

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Hex digest of its content: two sets of the same digest hold the same items."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of items, 1 or more."""

    @abstractmethod
    def item(self, index: int) -> Item:
        """The item at ``index``, 0 to ``len() - 1``.

        Raises:
            InvalidInputError: it is broken, or not of the task's signature; names file or row.
        """

    def batches(self, most_items: int, order: Iterable[int] | None = None) -> Iterator[Batch]:
        """The items in batches of up to ``most_items``; neighbours of other shapes are parted.

        Args:
            order: which items, and in which order; all of them by default.
        """
        waiting: list[Item] = []
        for index in range(len(self)) if order is None else order:
            item = self.item(index)
            if waiting and (len(waiting) == most_items or _shapes(item) != _shapes(waiting[0])):
                yield _batch(waiting)
                waiting = []
            waiting.append(item)
        if waiting:
            yield _batch(waiting)


def check_count(where: str, count: int) -> int:
    """``count`` if a set may have as many items, else InvalidInputError that names ``where``."""
    if count < 1:
        raise InvalidInputError.of(f"{where}: items", count, "1 or more: the set is empty")
    if count > MOST_ITEMS:
        raise InvalidInputError.of(f"{where}: items", count, f"up to {MOST_ITEMS}")
    return count


def _shapes(item: Item) -> list[tuple[int, ...]]:
    return [array.shape for array in item.inputs.values()]


def _batch(items: list[Item]) -> Batch:
    names = items[0].inputs
    return Batch(
        {name: np.stack([item.inputs[name] for item in items]) for name in names},
        tuple(item.expected for item in items),
    )
