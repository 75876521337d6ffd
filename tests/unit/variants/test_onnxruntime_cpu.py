"""The ONNX Runtime CPU engine on real, tiny models."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from modelless.variants.errors import (
    EnvironmentUnfitError,
    IntegrityError,
    InvalidInputError,
    ModellessError,
)
from modelless.variants.runtimes import find_runtime, onnxruntime_cpu
from modelless.variants.runtimes.onnxruntime_cpu import (
    OnnxRuntimeCpu,
    OnnxRuntimeVariant,
    session_options,
)
from modelless.variants.runtimes.resident_memory import resident_bytes
from modelless.variants.vocabulary import Engine

from .tiny_models import (
    expected_scores,
    make_model,
    tiny_bytes,
    tiny_model,
    variant_of,
    with_custom_operator,
    with_external_weight,
)

IMAGES = np.random.default_rng(3).integers(0, 256, (5, 7, 6, 3), dtype=np.uint8)


def load(folder: Path, data: bytes, threads: int = 1, **more: object) -> OnnxRuntimeVariant:
    """Load ``data``, registered as it is."""
    path = folder / "artifact"
    path.write_bytes(data)
    return OnnxRuntimeCpu().load(variant_of(data), path, threads=threads, **more)


def test_it_is_found_by_its_engine() -> None:
    runtime = find_runtime(Engine.ONNXRUNTIME_CPU)
    assert isinstance(runtime, OnnxRuntimeCpu)
    assert runtime.engine is Engine.ONNXRUNTIME_CPU


@pytest.mark.parametrize("threads", [1, 2])
def test_it_computes(tmp_path: Path, threads: int) -> None:
    loaded = load(tmp_path, tiny_bytes(), threads)
    assert (loaded.threads, loaded.variant) == (threads, variant_of(tiny_bytes()))
    for images in (IMAGES[:1], IMAGES, IMAGES[:, :3, ::2]):
        outputs = loaded.infer({"image": images})
        assert list(outputs) == ["scores"]
        np.testing.assert_allclose(outputs["scores"], expected_scores(images), rtol=1e-5)


def test_outputs_stay_true_when_the_next_batch_runs(tmp_path: Path) -> None:
    loaded = load(tmp_path, tiny_bytes())
    first = loaded.infer({"image": IMAGES[:1]})["scores"]
    kept = first.copy()
    loaded.infer({"image": IMAGES[1:2]})
    loaded.unload()
    np.testing.assert_array_equal(first, kept)


def test_any_thread_may_call(tmp_path: Path) -> None:
    loaded = load(tmp_path, tiny_bytes())
    found: list[np.ndarray] = []
    thread = threading.Thread(
        target=lambda: found.append(loaded.infer({"image": IMAGES})["scores"])
    )
    thread.start()
    thread.join()
    np.testing.assert_allclose(found[0], expected_scores(IMAGES), rtol=1e-5)


def test_load_time_and_memory_are_measured(tmp_path: Path) -> None:
    wide = np.ones((2000, 2000), np.float32)  # 16 MB
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
    loaded = load(tmp_path, make_model(nodes, initializers).SerializeToString())
    assert 0.0 < loaded.load_s < 30.0
    assert 16e6 <= loaded.memory_bytes < 64e6
    before_bytes = resident_bytes()
    held = [name for name, value in vars(loaded._session).items() if isinstance(value, bytes)]
    assert held == []  # the file's bytes must not stay beside the weights
    loaded.unload()
    assert before_bytes - resident_bytes() > 12e6


def test_warm_up_batches_are_run(tmp_path: Path) -> None:
    load(tmp_path, tiny_bytes(), warm_up=[{"image": IMAGES[:1]}, {"image": IMAGES}])
    with pytest.raises(InvalidInputError, match="picture"):
        load(tmp_path, tiny_bytes(), warm_up=[{"picture": IMAGES}])


@pytest.mark.parametrize("threads", [0, -1, 1025, 1.0, True])
def test_threads_are_bounded(tmp_path: Path, threads: int) -> None:
    with pytest.raises(InvalidInputError, match="threads"):
        load(tmp_path, tiny_bytes(), threads)


class TestArtifact:
    """Exactly the registered bytes are run, or nothing is."""

    @pytest.mark.parametrize(
        ("damaged", "said"),
        [
            (tiny_bytes()[:-1], "truncated"),
            (b"", "truncated"),
            (tiny_bytes() + b"\0", "swapped"),
            (tiny_bytes(2.0), "corrupted or swapped"),
        ],
        ids=["truncated", "empty", "longer", "another-model"],
    )
    def test_another_file_is_refused(self, tmp_path: Path, damaged: bytes, said: str) -> None:
        path = tmp_path / "artifact"
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=said) as caught:
            OnnxRuntimeCpu().load(variant_of(tiny_bytes()), path, threads=1)
        assert "modelless zoo add" in str(caught.value)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(IntegrityError, match="No such file"):
            OnnxRuntimeCpu().load(variant_of(b"x"), tmp_path / "missing", threads=1)

    def test_a_swap_after_the_check_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, really_read = tmp_path / "artifact", onnxruntime_cpu.read_verified

        def read_then_swap(*arguments: object, **more: object) -> bytes:
            data = really_read(*arguments, **more)  # type: ignore[arg-type]
            path.write_bytes(tiny_bytes(100.0))
            return data

        path.write_bytes(tiny_bytes())
        monkeypatch.setattr(onnxruntime_cpu, "read_verified", read_then_swap)
        loaded = OnnxRuntimeCpu().load(variant_of(tiny_bytes()), path, threads=1)
        outputs = loaded.infer({"image": IMAGES})
        np.testing.assert_allclose(outputs["scores"], expected_scores(IMAGES), rtol=1e-5)

    def test_external_data_is_refused_though_it_lies_in_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "weights.bin").write_bytes(np.arange(12, dtype=np.float32).tobytes())
        monkeypatch.chdir(tmp_path)
        with pytest.raises(IntegrityError, match=r"'weights\.bin'"):
            load(tmp_path, with_external_weight("weights.bin").SerializeToString())

    def test_the_word_location_alone_is_no_crime(self, tmp_path: Path) -> None:
        model = tiny_model()
        model.doc_string = "the location of the mean"
        load(tmp_path, model.SerializeToString())

    def test_custom_operators_are_refused(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(IntegrityError, match="standard operators only"):
            load(tmp_path, with_custom_operator("evil").SerializeToString())
        assert capfd.readouterr() == ("", "")

    def test_what_is_no_onnx_is_refused(self, tmp_path: Path) -> None:
        for data in (b"no model at all", b"\0\0\0\0ORTM" + b"\0" * 64):
            with pytest.raises(IntegrityError, match="refuses"):
                load(tmp_path, data)


class TestInfer:
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
    def test_inputs_that_do_not_fit(self, tmp_path: Path, inputs: dict[str, np.ndarray]) -> None:
        loaded = load(tmp_path, tiny_bytes())
        with pytest.raises(InvalidInputError, match="allowed: image"):
            loaded.infer(inputs)
        assert loaded.infer({"image": IMAGES})["scores"].shape == (5, 4)

    def test_a_failure_inside_the_graph(self, tmp_path: Path) -> None:
        nodes = [
            helper.make_node("Cast", ["image"], ["real"], to=1),
            helper.make_node("Shape", ["image"], ["shape"]),
            helper.make_node("ReduceMean", ["real"], ["mean"], axes=[1, 2], keepdims=0),
            helper.make_node("Reshape", ["mean", "shape"], ["scores"]),
        ]
        loaded = load(tmp_path, make_model(nodes, []).SerializeToString())
        with pytest.raises(EnvironmentUnfitError, match="failed while running"):
            loaded.infer({"image": IMAGES})

    def test_after_unload(self, tmp_path: Path) -> None:
        loaded = load(tmp_path, tiny_bytes())
        loaded.unload()
        loaded.unload()
        with pytest.raises(ModellessError, match="was unloaded"):
            loaded.infer({"image": IMAGES})


def test_options() -> None:
    options = session_options(2)
    assert options.intra_op_num_threads == 2
    assert options.inter_op_num_threads == 1
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert not options.enable_mem_pattern
    for pool in ("intra_op", "inter_op"):
        assert options.get_session_config_entry(f"session.{pool}.allow_spinning") == "0"


def test_memory_does_not_grow_with_the_sizes_of_pictures(tmp_path: Path) -> None:
    loaded = load(tmp_path, tiny_bytes())
    loaded.infer({"image": np.zeros((1, 100, 100, 3), np.uint8)})
    before_bytes = resident_bytes()
    for side in range(1, 100):
        loaded.infer({"image": np.zeros((1, side, 100 - side, 3), np.uint8)})
    assert resident_bytes() - before_bytes < 4e6
