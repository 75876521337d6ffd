"""OpenVINO on the CPU, from the same ONNX files as ONNX Runtime.

Property names: https://docs.openvino.ai/2026/openvino-workflow/running-inference/
inference-devices-and-modes/cpu-device.html
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.graphs.inspection import read_signature
from modelless.variants.runtimes.engine_cache import EngineCache, EngineKey
from modelless.variants.runtimes.loading import (
    MOST_WARM_UP_S,
    MeasuredVariant,
    ProcessMemory,
    load_measured,
)
from modelless.variants.runtimes.resident_memory import give_back_freed
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.vocabulary import Engine, TensorSpec, Variant

logger = logging.getLogger(__name__)

_DEVICE: Final = "CPU"
_REVISION: Final = 1
"""Of what is done to a graph before it is compiled."""
_TELEMETRY: Final = "openvino_telemetry"
_NO_REASON: Final = ("Exception from ", "To facilitate ")
_ANTIALIASED: Final[Mapping[str, str]] = {
    "linear_onnx": "bilinear_pillow",
    "cubic": "bicubic_pillow",
}


class OpenVinoCpu:
    """The engine ``openvino``. Compiled models are cached, see ``EngineCache``: reading a graph and
    compiling it takes three to eight times as long as importing what was compiled.
    """

    engine = Engine.OPENVINO

    def __init__(self, cache: EngineCache | None = None) -> None:
        self._core = _core()
        self._cache = cache or EngineCache()

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> OpenVinoVariant:
        """Check the artifact and its operators, compile the very bytes that were checked, warm up.

        ``threads`` compute one batch together, in one stream. See ``Runtime.load``.
        """

        def open_variant(data: bytes) -> OpenVinoVariant:
            return self._open(variant, data, threads)

        return load_measured(
            variant, artifact, threads, open_variant, warm_up, ProcessMemory(), MOST_WARM_UP_S
        )

    def _open(self, variant: Variant, data: bytes, threads: int) -> OpenVinoVariant:
        inputs, outputs = read_signature(data, variant.id)
        key = self.cache_key(variant, threads)
        try:
            compiled = self._imported(key, threads)
            if compiled is None:
                compiled = compile_graph(self._core, data, threads)
                self._keep(key, compiled)
            request = compiled.create_infer_request()
        except (RuntimeError, ValueError, TypeError, MemoryError) as error:
            raise EnvironmentUnfitError(
                f"OpenVINO cannot run {variant.id} on this machine: {_reason(error)}. "
                "Register it with another engine, or upgrade openvino."
            ) from error
        return OpenVinoVariant(variant, threads, request, inputs, outputs)

    def cache_key(self, variant: Variant, threads: int) -> EngineKey:
        ask = self._core.get_property
        return EngineKey(
            artifact_sha256=variant.artifact_sha256,
            device_name=str(ask(_DEVICE, "FULL_DEVICE_NAME")),
            compute_capability=" ".join(sorted(ask(_DEVICE, "OPTIMIZATION_CAPABILITIES"))),
            compiler=f"openvino-{self._core.get_versions(_DEVICE)[_DEVICE].build_number}",
            precision=variant.precision.value,
            profile=f"{_REVISION} {sorted(properties(threads).items())}",
        )

    def _imported(self, key: EngineKey, threads: int) -> Any:
        """The model compiled before; None if there is none, or OpenVINO does not take it."""
        try:
            kept = self._cache.read(key)
            if kept is None:
                return None
            return self._core.import_model(kept, _DEVICE, dict(properties(threads)))
        except (EnvironmentUnfitError, RuntimeError, ValueError) as error:
            logger.warning("a compiled model is not taken from the cache: %s", _reason(error))
            return None

    def _keep(self, key: EngineKey, compiled: Any) -> None:
        try:
            self._cache.write(key, compiled.export_model().getvalue())
        except (EnvironmentUnfitError, RuntimeError) as error:  # it is loaded all the same
            logger.warning("a compiled model is not kept: %s", _reason(error))


class OpenVinoVariant(MeasuredVariant):
    """A loaded variant. One caller at a time, from any thread; OpenVINO releases the GIL.

    The calling thread computes, with ``threads`` - 1 helpers, so it keeps to the caller's cores.

    Attributes:
        request: OpenVINO's inference request; None when it is unloaded.
    """

    __slots__ = ("_inputs", "_outputs", "request")

    def __init__(
        self,
        variant: Variant,
        threads: int,
        request: Any,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        super().__init__(variant, threads)
        self.request = request
        self._inputs = inputs
        self._outputs = tuple(spec.name for spec in outputs)

    def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """See ``MeasuredVariant.infer``. Inputs are not copied, outputs are."""
        request = self.request
        if request is None:
            self._refuse_unloaded()
        self._check_inputs(self._inputs, inputs)
        try:
            results = request.infer(dict(inputs), share_inputs=True)
        except (RuntimeError, ValueError, TypeError, MemoryError) as error:
            raise self._failed_running(_reason(error)) from error
        return {name: results[name] for name in self._outputs}

    def unload(self) -> None:
        """Free everything and give the memory back to the kernel. A second time does nothing."""
        self.request = None
        give_back_freed()


def properties(threads: int) -> Mapping[str, object]:
    """How modelless runs OpenVINO on ``threads`` cores that it has to itself."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,  # one batch at a time: batching and copies are for others to decide
        "INFERENCE_NUM_THREADS": threads,
        # Otherwise it takes one thread a physical core, whatever it was told.
        "ENABLE_HYPER_THREADING": True,
        # The cores are the caller's choice; OpenVINO's own pinning would undo it.
        "ENABLE_CPU_PINNING": False,
        # Otherwise fp32 graphs are computed in bfloat16 where the processor has it (AMX), and are
        # less accurate than what was measured of them.
        "INFERENCE_PRECISION_HINT": "f32",
        "CACHE_DIR": "",  # its own cache checks neither who may write it nor what it reads
    }


def compile_graph(core: Any, data: bytes, threads: int) -> Any:
    """Compile an ONNX file's bytes to run on ``threads`` cores."""
    model = core.read_model(data)
    _keep_antialiasing(model)
    return core.compile_model(model, _DEVICE, dict(properties(threads)))


def _keep_antialiasing(model: Any) -> None:
    """Resize where ONNX says ``antialias`` as ONNX means it.

    OpenVINO 2026.4 reads the attribute and computes as if it were not there (its issue 35893):
    pixels of a photo of 500 px that is resized to 128 are off by 5 of 255 on the mean, and answers
    with them. Its modes after Pillow have the filter that ONNX describes, cut off at the border
    instead of with the border's pixels repeated; pixels are then off by 0.01. They are slower.
    """
    from openvino import opset11

    for node in model.get_ops():
        if node.get_type_name() != "Interpolate":
            continue
        said = node.get_attributes()
        if not said.get("antialias"):
            continue
        mode = _ANTIALIASED.get(said["mode"])
        if mode is None:
            continue  # nearest: there is nothing to smooth
        data, sizes, *axes = node.input_values()
        resized = opset11.interpolate(
            data,
            sizes,
            mode,
            said["shape_calculation_mode"],
            said["pads_begin"],
            said["pads_end"],
            said["coordinate_transformation_mode"],
            said["nearest_mode"],
            True,
            said["cube_coeff"],
            *axes,
        )
        node.output(0).replace(resized.output(0))


@cache
def _core() -> Any:
    """OpenVINO's core with its CPU plugin loaded: one a process, as its documentation asks.

    Raises:
        ImportError: it is not installed.
        EnvironmentUnfitError: it has no plugin for this processor.
    """
    with _without_telemetry():
        import openvino
    try:
        core = openvino.Core()
        core.get_versions(_DEVICE)  # loads the plugin, so that no variant pays for it
    except RuntimeError as error:
        raise EnvironmentUnfitError(
            f"OpenVINO cannot work on this machine: {_reason(error)}. "
            "Use the engine onnxruntime-cpu."
        ) from error
    return core


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Importing OpenVINO sends a usage report and writes an id to the home folder: not from here.

    Without its telemetry package it uses a stub of its own instead, which does nothing.
    """
    if _TELEMETRY in sys.modules:
        yield  # imported by somebody else, who has decided
        return
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]


def _reason(error: Exception) -> str:
    """OpenVINO's own words, without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(_NO_REASON)]
    if "Summary:" in said:  # of a graph that cannot be read: which operators, and why
        said = ["; ".join(line.lstrip("- ") for line in said[said.index("Summary:") + 1 :])]
    return said[-1][:300].rstrip(".:") if said else type(error).__name__
