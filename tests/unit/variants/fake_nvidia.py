"""Stand-ins for ``cuda.bindings.runtime`` and ``tensorrt`` that compute with ONNX Runtime.

Device memory is host memory, a plan is the ONNX file with a header, a captured graph is a list of
what was queued. What the real modules refuse is refused here: unknown addresses, work on a stream
that was destroyed, shapes outside a profile, replay after memory was freed.
"""

# ruff: noqa: N802, N815  (the names are CUDA's)

from __future__ import annotations

import ctypes
import enum
import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

OK, FAILED = 0, 2
TOTAL_BYTES = 1 << 30


class FakeStream(int):
    """A handle that is a whole number, as CUDA's is."""

    captured: list[Callable[[], None]] | None = None


class FakeCuda:
    """The functions of ``cuda.bindings.runtime`` that modelless calls, and what is allocated."""

    cudaMemcpyKind = enum.Enum("cudaMemcpyKind", "cudaMemcpyHostToDevice cudaMemcpyDeviceToHost")
    cudaStreamCaptureMode = enum.Enum("cudaStreamCaptureMode", "cudaStreamCaptureModeThreadLocal")

    def __init__(self, cards: int = 1) -> None:
        self.cards = cards
        self.host: dict[int, Any] = {}
        self.device: dict[int, Any] = {}
        self.streams: dict[int, FakeStream] = {}
        self.graphs: set[int] = set()
        self.launches = 0
        self.can_capture = True
        self._made = 100

    @property
    def is_clean(self) -> bool:
        """Whether everything that was taken was given back."""
        return not (self.host or self.device or self.streams or self.graphs)

    def cudaGetDeviceCount(self) -> tuple[int, int]:
        return OK, self.cards

    def cudaGetDeviceProperties(self, device: int) -> tuple[int, Any]:
        assert device == 0
        return OK, SimpleNamespace(name=b"A Card\0\0", major=9, minor=0)

    def cudaGetErrorName(self, error: int) -> tuple[int, bytes]:
        return OK, f"cudaError{error}".encode()

    def cudaDeviceSynchronize(self) -> tuple[int]:
        return (OK,)

    def cudaMemGetInfo(self) -> tuple[int, int, int]:
        used = sum(len(memory) for memory in self.device.values())
        return OK, TOTAL_BYTES - used, TOTAL_BYTES

    def cudaMalloc(self, size_bytes: int) -> tuple[int, int]:
        if self.cudaMemGetInfo()[1] < size_bytes:
            return FAILED, 0
        return self._take(self.device, size_bytes)

    def cudaMallocHost(self, size_bytes: int) -> tuple[int, int]:
        return self._take(self.host, size_bytes)

    def cudaFree(self, address: int) -> tuple[int]:
        del self.device[address]
        return (OK,)

    def cudaFreeHost(self, address: int) -> tuple[int]:
        del self.host[address]
        return (OK,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[int, FakeStream]:
        stream = FakeStream(self._next())
        self.streams[stream] = stream
        return OK, stream

    def cudaStreamDestroy(self, stream: FakeStream) -> tuple[int]:
        del self.streams[stream]
        return (OK,)

    def cudaStreamSynchronize(self, stream: FakeStream) -> tuple[int]:
        assert self.streams[stream].captured is None
        return (OK,)

    def cudaStreamBeginCapture(self, stream: FakeStream, mode: object) -> tuple[int]:
        self.streams[stream].captured = []
        return (OK,)

    def cudaStreamEndCapture(self, stream: FakeStream) -> tuple[int, Any]:
        captured, self.streams[stream].captured = self.streams[stream].captured, None
        return (OK, captured) if self.can_capture else (FAILED, None)

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> tuple[int, Any]:
        handle = SimpleNamespace(number=self._next(), work=graph)
        self.graphs.add(handle.number)
        return OK, handle

    def cudaGraphDestroy(self, graph: Any) -> tuple[int]:
        return (OK,)

    def cudaGraphExecDestroy(self, handle: Any) -> tuple[int]:
        self.graphs.remove(handle.number)
        return (OK,)

    def cudaGraphLaunch(self, handle: Any, stream: FakeStream) -> tuple[int]:
        assert handle.number in self.graphs
        self.launches += 1
        for work in handle.work:
            work()
        return (OK,)

    def cudaMemcpyAsync(
        self, target: int, source: int, size_bytes: int, kind: enum.Enum, stream: FakeStream
    ) -> tuple[int]:
        inwards = kind is self.cudaMemcpyKind.cudaMemcpyHostToDevice
        of_target, of_source = (self.device, self.host) if inwards else (self.host, self.device)

        def copy() -> None:
            assert size_bytes <= min(len(of_target[target]), len(of_source[source]))
            ctypes.memmove(target, source, size_bytes)

        self.submit(stream, copy)
        return (OK,)

    def submit(self, stream: int, work: Callable[[], None]) -> None:
        """Do it now, or record it where the stream is being captured."""
        captured = self.streams[stream].captured
        if captured is None:
            work()
        else:
            captured.append(work)

    def _take(self, memory: dict[int, Any], size_bytes: int) -> tuple[int, int]:
        block = (ctypes.c_uint8 * size_bytes)()
        memory[ctypes.addressof(block)] = block
        return OK, ctypes.addressof(block)

    def _next(self) -> int:
        self._made += 1
        return self._made


def fake_tensorrt(cuda: FakeCuda, version: str = "10.13.0") -> ModuleType:
    """A module ``tensorrt``; ``module.builds`` lists the configurations that were compiled."""
    module: Any = ModuleType("tensorrt")
    module.__version__ = version
    module.builds = []
    module.refused = ""

    class ILogger:
        Severity = enum.Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE")

    class Config:
        def __init__(self) -> None:
            self.flags: list[str] = []
            self.profiles: list[dict[str, Any]] = []
            self.limits: dict[str, int] = {}
            self.typed = False

        def set_memory_pool_limit(self, pool: str, size_bytes: int) -> None:
            self.limits[pool] = size_bytes

        def set_flag(self, flag: str) -> None:
            self.flags.append(flag)

        def add_optimization_profile(self, profile: Any) -> int:
            self.profiles.append(profile.shapes)
            return len(self.profiles) - 1

    class Profile:
        def __init__(self) -> None:
            self.shapes: dict[str, Any] = {}

        def set_shape(self, name: str, least: Any, opt: Any, most: Any) -> None:
            assert all(a <= b <= c for a, b, c in zip(least, opt, most, strict=True))
            self.shapes[name] = [list(least), list(opt), list(most)]

    class Builder:
        def __init__(self, log: ILogger) -> None:
            assert isinstance(log, ILogger)
            self.log = log

        def create_builder_config(self) -> Config:
            return Config()

        def create_network(self, flags: int) -> Any:
            return SimpleNamespace(flags=flags, onnx=b"")

        def create_optimization_profile(self) -> Profile:
            return Profile()

        def build_serialized_network(self, network: Any, config: Config) -> bytearray | None:
            config.typed = bool(network.flags & 2)
            module.builds.append(config)
            if module.refused == "build":
                self.log.log(ILogger.Severity.WARNING, "a warning")
                self.log.log(ILogger.Severity.ERROR, "no tactic fits\nmore")
                return None
            head = json.dumps([version, config.profiles[0]]).encode()
            return bytearray(len(head).to_bytes(4, "big") + head + network.onnx)

    class OnnxParser:
        def __init__(self, network: Any, log: ILogger) -> None:
            self.network = network
            self.num_errors = 0

        def parse(self, data: bytes) -> bool:
            self.network.onnx = data
            self.num_errors = int(module.refused == "parse")
            return not self.num_errors

        def get_error(self, index: int) -> Any:
            assert index < self.num_errors
            return SimpleNamespace(desc=lambda: "antialias is not supported")

    class Context:
        def __init__(self, engine: Engine) -> None:
            self.engine = engine
            self.shapes: dict[str, tuple[int, ...]] = {}
            self.addresses: dict[str, int] = {}

        def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
            least, _, most = self.engine.profile[name]
            self.shapes[name] = shape
            return all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            (batch,) = {shape[0] for shape in self.shapes.values()}
            (output,) = (o for o in self.engine.session.get_outputs() if o.name == name)
            return tuple(batch if size == "N" else size for size in output.shape)

        def set_tensor_address(self, name: str, address: int) -> bool:
            assert address in cuda.device
            self.addresses[name] = address
            return True

        def execute_async_v3(self, handle: int) -> bool:
            cuda.submit(handle, self._execute)
            return True

        def _execute(self) -> None:
            session = self.engine.session
            feed = {
                spec.name: self._array(spec.name, self.shapes[spec.name], np.uint8)
                for spec in session.get_inputs()
            }
            for spec, value in zip(session.get_outputs(), session.run(None, feed), strict=True):
                self._array(spec.name, value.shape, value.dtype)[...] = value

        def _array(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            memory = cuda.device[self.addresses[name]]
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            return np.ctypeslib.as_array(memory)[:size].view(dtype).reshape(shape)

    class Engine:
        def __init__(self, profile: dict[str, Any], onnx: bytes) -> None:
            self.profile = profile
            self.session = ort.InferenceSession(onnx, providers=["CPUExecutionProvider"])

        def create_execution_context(self) -> Context:
            return Context(self)

        def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
            assert index == 0
            return [tuple(shape) for shape in self.profile[name]]

    class Runtime:
        def __init__(self, log: ILogger) -> None:
            self.log = log

        def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
            end = 4 + int.from_bytes(plan[:4], "big")
            built_with, profile = json.loads(plan[4:end])
            if built_with != version or module.refused == "load":
                self.log.log(ILogger.Severity.ERROR, "built with another version")
                return None
            return Engine(profile, bytes(plan[end:]))

    module.ILogger, module.Builder, module.OnnxParser = ILogger, Builder, OnnxParser
    module.Runtime = Runtime
    module.MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")
    module.BuilderFlag = SimpleNamespace(FP16="fp16", BF16="bf16")
    module.NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
    return module


def install_cuda(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    """``from cuda.bindings import runtime`` gives ``cuda`` until the test ends."""
    package, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    bindings.runtime = cuda  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
