"""Validation sets: what is read, and what is refused with file and row."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.controller.usecases.inferring import read_tensor
from modelless.variants.signature import check_inputs
from modelless.variants.validation import ValidationSet, open_validation_set
from modelless.variants.validation.expected import Boxes, Expects
from modelless.variants.validation.pictures import PictureInput
from modelless.variants.vocabulary import Task, TensorSpec

Image = pytest.importorskip("PIL.Image")

SCORES = (TensorSpec("scores", "FP32", (-1, 4)),)
LABELS = ("black", "red", "green", "blue")
COLOURS = {"black": (0, 0, 0), "red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
PICTURES = Task(
    "pixels", (TensorSpec("image", "UINT8", (-1, -1, -1, 3)),), SCORES, "top-1", labels=LABELS
)
SMALL = Task("small", (TensorSpec("image", "UINT8", (-1, 4, 4)),), SCORES, "top-1", labels=LABELS)
ROWS = Task("rows", (TensorSpec("x", "FP32", (-1, 2)),), SCORES, "top-1")
CELLS = Task(
    "cells",
    (TensorSpec("age", "INT64", (-1, 1)), TensorSpec("fare", "FP32", (-1,))),
    (TensorSpec("y", "FP32", (-1, 1)),),
    "mae",
)
GREY = replace(SMALL, inputs=(TensorSpec("image", "UINT8", (-1, -1, -1)),))
SHADES = np.linspace(0, 65535, 64).reshape(8, 8)
TURNED = Image.Exif()
TURNED[0x0112] = 6
TEXT = Task("text", (TensorSpec("x", "FP32", (-1, 2)),), SCORES, "cer", labels=("", "a", "b"))


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (4, 4)) -> Path:
    """A picture of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pictures of each colour, in a folder a label."""
    for label, colour in COLOURS.items():
        for number in range(2):
            picture(tmp_path / "set" / label / f"{number}.png", colour)
    return tmp_path / "set"


def opened(path: Path, task: Task = PICTURES, expects: Expects = Expects.CLASS) -> ValidationSet:
    return open_validation_set(path, task, expects)


def npz(path: Path, **arrays: Any) -> Path:
    """An ``.npz`` file."""
    np.savez(path, **arrays)
    return path


# -- pictures ---------------------------------------------------------------------------------


def test_a_folder_of_pictures(folder: Path) -> None:
    found = opened(folder)
    assert (found.name, len(found), len(found.sha256)) == ("set", 8, 64)
    batches = list(found.batches(3))
    assert [len(batch.expected) for batch in batches] == [3, 3, 2]
    assert sorted(each for batch in batches for each in batch.expected) == [0, 0, 1, 1, 2, 2, 3, 3]
    for batch in batches:
        assert batch.inputs["image"].dtype == np.uint8
        for pixels, expected in zip(batch.inputs["image"], batch.expected, strict=True):
            assert pixels.shape == (4, 4, 3)
            assert tuple(pixels[0, 0]) == COLOURS[LABELS[expected]]


def test_pictures_are_padded_as_in_service(tmp_path: Path) -> None:
    padded = replace(PICTURES, inputs=(replace(PICTURES.inputs[0], padding=127),))
    picture(tmp_path / "set" / "red" / "0.png", COLOURS["red"], size=(18, 4))
    pixels = opened(tmp_path / "set", padded).item(0).inputs["image"]
    served, _ = check_inputs(padded, {"image": pixels[None, :, :18]})
    assert np.array_equal(served["image"][0], pixels)
    assert pixels.shape == (4, 20, 3)
    assert (pixels[:, 18:] == 127).all()


@pytest.mark.parametrize("task", [PICTURES, GREY], ids=["colour", "grey"])
@pytest.mark.parametrize(
    ("picture", "suffix", "how"),
    [
        (Image.linear_gradient("L").resize((8, 6)).convert("RGB"), "jpg", {"exif": TURNED}),
        (Image.fromarray(SHADES.astype(np.uint16)), "png", {}),
        (Image.fromarray(SHADES.astype(np.int32)), "tiff", {}),
        (Image.fromarray((SHADES / 65535).astype(np.float32)), "tiff", {}),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "png", {}),
    ],
    ids=["turned", "16 bits", "32 bits", "floats", "transparent"],
)
def test_pictures_are_read_as_in_service(
    tmp_path: Path, task: Task, picture: Any, suffix: str, how: dict[str, Any]
) -> None:
    path = tmp_path / f"0.{suffix}"
    picture.save(path, **how)
    (served,) = read_tensor(path, task.inputs[0])
    pixels = PictureInput.of(task).read(path, "0")
    assert np.array_equal(pixels, served)
    assert len(np.unique(pixels)) > 5 or (pixels == 255).all()


@pytest.mark.parametrize("note", [b"Exif\0\0garbage", b"Exif\0\0MM", b"Exif\0\0MM\0*\0\0\xff\xff"])
def test_a_damaged_note_says_nothing_of_a_picture(tmp_path: Path, note: bytes) -> None:
    path = tmp_path / "0.jpg"
    Image.new("RGB", (4, 4), (250, 0, 0)).save(path, exif=note, dpi=(72, 72))
    assert PictureInput.of(SMALL).read(path, "0").shape[:2] == (4, 4)


def test_items_are_given_in_the_order_asked_for_and_shapes_are_parted(folder: Path) -> None:
    picture(folder / "red" / "9.png", COLOURS["red"], size=(6, 4))
    found = opened(folder)
    order = [0, 1, 8, 2, 3]
    shapes = [batch.inputs["image"].shape for batch in found.batches(8, order)]
    assert shapes == [(2, 4, 4, 3), (1, 4, 6, 3), (2, 4, 4, 3)]


def test_the_digest_follows_content_and_labels(folder: Path) -> None:
    before = opened(folder).sha256
    assert opened(folder).sha256 == before
    (folder / "red" / "0.png").rename(folder / "blue" / "7.png")
    moved = opened(folder).sha256
    assert moved != before
    picture(folder / "blue" / "7.png", (1, 2, 3))
    assert opened(folder).sha256 not in (before, moved)


def test_labels_may_stand_in_a_table_by_name_or_index(folder: Path) -> None:
    (folder / "labels.csv").write_text("file,label\nred/0.png,red\nblue/1.png,3\n")
    found = opened(folder)
    assert [found.item(index).expected for index in range(2)] == [3, 1]
    assert len(opened(folder, expects=Expects.NOTHING)) == 8


def test_grey_pictures_are_of_the_input_shape(tmp_path: Path) -> None:
    picture(tmp_path / "set" / "red" / "a.jpg", (9, 9, 9))
    assert opened(tmp_path / "set", SMALL).item(0).inputs["image"].shape == (4, 4)
    channel = Task("c", (TensorSpec("image", "UINT8", (-1, 4, 4, 1)),), SCORES, "t", labels=LABELS)
    assert opened(tmp_path / "set", channel).item(0).inputs["image"].shape == (4, 4, 1)


def test_boxes_stand_in_a_table(folder: Path) -> None:
    (folder / "labels.csv").write_text(
        "file,label,x1,y1,x2,y2\nred/0.png,red,0,0,2,2\nred/0.png,2,1,1,3,3\nblue/0.png,,,,,\n"
    )
    found = opened(folder, expects=Expects.BOXES)
    none, two = (found.item(index).expected for index in range(2))
    assert (none.corners.shape, two.classes.tolist()) == ((0, 4), [1, 2])
    assert two.corners.tolist() == [[0, 0, 2, 2], [1, 1, 3, 3]]
    assert len(found.sha256) == 64


def refuse_label(folder: Path) -> str:
    (folder / "purple").mkdir()
    return "purple: label: got 'purple'; allowed: a label of task 'pixels', or an index of 0 to 3"


def refuse_index(folder: Path) -> str:
    (folder / "4").mkdir()
    return "label: got 4"


def refuse_table_label(folder: Path) -> str:
    (folder / "labels.csv").write_text("file,label\nred/0.png,red\nred/1.png,reed\n")
    return r"labels.csv, line 3: label: got 'reed'.*Did you mean red"


def refuse_table_file(folder: Path) -> str:
    (folder / "labels.csv").write_text("file,label\n../set/red/0.png,red\nnone.png,red\n")
    return r"line 3: file: got 'none.png'"


def refuse_outside(folder: Path) -> str:
    picture(folder.parent / "out.png", (0, 0, 0))
    (folder / "labels.csv").write_text("file,label\n../out.png,red\n")
    return r"line 2: file: got '../out.png'"


def refuse_twice(folder: Path) -> str:
    (folder / "labels.csv").write_text("file,label\nred/0.png,red\nred/0.png,blue\n")
    return "each file once"


def refuse_columns(folder: Path) -> str:
    (folder / "labels.csv").write_text("name,label\nred/0.png,red\n")
    return "columns: got 'name, label'; allowed: one called 'file'"


def refuse_empty_table(folder: Path) -> str:
    (folder / "labels.csv").write_text("file,label\n")
    return "the set is empty"


def refuse_nothing(folder: Path) -> str:
    for path in folder.rglob("*.png"):
        path.unlink()
    return "the set is empty"


def refuse_flat(folder: Path) -> str:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    picture(folder / "a.png", (0, 0, 0))
    return "neither labels.csv nor a folder for each label"


@pytest.mark.parametrize(
    "spoil",
    [
        refuse_label,
        refuse_index,
        refuse_table_label,
        refuse_table_file,
        refuse_outside,
        refuse_twice,
        refuse_columns,
        refuse_empty_table,
        refuse_nothing,
        refuse_flat,
    ],
)
def test_a_folder_that_is_wrong_is_refused(folder: Path, spoil: Callable[[Path], str]) -> None:
    said = spoil(folder)
    with pytest.raises(InvalidInputError, match=said):
        opened(folder)


def test_broken_pictures_are_named(folder: Path) -> None:
    good = (folder / "red" / "0.png").read_bytes()
    for content in (b"", b"no picture", good[:-25], good[:30]):
        (folder / "black" / "0.png").write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"black/0\.png: not a sound"):
            opened(folder).item(0)
    whole = io.BytesIO()
    Image.new("RGB", (4, 4)).save(whole, "PPM")
    (folder / "black" / "0.png").write_bytes(whole.getvalue())
    with pytest.raises(InvalidInputError, match=r"black/0\.png"):
        opened(folder).item(0)


def test_pictures_of_another_size_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "set" / "red" / "a.png", (0, 0, 0), size=(5, 4))
    with pytest.raises(InvalidInputError, match=r"a\.png: height and width: got \(4, 5\)"):
        opened(tmp_path / "set", SMALL).item(0)


def test_huge_pictures_are_refused_before_they_are_unpacked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelless.variants.validation.pictures.MOST_PIXELS", 15)
    with pytest.raises(InvalidInputError, match="pixels: got 16"):
        opened(folder).item(0)
    monkeypatch.setattr("modelless.variants.validation.pictures.MOST_FILE_BYTES", 10)
    with pytest.raises(InvalidInputError, match="bytes: got"):
        opened(folder).item(0)


def test_a_task_without_a_picture_takes_none(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"one picture: UINT8.*\.npz"):
        PictureInput.of(ROWS)


# -- arrays -----------------------------------------------------------------------------------


def test_arrays(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    for name in ("x", "inputs"):
        found = opened(npz(tmp_path / "a.npz", **{name: x, "labels": np.array([0, 3, 1])}), ROWS)
        (batch,) = found.batches(8)
        assert batch.expected == (0, 3, 1)
        assert (batch.inputs["x"] == x).all()
    assert len(found.sha256) == 64
    assert len(opened(npz(tmp_path / "b.npz", x=x), ROWS, Expects.NOTHING)) == 3


def test_arrays_of_texts_numbers_and_boxes(tmp_path: Path) -> None:
    x = np.zeros((2, 2), np.float32)
    written = opened(npz(tmp_path / "a.npz", x=x, labels=["ab", "b"]), TEXT, Expects.SEQUENCE)
    assert [written.item(i).expected for i in range(2)] == [(1, 2), (2,)]
    rows = np.array([[1, 2, -1], [2, -1, -1]])
    assert opened(npz(tmp_path / "b.npz", x=x, labels=rows), TEXT, Expects.SEQUENCE).item(
        1
    ).expected == (2,)
    numbers = opened(npz(tmp_path / "c.npz", x=x, labels=[1.5, 2.0]), ROWS, Expects.NUMBER)
    assert numbers.item(0).expected == 1.5
    corners = np.array([[0, 0, 1, 1], [1, 1, 2, 2], [0, 0, 3, 3.0]])
    path = npz(tmp_path / "d.npz", x=x, boxes=corners, box_labels=[0, 1, 2], box_items=[1, 1.0, 1])
    found = opened(path, ROWS, Expects.BOXES)
    assert isinstance(found.item(0).expected, Boxes)
    assert [found.item(i).expected.classes.tolist() for i in range(2)] == [[], [0, 1, 2]]


X = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X}, "allowed: one called 'labels'"),
        ({"labels": [0, 1]}, "allowed: one called 'x'"),
        ({"x": X, "labels": [0]}, "labels: got 1; allowed: 2"),
        ({"x": X, "labels": [0, 4]}, "a.npz, item 1: label: got 4"),
        ({"x": X, "labels": [0, -1]}, "item 1: label: got -1"),
        ({"x": X, "labels": [0, 0.5]}, "item 1: label: got 0.5"),
        ({"x": X, "labels": ["0", "cat"]}, "item 1: label: got 'cat'"),
        ({"x": X, "labels": [[0], [1]]}, "one label an item"),
        ({"x": X[:0], "labels": X[:0, 0]}, "the set is empty"),
        ({"x": X[:, :1], "labels": [0, 1]}, r"inputs.x: shape: got \[2, 1\]"),
        ({"x": X.astype(np.float64), "labels": [0, 1]}, "got 'FP64'; allowed: FP32"),
        ({"x": np.array([[0, np.nan]] * 2, np.float32), "labels": [0, 1]}, r"inputs.x\[0, 1\]"),
        ({"x": np.array([None, 1]), "labels": [0, 1]}, "Python objects are never read"),
    ],
)
def test_arrays_that_are_wrong_are_refused(tmp_path: Path, arrays: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        opened(npz(tmp_path / "a.npz", **arrays), ROWS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"boxes": X}, r"\[M, 4\]"),
        ({"boxes": np.array([[1, 0, 0, 1.0]])}, r"boxes\[0\]"),
        ({"box_items": [2]}, r"box_items\[0\]: got"),
        ({"box_labels": [9]}, "box 0: label: got 9"),
        ({"box_labels": [[0]]}, r"\[M, 4\], \[M\] and \[M\]"),
        ({"box_items": [[0]]}, r"\[M, 4\], \[M\] and \[M\]"),
        ({"box_items": 0, "box_labels": 0}, r"\[M, 4\], \[M\] and \[M\]"),
        ({"box_items": ["0"]}, "got 'float64 and <U1'; allowed: real numbers and whole"),
        ({"box_items": [np.nan]}, "real numbers and whole"),
        ({"boxes": [["0", "0", "1", "1"]]}, "real numbers and whole"),
        ({"boxes": [[0, 0, 1, 1j]]}, "real numbers and whole"),
    ],
)
def test_boxes_that_are_wrong_are_refused(tmp_path: Path, change: Any, said: str) -> None:
    arrays = {"boxes": np.array([[0, 0, 1, 1.0]]), "box_labels": [0], "box_items": [0]} | change
    with pytest.raises(InvalidInputError, match=said):
        opened(npz(tmp_path / "a.npz", x=X, **arrays), ROWS, Expects.BOXES)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=X, labels=[0, 1])
    whole = path.read_bytes()
    for content in (b"", b"PK nothing", whole[:-30], whole[:60] + b"\xff" * 40 + whole[100:]):
        path.write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"a\.npz"):
            opened(path, ROWS)


# -- tables -----------------------------------------------------------------------------------


def test_a_table_of_features(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("left,right,label\n0.5,1,3\n2,-1e3,0\n")
    (batch,) = opened(path, ROWS).batches(9)
    assert batch.inputs["x"].tolist() == [[0.5, 1.0], [2.0, -1000.0]]
    assert (batch.inputs["x"].dtype, batch.expected) == (np.float32, (3, 0))


def test_a_table_with_a_column_an_input(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("fare,label,age\n7.25,1.5,22\n8,2,30\n")
    (batch,) = opened(path, CELLS, Expects.NUMBER).batches(9)
    assert batch.inputs["age"].tolist() == [[22], [30]]
    assert batch.inputs["fare"].tolist() == [7.25, 8.0]
    assert batch.expected == (1.5, 2.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("a,b,label\n", "the set is empty"),
        ("a,b\n1,2\n", "one called 'label'"),
        ("a,label\n1,2\n", "got 1; allowed: 2"),
        ("a,b,label\n1,2,3\n1,x,0\n", "a.csv, line 3: b: got 'x'"),
        ("a,b,label\n1,,3\n", "line 2: b: got ''"),
        ("a,b,label\n1,2,9\n", "line 2: label: got 9"),
        ("a,b,label\n1,2\n", "line 2: label: got ''"),
        ("a,b,label\n1,2,3,4\n1,2,3,4,5\n", "not a CSV file"),
        ("a,b,label\n1,2,3,4\n1,2,3\n", "cells of a line"),
        ("a,a,label\n1,2,3\n", "each heading once"),
        ("a,b,label\n1,inf,3\n", "line 2: b: got 'inf'"),
    ],
)
@pytest.mark.filterwarnings("default")  # as outside of tests: pandas only warns of lost cells
def test_a_table_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=said):
        opened(path, ROWS)


@pytest.mark.filterwarnings("default")
def test_commas_with_nothing_behind_them_are_no_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("fare,label,age\n1,2,3,\n4,5,6,\n")
    found = opened(path, CELLS, Expects.NUMBER)
    assert [found.item(index).expected for index in range(2)] == [2.0, 5.0]


def test_whole_numbers_are_within_their_type(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for cell in ("1.5", "1e30", "1e999999999", "nan", str(2**63), "1.0000000000000000001"):
        path.write_text(f"fare,label,age\n1,2,{cell}\n")
        with pytest.raises(InvalidInputError, match=r"line 2: age: got .* a whole number"):
            opened(path, CELLS, Expects.NUMBER)
    path.write_text("fare,label,age\n1,nan,2\n")
    with pytest.raises(InvalidInputError, match=r"line 2: label: got 'nan'.*finite"):
        opened(path, CELLS, Expects.NUMBER)


# -- the rest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [2**53 + 1, 2**63 - 1, -(2**63), "3.0", "1e3"])
def test_whole_numbers_are_exact(tmp_path: Path, cell: int | str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"fare,label,age\n1,2,{cell}\n")
    found = opened(path, CELLS, Expects.NUMBER).item(0).inputs["age"].item()
    assert found == (cell if isinstance(cell, int) else float(cell))


def test_what_is_no_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for path in (tmp_path / "a.txt", tmp_path / "none"):
        with pytest.raises(InvalidInputError, match=r"a dataset saved to disk; an \.npz file"):
            opened(path)


def test_labels_that_several_classes_share_are_told_by_index(tmp_path: Path) -> None:
    twins = Task("twins", ROWS.inputs, SCORES, "top-1", labels=("crane", "crane", "dog", "1"))
    path = npz(tmp_path / "a.npz", x=X, labels=["dog", "crane"])
    with pytest.raises(InvalidInputError, match=r"several are called so: \['0', '1'\]"):
        opened(path, twins)
    found = opened(npz(tmp_path / "a.npz", x=X, labels=["0", "1"]), twins)
    assert [found.item(i).expected for i in range(2)] == [0, 3]  # a label comes before an index


def test_numbers_are_no_indices_where_labels_are_other_numbers(tmp_path: Path) -> None:
    grades = Task("grades", ROWS.inputs, SCORES, "top-1", labels=("1", "2", "3", "4"))
    found = opened(npz(tmp_path / "a.npz", x=X, labels=["1", "4"]), grades)
    assert [found.item(i).expected for i in range(2)] == [0, 3]
    for labels in ([1, 2], [1.0, 2.0], ["0", "1"]):
        with pytest.raises(InvalidInputError, match=r"item 0: label: .* as text"):
            opened(npz(tmp_path / "a.npz", x=X, labels=labels), grades)
    same = replace(grades, labels=("0", "01", "2", "3"))
    assert opened(npz(tmp_path / "a.npz", x=X, labels=[1, 3]), same).item(1).expected == 3


def test_a_hugging_face_dataset_without_the_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state.json").write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(EnvironmentUnfitError, match=r"pip install 'modelless\[validation\]'"):
        opened(tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{}")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "state.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="Name one: test"):
        opened(tmp_path)


def save_dataset(folder: Path, columns: dict[str, Any], features: dict[str, Any]) -> Path:
    """What ``Dataset.save_to_disk`` writes; by hand, as making a dataset pickles half of Python."""
    pa = pytest.importorskip("pyarrow")
    folder.mkdir()
    table = pa.table(columns)
    path = str(folder / "data-00000-of-00001.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    state = {
        "_data_files": [{"filename": "data-00000-of-00001.arrow"}],
        "_fingerprint": "0123456789abcdef",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


@pytest.mark.filterwarnings("ignore")  # the package's own
def test_a_hugging_face_dataset(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    names = ["blue", "red"]  # numbered otherwise than the task does
    files = [picture(tmp_path / f"{name}.png", COLOURS[name]).read_bytes() for name in names]
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    images = [{"bytes": data, "path": "a.png"} for data in (*files, files[0][:40])]
    saved = save_dataset(tmp_path / "set", {"image": images, "label": [0, 1, 1]}, features)
    found = opened(saved)
    assert (len(found), len(found.sha256)) == (3, 64)
    for index, name in enumerate(names):
        item = found.item(index)
        assert LABELS[item.expected] == name
        assert tuple(item.inputs["image"][0, 0]) == COLOURS[name]
    with pytest.raises(InvalidInputError, match="row 2"):
        found.item(2)


@pytest.mark.filterwarnings("ignore")
def test_a_hugging_face_dataset_of_rows(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    numbers = {"feature": {"dtype": "float64", "_type": "Value"}, "_type": "List"}
    features = {"x": numbers, "label": {"dtype": "int64", "_type": "Value"}}
    saved = save_dataset(tmp_path / "rows", {"x": [[1.0, 2.0]] * 2, "label": [3, 7]}, features)
    item = opened(saved, ROWS).item(0)
    assert (item.inputs["x"].tolist(), item.expected) == ([1.0, 2.0], 3)
    assert item.inputs["x"].dtype == np.float32
    with pytest.raises(InvalidInputError, match="row 1: label: got 7"):
        opened(saved, ROWS).item(1)
    with pytest.raises(InvalidInputError, match="also age, fare"):
        opened(saved, CELLS)
