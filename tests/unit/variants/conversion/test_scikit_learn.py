"""scikit-learn models become ONNX and answer as before, or are refused."""

from __future__ import annotations

import pickle
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import modelless.variants.conversion.converted
from modelless.common.errors import IntegrityError, InvalidInputError, NotFoundError
from modelless.variants.conversion import scikit_learn
from modelless.variants.conversion.converted import Source, convert
from modelless.variants.graphs.inspection import inspect_onnx, parse_onnx
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.session import Session
from modelless.variants.making.verification import Tolerance, verify_conversion

from . import models

pytest.importorskip("skl2onnx", reason="pip install 'modelless[sklearn]'")

HERE = f"{models.__name__}:"
DATA = CalibrationData.of({"pixels": models.digits()[0][600:900]}, 100)


def converted(name: str) -> Source:
    return convert("scikit-learn", HERE + name, DATA)


def tolerate(monkeypatch: pytest.MonkeyPatch, tolerance: Tolerance) -> None:
    verify = partial(verify_conversion, tolerance=tolerance)
    monkeypatch.setattr(modelless.variants.conversion.converted, "verify_conversion", verify)


@pytest.mark.parametrize("name", ["linear", "forest"])
def test_a_classifier_answers_as_before(name: str) -> None:
    result = converted(name)
    facts = inspect_onnx(result.onnx_bytes)
    assert [(each.name, each.datatype, each.shape) for each in facts.inputs] == [
        ("pixels", "FP32", (-1, 64))
    ]
    assert [each.name for each in facts.outputs] == ["label", "probabilities"]
    assert result.framework == "scikit-learn"
    assert result.tools.keys() == {"modelless", "onnx", "skl2onnx", "sklearn"}
    x, y = models.digits()
    found = Session(result.onnx_bytes).run({"pixels": x[900:]})["probabilities"]
    assert (found.argmax(axis=1) == y[900:]).mean() > 0.85


def test_labels_are_looked_up_by_a_standard_operator() -> None:
    x, y = (each[:300] for each in models.digits())
    graph = parse_onnx(converted("network").onnx_bytes).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("Gather") == 1
    assert not [kind for kind in kinds if kind.startswith("ArrayFeatureExtractor")]
    found = Session(converted("network").onnx_bytes).run({"pixels": x})["label"]
    assert found.shape == (300,)
    assert (found == y).mean() > 0.9


def test_a_regressor(monkeypatch: pytest.MonkeyPatch) -> None:
    tolerate(monkeypatch, Tolerance(absolute=1e-4))
    result = converted("ridge")
    found = Session(result.onnx_bytes).run({"pixels": models.digits()[0][:5]})
    assert found["variable"].shape == (5, 1)


def test_the_same_model_gives_the_same_bytes() -> None:
    assert converted("linear").onnx_bytes == converted("linear").onnx_bytes


def test_what_differs_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tolerate(monkeypatch, Tolerance(absolute=0.0, relative=1e-12))
    with pytest.raises(InvalidInputError, match=r"output 'probabilities' of call 0 at \[\d+, \d\]"):
        converted("linear")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("model.pkl", "Pickles are never read: they are programs"),
        (HERE + "NO_MODEL", "It is 'a text'"),
        (HERE + "digits", "It is "),
        (HERE + "failing", "It raised RuntimeError: out of luck"),
        (HERE + "untrained", "skl2onnx refuses"),
    ],
)
def test_what_is_no_model_is_refused(source: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        convert("scikit-learn", source, DATA)


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        convert("scikit-learn", "nowhere:model", DATA)


def test_inputs_of_another_form_are_refused() -> None:
    images = CalibrationData.of({"pixels": np.zeros((4, 8, 8), np.float32)})
    with pytest.raises(InvalidInputError, match=r"one array \[items, features\]"):
        convert("scikit-learn", HERE + "linear", images)
    doubles = CalibrationData.of({"pixels": np.zeros((4, 64))})
    with pytest.raises(InvalidInputError, match="got 'float64'; allowed: float32, int64 or text"):
        convert("scikit-learn", HERE + "linear", doubles)


class TestSkops:
    @pytest.fixture(autouse=True)
    def _needs_skops(self) -> None:
        pytest.importorskip("skops", reason="pip install 'modelless[sklearn]'")

    def saved(self, model: object, folder: Path) -> str:
        import skops.io

        skops.io.dump(model, folder / "model.skops")
        return str(folder / "model.skops")

    def test_harmless_types_are_read(self, tmp_path: Path) -> None:
        result = convert("scikit-learn", self.saved(models.linear(), tmp_path), DATA)
        assert result.onnx_bytes == converted("linear").onnx_bytes

    def test_others_are_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match=r"got 'sklearn.tree._tree.Tree'"):
            convert("scikit-learn", self.saved(models.forest(), tmp_path), DATA)

    def test_what_unpacks_to_too_much_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = self.saved(models.linear(), tmp_path)
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        monkeypatch.setattr(scikit_learn, "MAX_ARTIFACT_BYTES", unpacked - 1)
        with pytest.raises(IntegrityError, match=f"up to {unpacked - 1} bytes"):
            convert("scikit-learn", path, DATA)

    def test_a_pickle_in_disguise_is_not_run(self, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

        path = tmp_path / "model.skops"
        path.write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(InvalidInputError, match=r"a file that skops.io.dump wrote"):
            convert("scikit-learn", str(path), DATA)
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "features", "words"),
    [
        ("ridge", 60, "ValueError: X has 60 features"),
        ("scaler", 64, "AttributeError: 'StandardScaler' object has no attribute 'predict'"),
    ],
)
def test_a_model_that_fails_on_the_inputs_is_told_of(name: str, features: int, words: str) -> None:
    inputs = CalibrationData.of({"pixels": models.digits()[0][:9, :features]})
    with pytest.raises(InvalidInputError, match=f"models:{name} fails on the inputs: {words}"):
        convert("scikit-learn", HERE + name, inputs)
