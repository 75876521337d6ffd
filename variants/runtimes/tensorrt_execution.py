"""Running a TensorRT engine: one context, its buffers, and a CUDA graph where shapes stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.runtimes.base import Tensors
from modelless.variants.runtimes.cuda_runtime import Cuda, Graph, Stream, TensorBuffer
from modelless.variants.signature import dtype_of
from modelless.variants.vocabulary import TensorSpec

Shape = tuple[int, ...]


class Execution:
    """A context of an engine with buffers of its own; one caller at a time.

    A captured graph is bound to its context, shapes and addresses, so each graph has an execution
    to itself, which is never run with other shapes.

    Args:
        engine: TensorRT's ``ICudaEngine``.
        cuda, stream: where it runs.
        inputs, outputs: the graph's signature.
    """

    def __init__(
        self,
        engine: Any,
        cuda: Cuda,
        stream: Stream,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ) -> None:
        context = engine.create_execution_context()
        if context is None:
            raise EnvironmentUnfitError("TensorRT has no memory left for another context")
        self._context = context
        self._stream = stream
        self._inputs, self._outputs = inputs, outputs
        self._buffers = {spec.name: TensorBuffer(cuda) for spec in (*inputs, *outputs)}
        self._dtypes = {spec.name: dtype_of(spec.datatype) for spec in (*inputs, *outputs)}
        self._shapes: dict[str, Shape] = {}
        self._graph: Graph | None = None

    def capture(self, tensors: Tensors) -> None:
        """Record a run of these shapes, to be replayed by ``run``.

        Raises:
            EnvironmentUnfitError: it cannot be captured; without a graph it runs as before.
        """
        self.run(tensors)  # the first enqueue of a shape sets up what must not be captured
        self._graph = self._stream.capture(self._queue)

    def run(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Run one batch whose names, datatypes and ranks were checked.

        Raises:
            EnvironmentUnfitError: TensorRT or CUDA failed.
        """
        if self._graph is None:
            self._bind({name: array.shape for name, array in tensors.items()})
        for name, array in tensors.items():
            np.copyto(self._array(name), array)
        if self._graph is None:
            self._queue()
        else:
            self._stream.launch(self._graph)
        self._stream.wait()
        return {spec.name: self._array(spec.name).copy() for spec in self._outputs}

    def close(self) -> None:
        """Give everything back."""
        if self._graph is not None:
            self._graph.close()
        for buffer in self._buffers.values():
            buffer.free()
        self._context = None

    def _bind(self, shapes: Mapping[str, Shape]) -> None:
        """Tell the context the inputs' shapes, learn the outputs', make room for all of them."""
        if all(self._shapes.get(name) == shape for name, shape in shapes.items()):
            return
        self._shapes = {}  # bound to nothing, should one of the following fail
        bound = dict(shapes)
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, shape):
                raise EnvironmentUnfitError(f"TensorRT does not take {name} of shape {list(shape)}")
        for spec in self._outputs:
            shape = tuple(self._context.get_tensor_shape(spec.name))
            if min(shape, default=0) < 0:
                raise EnvironmentUnfitError(
                    f"TensorRT cannot tell the shape of {spec.name} before it runs; use the "
                    "engine onnxruntime-cuda"
                )
            bound[spec.name] = shape
        for name, buffer in self._buffers.items():
            buffer.hold(math.prod(bound[name]) * self._dtypes[name].itemsize)
            self._context.set_tensor_address(name, buffer.device)
        self._shapes = bound

    def _queue(self) -> None:
        for spec in self._inputs:
            self._stream.copy_in(self._buffers[spec.name], self._size_bytes(spec.name))
        if not self._context.execute_async_v3(self._stream.handle):
            raise EnvironmentUnfitError("TensorRT could not start the batch")
        for spec in self._outputs:
            self._stream.copy_out(self._buffers[spec.name], self._size_bytes(spec.name))

    def _array(self, name: str) -> NDArray[Any]:
        return self._buffers[name].array(self._shapes[name], self._dtypes[name])

    def _size_bytes(self, name: str) -> int:
        return math.prod(self._shapes[name]) * self._dtypes[name].itemsize
