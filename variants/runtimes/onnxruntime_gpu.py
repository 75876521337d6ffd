"""ONNX Runtime on an NVIDIA card: its CUDA kernels, and TensorRT for what that can compile.

Provider options:
https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import parser

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.graphs.inspection import read_signature
from modelless.variants.runtimes.cuda_runtime import Cuda
from modelless.variants.runtimes.engine_cache import EngineCache, EngineKey
from modelless.variants.runtimes.loading import MeasuredVariant, load_measured
from modelless.variants.runtimes.onnxruntime_session import (
    FATAL_ONLY,
    OnnxRuntimeVariant,
    Provider,
    common_options,
    open_graph,
)
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.vocabulary import Engine, Precision, Variant

WIDEST_BATCH: Final = 32
"""Batches up to here are compiled for when a variant is loaded, not when the first one comes."""

_CUDA: Final = "CUDAExecutionProvider"
_TENSORRT: Final = "TensorrtExecutionProvider"
_CUDA_OPTIONS: Final = {
    "device_id": 0,
    # Doubling the arena would claim up to twice what a variant needs, of what others could fill.
    "arena_extend_strategy": "kSameAsRequested",
    # An exhaustive search takes longer still for each size of a batch.
    "cudnn_conv_algo_search": "HEURISTIC",
}
_CONVOLUTION: Final = """
<ir_version: 8, opset_import: ["": 17]>
start (float[1, 1, 8, 8] image, float[1, 1, 3, 3] kernel) => (float[1, 1, 6, 6] features) {
    features = Conv (image, kernel)
}
"""


class CudaVariant(MeasuredVariant):
    """A loaded variant: a session for each size of a batch, which is 1, 2, 4, 8 and so on items.

    A batch of another size is filled up with its last item. A session prepares cuDNN's kernels anew
    whenever the size of its batch changes: 0.2 to 0.4 s in fp32 and 3 s in fp16 for a batch of 2 ms
    (EfficientNet-Lite on an H200, ONNX Runtime 1.31). So each session sees one size only.

    Args:
        open_session: opens another session of the graph.
    """

    __slots__ = ("_open_session", "_sessions")

    def __init__(
        self, variant: Variant, threads: int, open_session: Callable[[], ort.InferenceSession]
    ) -> None:
        super().__init__(variant, threads)
        self._open_session: Callable[[], ort.InferenceSession] | None = open_session
        self._sessions = {1: OnnxRuntimeVariant(variant, threads, open_session())}

    def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """See ``MeasuredVariant.infer``."""
        if self._open_session is None:
            self._refuse_unloaded()
        items = max((len(array) for array in inputs.values() if np.ndim(array)), default=1)
        size = 1 << max(items - 1, 0).bit_length()
        session = self._sessions.get(size)
        if session is None:
            session = OnnxRuntimeVariant(self.variant, self.threads, self._open_session())
            self._sessions[size] = session
        if size == items:
            return session.infer(inputs)
        filled = {
            name: np.concatenate([array, np.repeat(array[-1:], size - items, axis=0)])
            for name, array in inputs.items()
        }
        return {name: array[:items] for name, array in session.infer(filled).items()}

    def unload(self) -> None:
        """Free everything. A second time does nothing."""
        self._open_session = None
        for session in self._sessions.values():
            session.unload()
        self._sessions.clear()


class OnnxRuntimeCuda:
    """The engine ``onnxruntime-cuda``."""

    engine = Engine.ONNXRUNTIME_CUDA

    def __init__(self) -> None:
        self._cuda = _card_with(_CUDA)

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> CudaVariant:
        """See ``Runtime.load``. ``threads`` are for the nodes that stay on the CPU."""

        def open_variant(data: bytes) -> CudaVariant:
            open_session = partial(_open, variant, data, threads, [(_CUDA, _CUDA_OPTIONS)])
            return CudaVariant(variant, threads, open_session)

        return load_measured(variant, artifact, threads, open_variant, warm_up, self._cuda)


class OnnxRuntimeTensorRt:
    """The engine ``onnxruntime-tensorrt``: compiled parts are cached, see ``EngineCache``."""

    engine = Engine.ONNXRUNTIME_TENSORRT

    def __init__(self, cache: EngineCache | None = None) -> None:
        self._cuda = _card_with(_TENSORRT)
        self._cache = cache or EngineCache()

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> OnnxRuntimeVariant:
        """See ``Runtime.load``. The first time compiles, which takes minutes for a large model.

        ONNX Runtime compiles a part for the range of shapes it has seen, and again when one lies
        outside. So it is shown a batch of 1 and one of 32: no batch in between compiles again.
        """
        key = EngineKey(
            artifact_sha256=variant.artifact_sha256,
            device_name=self._cuda.device_name,
            compute_capability=self._cuda.compute_capability,
            compiler=f"onnxruntime-{ort.__version__}",  # which is built against one TensorRT
            precision=variant.precision.value,
            profile=f"batch 1 to {WIDEST_BATCH}",
        )
        providers: list[Provider] = [
            (_TENSORRT, _tensorrt_options(variant.precision, self._cache.folder(key))),
            (_CUDA, _CUDA_OPTIONS),
        ]

        def open_variant(data: bytes) -> OnnxRuntimeVariant:
            session = _open(variant, data, threads, providers)
            return OnnxRuntimeVariant(variant, threads, session)

        shown = [*warm_up, *(_widened(tensors) for tensors in warm_up[-1:]), *warm_up[-1:]]
        loaded = load_measured(variant, artifact, threads, open_variant, shown, self._cuda)
        self._cache.trim(key)
        return loaded


def _card_with(provider: str) -> Cuda:
    """The card, if this build of ONNX Runtime can use it through ``provider``."""
    if provider not in ort.get_available_providers():
        raise EnvironmentUnfitError(
            f"ONNX Runtime {ort.__version__} here is built without {provider}: "
            "pip uninstall onnxruntime, which hides it, then pip install 'modelless[gpu]'"
        )
    cuda = Cuda()
    _start(provider)
    return cuda


@cache
def _start(provider: str) -> None:
    """Load the libraries that ``provider`` needs and compute something small with them.

    A build of ONNX Runtime lists a provider whose libraries are missing. Starting CUDA and cuDNN
    takes seconds, once a process, which must not count as the first variant's load.

    Raises:
        EnvironmentUnfitError: a library is missing.
    """
    ort.set_default_logger_severity(FATAL_ONLY)  # what is wrong is raised
    with redirect_stdout(sys.stderr):  # where it tells of libraries that it did not find
        ort.preload_dlls()  # CUDA's and cuDNN's from their wheels, if they came as such
    graph = parser.parse_model(_CONVOLUTION).SerializeToString()
    try:
        session = _open_on([provider], graph, "a convolution", common_options())
        inputs = session.get_inputs()
        session.run(None, {each.name: np.zeros(each.shape, np.float32) for each in inputs})
    except Exception as error:  # whatever ONNX Runtime raises, the engine does not work here
        raise _unusable(provider, "a convolution") from error


def _open_on(
    providers: Sequence[Provider], graph: bytes, name: str, options: ort.SessionOptions
) -> ort.InferenceSession:
    """A session that has the first of ``providers``, which are named by name or with options."""
    session = open_graph(graph, name, options, [*providers, "CPUExecutionProvider"])
    wanted = providers[0] if isinstance(providers[0], str) else providers[0][0]
    if wanted not in session.get_providers():  # ONNX Runtime goes on without one that fails
        raise _unusable(wanted, name)
    return session


def _unusable(provider: str, name: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"ONNX Runtime {ort.__version__} cannot use {provider} for {name}. Install the CUDA, cuDNN "
        "and TensorRT it was built for: pip install 'modelless[gpu]'"
    )


def _tensorrt_options(precision: Precision, folder: Path) -> dict[str, object]:
    return {
        "device_id": 0,
        "trt_fp16_enable": precision is Precision.FP16,
        "trt_int8_enable": precision is Precision.INT8,  # of QuantizeLinear pairs; no table
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": True,
        "trt_timing_cache_path": str(folder),
    }


def _open(
    variant: Variant, data: bytes, threads: int, providers: Sequence[Provider]
) -> ort.InferenceSession:
    options = common_options()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # kept for every input shape ever seen
    read_signature(data, variant.id)  # TensorRT's provider would take operators of its plugins
    return _open_on(providers, data, variant.id, options)


def _widened(tensors: Tensors) -> Tensors:
    """The same items over and over, up to the widest batch."""
    return {
        name: np.resize(array, (WIDEST_BATCH, *array.shape[1:])) for name, array in tensors.items()
    }
