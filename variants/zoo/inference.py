"""Runs a graph of one input that is still in memory; ``runtimes`` is for serving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from modelless.variants.making.session import Session


class Graph:
    """An ONNX graph of one input, as ``Session`` runs it."""

    def __init__(self, onnx_bytes: bytes) -> None:
        """Open ``onnx_bytes``; EnvironmentUnfitError if ONNX Runtime is not installed."""
        self._session = Session(onnx_bytes)

    def run(self, outputs: Sequence[str], image: NDArray[Any]) -> list[NDArray[Any]]:
        """The named outputs for one input ``image``, whatever its name and shape."""
        found = self._session.run({self._session.inputs[0]: image}, outputs)
        return [found[name] for name in outputs]
