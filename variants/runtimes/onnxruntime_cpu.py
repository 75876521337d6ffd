"""ONNX Runtime on the CPU.

The session options were measured on EfficientNet-Lite0, fp32 and static int8 (ONNX Runtime 1.31,
224 px, one batch at a time); what each is worth stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from modelless.variants.artifacts import read_verified
from modelless.variants.runtimes.base import Tensors
from modelless.variants.runtimes.loading import MOST_WARM_UP_S, ProcessMemory, load_measured
from modelless.variants.runtimes.onnxruntime_session import (
    OnnxRuntimeVariant,
    common_options,
    open_graph,
)
from modelless.variants.vocabulary import Engine, Variant


class OnnxRuntimeCpu:
    """The engine ``onnxruntime-cpu``."""

    engine = Engine.ONNXRUNTIME_CPU

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> OnnxRuntimeVariant:
        """Check the artifact, build a session from the very bytes that were checked, warm it up.

        ``threads`` are intra-op threads. See ``Runtime.load``.
        """

        def open_variant() -> OnnxRuntimeVariant:
            # Read once, so that nothing can change between check and use.
            data = read_verified(
                artifact, variant.artifact_sha256, size_bytes=variant.artifact_bytes
            )
            _refuse_external_data(data, variant)
            return OnnxRuntimeVariant(variant, threads, open_on_cpu(data, threads, variant.id))

        memory = ProcessMemory()
        return load_measured(variant, threads, open_variant, warm_up, memory, MOST_WARM_UP_S)


def session_options(threads: int) -> ort.SessionOptions:
    """How modelless runs ONNX Runtime on ``threads`` cores that it has to itself."""
    options = common_options()
    options.intra_op_num_threads = threads
    # A pattern would be kept for every input shape ever seen: 11 MB after 300 picture sizes, still
    # growing, against 1 MB. Without it int8 is 2 to 4 % faster, fp32 up to 7 % slower at batch 8.
    options.enable_mem_pattern = False
    # Without its arena every large tensor is mapped and faulted in anew: 30 % slower at fp32 b8.
    options.enable_cpu_mem_arena = True
    # Idle threads would spin for tens of milliseconds on cores that a neighbour could use: 30 ms of
    # processor time for 6 ms of work. On two threads spinning wins 10 to 25 % back to back on idle
    # cores, loses as much when queries come apart, and doubles the 90th percentile on busy cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


def open_on_cpu(data: bytes, threads: int, name: str) -> ort.InferenceSession:
    """A session of the kind that variants run in; raises as ``open_graph`` does.

    Args:
        data: an ONNX file that may be run; nothing is checked here.
    """
    return open_graph(data, name, session_options(threads), ["CPUExecutionProvider"])


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
