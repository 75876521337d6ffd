"""The OpenVINO engine where it differs: its options, its quietness, its answers on real models."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.graphs.canonical import write_model
from modelless.variants.runtimes import LoadedVariant, find_runtime, openvino_cpu
from modelless.variants.runtimes.engine_cache import EngineCache
from modelless.variants.runtimes.openvino_cpu import OpenVinoCpu
from modelless.variants.vocabulary import Engine, Precision
from modelless.variants.zoo.efficientnet_lite import (
    ARCHITECTURES,
    Network,
    load_network,
    write_graph,
)
from modelless.variants.zoo.fashion_mnist import FashionMnist
from modelless.variants.zoo.imagenet import quantised
from modelless.variants.zoo.photos import LABELLED, UNLABELLED, crops
from tests.builders import make_model, need, tiny_bytes, tiny_model, variant_of

need(Engine.OPENVINO)

BOTH = (Engine.ONNXRUNTIME_CPU, Engine.OPENVINO)


def load(folder: Path, data: bytes, engine: Engine, threads: int = 1) -> LoadedVariant:
    """Load ``data``, registered as it is."""
    path = folder / "artifact"
    path.write_bytes(data)
    variant = dataclasses.replace(variant_of(data), engine=engine)
    return find_runtime(engine).load(variant, path, threads=threads)


def answers(folder: Path, data: bytes, inputs: dict[str, NDArray[np.uint8]]) -> list[np.ndarray]:
    """What each of both engines says, by its one output."""
    found = []
    for engine in BOTH:
        loaded = load(folder, data, engine)
        (output,) = loaded.infer(inputs).values()
        loaded.unload()
        found.append(output)
    return found


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(ARCHITECTURES[0])


def photos(side: int | None = None) -> list[NDArray[np.uint8]]:
    """Some photos, whole; or their corners of so many pixels, in one batch."""
    pixels = [np.ascontiguousarray(photo.load()) for photo in LABELLED[:4]]
    if side is None:
        return [array[None] for array in pixels]
    return [np.stack([array[:side, :side] for array in pixels])]


class TestAnswers:
    def test_fashion_mnist(self, tmp_path: Path) -> None:
        images = FashionMnist().test_split()[0][:64]
        for built in FashionMnist().build(lambda *_: None):
            one, other = answers(tmp_path, built.onnx_bytes, {"image": images})
            atol = 2e-6 if built.precision is Precision.FP32 else 2e-4  # int8 may round a tie
            np.testing.assert_allclose(other, one, atol=atol, err_msg=built.name)

    def test_efficientnet_lite0_that_need_not_resize(
        self, tmp_path: Path, network: Network
    ) -> None:
        data = write_graph(network, 224).SerializeToString()
        for batch in photos(side=224):
            one, other = answers(tmp_path, data, {"image": batch})
            np.testing.assert_allclose(other, one, atol=2e-5)

    @pytest.mark.skipif(
        platform.machine() == "x86_64" and "vnni" not in Path("/proc/cpuinfo").read_text(),
        reason="OpenVINO's int8 saturates on x86 without VNNI",
    )
    def test_efficientnet_lite0_in_int8(self, tmp_path: Path, network: Network) -> None:
        others = crops(np.random.default_rng(0), 1, UNLABELLED)
        data = write_model(quantised(network, [crop.pixels for crop in others]))
        for batch in photos(side=224):
            one, other = answers(tmp_path, data, {"image": batch})
            np.testing.assert_allclose(other, one, atol=0.08)
            np.testing.assert_array_equal(other.argmax(axis=1), one.argmax(axis=1))

    def test_efficientnet_lite0_that_resizes_photos(self, tmp_path: Path, network: Network) -> None:
        data = write_graph(network, 128).SerializeToString()
        for photo in photos()[:2]:
            one, other = answers(tmp_path, data, {"image": photo})
            np.testing.assert_allclose(other, one, atol=0.03)

    @pytest.mark.parametrize("mode", ["linear", "cubic"])
    def test_resizing_is_antialiased_as_onnx_says(self, tmp_path: Path, mode: str) -> None:
        nodes = [
            helper.make_node("Cast", ["image"], ["real"], to=1),
            helper.make_node(
                "Resize",
                ["real", "", "", "sizes"],
                ["small"],
                mode=mode,
                antialias=1,
                axes=[1, 2],
                coordinate_transformation_mode="half_pixel",
            ),
            helper.make_node("Reshape", ["small", "flat"], ["row"]),
            helper.make_node("Slice", ["row", "first", "last", "one"], ["scores"]),
        ]
        constants = {"sizes": [8, 8], "flat": [0, 192], "first": [72], "last": [76], "one": [1]}
        initializers = [
            numpy_helper.from_array(np.array(value, np.int64), name)
            for name, value in constants.items()
        ]
        data = make_model(nodes, initializers, opset=18).SerializeToString()
        stripes = np.tile(np.array([255, 0, 0, 255] * 8, np.uint8)[:, None, None], (1, 1, 32, 3))
        one, other = answers(tmp_path, data, {"image": stripes})
        assert one.min() > 50.0  # what lies under the filter, not only what lies in its middle
        np.testing.assert_allclose(other, one, atol=1.0)

    def test_floats_are_not_shortened_where_the_processor_could(self, tmp_path: Path) -> None:
        weight = np.full((3, 4), 1.0 + 2.0**-12, np.float32)  # bfloat16 has 8 bits: 1.0
        nodes = list(tiny_model().graph.node)
        data = make_model(nodes, [numpy_helper.from_array(weight, "weight")]).SerializeToString()
        loaded = load(tmp_path, data, Engine.OPENVINO)
        scores = loaded.infer({"image": np.full((2, 8, 8, 3), 255, np.uint8)})["scores"]
        np.testing.assert_allclose(scores, 765.0 * (1.0 + 2.0**-12), rtol=1e-6)


class TestOptions:
    @pytest.mark.parametrize("threads", [1, 2])
    def test_the_compiled_model_has_them(self, tmp_path: Path, threads: int) -> None:
        loaded = load(tmp_path, tiny_bytes(), Engine.OPENVINO, threads)
        compiled = loaded.request.get_compiled_model()  # type: ignore[attr-defined]
        found = {
            name: str(compiled.get_property(name))
            for name in ("INFERENCE_NUM_THREADS", "NUM_STREAMS", "ENABLE_CPU_PINNING")
        }
        assert found == {
            "INFERENCE_NUM_THREADS": str(threads),
            "NUM_STREAMS": "1",
            "ENABLE_CPU_PINNING": "False",
        }

    def test_an_operator_it_lacks_says_what_else_to_do(self, tmp_path: Path) -> None:
        nodes = [*tiny_model().graph.node]
        nodes[-1].output[0] = "product"
        nodes.append(
            helper.make_node("Gelu", ["product"], ["scores"], domain="com.microsoft", name="g")
        )
        nodes[-1].op_type = "NhwcMaxPool"
        model = make_model(nodes, [*tiny_model().graph.initializer])
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        with pytest.raises(EnvironmentUnfitError, match="another engine"):
            load(tmp_path, model.SerializeToString(), Engine.OPENVINO)


class TestCompiledModels:
    """What was compiled once is imported from then on."""

    def load(self, folder: Path, threads: int = 1) -> LoadedVariant:
        (folder / "artifact").write_bytes(tiny_bytes())
        variant = dataclasses.replace(variant_of(tiny_bytes()), engine=Engine.OPENVINO)
        runtime = OpenVinoCpu(EngineCache(folder / "cache"))
        return runtime.load(variant, folder / "artifact", threads=threads)

    def scores(self, loaded: LoadedVariant) -> NDArray[np.float32]:
        images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
        scores: NDArray[np.float32] = loaded.infer({"image": images})["scores"]
        return scores

    def never_compile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("compiled again")

        monkeypatch.setattr(openvino_cpu, "compile_graph", refuse)

    def test_they_say_the_same_to_the_bit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiled = self.scores(self.load(tmp_path))
        self.never_compile(monkeypatch)
        np.testing.assert_array_equal(self.scores(self.load(tmp_path)), compiled)

    def test_other_threads_are_another_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.load(tmp_path)
        self.never_compile(monkeypatch)
        with pytest.raises(AssertionError, match="compiled again"):
            self.load(tmp_path, threads=2)

    @pytest.mark.parametrize("share", [0.0, 0.5])
    def test_a_damaged_one_is_compiled_anew(self, tmp_path: Path, share: float) -> None:
        before = self.scores(self.load(tmp_path))
        (kept,) = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
        whole = kept.read_bytes()
        kept.chmod(0o600)
        kept.write_bytes(whole[: int(share * len(whole))])
        np.testing.assert_array_equal(self.scores(self.load(tmp_path)), before)
        assert kept.read_bytes()[32:] != whole[: int(share * len(whole))][32:]

    def test_where_nothing_can_be_kept_it_is_loaded_all_the_same(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "cache").write_bytes(b"a file in the folder's place")
        assert self.scores(self.load(tmp_path)).shape == (2, 4)
        assert "is not kept" in caplog.text

    def test_what_openvino_does_not_take_is_compiled_anew(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = self.scores(self.load(tmp_path))
        variant = variant_of(tiny_bytes())
        runtime = OpenVinoCpu(EngineCache(tmp_path / "cache"))
        EngineCache(tmp_path / "cache").write(runtime.cache_key(variant, 1), b"of another world")
        np.testing.assert_array_equal(self.scores(self.load(tmp_path)), before)
        assert "not taken from the cache" in caplog.text


SCRIPT = """
import socket, sys
def refuse(*arguments, **more):
    raise SystemExit("somebody is called")
socket.getaddrinfo = socket.create_connection = refuse
from modelless.variants.runtimes import find_runtime
from modelless.variants.vocabulary import Engine
find_runtime(Engine.OPENVINO)
assert "openvino" in sys.modules
assert "openvino_telemetry" not in sys.modules
"""


def test_it_writes_nothing_and_calls_nobody(tmp_path: Path) -> None:
    """Importing OpenVINO alone sends a usage report and makes ``~/intel``."""
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, env=environment, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
