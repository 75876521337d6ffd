"""From a photo on disk to the tensor a task takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.controller.usecases.inferring import SHORTER_SIDE_PX, read_tensor
from modelless.variants.signature import dtype_of
from modelless.variants.vocabulary import TensorSpec

Image = pytest.importorskip("PIL.Image")

COLOUR = TensorSpec("image", "UINT8", (-1, -1, -1, 3))
GREY = TensorSpec("image", "UINT8", (-1, 28, 28))
ORIENTATION = 0x0112
RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def halves(width: int = 40, height: int = 20) -> Any:
    """A picture whose left half is red and whose right half is blue."""
    picture = Image.new("RGB", (width, height), RED)
    picture.paste(BLUE, (width // 2, 0, width, height))
    return picture


def read(picture: Any, folder: Path, spec: TensorSpec = COLOUR, **how: Any) -> NDArray[Any]:
    """The tensor of a picture that was saved without loss."""
    picture.save(folder / "photo.png", **how)
    return read_tensor(folder / "photo.png", spec)


def test_a_photo_becomes_bytes(tmp_path: Path) -> None:
    array = read(halves(), tmp_path)
    assert (array.shape, array.dtype.name) == ((1, 20, 40, 3), "uint8")
    assert tuple(array[0, 0, 0]) == RED
    assert tuple(array[0, 19, 39]) == BLUE


@pytest.mark.parametrize(
    ("size", "scaled"),
    [
        ((1280, 640), (640, 320)),
        ((640, 1300), (320, 650)),
        ((321, 321), (320, 320)),
        ((320, 4000), (320, 4000)),
        ((10, 3), (10, 3)),
    ],
)
def test_the_shorter_side_is_bounded(
    tmp_path: Path, size: tuple[int, int], scaled: tuple[int, int]
) -> None:
    array = read(halves(*size), tmp_path)
    assert (array.shape[2], array.shape[1]) == scaled
    assert min(scaled) <= SHORTER_SIDE_PX


def test_a_large_jpeg_too(tmp_path: Path) -> None:
    halves(4000, 3000).save(tmp_path / "photo.jpg")
    array = read_tensor(tmp_path / "photo.jpg", COLOUR)
    assert array.shape[1] == SHORTER_SIDE_PX
    assert array.shape[2] == pytest.approx(SHORTER_SIDE_PX * 4 / 3, abs=1)
    assert array[0, 5, 5, 0] > 240


def test_a_photo_is_turned_upright(tmp_path: Path) -> None:
    picture = halves()
    exif = picture.getexif()
    exif[ORIENTATION] = 6  # the camera was held so that the left side came up
    array = read(picture, tmp_path, exif=exif)
    assert array.shape == (1, 40, 20, 3)
    assert tuple(array[0, 0, 0]) == RED
    assert tuple(array[0, 39, 0]) == BLUE


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert tuple(read(clear, tmp_path)[0, 0, 0]) == WHITE
    palette = Image.new("P", (4, 4), 0)
    assert tuple(read(palette, tmp_path, transparency=0)[0, 0, 0]) == WHITE
    assert read(Image.new("LA", (4, 4), (0, 0)), tmp_path, GREY).min() == 255


@pytest.mark.parametrize(("value", "seen"), [(0, 0), (65535, 255), (32768, 127)])
def test_grey_of_16_bits_keeps_its_shades(tmp_path: Path, value: int, seen: int) -> None:
    picture = Image.fromarray(np.array([[value, 65535]], np.uint16))
    array = read(picture, tmp_path)
    assert array[0, 0, 0].tolist() == [pytest.approx(seen, abs=1)] * 3


def test_a_fixed_size_is_met_from_the_middle(tmp_path: Path) -> None:
    picture = Image.new("RGB", (200, 100), WHITE)
    picture.paste((0, 0, 0), (30, 0, 170, 100))
    array = read(picture, tmp_path, GREY)
    assert (array.shape, array.dtype.name, array.max()) == ((1, 28, 28), "uint8", 0)


@pytest.mark.parametrize(
    ("spec", "shape", "dtype"),
    [
        (TensorSpec("image", "UINT8", (-1, 28, 28, 1)), (1, 28, 28, 1), "uint8"),
        (TensorSpec("image", "UINT8", (-1, -1, -1)), (1, 20, 40), "uint8"),
        (TensorSpec("image", "FP32", (-1, 8, 16, 3)), (1, 8, 16, 3), "float32"),
    ],
)
def test_other_forms_of_pictures(
    tmp_path: Path, spec: TensorSpec, shape: tuple[int, ...], dtype: str
) -> None:
    array = read(halves(), tmp_path, spec)
    assert (array.shape, array.dtype.name) == (shape, dtype)


@pytest.mark.parametrize(
    ("shape", "sent"),
    [
        ((-1, 10, -1, 3), (1, 10, 20, 3)),
        ((-1, -1, 80, 3), (1, 40, 80, 3)),
        ((-1, 28, -1), (1, 28, 56)),
    ],
)
def test_a_free_side_follows_the_fixed_one(
    tmp_path: Path, shape: tuple[int, ...], sent: tuple[int, ...]
) -> None:
    assert read(halves(), tmp_path, TensorSpec("image", "UINT8", shape)).shape == sent


@pytest.mark.parametrize("suffix", ["bmp", "gif", "png", "ppm", "tiff", "webp"])
def test_every_format_of_pillow_is_read(tmp_path: Path, suffix: str) -> None:
    halves().save(tmp_path / f"photo.{suffix}")
    array = read_tensor(tmp_path / f"photo.{suffix}", COLOUR)
    assert array.shape == (1, 20, 40, 3)
    assert array[0, 0, 0, 0] > 240


@pytest.mark.parametrize(
    ("text", "spec", "wanted"),
    [
        ("1, 2,3\n4 5\t6\n\n", TensorSpec("x", "FP32", (-1, 3)), [[1, 2, 3], [4, 5, 6]]),
        ("7\n8", TensorSpec("x", "INT64", (-1,)), [7, 8]),
        ("hé\n", TensorSpec("x", "UINT8", (-1, -1)), [[*"hé".encode()]]),
    ],
)
def test_a_text_of_numbers_or_letters(
    tmp_path: Path, text: str, spec: TensorSpec, wanted: list[Any]
) -> None:
    (tmp_path / "items.txt").write_text(text)
    array = read_tensor(tmp_path / "items.txt", spec)
    assert (array.tolist(), array.dtype) == (wanted, dtype_of(spec.datatype))


@pytest.mark.parametrize(
    ("text", "datatype", "said"),
    [
        ("1 2\n3", "FP32", "as many numbers in each line"),
        ("1 two", "FP32", "as many numbers in each line"),
        ("", "FP32", "shape"),
        ("1 2 3", "FP32", "shape"),
        ("1 nan", "FP32", "nan"),
        ("1 2.5", "INT64", "2.5"),
        ("1 256", "UINT8", "256"),
    ],
)
def test_a_text_that_does_not_fit(tmp_path: Path, text: str, datatype: str, said: str) -> None:
    (tmp_path / "items.txt").write_text(text)
    with pytest.raises(InvalidInputError, match=said):
        read_tensor(tmp_path / "items.txt", TensorSpec("x", datatype, (-1, 2)))


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("ids", "INT64", (-1, 28, 28)),
        TensorSpec("vector", "FP32", (-1, 8)),
        TensorSpec("planes", "UINT8", (-1, 3, 28, 28)),
    ],
)
def test_a_task_that_takes_no_photos_says_so(tmp_path: Path, spec: TensorSpec) -> None:
    with pytest.raises(InvalidInputError, match=r"\.npy"):
        read(halves(), tmp_path, spec)


def test_without_pillow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    (tmp_path / "photo.png").touch()
    with pytest.raises(EnvironmentUnfitError, match=r"modelless\[demo\]"):
        read_tensor(tmp_path / "photo.png", COLOUR)


@pytest.mark.parametrize("content", [b"", b"no picture at all", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_picture_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "photo.png"
    file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"photo\.png.*image"):
        read_tensor(file, COLOUR)


def test_a_picture_cut_off_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "photo.jpg"
    halves(400, 400).save(file)
    file.write_bytes(file.read_bytes()[:600])
    with pytest.raises(InvalidInputError, match="image file"):
        read_tensor(file, COLOUR)


def test_a_picture_beyond_all_measure_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most in (700, 100):  # more, and more than twice as many pixels
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(InvalidInputError, match=f"up to {most} pixels"):
            read(halves(), tmp_path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(InvalidInputError, match="exists"):
            read_tensor(path, COLOUR)


@pytest.mark.parametrize(
    ("shape", "sent"), [((5, 6, 3), (1, 5, 6, 3)), ((2, 5, 6, 3), (2, 5, 6, 3))]
)
def test_an_array_goes_as_it_is(
    tmp_path: Path, shape: tuple[int, ...], sent: tuple[int, ...]
) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape, np.uint8))
    assert read_tensor(tmp_path / "a.npy", COLOUR).shape == sent


@pytest.mark.parametrize("shape", [(5, 6, 4), (0, 5, 6, 3), (6, 3), (1, 1, 5, 6, 3)])
def test_an_array_of_another_form_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape, np.uint8))
    with pytest.raises(InvalidInputError, match="shape"):
        read_tensor(tmp_path / "a.npy", COLOUR)


def test_what_is_no_array_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    file.write_bytes(b"no array")
    with pytest.raises(InvalidInputError, match=r"\.npy"):
        read_tensor(file, COLOUR)
    np.save(file, np.array([{}]))  # objects, which would have to be unpickled
    with pytest.raises(InvalidInputError, match=r"\.npy"):
        read_tensor(file, COLOUR)
    with file.open("wb") as out:
        np.savez(out, a=np.ones(3))
    with pytest.raises(InvalidInputError, match="archive"):
        read_tensor(file, COLOUR)
