"""Building: shared, resumed, refused, rebuilt bit for bit, and unharmed by a full disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import ModelProto

from modelless.common.errors import IntegrityError, InvalidInputError, StoreError
from modelless.variants.making.builder import Builder, MadeVariant, RefusedVariant, rebuild
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.lineage import Lineage
from modelless.variants.making.maker import Made, Maker
from modelless.variants.making.recipe import Recipe, default_recipe, parse_recipe
from modelless.variants.vocabulary import Precision
from modelless.variants.zoo.efficientnet_lite import ARCHITECTURES, load_network, write_graph
from modelless.variants.zoo.photos import UNLABELLED, crops

from .networks import FASHION, pictures

HERE = f"{__name__}:Spy"


class Spy(Maker):
    """Notes that it was called; raises what it was told to; else adds a mark to the model."""

    name: ClassVar[str] = "spy"
    calls: ClassVar[list[str]] = []
    raises: ClassVar[list[BaseException]] = []

    mark: str = "a"

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        assert calibration.feeds == ()  # it does not ask for any
        self.calls.append(self.mark)
        if self.raises:
            raise self.raises.pop()
        model.graph.name += self.mark
        return Made(model, (self.mark,))


@pytest.fixture(autouse=True)
def _fresh_spy() -> None:
    Spy.calls.clear()
    Spy.raises.clear()


def recipe(**chains: list[object]) -> Recipe:
    return parse_recipe({"variants": chains})


def spy(mark: str) -> dict[str, object]:
    return {HERE: {"mark": mark}}


def build(folder: Path, chains: Recipe, data: CalibrationData | None = None) -> dict[str, Any]:
    found = Builder(folder).build(chains, FASHION, data or CalibrationData())
    return {each.name: each for each in found}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


SHARED = recipe(
    one=[spy("a")], two=[spy("a"), spy("b")], three=[spy("a"), spy("b"), spy("c")], other=[spy("b")]
)


class TestSharing:
    def test_what_chains_share_is_made_once(self, tmp_path: Path) -> None:
        found = build(tmp_path, SHARED)
        assert Spy.calls == ["a", "b", "c", "b"]
        assert found["three"].notes == ("a", "b", "c")
        assert len({each.artifact_sha256 for each in found.values()}) == 4

    def test_a_second_build_makes_nothing(self, tmp_path: Path) -> None:
        first = build(tmp_path, SHARED)
        Spy.calls.clear()
        assert build(tmp_path, SHARED) == first
        assert Spy.calls == []

    def test_other_settings_never_meet_an_old_result(self, tmp_path: Path) -> None:
        one = build(tmp_path, recipe(x=[spy("a")]))["x"]
        other = build(tmp_path, recipe(x=[spy("z")]))["x"]
        assert Spy.calls == ["a", "z"]
        assert one.lineage.key != other.lineage.key

    def test_a_damaged_result_is_made_again(self, tmp_path: Path) -> None:
        (made,) = build(tmp_path, recipe(x=[spy("a")])).values()
        whole = made.path.read_bytes()
        made.path.chmod(0o644)
        made.path.write_bytes(whole[:-1])
        assert build(tmp_path, recipe(x=[spy("a")]))["x"].path.read_bytes() == whole
        assert Spy.calls == ["a", "a"]


class TestInterruption:
    def test_it_goes_on_where_it_was_stopped(self, tmp_path: Path) -> None:
        builder = Builder(tmp_path).build(SHARED, FASHION, CalibrationData())
        assert next(builder).name == "one"
        Spy.raises.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            next(builder)
        assert Spy.calls == ["a", "b"]
        build(tmp_path, SHARED)
        assert Spy.calls == ["a", "b", "b", "c", "b"]

    @pytest.mark.parametrize("write", [1, 2, 3, 4, 5])
    def test_a_killed_process_leaves_no_half_file(self, tmp_path: Path, write: int) -> None:
        code = (
            "import itertools, os, signal, sys\n"
            "from pathlib import Path\n"
            "from tests.unit.variants.making import test_builder as here\n"
            f"count, flush, target = itertools.count(1), os.fsync, {write}\n"
            "def die(file):\n"
            "    if next(count) == target:\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    flush(file)\n"
            "os.fsync = die\n"
            "here.build(Path(sys.argv[1]), here.SHARED)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            cwd=Path(__file__).parents[4],
            timeout=120,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        for path in (tmp_path / "artifacts").rglob("[!.]*"):
            if path.is_file():
                assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        records = list((tmp_path / "steps").glob("[!.]*"))
        assert len(records) == (write - 1) // 2
        assert all(json.loads(path.read_bytes())["artifact_sha256"] for path in records)
        assert build(tmp_path, SHARED) == build(tmp_path, SHARED)

    def test_a_full_disk_is_told_and_leaves_the_folder_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build(tmp_path, recipe(one=[spy("a")]))
        before = files(tmp_path)

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StoreError, match=r"No space left on device.*Free some space"):
                build(tmp_path, SHARED)
        assert files(tmp_path) == before
        assert len(build(tmp_path, SHARED)) == 4

    def test_a_full_disk_at_the_record_is_told_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename = Path.replace

        def full(self: Path, target: Path) -> Path:
            if target.suffix == ".json":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return rename(self, target)

        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(StoreError, match="what was made is kept"):
            build(tmp_path, SHARED)
        assert [path for path in files(tmp_path) if ".part" in path or ".json" in path] == []


class TestRefusals:
    def test_the_others_are_made_all_the_same(self, tmp_path: Path) -> None:
        chains = recipe(small=["optimise", {"resolution": {"px": 20}}], plain=["optimise"])
        found = build(tmp_path, chains, pictures())
        assert isinstance(found["small"], RefusedVariant)
        assert "['N', 28, 28]" in found["small"].reason
        assert found["plain"].fidelity.top_1_agreement == 1.0

    def test_what_was_refused_is_not_tried_twice(self, tmp_path: Path) -> None:
        Spy.raises.append(InvalidInputError("spy: no"))
        found = build(tmp_path, recipe(one=[spy("a")], two=[spy("a"), spy("b")]))
        assert [each.reason for each in found.values()] == ["spy: no", "spy: no"]
        assert Spy.calls == ["a"]

    def test_a_tool_that_fails_says_whose_it_is(self, tmp_path: Path) -> None:
        Spy.raises.append(RuntimeError("unheard of"))
        (found,) = build(tmp_path, recipe(one=[spy("a")])).values()
        assert found.reason == f"{HERE}: it fails on this model: RuntimeError: unheard of"

    def test_no_room_for_temporary_files_is_told(self, tmp_path: Path) -> None:
        Spy.raises.append(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        (found,) = build(tmp_path, recipe(one=[spy("a")])).values()
        assert "No space left on device. Free some space, or set TMPDIR" in found.reason

    def test_a_maker_that_lies_about_losing_nothing_is_found_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def scaled(self: Spy, model: ModelProto, calibration: CalibrationData) -> Made:
            bias = next(t for t in model.graph.initializer if t.name == "dense.bias")
            bias.raw_data = bytes(len(bias.raw_data))
            return Made(model)

        monkeypatch.setattr(Spy, "lossless", True)
        monkeypatch.setattr(Spy, "make", scaled)
        (found,) = build(tmp_path, recipe(one=[spy("a")]), pictures()).values()
        assert "output 'probabilities' of call 0 at [0, 5]: got" in found.reason

    def test_a_source_that_is_no_model_ends_it(self, tmp_path: Path) -> None:
        with pytest.raises(IntegrityError):
            list(Builder(tmp_path).build(SHARED, b"no model", CalibrationData()))


class TestRebuilding:
    CHAINS = recipe(
        static=["optimise", {"int8-static": {"calibration": "entropy"}}],
        slim=[{"prune-structured": {"multiple_of": 1}}, "fp16"],
        plain=[],
    )

    def test_bit_for_bit(self, tmp_path: Path) -> None:
        data = pictures()
        for made in build(tmp_path, self.CHAINS, data).values():
            kept = json.loads(json.dumps(asdict(made.lineage)))
            again = rebuild(Lineage.of_document(kept), FASHION, data)
            assert again == made.path.read_bytes()
            assert hashlib.sha256(again).hexdigest() == made.artifact_sha256

    def test_what_differs_is_named(self, tmp_path: Path) -> None:
        made: MadeVariant = build(tmp_path, self.CHAINS, pictures())["static"]
        lineage = made.lineage
        with pytest.raises(IntegrityError, match="calibration_sha256: got"):
            rebuild(lineage, FASHION, pictures(32))
        older = replace(lineage, tools={**lineage.tools, "onnxruntime": "1.0"})
        with pytest.raises(IntegrityError, match=r"lineage.tools: got .*'onnxruntime': '1.0'"):
            rebuild(older, FASHION, pictures())
        with pytest.raises(IntegrityError, match="source_sha256"):
            rebuild(lineage, FASHION + b"\x00", pictures())

    def test_data_that_no_step_looks_at_is_not_recorded(self, tmp_path: Path) -> None:
        made = build(tmp_path, recipe(x=["bf16"]), pictures())["x"]
        assert made.lineage.calibration_sha256 is None
        assert made.lineage.tools.keys() == {"modelless", "numpy", "onnx"}


@pytest.mark.slow
def test_a_family_of_efficientnet_lite0(tmp_path: Path) -> None:
    source = write_graph(load_network(ARCHITECTURES[0]), 224).SerializeToString()
    photos = crops(np.random.default_rng(1), 4, UNLABELLED)
    data = CalibrationData(tuple({"image": crop.pixels[None]} for crop in photos))
    some = ("fp32-fused", "bf16", "int8", "int8-160", "sparse", "slim", "fp32-192")
    chains = Recipe({name: default_recipe().chains[name] for name in some})
    found = {each.name: each for each in Builder(tmp_path).build(chains, source, data)}
    assert [name for name, each in found.items() if isinstance(each, RefusedVariant)] == []
    bytes_of = {name: each.path.stat().st_size for name, each in found.items()}
    assert bytes_of["int8"] < 0.3 * len(source)
    assert bytes_of["bf16"] < 0.52 * len(source)
    assert bytes_of["slim"] < 0.9 * len(source)
    assert (found["int8-160"].precision, found["int8-160"].resolution_px) == (Precision.INT8, 160)
    assert (found["slim"].precision, found["slim"].resolution_px) == (None, None)
    assert found["fp32-fused"].fidelity.sqnr_db > 80.0
    assert found["int8"].fidelity.sqnr_db > 8.0
