"""Every engine: what it runs on, what brings it, and the runtime that loads variants with it.

A runtime's module is imported only when it is asked for. An engine works here if its runtime can be
made, which is also how a variant is loaded, so a listing and a load agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, NotFoundError
from modelless.common.plugins import Plugins, import_object
from modelless.variants.runtimes.runtime import Runtime
from modelless.variants.signature import TEXT
from modelless.variants.vocabulary import ENGINES_GROUP, DeviceClass, Engine, Task

_HOME: Final = "modelless.variants.runtimes"


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """Facts about an engine that are known without importing it.

    Attributes:
        runtime: ``module:Class`` of its ``Runtime``.
        distributions: any one of them is the engine; its version is the engine's version.
        device_kind: kind of device class it runs on: ``cpu`` or ``gpu``.
        takes_texts: whether inputs and outputs may be texts.
    """

    runtime: str
    install: str
    distributions: tuple[str, ...]
    device_kind: str
    summary: str
    takes_texts: bool = False

    @property
    def version(self) -> str | None:
        """Version of the distribution that is installed; None without one."""
        for distribution in self.distributions:
            try:
                return metadata.version(distribution)
            except metadata.PackageNotFoundError:
                continue
        return None


_BUILT_IN: Final[dict[str, EngineEntry]] = {
    Engine.ONNXRUNTIME_CPU: EngineEntry(
        f"{_HOME}.onnxruntime_cpu:OnnxRuntimeCpu",
        "pip install 'modelless[cpu]'",
        ("onnxruntime", "onnxruntime-gpu"),
        "cpu",
        "ONNX Runtime on CPU cores",
        takes_texts=True,
    ),
    Engine.OPENVINO: EngineEntry(
        f"{_HOME}.openvino_cpu:OpenVinoCpu",
        "pip install 'modelless[openvino]'",
        ("openvino",),
        "cpu",
        "OpenVINO on CPU cores",
    ),
    Engine.ONNXRUNTIME_CUDA: EngineEntry(
        f"{_HOME}.onnxruntime_gpu:OnnxRuntimeCuda",
        "pip install 'modelless[gpu]'",
        ("onnxruntime-gpu",),
        "gpu",
        "ONNX Runtime's CUDA kernels",
    ),
    Engine.ONNXRUNTIME_TENSORRT: EngineEntry(
        f"{_HOME}.onnxruntime_gpu:OnnxRuntimeTensorRt",
        "pip install 'modelless[gpu]'",
        ("onnxruntime-gpu",),
        "gpu",
        "ONNX Runtime, TensorRT for what it can compile, CUDA for the rest",
    ),
    Engine.TENSORRT: EngineEntry(
        f"{_HOME}.tensorrt_gpu:TensorRt",
        "pip install 'modelless[gpu]'",
        ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
        "gpu",
        "TensorRT, the whole graph compiled",
    ),
}
_PLUGINS: Final = Plugins("engine", _BUILT_IN, group=ENGINES_GROUP)


class _Engines(Mapping[Engine, EngineEntry]):
    """Built-in engines, and those that installed packages offer as an ``EngineEntry``."""

    def __getitem__(self, engine: Engine) -> EngineEntry:
        entry = _PLUGINS.find(engine)
        if not isinstance(entry, EngineEntry):
            raise InvalidInputError.of(
                "engine", engine.value, "an EngineEntry", f"It is {entry!r}."
            )
        return entry

    def __iter__(self) -> Iterator[Engine]:
        return map(Engine, _PLUGINS)

    def __len__(self) -> int:
        return len(list(_PLUGINS))


ENGINES: Final[Mapping[Engine, EngineEntry]] = _Engines()


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Whether an engine works here.

    Attributes:
        version: of its distribution; None if none is installed.
        missing: the reason why it does not work, and what to do; empty where it works.
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
        EnvironmentUnfitError: it is not installed, or cannot work on this machine; says what brings
            it.
    """
    entry = ENGINES[engine]
    try:
        runtime: Runtime = import_object(entry.runtime, "engine")()
    except EnvironmentUnfitError as error:
        raise EnvironmentUnfitError(f"engine {engine.value} cannot work here: {error}") from error
    except (NotFoundError, ImportError, OSError) as error:  # OSError: a library does not load
        raise EnvironmentUnfitError(
            f"engine {engine.value} is not installed ({error}): {entry.install}"
        ) from error
    return runtime


def parse_engine(name: str) -> Engine:
    """The engine called ``name``; NotFoundError, which lists them, if there is none."""
    _PLUGINS.check(name)
    return Engine(name)


def engine_status(engine: Engine) -> EngineStatus:
    """Whether ``engine`` works here. Imports it: the first time takes a second."""
    missing = ""
    try:
        find_runtime(engine)
    except EnvironmentUnfitError as error:
        missing = str(error)
    entry = ENGINES[engine]
    return EngineStatus(engine, entry, entry.version, missing)


def check_texts(engine: Engine, task: Task) -> None:
    """Raise InvalidInputError if the task has texts and the engine does not take any."""
    named = [spec.name for spec in (*task.inputs, *task.outputs) if spec.datatype == TEXT]
    if named and not ENGINES[engine].takes_texts:
        able = ", ".join(each for each in ENGINES if ENGINES[each].takes_texts)
        hint = f"Task {task.name!r} has texts ({TEXT}): {', '.join(named)}."
        raise InvalidInputError.of("engine", engine.value, able, hint)


def runs_on(engine: Engine, device: DeviceClass) -> bool:
    """Whether variants of ``engine`` run on devices of that class."""
    return ENGINES[engine].device_kind == device.kind
