"""PyTorch modules and programs become ONNX; archives are read without their pickles."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import IntegrityError, InvalidInputError
from modelless.variants.conversion.converted import convert
from modelless.variants.conversion.pytorch import without_pickles
from modelless.variants.graphs.inspection import inspect_onnx
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.session import Session

from . import models

HERE = f"{models.__name__}:"
PLAIN = {"config": {"w": {"path_name": "weight_0", "use_pickle": False}}}


def archive(folder: Path, **files: object) -> str:
    """A ``.pt2`` file; slashes in names are written as two underscores."""
    path = folder / "model.pt2"
    contents: dict[str, object] = {"models__model.json": {}, "archive_version": b"0"} | files
    with zipfile.ZipFile(path, "w") as file:
        for name, content in contents.items():
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            file.writestr("model/" + name.replace("__", "/"), raw)
    return str(path)


class TestArchive:
    @pytest.mark.parametrize(
        ("place", "value"), [(8, 1), (10, 99)], ids=["encrypted", "packed in an unknown way"]
    )
    def test_what_cannot_be_unpacked_is_told(self, tmp_path: Path, place: int, value: int) -> None:
        source = Path(archive(tmp_path))
        content = bytearray(source.read_bytes())
        for start, offset in ((b"PK\3\4", place - 2), (b"PK\1\2", place)):
            content[content.index(start) + offset] = value
        source.write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"allowed: a \.pt2 file"):
            without_pickles(str(source))

    def test_a_config_too_deep_is_damaged(self, tmp_path: Path) -> None:
        deep = {"data__weights__model_weights_config.json": b"[" * 200_000}
        with pytest.raises(IntegrityError, match="it is damaged"):
            without_pickles(archive(tmp_path, **deep))

    def test_sample_inputs_are_emptied_and_the_rest_is_kept(self, tmp_path: Path) -> None:
        config = {"data__weights__model_weights_config.json": PLAIN}
        given = {"data__weights__weight_0": b"1234", "data__sample_inputs__model.pt": b"pickle"}
        source = archive(tmp_path, **config, **given)
        with zipfile.ZipFile(without_pickles(source)) as copy:
            assert copy.read("model/data/sample_inputs/model.pt") == b""
            assert copy.read("model/data/weights/weight_0") == b"1234"

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            (
                "data__weights__model_weights_config.json",
                {"config": {"w": {"path_name": "weight_0", "use_pickle": True}}},
                "w would be unpickled",
            ),
            (
                "data__constants__model_constants_config.json",
                {"config": {"c": {"path_name": "opaque_obj_0", "use_pickle": False}}},
                "c would be unpickled",
            ),
            ("data__constants__model_constants_config.json", {"config": [1]}, "it is damaged"),
            ("data__weights__model.pt", b"", "the format of older versions is a pickle"),
            ("data__aotinductor__model__model.so", b"", "no part of a plain exported program"),
            ("serialized_state_dict.pt", b"", "no part of a plain exported program"),
        ],
    )
    def test_what_would_run_is_refused(
        self, tmp_path: Path, name: str, content: object, words: str
    ) -> None:
        with pytest.raises(IntegrityError, match=words):
            without_pickles(archive(tmp_path, **{name: content}))

    def test_what_is_no_archive_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "model.pt2"
        path.write_bytes(pickle.dumps([1]))
        with pytest.raises(InvalidInputError, match=r"a .pt2 file"):
            without_pickles(str(path))
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("model/data.pkl", b"")
        with pytest.raises(InvalidInputError, match=r"PyTorch 2.8 or later"):
            without_pickles(str(path))


@pytest.fixture
def torch() -> Any:
    """PyTorch, if it is installed with what its exporter needs."""
    found = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    return found


def pictures(*shapes: tuple[int, ...]) -> CalibrationData:
    rng = np.random.default_rng(0)
    return CalibrationData(tuple({"x": rng.random(shape, np.float32)} for shape in shapes))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("torch")
class TestModule:
    def test_it_answers_as_before_for_any_number_of_items(self) -> None:
        data = pictures((1, 1, 8, 8), (5, 1, 8, 8))
        result = convert("pytorch", HERE + "convolution", data)
        facts = inspect_onnx(result.onnx_bytes)
        assert (facts.inputs[0].name, facts.inputs[0].shape) == ("x", (-1, 1, 8, 8))
        assert (facts.outputs[0].name, facts.outputs[0].shape) == ("output", (-1, 3))

    def test_what_differs_between_calls_stays_free(self) -> None:
        data = pictures((1, 1, 8, 8), (2, 1, 10, 8))
        result = convert("pytorch", HERE + "convolution", data)
        assert inspect_onnx(result.onnx_bytes).inputs[0].shape == (-1, 1, -1, 8)

    def test_something_else_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="Module or a function"):
            convert("pytorch", HERE + "NO_MODEL", pictures((1, 1, 8, 8)))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
class TestProgram:
    def saved(self, torch: Any, folder: Path) -> str:
        free = ({0: torch.export.Dim.DYNAMIC},)
        example = (torch.zeros(2, 1, 8, 8),)
        program = torch.export.export(models.convolution().eval(), example, dynamic_shapes=free)
        torch.export.save(program, folder / "model.pt2")
        return str(folder / "model.pt2")

    def test_it_answers_as_the_module(self, torch: Any, tmp_path: Path) -> None:
        data = pictures((3, 1, 8, 8))
        result = convert("pytorch", self.saved(torch, tmp_path), data)
        of_module = convert("pytorch", HERE + "convolution", data)
        found = [
            Session(each.onnx_bytes).run(data.feeds[0])["output"] for each in (result, of_module)
        ]
        assert found[0] == pytest.approx(found[1], abs=1e-6)

    def test_sample_inputs_are_not_unpickled(self, torch: Any, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[object, tuple[Path]]:
                return Path.touch, (tmp_path / "ran",)

        trapped = io.BytesIO()
        saved = self.saved(torch, tmp_path)
        with zipfile.ZipFile(saved) as whole, zipfile.ZipFile(trapped, "w") as file:
            for name in whole.namelist():
                inputs = "sample_inputs" in name
                file.writestr(name, pickle.dumps(Bomb()) if inputs else whole.read(name))
        (tmp_path / "model.pt2").write_bytes(trapped.getvalue())
        source = str(tmp_path / "model.pt2")
        assert convert("pytorch", source, pictures((3, 1, 8, 8))).framework == "pytorch"
        assert not (tmp_path / "ran").exists()
