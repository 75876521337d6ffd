"""The TensorRT engine against stand-ins for NVIDIA's modules; ``test_gpu_engines`` has a card."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import (
    EnvironmentUnfitError,
    IntegrityError,
    InvalidInputError,
    ModellessError,
)
from modelless.variants.runtimes import find_runtime
from modelless.variants.runtimes.engine_cache import EngineCache
from modelless.variants.runtimes.tensorrt_gpu import (
    MAX_BATCH,
    MAX_GRAPHS,
    MAX_SIDE,
    TensorRt,
    TensorRtVariant,
    shape_profiles,
)
from modelless.variants.vocabulary import Engine, Precision, TensorSpec
from tests.builders import (
    expected_scores,
    tiny_bytes,
    variant_of,
    with_custom_operator,
    with_external_weight,
)

from .fake_nvidia import FakeCuda, fake_tensorrt, install_cuda

IMAGES = np.random.default_rng(3).integers(0, 256, (5, 7, 6, 3), dtype=np.uint8)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    card = FakeCuda()
    install_cuda(monkeypatch, card)
    return card


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> Any:
    module = fake_tensorrt(cuda)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    return module


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "cache")


def load(
    cache: EngineCache, folder: Path, data: bytes | None = None, **more: Any
) -> TensorRtVariant:
    """Load ``data``, registered as it is."""
    path, content = folder / "artifact", tiny_bytes() if data is None else data
    path.write_bytes(content)
    changes = {name: more.pop(name) for name in ("precision", "resolution_px") if name in more}
    variant = dataclasses.replace(variant_of(content), engine=Engine.TENSORRT, **changes)
    return TensorRt(cache).load(variant, path, threads=1, **more)


def check(loaded: TensorRtVariant, images: np.ndarray) -> None:
    """Its answers are those of the graph."""
    outputs = loaded.infer({"image": images})
    assert list(outputs) == ["scores"]
    np.testing.assert_allclose(outputs["scores"], expected_scores(images), rtol=1e-5)


def test_it_computes_whatever_the_batch(
    trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path
) -> None:
    loaded = load(cache, tmp_path)
    for images in (IMAGES[:1], IMAGES, IMAGES[:2], IMAGES[:, :3, ::2], IMAGES):
        check(loaded, images)
    assert cuda.launches == 0
    loaded.unload()
    loaded.unload()
    assert cuda.is_clean
    with pytest.raises(ModellessError, match="was unloaded"):
        loaded.infer({"image": IMAGES})


def test_shapes_of_the_warm_up_are_replayed_as_graphs(
    trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path
) -> None:
    loaded = load(cache, tmp_path, warm_up=[{"image": IMAGES[:1]}, {"image": IMAGES}])
    assert (cuda.launches, len(cuda.graphs)) == (2, 2)
    check(loaded, IMAGES[1:2])
    check(loaded, IMAGES[:3])  # another shape in between
    check(loaded, IMAGES[::-1])
    assert cuda.launches == 4
    loaded.unload()
    assert cuda.is_clean


def test_graphs_are_bounded(trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path) -> None:
    shapes = [{"image": np.zeros((1, side, 8, 3), np.uint8)} for side in range(1, 9)]
    load(cache, tmp_path, warm_up=shapes)
    assert len(cuda.graphs) == MAX_GRAPHS


def test_what_cannot_be_captured_runs_without_a_graph(
    trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path
) -> None:
    cuda.can_capture = False
    loaded = load(cache, tmp_path, warm_up=[{"image": IMAGES}])
    check(loaded, IMAGES)
    assert cuda.launches == 0
    loaded.unload()
    assert cuda.is_clean


def test_outputs_stay_true_when_the_next_batch_runs(
    trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path
) -> None:
    loaded = load(cache, tmp_path)
    first = loaded.infer({"image": IMAGES[:1]})["scores"]
    kept = first.copy()
    loaded.infer({"image": IMAGES[1:2]})
    loaded.unload()
    np.testing.assert_array_equal(first, kept)


def test_memory_is_the_cards(trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path) -> None:
    loaded = load(cache, tmp_path, warm_up=[{"image": np.zeros((8, 100, 100, 3), np.uint8)}])
    assert loaded.memory_bytes == 8 * (100 * 100 * 3 + 4 * 4)
    assert loaded.load_s > 0.0


@pytest.mark.parametrize("shape", [(MAX_BATCH + 1, 8, 8, 3), (1, MAX_SIDE + 1, 8, 3)])
def test_shapes_it_was_not_compiled_for_are_refused(
    trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    loaded = load(cache, tmp_path)
    with pytest.raises(InvalidInputError, match=r"allowed: \[1, 1, 1, 3\] to \[32, 1024, 1024, 3"):
        loaded.infer({"image": np.zeros(shape, np.uint8)})
    with pytest.raises(InvalidInputError, match="image is of dtype float32"):
        loaded.infer({"image": IMAGES.astype(np.float32)})
    check(loaded, IMAGES)


def test_a_bad_warm_up_leaves_nothing_on_the_card(
    trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="image missing"):
        load(cache, tmp_path, warm_up=[{"image": IMAGES}, {"picture": IMAGES}])
    assert cuda.is_clean


def test_a_full_card_is_told(trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path) -> None:
    loaded = load(cache, tmp_path)
    _, others = cuda.cudaMalloc(cuda.cudaMemGetInfo()[1] - 100)
    for _ in range(2):
        with pytest.raises(EnvironmentUnfitError, match=r"cudaMalloc failed: .*smaller batches"):
            loaded.infer({"image": IMAGES})
    cuda.cudaFree(others)
    check(loaded, IMAGES)


@pytest.mark.parametrize("bad", ["custom", "external", "other"])
def test_what_must_not_run_is_refused_before_anything_is_compiled(
    trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path, bad: str
) -> None:
    data = {
        "custom": with_custom_operator("evil").SerializeToString(),
        "external": with_external_weight("weights.bin").SerializeToString(),
        "other": b"no model at all",
    }[bad]
    with pytest.raises(IntegrityError):
        load(cache, tmp_path, data)
    assert trt.builds == []
    assert cuda.is_clean


class TestPlans:
    def test_a_plan_is_compiled_once(
        self, trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path
    ) -> None:
        for _ in range(2):
            check(load(cache, tmp_path), IMAGES)
        assert len(trt.builds) == 1

    def test_another_file_precision_size_or_version_is_another_plan(
        self,
        trt: Any,
        cuda: FakeCuda,
        cache: EngineCache,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        load(cache, tmp_path)
        load(cache, tmp_path, tiny_bytes(2.0))
        load(cache, tmp_path, precision=Precision.FP16)
        load(cache, tmp_path, resolution_px=160)
        assert len(trt.builds) == 4
        newer = fake_tensorrt(cuda, "10.14.0")
        monkeypatch.setitem(sys.modules, "tensorrt", newer)
        load(cache, tmp_path)
        assert len(newer.builds) == 1  # type: ignore[attr-defined]

    def test_a_damaged_plan_is_compiled_again(
        self, trt: Any, cuda: FakeCuda, cache: EngineCache, tmp_path: Path
    ) -> None:
        load(cache, tmp_path)
        (plan,) = (tmp_path / "cache").rglob("plan")
        plan.write_bytes(plan.read_bytes()[:-1])
        check(load(cache, tmp_path), IMAGES)
        assert len(trt.builds) == 2

    @pytest.mark.parametrize(
        ("precision", "flags", "typed"),
        [
            (Precision.FP32, [], True),
            (Precision.INT8, [], True),
            (Precision.FP16, ["fp16"], False),
            (Precision.BF16, ["bf16"], False),
        ],
    )
    def test_types_are_the_graphs_unless_the_variant_says_otherwise(
        self,
        trt: Any,
        cuda: FakeCuda,
        cache: EngineCache,
        tmp_path: Path,
        precision: Precision,
        flags: list[str],
        typed: bool,
    ) -> None:
        load(cache, tmp_path, precision=precision)
        (config,) = trt.builds
        assert (config.flags, config.typed) == (flags, typed)
        assert config.limits == {"workspace": 1 << 30}

    def test_profiles_have_the_usual_size_in_their_middle(self) -> None:
        specs = [
            TensorSpec("image", "UINT8", (-1, -1, -1, 3)),
            TensorSpec("mask", "FP32", (-1, 10)),
        ]
        image, mask = shape_profiles(specs, 160)
        assert (image.least, image.opt) == ((1, 1, 1, 3), (8, 160, 160, 3))
        assert image.most == (MAX_BATCH, MAX_SIDE, MAX_SIDE, 3)
        assert (mask.least, mask.opt, mask.most) == ((1, 10), (8, 10), (32, 10))
        assert shape_profiles(specs, None)[0].opt == (8, 224, 224, 3)

    @pytest.mark.parametrize(
        ("refused", "said"),
        [
            ("parse", "antialias is not supported.*onnxruntime-tensorrt"),
            ("build", "no tactic fits"),
            ("load", "built with another version"),
        ],
    )
    def test_what_tensorrt_refuses_says_why_and_what_else(
        self,
        trt: Any,
        cuda: FakeCuda,
        cache: EngineCache,
        tmp_path: Path,
        refused: str,
        said: str,
    ) -> None:
        trt.refused = refused
        with pytest.raises(EnvironmentUnfitError, match=said):
            load(cache, tmp_path)
        assert cuda.is_clean


def test_it_is_found_by_its_engine_and_writes_to_the_users_cache(
    trt: Any, cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    path = tmp_path / "artifact"
    path.write_bytes(tiny_bytes())
    runtime = find_runtime(Engine.TENSORRT)
    assert (type(runtime), runtime.engine) == (TensorRt, Engine.TENSORRT)
    runtime.load(variant_of(tiny_bytes()), path, threads=1).unload()
    assert len(list((tmp_path / "mine/modelless/engines").rglob("plan"))) == 1


def test_without_a_card_or_a_driver_it_is_told(trt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install_cuda(monkeypatch, FakeCuda(cards=0))
    with pytest.raises(EnvironmentUnfitError, match="finds no card"):
        find_runtime(Engine.TENSORRT)

    class NoDriver(FakeCuda):
        def cudaGetDeviceCount(self) -> tuple[int, int]:  # noqa: N802  (CUDA's name)
            raise RuntimeError("Failed to dlopen libcuda.so.1")

    install_cuda(monkeypatch, NoDriver())
    with pytest.raises(EnvironmentUnfitError, match=r"libcuda\.so\.1"):
        find_runtime(Engine.TENSORRT)
