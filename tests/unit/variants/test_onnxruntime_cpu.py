"""The ONNX Runtime CPU engine on real, tiny models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from modelless.common.errors import EnvironmentUnfitError, IntegrityError
from modelless.variants.runtimes import find_runtime, loading, onnxruntime_cpu
from modelless.variants.runtimes.engine_cache import EngineCache
from modelless.variants.runtimes.onnxruntime_cpu import OnnxRuntimeCpu, session_options
from modelless.variants.runtimes.onnxruntime_session import OnnxRuntimeVariant
from modelless.variants.vocabulary import Engine
from tests.builders import (
    expected_scores,
    make_model,
    tiny_bytes,
    tiny_model,
    variant_of,
    with_custom_operator,
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


def test_the_files_bytes_do_not_stay_beside_the_weights(tmp_path: Path) -> None:
    loaded = load(tmp_path, tiny_bytes())
    assert [name for name, value in vars(loaded.session).items() if isinstance(value, bytes)] == []


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
        path, really_read = tmp_path / "artifact", loading.read_verified

        def read_then_swap(*arguments: object, **more: object) -> bytes:
            data = really_read(*arguments, **more)  # type: ignore[arg-type]
            path.write_bytes(tiny_bytes(100.0))
            return data

        path.write_bytes(tiny_bytes())
        monkeypatch.setattr(loading, "read_verified", read_then_swap)
        loaded = OnnxRuntimeCpu().load(variant_of(tiny_bytes()), path, threads=1)
        outputs = loaded.infer({"image": IMAGES})
        np.testing.assert_allclose(outputs["scores"], expected_scores(IMAGES), rtol=1e-5)

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


def test_options() -> None:
    options = session_options(2)
    assert options.intra_op_num_threads == 2
    assert options.inter_op_num_threads == 1
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert not options.enable_mem_pattern
    for pool in ("intra_op", "inter_op"):
        assert options.get_session_config_entry(f"session.{pool}.allow_spinning") == "0"
    assert options.get_session_config_entry("session.use_env_allocators") == "1"


def large_bytes(pooled: str = "ReduceMean") -> bytes:
    """A graph with 1.2 MB of weights, which are equal whatever it pools with."""
    random = np.random.default_rng(5)
    weights = [
        numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)
        for name, shape in (("mixed", (3, 4)), ("table", (80_000, 4)))
    ]
    weights.append(numpy_helper.from_array(np.array([-1, 1, 4]), "shape"))
    nodes = [
        helper.make_node("Cast", ["image"], ["real"], to=1),
        helper.make_node(pooled, ["real"], ["colour"], axes=[1, 2], keepdims=0),
        helper.make_node("MatMul", ["colour", "mixed"], ["hidden"]),
        helper.make_node("Reshape", ["hidden", "shape"], ["row"]),
        helper.make_node("Mul", ["row", "table"], ["products"]),
        helper.make_node("ReduceMean", ["products"], ["scores"], axes=[1], keepdims=0),
    ]
    return bytes(make_model(nodes, weights).SerializeToString())


class TestKeptGraphs:
    """A graph is optimised once, and its file is mapped from then on."""

    def load(self, folder: Path, data: bytes) -> OnnxRuntimeVariant:
        (folder / "artifact").write_bytes(data)
        runtime = OnnxRuntimeCpu(EngineCache(folder / "cache"))
        return runtime.load(variant_of(data), folder / "artifact", threads=1)

    def kept(self, folder: Path, name: str) -> list[Path]:
        return sorted((folder / "cache").glob(f"*/{name}"))

    def test_answers_are_those_of_the_artifact_to_the_bit(self, tmp_path: Path) -> None:
        session = onnxruntime_cpu.open_on_cpu(large_bytes(), 1, "it")
        (expected,) = session.run(None, {"image": IMAGES})
        for _ in range(2):
            scores = self.load(tmp_path, large_bytes()).infer({"image": IMAGES})["scores"]
            np.testing.assert_array_equal(scores, expected)

    def test_processes_share_the_weights(self, tmp_path: Path) -> None:
        loaded = self.load(tmp_path, large_bytes())
        (weights,) = self.kept(tmp_path, "weights")
        assert loaded.session is not None
        assert str(weights) in Path("/proc/self/maps").read_text()

    def test_variants_of_equal_weights_share_them(self, tmp_path: Path) -> None:
        for pooled in ("ReduceMean", "ReduceMax"):
            self.load(tmp_path, large_bytes(pooled))
        first, second = self.kept(tmp_path, "weights")
        assert first.samefile(second)

    @pytest.mark.parametrize("name", ["graph.onnx", "weights", "digests.json"])
    def test_what_is_damaged_is_optimised_anew(self, tmp_path: Path, name: str) -> None:
        loaded = self.load(tmp_path, large_bytes())
        before = loaded.infer({"image": IMAGES})["scores"]
        loaded.unload()
        (kept,) = self.kept(tmp_path, name)
        whole = kept.read_bytes()
        kept.write_bytes(whole[:-9] + b"\0" * 9)
        scores = self.load(tmp_path, large_bytes()).infer({"image": IMAGES})["scores"]
        np.testing.assert_array_equal(scores, before)
        assert self.kept(tmp_path, name)[0].read_bytes() == whole

    def test_where_nothing_can_be_kept_it_is_loaded_all_the_same(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "cache").write_bytes(b"a file in the folder's place")
        scores = self.load(tmp_path, large_bytes()).infer({"image": IMAGES})["scores"]
        assert scores.shape == (5, 4)
        assert "without a kept graph" in caplog.text
