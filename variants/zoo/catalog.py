"""The zoo's entries, by the task's name, and the seam through which they are built.

An entry is imported only when asked for: listing the names costs nothing and needs no extra.
"""

from __future__ import annotations

import csv
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from modelless.common.errors import EnvironmentUnfitError, IntegrityError, NotFoundError
from modelless.common.plugins import Plugins
from modelless.variants.vocabulary import Accuracy, Engine, Model, Precision, Task

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class BuiltVariant:
    """A variant that a zoo entry makes, before its artifact has a place in a store.

    Attributes:
        model: of which it is a form.
        name: e.g. ``int8-224``; unique in its model.
        resolution_px: side of the network's own input; None if it has none.
        onnx_bytes: the whole graph, weights within.
    """

    model: Model
    name: str
    precision: Precision
    resolution_px: int | None
    engine: Engine
    onnx_bytes: bytes
    accuracy: Accuracy


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


class MadeEntry(ABC):
    """One task, the trained models of it, and what is made of them.

    Attributes:
        name: the task's.
        summary: a line for a listing.
        recipe: which variants to make of each model; see ``making.recipe``.
        items: how many labelled items variants are calibrated and measured on.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    recipe: ClassVar[Mapping[str, Any]]
    items: int

    @cached_property
    @abstractmethod
    def task(self) -> Task:
        """The task; EnvironmentUnfitError if what describes it is not installed."""

    @abstractmethod
    def models(self) -> Iterator[tuple[Model, bytes]]:
        """Each trained model, and its ONNX file's bytes, of the task's signature.

        Raises:
            EnvironmentUnfitError: a package is not installed.
            IntegrityError: a file is not the one that was published.
        """

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Iterator[tuple[NDArray[Any], str]]:
        """``count`` labelled items; equal states of ``rng`` give equal ones."""

    def write_items(self, folder: Path, count: int, seed: int = 0) -> None:
        """Write labelled items as a validation set: pictures or arrays, and ``labels.csv``.

        Args:
            folder: made; must not be there yet.
            count: of items.
            seed: other seeds give other items. Accuracies are measured on those of 0.
        """
        folder.mkdir(parents=True)
        with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(("file", "label"))
            for index, (item, label) in enumerate(self.draw(np.random.default_rng(seed), count)):
                if item.dtype == np.uint8:
                    from PIL import Image

                    name = f"{index:05}.png"
                    Image.fromarray(item).save(folder / name)
                else:
                    name = f"{index:05}.npy"
                    np.save(folder / name, item)
                table.writerow((name, label))


def with_versions(model: ModelProto, other: ModelProto) -> ModelProto:
    """``model``, for the versions of ONNX that ``other`` is for; both are merged then."""
    model.ir_version = other.ir_version
    del model.opset_import[:]
    model.opset_import.extend(other.opset_import)
    return model


def package_file(package: str, file: str, install: str, sha256: str = "") -> Path:
    """A file in an installed package, which is not imported.

    Args:
        install: what installs the package, for the error.
        sha256: hex digest that the file must have.

    Raises:
        EnvironmentUnfitError: the package is not installed, or does not hold the file.
        IntegrityError: it is another file.
    """
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:  # of the package around it
        spec = None
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    path = next((Path(each, file) for each in folders if Path(each, file).is_file()), None)
    if path is None:
        what = f"{file} of package {package}" if folders else f"package {package}"
        raise EnvironmentUnfitError(f"{what} is not installed: {install}")
    if sha256 and (found := hashlib.sha256(path.read_bytes()).hexdigest()) != sha256:
        raise IntegrityError(f"{path}: sha256 is {found}; expected {sha256}: {install}")
    return path
