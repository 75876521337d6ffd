"""ONNX Runtime on the CPU.

The session options were measured on EfficientNet-Lite0, fp32 and static int8 (ONNX Runtime 1.31,
224 px, one batch at a time); what each is worth stands beside it.

A graph is optimised once a machine, and kept with its weights as ONNX Runtime lays them out. Every
process maps that file, so processes, and variants of equal weights, share one copy in memory.
Measured with 18 variants of EfficientNet-Lite: 447 MiB a process, of which 205 MiB are mapped,
instead of 1,252 MiB; 0.25 s of processor time to open them all instead of 1.0 s.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import onnxruntime as ort

from modelless.common.errors import ModellessError
from modelless.variants.artifacts import file_sha256
from modelless.variants.runtimes.engine_cache import EngineCache, EngineKey
from modelless.variants.runtimes.loading import MOST_WARM_UP_S, ProcessMemory, load_measured
from modelless.variants.runtimes.onnxruntime_session import (
    OnnxRuntimeVariant,
    common_options,
    open_graph,
)
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.vocabulary import Engine, Variant

logger = logging.getLogger(__name__)

_LEAST_KEPT_BYTES: Final = 2**20
"""Smaller graphs are optimised in milliseconds, and their weights are not worth a file."""
_REVISION: Final = "3"
"""Of what is kept of a graph."""
_GRAPH, _WEIGHTS, _DIGESTS = "graph.onnx", "weights", "digests.json"
_PROVIDERS: Final = ("CPUExecutionProvider",)
_PROCESSOR: Final = ("model name", "flags", "CPU implementer", "CPU part", "Features")
"""Lines of ``/proc/cpuinfo``: ONNX Runtime lays weights out for the processor's instructions."""


class OnnxRuntimeCpu:
    """The engine ``onnxruntime-cpu``."""

    engine = Engine.ONNXRUNTIME_CPU

    def __init__(self, kept: EngineCache | None = None) -> None:
        self._kept = kept or EngineCache()

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> OnnxRuntimeVariant:
        """Check the artifact, open its optimised graph, warm it up.

        ``threads`` are intra-op threads. See ``Runtime.load``.
        """

        def open_variant(data: bytes) -> OnnxRuntimeVariant:
            _refuse_external_data(data, variant)
            return OnnxRuntimeVariant(variant, threads, self._open(variant, data, threads))

        return load_measured(
            variant, artifact, threads, open_variant, warm_up, ProcessMemory(), MOST_WARM_UP_S
        )

    def _open(self, variant: Variant, data: bytes, threads: int) -> ort.InferenceSession:
        if len(data) < _LEAST_KEPT_BYTES:
            return open_on_cpu(data, threads, variant.id)
        key = EngineKey(
            artifact_sha256=variant.artifact_sha256,
            device_name=_processor(),
            compute_capability="",
            compiler=f"onnxruntime-{ort.__version__}",
            precision=variant.precision.value,
            profile=_REVISION,
        )
        try:
            folder = self._kept.folder(key)
            if not _is_whole(folder):
                _keep_optimised(data, folder, variant.id)
                self._kept.trim(key)
            options = session_options(threads)
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            return open_graph(folder / _GRAPH, variant.id, options, _PROVIDERS)
        except (ModellessError, OSError) as error:  # a graph that is at fault fails again, and says
            logger.warning("%s is loaded without a kept graph: %s", variant.id, error)
            return open_on_cpu(data, threads, variant.id)


def session_options(threads: int) -> ort.SessionOptions:
    """How modelless runs ONNX Runtime on ``threads`` cores that it has to itself."""
    options = common_options()
    options.intra_op_num_threads = threads
    # A pattern would be kept for every input shape ever seen: 11 MB after 300 picture sizes, still
    # growing, against 1 MB. Without it int8 is 2 to 4 % faster, fp32 up to 7 % slower at batch 8.
    options.enable_mem_pattern = False
    # Without an arena every large tensor is mapped and faulted in anew: 30 % slower at fp32 b8. One
    # for all sessions: each of its own would keep what its largest batch ever needed.
    _share_arena()
    options.enable_cpu_mem_arena = True
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Idle threads would spin for tens of milliseconds on cores that a neighbour could use: 30 ms of
    # processor time for 6 ms of work. On two threads spinning wins 10 to 25 % back to back on idle
    # cores, loses as much when queries come apart, and doubles the 90th percentile on busy cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


@cache
def _share_arena() -> None:
    """Make the arena of all sessions of this process, once."""
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(memory, None)


def open_on_cpu(data: bytes, threads: int, name: str) -> ort.InferenceSession:
    """A session of the kind that variants run in; raises as ``open_graph`` does.

    Args:
        data: an ONNX file that may be run; nothing is checked here.
    """
    return open_graph(data, name, session_options(threads), _PROVIDERS)


def _is_whole(folder: Path) -> bool:
    """Whether a graph and its weights are there, just as they were kept."""
    try:
        digests = json.loads((folder / _DIGESTS).read_bytes())
        return all(file_sha256(folder / name) == digests[name] for name in (_GRAPH, _WEIGHTS))
    except (OSError, ValueError, TypeError, LookupError):
        return False


def _keep_optimised(data: bytes, folder: Path, name: str) -> None:
    """Optimise a graph and keep it in ``folder``; equal weights of another one are linked to.

    Processes that do so at the same time replace each other's files with their like.
    """
    with tempfile.TemporaryDirectory(dir=folder) as new:
        graph, weights, digests = (Path(new, each) for each in (_GRAPH, _WEIGHTS, _DIGESTS))
        options = session_options(1)
        options.optimized_model_filepath = str(graph)
        # (Pre-packed weights are not kept: ONNX Runtime 1.31 crashes on those of some graphs, such
        # as PP-OCR's. The optimiser lays out convolutions' weights, so these are shared.)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", _WEIGHTS
        )
        open_graph(data, name, options, _PROVIDERS)
        digest = file_sha256(weights)
        for other in folder.parent.glob(f"*/{_WEIGHTS}"):
            if other.stat().st_size == weights.stat().st_size and file_sha256(other) == digest:
                weights.unlink()
                os.link(other, weights)
                break
        digests.write_text(json.dumps({_GRAPH: file_sha256(graph), _WEIGHTS: digest}))
        for each in (weights, graph, digests):
            each.replace(folder / each.name)


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "; ".join(line for line in lines if line.startswith(_PROCESSOR))


def _refuse_external_data(data: bytes, variant: Variant) -> None:
    """From bytes, ONNX Runtime would look for external data in the current folder: refuse it.

    A tensor that lies elsewhere says so under the key ``location``, so a file without that word has
    none. Parsing one that has it takes 50 times as long as searching. Custom operators it refuses
    by itself.
    """
    if b"location" not in data:
        return
    from modelless.variants.graphs.inspection import refuse_external_bytes

    refuse_external_bytes(data, variant.id)
