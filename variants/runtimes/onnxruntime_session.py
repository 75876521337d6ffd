"""ONNX Runtime sessions, whichever execution provider computes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from modelless.common.errors import EnvironmentUnfitError, IntegrityError
from modelless.variants.runtimes.loading import MeasuredVariant
from modelless.variants.runtimes.resident_memory import give_back_freed
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.vocabulary import Variant

Provider = str | tuple[str, Mapping[str, object]]
"""An execution provider's name, alone or with its options."""

FATAL_ONLY: Final = 4
"""A level of ONNX Runtime's log. An error is raised as well; it need not also be printed."""

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


class OnnxRuntimeVariant(MeasuredVariant):
    """A loaded variant. One caller at a time, from any thread; ONNX Runtime releases the GIL.

    Attributes:
        session: ONNX Runtime's session; None when it is unloaded.
    """

    __slots__ = ("_outputs", "session")

    def __init__(self, variant: Variant, threads: int, session: ort.InferenceSession) -> None:
        super().__init__(variant, threads)
        self.session: ort.InferenceSession | None = session
        self._outputs = [output.name for output in session.get_outputs()]

    def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """See ``MeasuredVariant.infer``.

        ``run`` was measured against IOBinding with 150 kB in and 4 kB out: 8 us of overhead against
        10 to 12, since binding crosses into C++ more often than it saves copies.
        """
        session = self.session
        if session is None:
            self._refuse_unloaded()
        try:
            feed = inputs if type(inputs) is dict else dict(inputs)
            return dict(zip(self._outputs, session.run(self._outputs, feed), strict=True))
        except (ort_errors.InvalidArgument, ValueError, TypeError, RuntimeError) as error:
            raise self._refuse_inputs(_reason(error), _signature(session)) from error
        except (ort_errors.Fail, MemoryError, *_UNFIT) as error:
            raise self._failed_running(_reason(error)) from error

    def unload(self) -> None:
        """Free everything and give the memory back to the kernel. A second time does nothing."""
        self.session = None
        give_back_freed()


def common_options() -> ort.SessionOptions:
    """The options of every session, for any provider."""
    options = ort.SessionOptions()
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Layout changes and int8 fusions come with ALL: without them 2.5 times slower (fp32, CPU).
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = FATAL_ONLY
    # Where x86 has no VNNI, sums of products of 8 bits saturate at 16 bits, and int8 models answer
    # wrongly. Exact sums take longer there.
    options.add_session_config_entry("session.x64quantprecision", "1")
    # Inspection reads ONNX; ONNX Runtime's own second format would pass it by.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return options


def open_graph(
    graph: bytes | Path, name: str, options: ort.SessionOptions, providers: Sequence[Provider]
) -> ort.InferenceSession:
    """A session from a file's bytes: ONNX Runtime sees no path, so it looks for nothing beside it.

    Args:
        graph: an ONNX file that may be run; nothing is checked here. A path only of a file of
            modelless's own, whose weights lie beside it.
        providers: by preference. ONNX Runtime goes on without one whose libraries are missing.

    Raises:
        IntegrityError: ONNX Runtime refuses the file.
        EnvironmentUnfitError: ONNX Runtime cannot run it on this machine.
    """
    try:
        session = ort.InferenceSession(
            graph,
            options,
            providers=list(providers),
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
    except (RuntimeError, *_UNFIT) as error:
        raise EnvironmentUnfitError(
            f"ONNX Runtime {ort.__version__} cannot run {name} on this machine: "
            f"{_reason(error)}. Choose a variant of another precision, or upgrade onnxruntime."
        ) from error


def _signature(session: ort.InferenceSession) -> str:
    return ", ".join(f"{i.name} {i.type} {i.shape}" for i in session.get_inputs())


def _reason(error: Exception) -> str:
    """ONNX Runtime's own words, without its code prefix and the places in its source."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
    return text.splitlines()[0][:300].rstrip(".") if text else type(error).__name__
