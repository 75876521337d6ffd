"""``modelless make`` and ``rebuild``: one model, a family of variants, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import TensorProto, helper
from sqlalchemy import select

from modelless.common.files import held
from modelless.controller.usecases.registry import family as family_module
from modelless.profiler.measure.noise import HostNoise, Noise
from modelless.profiler.measure.records import Records
from modelless.variants.making.origins import find_origin
from modelless.variants.registry.outcomes import latest_outcomes
from modelless.variants.registry.registry import open_registry
from modelless.variants.runtimes.engines import engine_status
from modelless.variants.store import HistoryRow
from modelless.variants.store.rows import MADE
from modelless.variants.vocabulary import Engine, Provenance
from modelless.variants.zoo.fashion_mnist import DATA, FashionMnist

from . import made_models
from .conftest import Ran, Run
from .tiny import labelled_pictures, measurement, tiny_bytes

ITEMS = 400
RECIPE: dict[str, list[Any]] = {
    "fp32": ["optimise"],
    "fp16": ["optimise", "fp16"],
    "int8": ["optimise", "int8-static"],
    "again": ["optimise"],
    "small": ["optimise", {"resolution": {"px": 20}}],
}
QUICK = ("--batches", 1, "--budget", "1s", "--accept-noise", "--json")
HAS_OPENVINO = engine_status(Engine.OPENVINO).available
HERE = made_models.__name__


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Labelled pictures of Fashion-MNIST."""
    return labelled_pictures(tmp_path, ITEMS)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A trained network."""
    path = tmp_path / "net.onnx"
    path.write_bytes((DATA / "cnn-s-fp32.onnx").read_bytes())
    return path


def recipe(folder: Path, chains: dict[str, list[Any]]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"variants": chains}, sort_keys=False))
    return path


def make(run: Run, source: object, data: Path, *words: object, task: str = "clothes") -> Ran:
    return run(
        "make", source, "--task", task, "--model", "net", "--validation", data, *QUICK, *words
    )


def on_one(run: Run, source: Path, data: Path, chains: dict[str, list[Any]] = RECIPE) -> Ran:
    """Made for ONNX Runtime only."""
    return make(
        run, source, data, "--recipe", recipe(data.parent, chains), "--engine", "onnxruntime-cpu"
    )


def made_rows(home: Path) -> Counter[str]:
    """How often the history says that each variant was made."""
    with closing(open_registry(home)) as registry, registry.store.session() as session:
        return Counter(session.scalars(select(HistoryRow.subject).where(HistoryRow.kind == MADE)))


def check_whole(home: Path) -> set[str]:
    """Names of what is registered; each has its file, its accuracy, its outcomes, its origin."""
    with closing(open_registry(home)) as registry:
        variants = registry.variants("clothes")
        outcomes = latest_outcomes(registry.store, [variant.id for variant in variants])
        for variant in variants:
            registry.artifacts.read(variant.artifact_sha256)
            assert variant.accuracy.provenance is Provenance.MEASURED
            assert len(outcomes[variant.id].is_right) == variant.accuracy.sample_count
            assert find_origin(registry.store, variant.id) is not None
    return {variant.name for variant in variants}


def test_labels_of_another_order_are_suspected(
    run: Run, home: Path, source: Path, tmp_path: Path
) -> None:
    images, labels = FashionMnist().test_split()
    path = tmp_path / "shifted.npz"
    np.savez(path, image=images[:ITEMS], labels=(labels[:ITEMS] + 1) % 10)
    ran = on_one(run, source, path, {"fp32": ["optimise"]})
    assert ran.code == 0, ran.err
    assert "% is no better than guessing one of 10 classes: are the labels" in ran.err


def test_one_model_becomes_a_family(run: Run, home: Path, source: Path, data: Path) -> None:
    ran = make(
        run, source, data, "--recipe", recipe(data.parent, RECIPE), "--report", data.parent / "rep"
    )
    assert ran.code == 0, ran.err
    assert "no better than guessing" not in ran.err
    found = ran.document
    names = {row["name"]: row for row in found["variants"]}
    expected = {"fp32", "fp16", "int8"}
    assert names.keys() == expected | (
        {f"{n}-openvino" for n in expected} if HAS_OPENVINO else set()
    )
    assert found["left_out"]["again"] == "it is the very same file as fp32"
    assert "resolution: inputs" in found["left_out"]["small"]
    assert found["calibration_items"] == ITEMS // 5
    assert found["validation_set"]["measured_on"] == ITEMS - ITEMS // 5
    for row in names.values():
        assert 85 < row["accuracy_low"] < row["accuracy"] < row["accuracy_high"] < 99
        assert row["accuracy_provenance"] == "measured"
        assert row["fidelity"]["sqnr_db"] > 30
        assert row["profiled"]["cpu-1"]["p50_ms"] > 0
        assert row["steps"][0]["maker"] == "optimise"
    assert names["fp32"]["fidelity"]["items"] == ITEMS // 5
    assert (names["int8"]["precision"], names["fp32"]["precision"]) == ("int8", "fp32")
    page = (data.parent / "rep" / "report.html").read_text()
    assert all(row["variant"] in page for row in names.values())
    pictures = sorted(path.name for path in (data.parent / "rep").glob("*.png"))
    assert "frontier-latency-clothes.png" in pictures
    assert check_whole(home) == names.keys()
    with closing(open_registry(home)) as registry:
        (task,) = registry.tasks()
        assert [spec.name for spec in task.inputs] == ["image"]


def test_the_second_time_nothing_is_done(run: Run, home: Path, source: Path, data: Path) -> None:
    first, again = (on_one(run, source, data).document["variants"] for _ in range(2))
    assert [row["was_there"] for row in first] == [False] * 3
    assert [row["was_there"] for row in again] == [True] * 3
    assert [row["variant"] for row in first] == [row["variant"] for row in again]
    assert set(made_rows(home).values()) == {1}


def test_a_model_that_was_trained_again_makes_new_versions(
    run: Run, home: Path, source: Path, data: Path
) -> None:
    chains = {"fp32": ["optimise"]}
    assert on_one(run, source, data, chains).code == 0
    newer = source.with_name("newer.onnx")
    newer.write_bytes((DATA / "cnn-xs-fp32.onnx").read_bytes())
    (row,) = on_one(run, newer, data, chains).document["variants"]
    assert row["variant"] == "clothes/net/fp32@2"


def test_without_matplotlib_the_table_comes_all_the_same(
    run: Run, source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ("--recipe", recipe(data.parent, {"fp32": ["optimise"]}), "--engine", "onnxruntime-cpu")
    asked = make(run, source, data, *words, "--report", "drawn")
    assert asked.code == 7
    assert "matplotlib" in asked.err.lower()
    plain = [word for word in QUICK if word != "--json"]
    ran = run(
        "make", source, "--task", "clothes", "--model", "net", "--validation", data, *words, *plain
    )
    assert ran.code == 0, ran.err
    assert "clothes/net/fp32@1" in ran.out
    assert "nothing is drawn" in ran.err


def test_more_items_are_measured_anew(run: Run, home: Path, source: Path, data: Path) -> None:
    chains = {"fp32": RECIPE["fp32"]}
    path = recipe(data.parent, chains)
    few = make(run, source, data, "--recipe", path, "--engine", "onnxruntime-cpu", "--sample", 50)
    assert few.document["validation_set"]["measured_on"] == 50
    (row,) = on_one(run, source, data, chains).document["variants"]
    assert (row["variant"], row["was_there"]) == ("clothes/net/fp32@1", False)
    with closing(open_registry(home)) as registry:
        assert registry.variant("clothes/net/fp32").accuracy.sample_count == ITEMS - ITEMS // 5


def test_a_table_is_shown(run: Run, source: Path, data: Path) -> None:
    words = [word for word in QUICK if word != "--json"]
    ran = run(
        "make", source, "--task", "clothes", "--model", "net", "--validation", data, *words,
        "--recipe", recipe(data.parent, {"fp32": ["optimise"]}), "--engine", "onnxruntime-cpu",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "clothes/net/fp32@1" in ran.out
    assert "measured (" in ran.out
    assert "1 variant by 1 maker on 1 engine" in ran.err
    assert "report: net-report/report.html" in ran.err
    assert (data.parent / "net-report" / "report.html").is_file()


class TestRebuild:
    @pytest.fixture
    def made(self, run: Run, home: Path, source: Path, data: Path) -> Path:
        chains = {"int8": [{"int8-static": {"calibration": "percentile"}}]}
        assert on_one(run, source, data, chains).code == 0
        source.unlink()  # nothing but the home is needed
        data.unlink()
        return home

    def artifact(self, home: Path) -> Path:
        with closing(open_registry(home)) as registry:
            sha256 = registry.variant("clothes/net/int8").artifact_sha256
        return home / "artifacts" / sha256[:2] / sha256

    def test_gives_the_very_bytes(self, run: Run, made: Path, tmp_path: Path) -> None:
        ran = run("rebuild", "clothes/net/int8", "--output", tmp_path / "int8.onnx", "--json")
        assert ran.code == 0, ran.err
        assert ran.document["restored"] is False
        assert (tmp_path / "int8.onnx").read_bytes() == self.artifact(made).read_bytes()

    def test_what_cannot_be_written_is_told_first(self, run: Run, home: Path) -> None:
        ran = run("rebuild", "no/such/variant", "--output", "nowhere/int8.onnx")
        assert ran.code == 2
        assert "--output: got 'nowhere/int8.onnx'; allowed: a file" in ran.err

    def test_a_damaged_file_is_made_whole(self, run: Run, made: Path) -> None:
        path = self.artifact(made)
        content = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(b"damaged")
        ran = run("rebuild", "clothes/net/int8@1")
        assert ran.code == 0, ran.err
        assert "is whole again" in ran.out
        assert path.read_bytes() == content

    def test_other_tools_are_told(
        self, run: Run, made: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("onnxruntime.__version__", "0.9.9")
        ran = run("rebuild", "clothes/net/int8")
        assert ran.code == 5
        assert "lineage.tools" in ran.err
        assert "0.9.9" in ran.err

    def test_what_was_not_made_has_no_lineage(self, run: Run, registered: Path) -> None:
        ran = run("rebuild", "pixels/mean/small")
        assert ran.code == 3
        assert "not made by 'modelless make'" in ran.err


class TestInterrupted:
    def test_ctrl_c_keeps_what_was_made(
        self, run: Run, home: Path, source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, calls = family_module.measure_accuracy, []

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        monkeypatch.setattr(family_module, "measure_accuracy", interrupted)
        ran = on_one(run, source, data)
        assert ran.code == 130
        assert "goes on from here" in ran.err
        assert check_whole(home) == {"fp32"}
        rows = on_one(run, source, data).document["variants"]
        assert [(row["name"], row["was_there"]) for row in rows] == [
            ("fp32", True),
            ("fp16", False),
            ("int8", False),
        ]
        assert len(calls) == 4  # fp16 twice
        assert check_whole(home) == {"fp32", "fp16", "int8"}

    @pytest.mark.slow
    def test_killed_it_goes_on(self, run: Run, home: Path, source: Path, data: Path) -> None:
        chains = {"fp32": ["optimise"], "last": ["optimise", f"{HERE}:Dying"]}
        words = [
            "make", source, "--task", "clothes", "--model", "net", "--validation", data, *QUICK,
            "--recipe", recipe(data.parent, chains), "--engine", "onnxruntime-cpu",
        ]  # fmt: skip
        killed = subprocess.run(
            [sys.executable, "-m", "modelless.controller.cli", *map(str, words)],
            env=os.environ | {"MODELLESS_TEST_DIES": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert killed.returncode == -9, killed.stderr
        assert check_whole(home) == {"fp32"}
        ran = run(*words)  # no lock is in its way
        assert ran.code == 0, ran.err
        assert [row["was_there"] for row in ran.document["variants"]] == [True, False]
        assert check_whole(home) == {"fp32", "last"}

    def test_a_second_process_is_told_who_is_at_it(
        self, run: Run, home: Path, source: Path, data: Path
    ) -> None:
        with held(home / "making" / "clothes--net.lock", "a test"):
            ran = on_one(run, source, data)
        assert ran.code == 7
        assert f"making variants of clothes/net: process {os.getpid()} is at it" in ran.err
        assert on_one(run, source, data, {"fp32": ["optimise"]}).code == 0

    @pytest.mark.parametrize("written", [0, 3, 5])
    def test_a_full_disk_harms_nothing(
        self,
        run: Run,
        home: Path,
        source: Path,
        data: Path,
        monkeypatch: pytest.MonkeyPatch,
        written: int,
    ) -> None:
        real, calls = os.fsync, []

        def full(descriptor: int) -> None:
            calls.append(descriptor)
            if len(calls) > written:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr("modelless.variants.artifacts.os.fsync", full)
            ran = on_one(run, source, data)
        assert ran.code == 6
        assert "No space left on device" in ran.err
        assert "Free some space" in ran.err
        assert not list(home.rglob("*.part"))
        check_whole(home)
        assert on_one(run, source, data).code == 0
        assert check_whole(home) == {"fp32", "fp16", "int8"}


class TestRefused:
    def test_wrong_labels(self, run: Run, home: Path, source: Path, data: Path) -> None:
        images, labels = FashionMnist().test_split()
        np.savez(data, image=images[:50], labels=labels[:50].astype(int) + 7)
        ran = on_one(run, source, data)
        assert ran.code == 2
        assert "label: got 1" in ran.err
        assert check_whole(home) == set()

    def test_an_empty_set(self, run: Run, source: Path, data: Path) -> None:
        np.savez(data, image=np.zeros((0, 28, 28), np.uint8), labels=np.zeros(0, np.int64))
        ran = on_one(run, source, data)
        assert ran.code == 2
        assert "the set is empty" in ran.err

    def test_a_set_too_small_to_hold_anything_out(self, run: Run, source: Path, data: Path) -> None:
        images, labels = FashionMnist().test_split()
        np.savez(data, image=images[:4], labels=labels[:4])
        ran = on_one(run, source, data)
        assert ran.code == 2
        assert "--calibration" in ran.err
        apart = on_one(run, source, data, {"fp32": ["optimise"]})
        assert apart.code == 2
        ran = make(
            run, source, data, "--calibration", data, "--recipe",
            recipe(data.parent, {"fp32": ["optimise"]}), "--engine", "onnxruntime-cpu",
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert ran.document["validation_set"]["measured_on"] == 4

    def test_an_operator_of_nobody(self, run: Run, home: Path, source: Path, data: Path) -> None:
        source.write_bytes(tiny_bytes(operator="Mine", domain="my.own"))
        ran = on_one(run, source, data)
        assert ran.code == 5
        assert "my.own" in ran.err
        with closing(open_registry(home)) as registry:
            assert registry.tasks() == ()

    def test_an_operator_that_no_engine_has(
        self, run: Run, home: Path, source: Path, data: Path
    ) -> None:
        graph = helper.make_graph(
            [helper.make_node("DeformConv", ["x", "w", "o"], ["y"])],
            "g",
            [
                helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["N", 1, 4, 4])
                for name in ("x", "w", "o")
            ],
            [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["N", 1, 1, 1])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        source.write_bytes(model.SerializeToString())
        array = np.zeros((50, 1, 4, 4))
        np.savez(data, x=array, w=array, o=array, labels=np.zeros(50, np.int64))
        ran = make(run, source, data, "--metric", "top-1")
        assert ran.code == 2, ran.err
        with closing(open_registry(home)) as registry:
            assert registry.variants() == ()

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("model.keras", "Write a function that loads it"),
            ("model.pkl", "Write a function that loads it"),
            ("model.txt", "allowed: an .onnx file"),
            ("missing.onnx", "missing.onnx"),
            (f"{HERE}:network", "--framework: got None; allowed: pytorch, scikit-learn"),
        ],
    )
    def test_what_is_no_source(self, run: Run, data: Path, name: str, words: str) -> None:
        ran = make(run, name, data)
        assert ran.code == 2
        assert words in ran.err

    def test_engines_and_tasks_that_are_not_there(self, run: Run, source: Path, data: Path) -> None:
        ran = make(run, source, data, "--engine", "tensorrt")
        assert ran.code == 2
        assert "onnxruntime-cpu" in ran.err
        assert run("make", "no/such/variant", "--validation", data).code == 3
        assert run("make", source, "--validation", data, "--model", "m").code == 2
        assert run("make", source, "--validation", data, "--task", "t").code == 2


class TestScikitLearn:
    CHAINS: dict[str, list[Any]] = {  # noqa: RUF012
        "fp32": ["optimise"],
        "plain": [],
        "int8": ["optimise", "int8-static"],
    }

    @pytest.fixture
    def digits(self, tmp_path: Path) -> Path:
        pytest.importorskip("skl2onnx", reason="pip install 'modelless[sklearn]'")
        x, y = made_models.digits()
        path = tmp_path / "digits.npz"
        np.savez(path, pixels=x[made_models.TRAINED_ON :], labels=y[made_models.TRAINED_ON :])
        return path

    def test_made_validated_and_the_dominated_named(
        self, run: Run, home: Path, digits: Path
    ) -> None:
        with closing(open_registry(home)) as registry:
            records = Records(registry.store)
            for name, p50_ms in (("fp32", 1.0), ("plain", 2.0), ("int8", 0.5)):
                records.add(measurement(f"digits/net/{name}@1", 1, p50_ms))
        ran = make(
            run, f"{HERE}:instance", digits, "--recipe", recipe(digits.parent, self.CHAINS),
            "--engine", "onnxruntime-cpu", task="digits",
        )  # fmt: skip
        assert ran.code == 0, ran.err
        rows = {row["name"]: row for row in ran.document["variants"]}
        assert ran.document["source"]["framework"] == "scikit-learn"
        assert ran.document["source"]["tools"].keys() >= {"skl2onnx", "sklearn"}
        x, y = (each[made_models.TRAINED_ON :] for each in made_models.digits())
        percent = 100 * made_models.instance.score(x, y)
        assert rows["fp32"]["accuracy"] == pytest.approx(percent, abs=1.5)
        # Right on the very same items, and half as quick.
        assert rows["plain"]["dominated_by"]["cpu-1"] in ("digits/net/fp32@1", "digits/net/int8@1")
        listed = json.loads(run("variants", "digits", "--json").out)["variants"]
        beaten = {row["name"] for row in listed if row["dominated_by"]}
        assert beaten == {row["name"] for row in rows.values() if row["dominated_by"]}
        assert "plain" in beaten
        # What variants were calibrated on does not count in their accuracy afterwards, either.
        again = run("validate", "digits", "--data", digits, "--json")
        assert again.code == 0, again.err
        count = again.document["validation_set"]["items"]
        assert {row["items"] for row in again.document["variants"]} == {count - count // 5}
        assert f"{count // 5} of {count} items are left out" in again.err
        assert {
            row["variant"].split("/")[2][:-2]: row["accuracy"] for row in again.document["variants"]
        } == {name: row["accuracy"] for name, row in rows.items()}
        with closing(open_registry(home)) as registry:
            origin = find_origin(registry.store, "digits/net/int8@1")
            assert origin is not None
            registry.artifacts.remove(origin.calibration_file_sha256)
        lost = run("validate", "digits", "--data", digits, "--json")
        assert lost.code == 0, lost.err
        assert "left out: variants may have been calibrated on them" in lost.err

    @pytest.mark.skipif(not HAS_OPENVINO, reason="OpenVINO is not installed")
    def test_its_labels_are_looked_up_on_every_engine(self, run: Run, digits: Path) -> None:
        ran = make(
            run, f"{HERE}:network", digits, "--framework", "scikit-learn", "--recipe",
            recipe(digits.parent, {"fp32": ["optimise"]}), task="digits",
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert len({row["accuracy"] for row in ran.document["variants"]}) == 1
        assert [row["engine"] for row in ran.document["variants"]] == [
            "onnxruntime-cpu",
            "openvino",
        ]

    def test_one_that_answers_differently_is_refused(
        self, run: Run, home: Path, digits: Path
    ) -> None:
        ran = make(run, f"{HERE}:lying", digits, "--framework", "scikit-learn", task="digits")
        assert ran.code == 2
        assert "conversion: output 'probabilities' of call 0 at [0, 0]" in ran.err
        with closing(open_registry(home)) as registry:
            assert registry.variants() == ()

    def test_register_converts_too(self, run: Run, home: Path, digits: Path) -> None:
        assert make(
            run, f"{HERE}:instance", digits, "--recipe",
            recipe(digits.parent, {"fp32": ["optimise"]}), "--engine", "onnxruntime-cpu",
            task="digits",
        ).code == 0  # fmt: skip
        words = ("--task", "digits", "--model", "mine", "--name", "fp32", "--precision", "fp32")
        ran = run("register", f"{HERE}:instance", *words, "--validation", digits, "--json")
        assert ran.code == 0, ran.err
        assert ran.document["accuracy_provenance"] == "measured"
        assert ran.document["accuracy"] > 85
        ran = run("register", f"{HERE}:instance", *words)
        assert ran.code == 2
        assert "--validation: got None" in ran.err
        lying = ("register", f"{HERE}:lying", "--framework", "scikit-learn", *words)
        ran = run(*lying, "--validation", digits)
        assert ran.code == 2
        assert "conversion: output 'probabilities'" in ran.err


def test_a_registered_variant_is_a_source(run: Run, home: Path, source: Path, data: Path) -> None:
    chains = {"fp32": ["optimise"]}
    assert on_one(run, source, data, chains).code == 0
    ran = run(
        "make", "clothes/net/fp32", "--validation", data, *QUICK, "--engine", "onnxruntime-cpu",
        "--recipe", recipe(data.parent, {"half": ["fp16"]}),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.document["source"]["name"] == "clothes/net/fp32@1"
    assert check_whole(home) == {"fp32", "half"}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_torch_network(run: Run, home: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("onnxscript", reason="pip install onnxscript")
    network = made_models.convolution().eval()
    x = made_models.digits()[0].reshape(-1, 1, 8, 8)[:400]
    with torch.no_grad():
        labels = network(torch.from_numpy(x)).argmax(1).numpy()
    np.savez(tmp_path / "set.npz", image=x, labels=labels)
    chains = {"fp32": ["optimise"], "int8": ["optimise", "int8-static"]}
    ran = make(
        run, f"{HERE}:convolution", tmp_path / "set.npz", "--framework", "pytorch",
        "--recipe", recipe(tmp_path, chains), task="digits",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = {row["name"]: row for row in ran.document["variants"]}
    assert rows["fp32"]["accuracy"] == 100.0
    assert rows["int8"]["accuracy"] > 90.0
    program = torch.export.export(
        network, (torch.from_numpy(x[:2]),), dynamic_shapes=({0: torch.export.Dim("items")},)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    again = make(run, tmp_path / "net.pt2", tmp_path / "set.npz", "--recipe",
                 recipe(tmp_path, chains), task="digits")  # fmt: skip
    assert again.code == 0, again.err
    assert again.document["source"]["framework"] == "pytorch"


def test_the_best_of_many_is_measured_on_other_items(
    run: Run, home: Path, source: Path, data: Path
) -> None:
    words = ("--recipe", recipe(data.parent, RECIPE), "--engine", "onnxruntime-cpu")
    ran = make(run, source, data, *words, "--sample", 100)
    assert ran.code == 0, ran.err
    assert "was the best of 3 on 100 items, with" in ran.err
    with closing(open_registry(home)) as registry:
        variants = registry.variants("clothes")
        outcomes = latest_outcomes(registry.store, [variant.id for variant in variants])
    assert sorted(each.seed for each in outcomes.values()) == [-100, 0, 0]
    assert {len(each.is_right) for each in outcomes.values()} == {100}
    again = make(run, source, data, *words, "--sample", 100)
    assert (again.code, "was the best of" in again.err) == (0, False)


def test_on_a_noisy_machine_the_family_is_profiled_all_the_same(
    run: Run, home: Path, source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for measure in ("probe", "since"):
        monkeypatch.setattr(HostNoise, measure, lambda *_: Noise(contention=0.9))
    words = ("--recipe", recipe(data.parent, {"fp32": ["optimise"]}), "--engine", "onnxruntime-cpu")
    named = ("--task", "clothes", "--model", "net", "--validation", data, "--batches", 1, "--json")
    ran = run("make", source, *named, *words)
    assert ran.code == 0, ran.err
    assert "note: measured on a busy machine: " in ran.err
    (row,) = ran.document["variants"]
    assert row["profiled"]["cpu-1"]["trusted"] is False
