"""What the zoo offers, by the task's name, and the seam through which it is built.

An entry is imported only when asked for: listing the names costs nothing and needs no extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Protocol

from modelless.common.errors import EnvironmentUnfitError, NotFoundError
from modelless.variants.vocabulary import Accuracy, Engine, Model, Precision, Task

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class BuiltVariant:
    """What a zoo entry yields: a variant but for the artifact's place in a store.

    Attributes:
        model: of which it is a form.
        name: e.g. ``int8-224``; unique in its model.
        resolution_px: side of the network's own input; None if it has none.
        onnx_bytes: the whole graph, weights within.
        parameter_count: of the graph.
        multiply_adds: an item.
    """

    model: Model
    name: str
    precision: Precision
    resolution_px: int | None
    engine: Engine
    onnx_bytes: bytes
    accuracy: Accuracy
    parameter_count: int | None
    multiply_adds: int | None


class ZooEntry(Protocol):
    """One task whose models can be made on the spot."""

    @property
    def name(self) -> str:
        """The task's name."""
        ...

    @property
    def task(self) -> Task:
        """The task; EnvironmentUnfitError if what describes it is not installed."""
        ...

    @property
    def summary(self) -> str:
        """A line for a listing."""
        ...

    def build(self, on_progress: Progress) -> Iterator[BuiltVariant]:
        """Make the variants one by one. The same machine makes the same bytes every time.

        Args:
            on_progress: called with the stage in words, variants done, and variants in all.

        Raises:
            EnvironmentUnfitError: a package with weights, photos or an engine is not installed.
            IntegrityError: the weights are not those that were published.
        """
        ...


def _import(module: str, attribute: str) -> ZooEntry:
    try:
        entry: ZooEntry = getattr(import_module(f"modelless.variants.zoo.{module}"), attribute)()
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"zoo entry {attribute}: {error}: pip install 'modelless[demo]'"
        ) from error
    return entry


ENTRIES: Mapping[str, Callable[[], ZooEntry]] = MappingProxyType(
    {
        "imagenet": partial(_import, "imagenet", "ImageNet"),
        "fashion-mnist": partial(_import, "fashion_mnist", "FashionMnist"),
    }
)
"""What loads each entry, by the task's name."""


def find_entry(name: str) -> ZooEntry:
    """The entry of that name.

    Raises:
        NotFoundError: there is none; the message lists those that are.
        EnvironmentUnfitError: it needs a package that is not installed.
    """
    if name not in ENTRIES:
        raise NotFoundError(f"zoo entry: got {name!r}; the zoo has: {', '.join(sorted(ENTRIES))}.")
    return ENTRIES[name]()
