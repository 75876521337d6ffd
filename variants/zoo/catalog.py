"""The zoo's entries, by the task's name, and the seam through which they are built.

An entry is imported only when asked for: listing the names costs nothing and needs no extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from modelless.common.errors import EnvironmentUnfitError, NotFoundError
from modelless.common.plugins import Plugins
from modelless.variants.vocabulary import Accuracy, Engine, Model, Precision, Task
from modelless.variants.zoo.made import MadeEntry

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class BuiltVariant:
    """A variant that a zoo entry makes, before its artifact has a place in a store.

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
    """One task whose variants the entry builds by itself; those of a ``MadeEntry`` are made."""

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


ENTRIES: Final = Plugins(
    "zoo entry",
    {
        "imagenet": "modelless.variants.zoo.imagenet:ImageNet",
        "fashion-mnist": "modelless.variants.zoo.fashion_mnist:FashionMnist",
        "printed-lines": "modelless.variants.zoo.printed_lines:PrintedLines",
        "voice-activity": "modelless.variants.zoo.voice_activity:VoiceActivity",
        "digits": "modelless.variants.zoo.digits:Digits",
    },
    group="modelless.zoo",
)
"""The class of each entry, by the task's name."""


def find_entry(name: str) -> ZooEntry | MadeEntry:
    """The entry called ``name``.

    Raises:
        NotFoundError: there is none.
        EnvironmentUnfitError: it cannot be imported, or it needs a package that is not installed.
    """
    ENTRIES.check(name)
    try:
        entry: ZooEntry | MadeEntry = ENTRIES.find(name)()
    except NotFoundError as error:
        raise EnvironmentUnfitError(str(error)) from error
    return entry
