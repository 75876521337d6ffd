"""What loading a variant costs, step by step: from a cold disk to the first answer.

The steps of a load, and what each tier of residency would save: the artifact on disk, in the page
cache, as a graph that was optimised before, and as a session that is ready. Per variant, medians
and minima over ``--repeats``, milliseconds:

    cold read    the file, after the kernel was told to forget it
    warm read    the file, from the page cache
    hash         its sha256, which every load checks
    session      ONNX Runtime reads, checks and optimises the graph, and lays its weights out
    kept graph   the same from a graph that was optimised and written out before, optimiser off
    first batch  the warm-up that comes before serving
    batch        the next one: nothing left to load

    python benchmarks/profiling/load_steps.py [--home DIR] [--variants SCOPE ...] [--repeats N]
        [--json FILE]

Where OpenVINO is installed, the same files are also compiled with it, and imported as compiled
models that were exported before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import onnxruntime as ort

import modelless  # noqa: F401 (it turns off the telemetry of ONNX Runtime: first)
from modelless.common.files import default_home
from modelless.policies.scopes import in_scope
from modelless.profiler.measure.inputs import FREE_AXIS, sample_inputs
from modelless.variants.registry.registry import open_registry
from modelless.variants.runtimes.onnxruntime_cpu import open_on_cpu, session_options
from modelless.variants.runtimes.onnxruntime_session import open_graph
from modelless.variants.vocabulary import Engine, Task, Variant

Steps = dict[str, list[float]]


def timed(steps: Steps, name: str, act: Callable[[], Any]) -> Any:
    started_s = time.perf_counter()
    done = act()
    steps[name].append((time.perf_counter() - started_s) * 1e3)
    return done


def forget(path: Path) -> None:
    """Have the kernel drop the file from its page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def kept_graph(data: bytes, threads: int, name: str) -> bytes:
    """The graph as ONNX Runtime optimised it for this machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "optimised.onnx")
        options = session_options(threads)
        options.optimized_model_filepath = str(path)
        open_graph(data, name, options, ["CPUExecutionProvider"])
        return path.read_bytes()


def without_optimiser(data: bytes, threads: int, name: str) -> ort.InferenceSession:
    options = session_options(threads)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return open_graph(data, name, options, ["CPUExecutionProvider"])


def with_onnxruntime(variant: Variant, task: Task, path: Path, threads: int, repeats: int) -> Steps:
    steps: Steps = defaultdict(list)
    side_px = variant.resolution_px or FREE_AXIS
    sizes = {spec.name: [side_px] * spec.shape[1:].count(-1) for spec in task.inputs}
    inputs = dict(sample_inputs(task.inputs, 1, free_axes=sizes))
    optimised = kept_graph(path.read_bytes(), threads, variant.id)
    for _ in range(repeats):
        forget(path)
        timed(steps, "cold read", path.read_bytes)
        data = timed(steps, "warm read", path.read_bytes)
        timed(steps, "hash", lambda: hashlib.sha256(data).hexdigest())  # noqa: B023
        session = timed(steps, "session", lambda: open_on_cpu(data, threads, variant.id))  # noqa: B023
        del session
        session = timed(
            steps, "kept graph", lambda: without_optimiser(optimised, threads, variant.id)
        )
        timed(steps, "first batch", lambda: session.run(None, inputs))  # noqa: B023
        timed(steps, "batch", lambda: session.run(None, inputs))  # noqa: B023
    return steps


def with_openvino(path: Path, threads: int, repeats: int) -> Steps:
    """Compiling with OpenVINO, and importing what was compiled; nothing where it is absent."""
    try:
        import openvino

        from modelless.variants.runtimes.openvino_cpu import properties
    except ImportError:
        return {}
    steps: Steps = defaultdict(list)
    core = openvino.Core()
    data = path.read_bytes()
    settings = dict(properties(threads))
    for _ in range(repeats):
        model = timed(steps, "ov read", lambda: core.read_model(data))
        compiled = timed(steps, "ov compile", lambda: core.compile_model(model, "CPU", settings))  # noqa: B023
        blob = compiled.export_model().getvalue()
        timed(steps, "ov import", lambda: core.import_model(blob, "CPU", settings))  # noqa: B023
    return steps


def figures(steps: Mapping[str, Iterable[float]]) -> dict[str, dict[str, float]]:
    """Median and minimum of each step, milliseconds."""
    return {
        name: {"median_ms": statistics.median(took), "least_ms": min(took)}
        for name, took in steps.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--home", type=Path, default=default_home())
    parser.add_argument("--variants", nargs="+", default=[], help="scopes; default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures here")
    told = parser.parse_args()
    rows = {}
    with closing(open_registry(told.home)) as registry:
        catalog = registry.catalog()
        for variant in catalog.variants:
            wanted = [scope for scope in told.variants if in_scope(variant.id, scope)]
            if variant.engine is not Engine.ONNXRUNTIME_CPU or (told.variants and not wanted):
                continue
            path = registry.artifacts.fetch(variant.artifact_sha256)
            task = catalog.tasks[variant.task]
            steps = with_onnxruntime(variant, task, path, told.threads, told.repeats)
            steps.update(with_openvino(path, told.threads, told.repeats))
            rows[variant.id] = {"bytes": variant.artifact_bytes, "steps": figures(steps)}
            print(f"{variant.id} ({variant.artifact_bytes / 1e6:.1f} MB)")
            for name, took in figures(steps).items():
                print(f"  {name:12} {took['median_ms']:8.1f} ms  least {took['least_ms']:8.1f}")
    if told.json is not None:
        told.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
