"""One NVIDIA card through CUDA's own Python bindings: buffers, a stream, graphs, free memory.

Calls and their results: https://nvidia.github.io/cuda-python/cuda-bindings/latest/module/runtime.html
The card is always number 0: Ray gives each worker its own by ``CUDA_VISIBLE_DEVICES``.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError

_DEVICE: Final = 0
_ELSE: Final = "Use an engine that runs on a cpu"
_NON_BLOCKING: Final = 1  # cudaStreamNonBlocking: waits for no other stream


class Cuda:
    """The card, and CUDA's calls with their errors raised.

    Raises:
        ImportError: the bindings are not installed.
        EnvironmentUnfitError: there is no driver, or no card.
    """

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._api: Any = runtime
        try:
            cards = self.call("cudaGetDeviceCount")
        except EnvironmentUnfitError as error:
            raise EnvironmentUnfitError(f"no NVIDIA driver that works: {error}. {_ELSE}") from error
        if cards < 1:
            raise EnvironmentUnfitError(f"CUDA finds no card on this machine. {_ELSE}")

    def call(self, name: str, *arguments: object) -> Any:
        """Call a function of CUDA's runtime; what it returns beside its error code.

        Raises:
            EnvironmentUnfitError: it failed; says by what name CUDA calls the error.
        """
        try:
            error, *results = getattr(self._api, name)(*arguments)
        except RuntimeError as problem:  # the bindings cannot find CUDA's libraries
            raise EnvironmentUnfitError(f"CUDA cannot work here: {problem}") from problem
        if int(error) != 0:
            _, said = self._api.cudaGetErrorName(error)
            raise EnvironmentUnfitError(f"CUDA: {name} failed: {said.decode()}")
        return results[0] if len(results) == 1 else tuple(results)

    @property
    def device_name(self) -> str:
        """The card's name, e.g. ``NVIDIA H100 80GB HBM3``."""
        name: bytes = self.call("cudaGetDeviceProperties", _DEVICE).name
        return name.rstrip(b"\0").decode()

    @property
    def compute_capability(self) -> str:
        """E.g. ``9.0``."""
        found = self.call("cudaGetDeviceProperties", _DEVICE)
        return f"{found.major}.{found.minor}"

    def settle(self) -> None:
        """Wait until the card has done everything, so that what is free is free."""
        self.call("cudaDeviceSynchronize")

    def used_bytes(self) -> int:
        """Memory of the card in use, by whomever."""
        free_bytes, total_bytes = self.call("cudaMemGetInfo")
        return int(total_bytes) - int(free_bytes)


class Stream:
    """A queue of work for the card."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._handle = cuda.call("cudaStreamCreateWithFlags", _NON_BLOCKING)
        kinds = cuda._api.cudaMemcpyKind
        self._to_card, self._from_card = kinds.cudaMemcpyHostToDevice, kinds.cudaMemcpyDeviceToHost
        self._capture_mode = cuda._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal

    @property
    def handle(self) -> int:
        """As TensorRT takes it."""
        return int(self._handle)

    def copy_in(self, buffer: TensorBuffer, size_bytes: int) -> None:
        """Queue a copy from the host's side of a buffer to the card's."""
        self._copy(buffer.device, buffer.host, size_bytes, self._to_card)

    def copy_out(self, buffer: TensorBuffer, size_bytes: int) -> None:
        """Queue a copy from the card's side of a buffer to the host's."""
        self._copy(buffer.host, buffer.device, size_bytes, self._from_card)

    def wait(self) -> None:
        """Until everything queued is done."""
        self._cuda.call("cudaStreamSynchronize", self._handle)

    def capture(self, queue: Callable[[], None]) -> Graph:
        """The work that ``queue`` puts into this stream, as a graph; nothing of it runs now.

        Raises:
            EnvironmentUnfitError: it does what cannot be captured.
        """
        self._cuda.call("cudaStreamBeginCapture", self._handle, self._capture_mode)
        try:
            queue()
        finally:  # a stream that goes on capturing could not be used again
            graph = self._cuda.call("cudaStreamEndCapture", self._handle)
        try:
            return Graph(self._cuda, self._cuda.call("cudaGraphInstantiate", graph, 0))
        finally:
            self._cuda.call("cudaGraphDestroy", graph)

    def launch(self, graph: Graph) -> None:
        """Queue all that was captured: one launch instead of one a kernel."""
        self._cuda.call("cudaGraphLaunch", graph.handle, self._handle)

    def close(self) -> None:
        self._cuda.call("cudaStreamDestroy", self._handle)

    def _copy(self, target: int, source: int, size_bytes: int, kind: object) -> None:
        self._cuda.call("cudaMemcpyAsync", target, source, size_bytes, kind, self._handle)


class Graph:
    """Captured work, ready to be launched."""

    def __init__(self, cuda: Cuda, handle: object) -> None:
        self._cuda = cuda
        self.handle = handle

    def close(self) -> None:
        self._cuda.call("cudaGraphExecDestroy", self.handle)


class TensorBuffer:
    """Room for one tensor twice: on the card, and pinned in the host's memory.

    Only from pinned memory does a copy run beside other work, or inside a graph.

    Attributes:
        host, device: addresses; they change when the buffer grows.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._size_bytes = 0
        self.host = self.device = 0

    def hold(self, size_bytes: int) -> None:
        """Make room for ``size_bytes``; what was in it is lost if it grows."""
        if size_bytes <= self._size_bytes:
            return
        self.free()
        self.host = int(self._cuda.call("cudaMallocHost", size_bytes))
        self.device = int(self._cuda.call("cudaMalloc", size_bytes))
        self._size_bytes = size_bytes

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The host's side as an array, without a copy."""
        size_bytes = math.prod(shape) * dtype.itemsize
        memory = (ctypes.c_uint8 * size_bytes).from_address(self.host)
        flat: NDArray[Any] = np.ctypeslib.as_array(memory).view(dtype)
        return flat.reshape(shape)

    def free(self) -> None:
        """Give both back. A second time does nothing."""
        if self.host:
            self._cuda.call("cudaFreeHost", self.host)
        if self.device:
            self._cuda.call("cudaFree", self.device)
        self.host = self.device = self._size_bytes = 0
