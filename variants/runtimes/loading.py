"""The work that all engines share: measuring a load, checking threads and tensors."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar

from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, ModellessError
from modelless.variants.artifacts import read_verified
from modelless.variants.runtimes.resident_memory import give_back_freed, resident_bytes
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.signature import DATATYPES
from modelless.variants.vocabulary import TensorSpec, Variant

MAX_THREADS: Final = 1024


class MeasuredVariant(ABC):
    """A loaded variant of any engine.

    Attributes:
        memory_bytes: growth by loading and warming up. Other work in the process, or on the card,
            at the same time is counted in.
        load_s: from artifact on disk to warm, hash check included.
    """

    __slots__ = ("load_s", "memory_bytes", "threads", "variant")

    def __init__(self, variant: Variant, threads: int) -> None:
        self.variant = variant
        self.threads = threads
        self.memory_bytes = 0
        self.load_s = 0.0

    @abstractmethod
    def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Run one batch.

        Raises:
            InvalidInputError: a tensor is missing, unknown, or of a datatype or shape that the
                graph does not take.
            EnvironmentUnfitError: it failed while running, for want of memory for instance.
            ModellessError: it was unloaded.
        """

    @abstractmethod
    def unload(self) -> None:
        """Free everything. A second time does nothing."""

    def _refuse_unloaded(self) -> NoReturn:
        raise ModellessError(
            f"{self.variant.id} was unloaded; allowed: infer before unload. Load it again."
        )

    def _refuse_inputs(self, reason: str, allowed: str) -> InvalidInputError:
        return InvalidInputError(
            f"inputs: {self.variant.id} does not take them: {reason}; allowed: {allowed}."
        )

    def _failed_running(self, reason: str) -> EnvironmentUnfitError:
        return EnvironmentUnfitError(
            f"{self.variant.id} failed while running: {reason}. "
            "If memory is short, use smaller batches; else profile the variant again."
        )

    def _check_inputs(self, specs: Sequence[TensorSpec], inputs: Tensors) -> None:
        """Raise InvalidInputError unless ``inputs`` are of the graph's names, datatypes and shapes.

        For engines that take what does not fit: OpenVINO computes with the last batch's tensor if
        one is missing, and casts what is of another datatype.
        """
        reason = _misfit(specs, inputs)
        if reason:
            raise self._refuse_inputs(reason, ", ".join(map(str, specs)))


class MemoryGauge(Protocol):
    """Where a variant's memory is measured."""

    def settle(self) -> None:
        """Let go of what is free, so that growth shows."""
        ...

    def used_bytes(self) -> int:
        """The bytes in use now."""
        ...


class ProcessMemory:
    """The resident memory of this process."""

    def settle(self) -> None:
        """Give freed memory back to the kernel."""
        give_back_freed()

    def used_bytes(self) -> int:
        return resident_bytes()


MOST_WARM_UP_S: Final = 0.5
"""Where nothing is compiled for the shapes that are shown: on the CPU."""

_Loaded = TypeVar("_Loaded", bound=MeasuredVariant)


def load_measured(
    variant: Variant,
    artifact: Path,
    threads: int,
    open_variant: Callable[[bytes], _Loaded],
    warm_up: Sequence[Tensors],
    memory: MemoryGauge,
    most_warm_up_s: float = inf,
) -> _Loaded:
    """Check the artifact, open it, run each of ``warm_up`` once, and measure time and memory.

    Args:
        artifact: the variant's file; it is read once, so nothing can change between check and use.
        threads: 1 to 1024.
        open_variant: builds the session from the very bytes that were checked.
        warm_up: batches, largest last for a true memory figure.
        most_warm_up_s: once it has taken so long, the rest of ``warm_up`` is left out: what waits
            for a slow model must not wait for its largest batch.

    Raises:
        IntegrityError: the artifact is not the file that was registered.
        InvalidInputError: ``threads``, or a warm-up batch that does not fit; nothing stays loaded.
    """
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise InvalidInputError.of("threads", threads, f"a whole number, 1 to {MAX_THREADS}")
    memory.settle()
    before_bytes = memory.used_bytes()
    start_s = time.perf_counter()
    loaded = open_variant(
        read_verified(artifact, variant.artifact_sha256, size_bytes=variant.artifact_bytes)
    )
    opened_s = time.perf_counter()
    try:
        for tensors in warm_up:
            loaded.infer(tensors)
            if time.perf_counter() - opened_s > most_warm_up_s:
                break
    except BaseException:
        loaded.unload()
        raise
    loaded.load_s = time.perf_counter() - start_s
    memory.settle()
    # Never less than the file: freed memory that was kept may hide some growth.
    loaded.memory_bytes = max(memory.used_bytes() - before_bytes, variant.artifact_bytes)
    return loaded


def _misfit(specs: Sequence[TensorSpec], inputs: Tensors) -> str:
    """The mistake in the tensors; empty if there is none."""
    missing = [spec.name for spec in specs if spec.name not in inputs]
    if missing:
        return f"{', '.join(missing)} missing"
    if len(inputs) != len(specs):
        return f"{', '.join(sorted(set(inputs) - {spec.name for spec in specs}))} unknown"
    for spec in specs:
        tensor = inputs[spec.name]
        dtype, shape = getattr(tensor, "dtype", None), getattr(tensor, "shape", None)
        if dtype is None or shape is None:
            return f"{spec.name} is of type {type(tensor).__name__}, not an array"
        if DATATYPES.get(dtype) != spec.datatype:
            return f"{spec.name} is of dtype {dtype}"
        if len(shape) != len(spec.shape) or any(
            wanted not in (-1, size) for wanted, size in zip(spec.shape, shape, strict=True)
        ):
            return f"{spec.name} is of shape {list(shape)}"
    return ""
