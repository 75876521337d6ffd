"""ONNX Runtime's GPU engines: what they ask of it. ``test_gpu_engines`` runs them on a card."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from modelless.common.errors import EnvironmentUnfitError, IntegrityError, ModellessError
from modelless.variants.runtimes import find_runtime, onnxruntime_gpu
from modelless.variants.runtimes.engine_cache import EngineCache
from modelless.variants.runtimes.engines import engine_status
from modelless.variants.runtimes.onnxruntime_gpu import (
    WIDEST_BATCH,
    OnnxRuntimeCuda,
    OnnxRuntimeTensorRt,
)
from modelless.variants.vocabulary import Engine, Precision
from tests.builders import expected_scores, tiny_bytes, variant_of, with_custom_operator

from .fake_nvidia import FakeCuda, install_cuda

IMAGES = np.random.default_rng(3).integers(0, 256, (5, 7, 6, 3), dtype=np.uint8)
EVERY = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


@dataclasses.dataclass
class FakeBuild:
    """A GPU build of ONNX Runtime that computes on the CPU.

    Attributes:
        usable: providers whose libraries are found.
        asked: providers with their options, session by session.
        batches: sizes that were run.
    """

    usable: list[str]
    asked: list[list[Any]] = dataclasses.field(default_factory=list)
    batches: list[int] = dataclasses.field(default_factory=list)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> FakeBuild:
    found = FakeBuild(EVERY)
    really = onnxruntime.InferenceSession

    class Session(really):  # type: ignore[misc, valid-type]
        def __init__(self, data: bytes, options: Any, providers: list[Any], **more: Any) -> None:
            found.asked.append(providers)
            super().__init__(data, options, providers=["CPUExecutionProvider"], **more)

        def get_providers(self) -> list[str]:
            return [name for name in EVERY if name in found.usable]

        def run(self, outputs: list[str], feed: dict[str, np.ndarray]) -> Any:
            found.batches.append(len(feed["image"]))
            return super().run(outputs, feed)

    onnxruntime_gpu._start.cache_clear()
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: EVERY)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(onnxruntime, "set_default_logger_severity", lambda level: None)
    install_cuda(monkeypatch, FakeCuda())
    return found


def load(
    runtime: OnnxRuntimeCuda | OnnxRuntimeTensorRt, folder: Path, data: bytes, **more: Any
) -> Any:
    """Load ``data``, registered as it is."""
    path = folder / "artifact"
    path.write_bytes(data)
    precision = more.pop("precision", Precision.FP32)
    variant = dataclasses.replace(variant_of(data), engine=runtime.engine, precision=precision)
    return runtime.load(variant, path, threads=1, **more)


def test_cuda_comes_first_and_searches_no_kernels_while_serving(
    build: FakeBuild, tmp_path: Path
) -> None:
    runtime = find_runtime(Engine.ONNXRUNTIME_CUDA)
    assert isinstance(runtime, OnnxRuntimeCuda)
    loaded = load(runtime, tmp_path, tiny_bytes(), warm_up=[{"image": IMAGES}])
    scores = loaded.infer({"image": IMAGES[:2]})["scores"]
    np.testing.assert_allclose(scores, expected_scores(IMAGES[:2]), rtol=1e-5)
    _start, ((name, options), last), *_ = build.asked
    assert (name, last) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options == {
        "device_id": 0,
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
    }


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8])
def test_tensorrt_comes_first_then_cuda_and_caches_by_variant(
    build: FakeBuild, tmp_path: Path, precision: Precision
) -> None:
    cache = EngineCache(tmp_path / "cache")
    runtime = OnnxRuntimeTensorRt(cache)
    load(runtime, tmp_path, tiny_bytes(), precision=precision)
    load(runtime, tmp_path, tiny_bytes(2.0), precision=precision)
    _start, (first, (second, _), last), ((_, other), _, _) = build.asked
    name, options = first
    assert [name, second, last] == EVERY
    assert options["trt_fp16_enable"] is (precision is Precision.FP16)
    assert options["trt_int8_enable"] is (precision is Precision.INT8)
    assert options["trt_engine_cache_enable"] is True
    folder = Path(options["trt_engine_cache_path"])
    assert folder.parent == tmp_path / "cache"
    assert folder != Path(other["trt_engine_cache_path"])
    assert str(folder) == options["trt_timing_cache_path"]


def test_tensorrt_is_shown_the_widest_batch_before_it_serves(
    build: FakeBuild, tmp_path: Path
) -> None:
    runtime = OnnxRuntimeTensorRt(EngineCache(tmp_path / "cache"))
    load(runtime, tmp_path, tiny_bytes(), warm_up=[{"image": IMAGES[:1]}])
    assert build.batches == [1, 1, WIDEST_BATCH, 1]  # the first starts the card


@pytest.mark.parametrize("engine", [Engine.ONNXRUNTIME_CUDA, Engine.ONNXRUNTIME_TENSORRT])
def test_it_never_falls_back_to_the_cpu(
    build: FakeBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runtime = find_runtime(engine)
    build.usable = ["CPUExecutionProvider"]
    with pytest.raises(EnvironmentUnfitError, match=r"cannot use .*Provider for "):
        load(runtime, tmp_path, tiny_bytes())  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", [Engine.ONNXRUNTIME_CUDA, Engine.ONNXRUNTIME_TENSORRT])
@pytest.mark.parametrize("is_loud", [False, True])
def test_an_engine_without_its_libraries_does_not_work_here(
    build: FakeBuild, monkeypatch: pytest.MonkeyPatch, engine: Engine, is_loud: bool
) -> None:
    """ONNX Runtime goes on without the provider, or raises what it likes."""
    build.usable = ["CPUExecutionProvider"]
    if is_loud:
        monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: 1 / 0)
    assert "cannot use" in engine_status(engine).missing


def test_each_session_sees_batches_of_one_size(build: FakeBuild, tmp_path: Path) -> None:
    shown = [{"image": IMAGES[:1]}, {"image": IMAGES[:2]}]
    loaded = load(OnnxRuntimeCuda(), tmp_path, tiny_bytes(), warm_up=shown)
    build.batches.clear()
    for items in (1, 2, 3, 5, 4, 1, 2):
        scores = loaded.infer({"image": IMAGES[:items]})["scores"]
        np.testing.assert_allclose(scores, expected_scores(IMAGES[:items]), rtol=1e-5)
    assert build.batches == [1, 2, 4, 8, 4, 1, 2]
    assert len(build.asked) == 1 + 4  # to start the card; of 1, 2, 4 and 8 items
    loaded.unload()
    with pytest.raises(ModellessError, match="was unloaded"):
        loaded.infer({"image": IMAGES[:1]})


@pytest.mark.parametrize("engine", [Engine.ONNXRUNTIME_CUDA, Engine.ONNXRUNTIME_TENSORRT])
def test_a_build_for_the_cpu_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(EnvironmentUnfitError, match=r"pip uninstall onnxruntime.*modelless\[gpu\]"):
        find_runtime(engine)


def test_custom_operators_are_refused(build: FakeBuild, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="without a library"):
        load(OnnxRuntimeCuda(), tmp_path, with_custom_operator("evil").SerializeToString())
