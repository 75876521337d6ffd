"""Runs a graph that is still in memory, to calibrate or compare it; ``runtimes`` is for serving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from modelless.variants.errors import EnvironmentUnfitError


class Graph:
    """An ONNX graph on the CPU; one thread a call, so that no sum depends on their number."""

    def __init__(self, onnx_bytes: bytes) -> None:
        """Open ``onnx_bytes``; EnvironmentUnfitError if ONNX Runtime is not installed."""
        try:
            import onnxruntime
        except ImportError as error:
            raise EnvironmentUnfitError(
                "making these variants needs ONNX Runtime: pip install 'modelless[cpu]'"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            onnx_bytes, options, providers=["CPUExecutionProvider"]
        )

    def run(self, outputs: Sequence[str], image: NDArray[Any]) -> list[NDArray[Any]]:
        """The named outputs for one input ``image``, whatever its name and shape."""
        name = self._session.get_inputs()[0].name
        result: list[NDArray[Any]] = self._session.run(list(outputs), {name: image})
        return result
