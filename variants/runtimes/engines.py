"""Every engine there is: where its code lies, what it runs on, what brings it.

An engine is imported only when asked for. Whether it works here is found out by making its runtime,
which is what loading a variant does, so a listing and a load cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from types import MappingProxyType
from typing import Final

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.runtimes.base import Runtime
from modelless.variants.vocabulary import DeviceClass, Engine


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """What is known of an engine without importing it.

    Attributes:
        module, attribute: where its ``Runtime`` is, below ``modelless.variants.runtimes``.
        extra: of this package, that brings what the engine needs.
        distributions: any one of them is the engine; its version is the engine's version.
        device_kind: kind of device class it runs on: ``cpu`` or ``gpu``.
        summary: a line for a listing.
    """

    module: str
    attribute: str
    extra: str
    distributions: tuple[str, ...]
    device_kind: str
    summary: str

    @property
    def install(self) -> str:
        """The command that brings it."""
        return f"pip install 'modelless[{self.extra}]'"

    @property
    def version(self) -> str | None:
        """Of the distribution that is installed; None without one."""
        for distribution in self.distributions:
            try:
                return metadata.version(distribution)
            except metadata.PackageNotFoundError:
                continue
        return None


ENGINES: Final[Mapping[Engine, EngineEntry]] = MappingProxyType(
    {
        Engine.ONNXRUNTIME_CPU: EngineEntry(
            "onnxruntime_cpu",
            "OnnxRuntimeCpu",
            "cpu",
            ("onnxruntime", "onnxruntime-gpu"),
            "cpu",
            "ONNX Runtime on CPU cores",
        ),
        Engine.OPENVINO: EngineEntry(
            "openvino_cpu",
            "OpenVinoCpu",
            "openvino",
            ("openvino",),
            "cpu",
            "OpenVINO on CPU cores",
        ),
        Engine.ONNXRUNTIME_CUDA: EngineEntry(
            "onnxruntime_gpu",
            "OnnxRuntimeCuda",
            "gpu",
            ("onnxruntime-gpu",),
            "gpu",
            "ONNX Runtime's CUDA kernels",
        ),
        Engine.ONNXRUNTIME_TENSORRT: EngineEntry(
            "onnxruntime_gpu",
            "OnnxRuntimeTensorRt",
            "gpu",
            ("onnxruntime-gpu",),
            "gpu",
            "ONNX Runtime, TensorRT for what it can compile, CUDA for the rest",
        ),
        Engine.TENSORRT: EngineEntry(
            "tensorrt_gpu",
            "TensorRt",
            "gpu",
            ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
            "gpu",
            "TensorRT, the whole graph compiled",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Whether an engine works here.

    Attributes:
        version: of its distribution; None if none is installed.
        missing: why it does not work, and what to do; empty where it works.
    """

    engine: Engine
    entry: EngineEntry
    version: str | None
    missing: str

    @property
    def available(self) -> bool:
        """Whether variants can be loaded with it."""
        return not self.missing


def find_runtime(engine: Engine) -> Runtime:
    """The runtime of ``engine``.

    Raises:
        EnvironmentUnfitError: it is not installed, or cannot work on this machine; says which extra
            brings it.
    """
    entry = ENGINES[engine]
    try:
        module = import_module(f"{__package__}.{entry.module}")
        runtime: Runtime = getattr(module, entry.attribute)()
    except EnvironmentUnfitError as error:
        raise EnvironmentUnfitError(f"engine {engine.value} cannot work here: {error}") from error
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        raise EnvironmentUnfitError(
            f"engine {engine.value} is not installed ({error}): {entry.install}"
        ) from error
    return runtime


def engine_status(engine: Engine) -> EngineStatus:
    """Whether ``engine`` works here. Imports it: the first time takes a second."""
    missing = ""
    try:
        find_runtime(engine)
    except EnvironmentUnfitError as error:
        missing = str(error)
    entry = ENGINES[engine]
    return EngineStatus(engine, entry, entry.version, missing)


def runs_on(engine: Engine, device: DeviceClass) -> bool:
    """Whether variants of ``engine`` run on devices of that class."""
    return ENGINES[engine].device_kind == device.kind
