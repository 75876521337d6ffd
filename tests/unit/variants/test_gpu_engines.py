"""The GPU engines on a real card; skipped, saying why, where there is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError, ModellessError
from modelless.variants.runtimes import LoadedVariant, Runtime, find_runtime
from modelless.variants.runtimes.engines import ENGINES
from modelless.variants.zoo.fashion_mnist import FashionMnist
from tests.builders import expected_scores, need, tiny_bytes, variant_of

pytestmark = pytest.mark.gpu

IMAGES = np.random.default_rng(3).integers(0, 256, (5, 28, 28, 3), dtype=np.uint8)
GPU_ENGINES = [engine for engine, entry in ENGINES.items() if entry.device_kind == "gpu"]


@pytest.fixture(params=GPU_ENGINES, ids=str)
def runtime(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runtime:
    """Each engine that works here, its cache empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    need(request.param)
    return find_runtime(request.param)


def load(runtime: Runtime, folder: Path, data: bytes, **more: object) -> LoadedVariant:
    """Load ``data``, registered as it is."""
    path = folder / "artifact"
    path.write_bytes(data)
    variant = dataclasses.replace(variant_of(data), engine=runtime.engine)
    return runtime.load(variant, path, threads=1, **more)  # type: ignore[arg-type]


def test_it_computes_whatever_the_batch(runtime: Runtime, tmp_path: Path) -> None:
    loaded = load(runtime, tmp_path, tiny_bytes(), warm_up=[{"image": IMAGES[:1]}])
    for images in (IMAGES[:1], IMAGES, IMAGES[1:2], np.repeat(IMAGES, 6, axis=0)):
        scores = loaded.infer({"image": images})["scores"]
        np.testing.assert_allclose(scores, expected_scores(images), rtol=2e-3)  # TF32 products


def test_a_second_load_finds_what_was_compiled(runtime: Runtime, tmp_path: Path) -> None:
    first = load(runtime, tmp_path, tiny_bytes(), warm_up=[{"image": IMAGES[:1]}])
    first.unload()
    again = load(runtime, tmp_path, tiny_bytes(), warm_up=[{"image": IMAGES[:1]}])
    assert again.load_s <= first.load_s
    assert again.infer({"image": IMAGES})["scores"].shape == (5, 4)


def test_inputs_that_do_not_fit_and_after_unload(runtime: Runtime, tmp_path: Path) -> None:
    loaded = load(runtime, tmp_path, tiny_bytes())
    with pytest.raises(InvalidInputError, match="allowed: image"):
        loaded.infer({"image": IMAGES.astype(np.float32)})
    loaded.unload()
    with pytest.raises(ModellessError, match="was unloaded"):
        loaded.infer({"image": IMAGES})


def test_fashion_mnist_as_accurate_as_on_the_cpu(runtime: Runtime, tmp_path: Path) -> None:
    images, labels = FashionMnist().test_split()
    images, labels = images[:320], labels[:320]
    for built in FashionMnist().build(lambda *_: None):
        loaded = load(runtime, tmp_path, built.onnx_bytes, warm_up=[{"image": images[:32]}])
        right = sum(
            int((scores.argmax(axis=1) == truth).sum())
            for start in range(0, 320, 32)
            for truth in [labels[start : start + 32]]
            for scores in loaded.infer({"image": images[start : start + 32]}).values()
        )
        assert abs(100.0 * right / 320 - built.accuracy.percent) < 6.0, built.name
        loaded.unload()
