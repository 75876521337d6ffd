"""The seam of engines; ``engines.py`` lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from modelless.variants.vocabulary import Engine, Variant

Tensors = Mapping[str, NDArray[Any]]


class LoadedVariant(Protocol):
    """A variant ready to run. ``infer`` may be called from any one thread at a time."""

    @property
    def variant(self) -> Variant: ...

    @property
    def threads(self) -> int: ...

    @property
    def memory_bytes(self) -> int:
        """Measured growth by loading and warming up: of the process, or of a GPU's used memory."""
        ...

    @property
    def load_s(self) -> float:
        """Measured seconds from artifact on disk to warm, its hash check included."""
        ...

    def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Run one batch. Arrays in and out are of the task's signature, items along axis 0."""
        ...

    def unload(self) -> None:
        """Free everything; ``infer`` fails afterwards."""
        ...


class Runtime(Protocol):
    """One engine. Making one raises EnvironmentUnfitError where the engine cannot work."""

    @property
    def engine(self) -> Engine: ...

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> LoadedVariant:
        """Check the artifact's hash, build a session, run each of ``warm_up`` once.

        Where that takes long, the rest of it may be left out.

        Raises:
            IntegrityError: the file is not the one registered, or asks for what is not allowed.
            InvalidInputError: ``threads``, or a warm-up batch that does not fit the graph.
            EnvironmentUnfitError: the engine cannot run it here.
        """
        ...
