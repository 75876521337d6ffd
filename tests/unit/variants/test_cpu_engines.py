"""What holds for every engine that runs on CPU cores, on real, tiny models."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from modelless.common.errors import IntegrityError, InvalidInputError, ModellessError
from modelless.variants.runtimes import LoadedVariant, Runtime, find_runtime
from modelless.variants.runtimes.engines import ENGINES
from modelless.variants.runtimes.resident_memory import resident_bytes
from modelless.variants.vocabulary import Engine
from tests.builders import (
    expected_scores,
    make_model,
    need,
    tiny_bytes,
    tiny_model,
    variant_of,
    with_custom_operator,
    with_external_weight,
)

IMAGES = np.random.default_rng(3).integers(0, 256, (5, 7, 6, 3), dtype=np.uint8)
CPU_ENGINES = [engine for engine, entry in ENGINES.items() if entry.device_kind == "cpu"]


@pytest.fixture(params=CPU_ENGINES, ids=str)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Each engine that is installed."""
    need(request.param)
    return find_runtime(request.param)


def load(
    runtime: Runtime, folder: Path, data: bytes, threads: int = 1, **more: object
) -> LoadedVariant:
    """Load ``data``, registered as it is."""
    path = folder / "artifact"
    path.write_bytes(data)
    variant = dataclasses.replace(variant_of(data), engine=runtime.engine)
    return runtime.load(variant, path, threads=threads, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 2])
def test_it_computes_whatever_the_batch(runtime: Runtime, tmp_path: Path, threads: int) -> None:
    loaded = load(runtime, tmp_path, tiny_bytes(), threads)
    assert (loaded.threads, loaded.variant.engine) == (threads, runtime.engine)
    read_only = np.frombuffer(IMAGES.tobytes(), np.uint8).reshape(IMAGES.shape)
    for images in (IMAGES[:1], IMAGES, IMAGES[:, :3, ::2], IMAGES[::2], read_only):
        outputs = loaded.infer({"image": images})
        assert list(outputs) == ["scores"]
        np.testing.assert_allclose(outputs["scores"], expected_scores(images), rtol=1e-5)


def test_one_file_with_other_numbers_of_threads_at_once(runtime: Runtime, tmp_path: Path) -> None:
    one, two = (load(runtime, tmp_path, tiny_bytes(), threads) for threads in (1, 2))
    for loaded in (one, two, one):
        outputs = loaded.infer({"image": IMAGES})
        np.testing.assert_allclose(outputs["scores"], expected_scores(IMAGES), rtol=1e-5)
    one.unload()
    assert two.infer({"image": IMAGES})["scores"].shape == (5, 4)


def test_outputs_stay_true_when_the_next_batch_runs(runtime: Runtime, tmp_path: Path) -> None:
    loaded = load(runtime, tmp_path, tiny_bytes())
    first = loaded.infer({"image": IMAGES[:1]})["scores"]
    kept = first.copy()
    loaded.infer({"image": IMAGES[1:2]})
    loaded.unload()
    np.testing.assert_array_equal(first, kept)


def test_any_thread_may_call(runtime: Runtime, tmp_path: Path) -> None:
    loaded = load(runtime, tmp_path, tiny_bytes())
    found: list[np.ndarray] = []
    thread = threading.Thread(
        target=lambda: found.append(loaded.infer({"image": IMAGES})["scores"])
    )
    thread.start()
    thread.join()
    np.testing.assert_allclose(found[0], expected_scores(IMAGES), rtol=1e-5)


def test_load_time_and_memory_are_measured_and_given_back(runtime: Runtime, tmp_path: Path) -> None:
    wide = np.random.default_rng(0).random((2000, 2000), np.float32)  # 16 MB
    nodes = list(tiny_model().graph.node)
    nodes[2:] = [
        helper.make_node("MatMul", ["mean", "a"], ["b"]),
        helper.make_node("MatMul", ["b", "wide"], ["c"]),
        helper.make_node("MatMul", ["c", "d"], ["scores"]),
    ]
    initializers = [
        numpy_helper.from_array(np.ones((3, 2000), np.float32), "a"),
        numpy_helper.from_array(wide, "wide"),
        numpy_helper.from_array(np.ones((2000, 4), np.float32), "d"),
    ]
    data = make_model(nodes, initializers).SerializeToString()
    load(runtime, tmp_path, tiny_bytes(), warm_up=[{"image": IMAGES[:1]}]).unload()
    loaded = load(runtime, tmp_path, data, warm_up=[{"image": IMAGES}])
    assert 0.0 < loaded.load_s < 30.0
    assert 16e6 <= loaded.memory_bytes < 64e6
    before_bytes = resident_bytes()
    loaded.unload()
    assert before_bytes - resident_bytes() > 12e6


def test_warm_up_batches_are_run(runtime: Runtime, tmp_path: Path) -> None:
    load(runtime, tmp_path, tiny_bytes(), warm_up=[{"image": IMAGES[:1]}, {"image": IMAGES}])
    with pytest.raises(InvalidInputError, match=r"picture|image missing"):
        load(runtime, tmp_path, tiny_bytes(), warm_up=[{"picture": IMAGES}])


@pytest.mark.parametrize("threads", [0, -1, 1025, 1.0, True])
def test_threads_are_bounded(runtime: Runtime, tmp_path: Path, threads: int) -> None:
    with pytest.raises(InvalidInputError, match="threads"):
        load(runtime, tmp_path, tiny_bytes(), threads)


def test_another_file_than_the_registered_one_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "artifact"
    path.write_bytes(tiny_bytes(2.0))
    with pytest.raises(IntegrityError, match="corrupted or swapped"):
        runtime.load(variant_of(tiny_bytes()), path, threads=1)


def test_external_data_is_refused_though_it_lies_in_the_current_folder(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights.bin").write_bytes(np.arange(12, dtype=np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IntegrityError, match=r"'weights\.bin'"):
        load(runtime, tmp_path, with_external_weight("weights.bin").SerializeToString())


@pytest.mark.parametrize("nested", [False, True])
def test_custom_operators_are_refused_though_nobody_uses_their_results(
    runtime: Runtime, tmp_path: Path, capfd: pytest.CaptureFixture[str], nested: bool
) -> None:
    model = with_custom_operator("evil", nested=nested)
    with pytest.raises(IntegrityError, match="Export"):
        load(runtime, tmp_path, model.SerializeToString())
    assert capfd.readouterr() == ("", "")


def test_what_is_no_onnx_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    for data in (b"no model at all", b"\0\0\0\0ORTM" + b"\0" * 64):
        with pytest.raises(IntegrityError):
            load(runtime, tmp_path, data)


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"picture": IMAGES},
        {"image": IMAGES, "mask": IMAGES},
        {"image": IMAGES.astype(np.float32)},
        {"image": IMAGES[0]},
        {"image": IMAGES[..., :2]},
        {"image": "a string"},
    ],
    ids=["missing", "unknown", "extra", "datatype", "rank", "shape", "no-array"],
)
def test_inputs_that_do_not_fit(
    runtime: Runtime, tmp_path: Path, inputs: dict[str, np.ndarray]
) -> None:
    loaded = load(runtime, tmp_path, tiny_bytes(), warm_up=[{"image": IMAGES}])
    with pytest.raises(InvalidInputError, match="allowed: image"):
        loaded.infer(inputs)
    assert loaded.infer({"image": IMAGES})["scores"].shape == (5, 4)


def test_after_unload(runtime: Runtime, tmp_path: Path) -> None:
    loaded = load(runtime, tmp_path, tiny_bytes())
    loaded.unload()
    loaded.unload()
    with pytest.raises(ModellessError, match="was unloaded"):
        loaded.infer({"image": IMAGES})


def test_memory_does_not_grow_with_the_sizes_of_pictures(runtime: Runtime, tmp_path: Path) -> None:
    loaded = load(runtime, tmp_path, tiny_bytes())
    loaded.infer({"image": np.zeros((1, 100, 100, 3), np.uint8)})
    before_bytes = resident_bytes()
    for side in range(1, 100):
        loaded.infer({"image": np.zeros((1, side, 100 - side, 3), np.uint8)})
    assert resident_bytes() - before_bytes < 12e6


def test_each_engine_is_found_by_its_name(runtime: Runtime) -> None:
    assert type(find_runtime(Engine(runtime.engine.value))) is type(runtime)
