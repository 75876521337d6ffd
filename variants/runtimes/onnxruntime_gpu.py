"""ONNX Runtime on an NVIDIA card: its CUDA kernels, and TensorRT for what that can compile.

Provider options:
https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.graphs.inspection import read_signature
from modelless.variants.runtimes.cuda_runtime import Cuda
from modelless.variants.runtimes.engine_cache import EngineCache, EngineKey
from modelless.variants.runtimes.loading import load_measured
from modelless.variants.runtimes.onnxruntime_session import (
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
    # An exhaustive search would be run again for each new shape, in the middle of serving.
    "cudnn_conv_algo_search": "HEURISTIC",
}


class OnnxRuntimeCuda:
    """The engine ``onnxruntime-cuda``."""

    engine = Engine.ONNXRUNTIME_CUDA

    def __init__(self) -> None:
        self._cuda = _card_with(_CUDA)

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> OnnxRuntimeVariant:
        """See ``Runtime.load``. ``threads`` are for the nodes that stay on the CPU."""

        def open_variant(data: bytes) -> OnnxRuntimeVariant:
            return _open(variant, data, threads, [(_CUDA, _CUDA_OPTIONS)])

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
            return _open(variant, data, threads, providers)

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
    with redirect_stdout(sys.stderr):  # where it tells of libraries that it did not find
        ort.preload_dlls()  # CUDA's and cuDNN's from their wheels, if they came as such
    return cuda


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
) -> OnnxRuntimeVariant:
    options = common_options()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # kept for every input shape ever seen
    read_signature(data, variant.id)  # TensorRT's provider would take operators of its plugins
    session = open_graph(data, variant.id, options, [*providers, "CPUExecutionProvider"])
    wanted, found = providers[0][0], session.get_providers()
    if wanted not in found:  # ONNX Runtime goes on without a provider whose libraries are missing
        raise EnvironmentUnfitError(
            f"ONNX Runtime {ort.__version__} cannot use {wanted} for {variant.id}; it offers "
            f"{', '.join(found)}. Install the CUDA, cuDNN and TensorRT it was built for: "
            "pip install 'modelless[gpu]'"
        )
    return OnnxRuntimeVariant(variant, threads, session)


def _widened(tensors: Tensors) -> Tensors:
    """The same items over and over, up to the widest batch."""
    return {
        name: np.resize(array, (WIDEST_BATCH, *array.shape[1:])) for name, array in tensors.items()
    }
