"""What an engine must offer, and how one is found. Engines are imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from modelless.variants.errors import EnvironmentUnfitError
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
        """Measured resident growth of the process by loading and warming up."""
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
    """One engine."""

    @property
    def engine(self) -> Engine: ...

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> LoadedVariant:
        """Check the artifact's hash, build a session, run each of ``warm_up`` once.

        Raises:
            IntegrityError: the file is not the one registered, or asks for what is not allowed.
            EnvironmentUnfitError: the engine cannot run it here.
        """
        ...


_ENGINES: dict[Engine, tuple[str, str, str]] = {
    Engine.ONNXRUNTIME_CPU: (f"{__package__}.onnxruntime_cpu", "OnnxRuntimeCpu", "cpu"),
}


def find_runtime(engine: Engine) -> Runtime:
    """The runtime of ``engine``; EnvironmentUnfitError says which extra brings an absent one."""
    module, attribute, extra = _ENGINES[engine]
    try:
        runtime: Runtime = getattr(import_module(module), attribute)()
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"engine {engine.value} is not installed ({error}): pip install 'modelless[{extra}]'"
        ) from error
    return runtime
