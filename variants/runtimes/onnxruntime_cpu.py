"""ONNX Runtime on the CPU.

The session options were measured on EfficientNet-Lite0, fp32 and static int8 (ONNX Runtime 1.31,
224 px, one batch at a time); what each is worth stands beside it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from modelless.variants.artifacts import read_verified
from modelless.variants.errors import (
    EnvironmentUnfitError,
    IntegrityError,
    InvalidInputError,
    ModellessError,
)
from modelless.variants.runtimes.base import Tensors
from modelless.variants.runtimes.resident_memory import give_back_freed, resident_bytes
from modelless.variants.vocabulary import Engine, Variant

MAX_THREADS: Final = 1024
_FATAL_ONLY: Final = 4  # an error is raised as well; it need not also be printed

# Bad file; ONNX Runtime has no common base class for what it raises.
_REFUSED: Final = (
    ort_errors.InvalidProtobuf,
    ort_errors.InvalidGraph,
    ort_errors.InvalidArgument,
    ort_errors.NoModel,
    ort_errors.NoSuchFile,
    ort_errors.Fail,
)
_UNFIT: Final = (
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
    ort_errors.EPFail,
    ort_errors.EngineError,
)


class OnnxRuntimeCpu:
    """The engine ``onnxruntime-cpu``."""

    @property
    def engine(self) -> Engine:
        """Which engine this is."""
        return Engine.ONNXRUNTIME_CPU

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> OnnxRuntimeVariant:
        """Check the artifact, build a session from the very bytes that were checked, warm it up.

        The file is read once, so nothing can change between check and use, and ONNX Runtime never
        sees its path, so it cannot look for other files beside it.

        Args:
            variant: what is registered.
            artifact: its file.
            threads: intra-op threads, 1 to 1024.
            warm_up: batches to run once each, largest last for a true memory figure.

        Raises:
            IntegrityError: the file is not the one registered, or asks for what is not allowed.
            InvalidInputError: ``threads``, or a warm-up batch that does not fit the graph.
            EnvironmentUnfitError: ONNX Runtime cannot run it on this machine.
        """
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            raise InvalidInputError.of("threads", threads, f"a whole number, 1 to {MAX_THREADS}")
        give_back_freed()
        before_bytes = resident_bytes()
        start = time.perf_counter()
        session = _open_session(variant, artifact, threads)
        loaded = OnnxRuntimeVariant(variant, threads, session)
        for tensors in warm_up:
            loaded.infer(tensors)
        loaded.load_s = time.perf_counter() - start
        give_back_freed()
        # Never less than the file: freed memory that the process kept may hide some growth.
        loaded.memory_bytes = max(resident_bytes() - before_bytes, variant.artifact_bytes)
        return loaded


class OnnxRuntimeVariant:
    """A loaded variant. One caller at a time, from any thread; ONNX Runtime releases the GIL.

    Attributes:
        variant: what is loaded.
        threads: intra-op threads.
        memory_bytes: resident growth by loading and warming up. Other work in the process at the
            same time is counted in.
        load_s: from artifact on disk to warm, hash check included.
    """

    __slots__ = ("_outputs", "_session", "load_s", "memory_bytes", "threads", "variant")

    def __init__(self, variant: Variant, threads: int, session: ort.InferenceSession) -> None:
        self.variant = variant
        self.threads = threads
        self.memory_bytes = 0
        self.load_s = 0.0
        self._session: ort.InferenceSession | None = session
        self._outputs = [output.name for output in session.get_outputs()]

    def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Run one batch.

        ``run`` was measured against IOBinding with 150 kB in and 4 kB out: 8 us of overhead against
        10 to 12, since binding crosses into C++ more often than it saves copies.

        Raises:
            InvalidInputError: a tensor is missing, unknown, or of a datatype or shape that the
                graph does not take.
            EnvironmentUnfitError: it failed while running, for want of memory for instance.
            ModellessError: it was unloaded.
        """
        session = self._session
        if session is None:
            raise ModellessError(
                f"{self.variant.id} was unloaded; allowed: infer before unload. Load it again."
            )
        try:
            feed = inputs if type(inputs) is dict else dict(inputs)
            return dict(zip(self._outputs, session.run(self._outputs, feed), strict=True))
        except (ort_errors.InvalidArgument, ValueError, TypeError, RuntimeError) as error:
            raise InvalidInputError(
                f"inputs: {self.variant.id} does not take them: {_reason(error)}; allowed: "
                f"{_signature(session)}."
            ) from error
        except (ort_errors.Fail, MemoryError, *_UNFIT) as error:
            raise EnvironmentUnfitError(
                f"{self.variant.id} failed while running: {_reason(error)}. "
                "If memory is short, use smaller batches; else profile the variant again."
            ) from error

    def unload(self) -> None:
        """Free everything and give the memory back to the kernel. A second time does nothing."""
        self._session = None
        give_back_freed()


def session_options(threads: int) -> ort.SessionOptions:
    """How modelless runs ONNX Runtime on ``threads`` cores that it has to itself."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Layout changes and int8 fusions come with ALL: without them 2.5 times slower (fp32).
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    # A pattern would be kept for every input shape ever seen: 11 MB after 300 picture sizes, still
    # growing, against 1 MB. Without it int8 is 2 to 4 % faster, fp32 up to 7 % slower at batch 8.
    options.enable_mem_pattern = False
    # Without its arena every large tensor is mapped and faulted in anew: 30 % slower at fp32 b8.
    options.enable_cpu_mem_arena = True
    options.log_severity_level = _FATAL_ONLY
    # Inspection reads ONNX; ONNX Runtime's own second format would pass it by.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # Idle threads would spin for tens of milliseconds on cores that a neighbour could use: 30 ms of
    # processor time for 6 ms of work. On two threads spinning wins 10 to 25 % back to back on idle
    # cores, loses as much when queries come apart, and doubles the 90th percentile on busy cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


def open_graph(data: bytes, threads: int, name: str) -> ort.InferenceSession:
    """A session of the kind that variants run in.

    Args:
        data: an ONNX file that may be run; nothing is checked here.
        threads: intra-op threads.
        name: of what it is, for errors.

    Raises:
        IntegrityError: ONNX Runtime refuses the file.
        EnvironmentUnfitError: ONNX Runtime cannot run it on this machine.
    """
    try:
        session = ort.InferenceSession(
            data,
            session_options(threads),
            providers=["CPUExecutionProvider"],
            enable_fallback=False,
            read_config_from_model=False,  # a model does not choose how it is run
        )
        # The wrapper would hold the file's bytes for as long as it lives, in case it had to build
        # the session again for other providers: 18.5 MB of the 38.8 MB that fp32 lite0 takes.
        session._model_bytes = None
        return session
    except _REFUSED as error:
        raise IntegrityError(
            f"ONNX Runtime {ort.__version__} refuses {name}: {_reason(error)}. "
            "Export the model again, with standard operators only: no library is ever loaded."
        ) from error
    except _UNFIT as error:
        raise EnvironmentUnfitError(
            f"ONNX Runtime {ort.__version__} cannot run {name} on this machine: "
            f"{_reason(error)}. Choose a variant of another precision, or upgrade onnxruntime."
        ) from error


def _open_session(variant: Variant, artifact: Path, threads: int) -> ort.InferenceSession:
    data = read_verified(artifact, variant.artifact_sha256, size_bytes=variant.artifact_bytes)
    _refuse_external_data(data, variant)
    return open_graph(data, threads, variant.id)


def _refuse_external_data(data: bytes, variant: Variant) -> None:
    """From bytes, ONNX Runtime would look for external data in the current folder: refuse it.

    A tensor that lies elsewhere says so under the key ``location``, so a file without that word has
    none. Parsing one that has it takes 50 times as long as searching.
    """
    if b"location" not in data:
        return
    from modelless.variants.inspection import refuse_external_bytes

    refuse_external_bytes(data, variant.id)


def _signature(session: ort.InferenceSession) -> str:
    return ", ".join(f"{i.name} {i.type} {i.shape}" for i in session.get_inputs())


def _reason(error: Exception) -> str:
    """ONNX Runtime's own words, without its code prefix and the places in its source."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
    return text.splitlines()[0][:300].rstrip(".") if text else type(error).__name__
