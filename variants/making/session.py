"""Runs a graph that is still in memory, to calibrate or compare it; ``runtimes`` is for serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError, require


class Session:
    """An ONNX graph on the CPU; one thread a call, so that no sum depends on their number.

    Attributes:
        inputs, outputs: names, in the graph's order.
        is_batched: whether the graph takes any number of items along axis 0.
    """

    def __init__(self, onnx_bytes: bytes, *, arena: bool = True) -> None:
        """Open ``onnx_bytes``.

        Args:
            onnx_bytes: the graph.
            arena: keep freed memory for the next call; without, each call gives all of it back.

        Raises:
            EnvironmentUnfitError: ONNX Runtime is not installed.
            InvalidInputError: it does not take the graph.
        """
        runtime = import_onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.enable_cpu_mem_arena = arena
        options.log_severity_level = 4  # an error is raised as well; it need not also be printed
        options.add_session_config_entry("session.x64quantprecision", "1")  # as variants are run
        try:
            self._session = runtime.InferenceSession(
                onnx_bytes, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no common base but Exception
            raise InvalidInputError(
                f"model: ONNX Runtime {runtime.__version__} does not take it: {_reason(error)}"
            ) from error
        self.inputs = tuple(each.name for each in self._session.get_inputs())
        self.outputs = tuple(each.name for each in self._session.get_outputs())
        shapes = [each.shape for each in self._session.get_inputs()]
        self.is_batched = all(shape and not isinstance(shape[0], int) for shape in shapes)

    def run(
        self, feed: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """The named outputs of one call, or all of them.

        Raises:
            InvalidInputError: the graph does not take the inputs, or fails on them.
        """
        names = list(self.outputs if outputs is None else outputs)
        try:
            return dict(zip(names, self._session.run(names, dict(feed)), strict=True))
        except Exception as error:  # as above
            shown = {name: f"{array.dtype}{list(array.shape)}" for name, array in feed.items()}
            raise InvalidInputError(
                f"inputs: got {shown}; the model fails on them: {_reason(error)}"
            ) from error


def import_onnxruntime() -> Any:
    """The module ``onnxruntime``; EnvironmentUnfitError if it is not installed."""
    return require("onnxruntime", "making these variants", "pip install 'modelless[cpu]'")


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
