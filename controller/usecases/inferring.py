"""Inferring: the answer to one file's items, by the running modelless."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError, require
from modelless.common.npz import NPZ_ERRORS, read_arrays
from modelless.controller.usecases.client import Client, InferReply, encode_infer, find_url
from modelless.controller.usecases.home import Home
from modelless.variants.decoding import decode_texts
from modelless.variants.metrics.outputs import is_number
from modelless.variants.signature import TEXT, dtype_of
from modelless.variants.validation.pictures import in_mode, upright
from modelless.variants.vocabulary import SLO, CtcDecoding, TensorSpec

_TOP = 5
_PATIENCE_S = 30.0  # beyond the deadline
_MOST_TEXT_BYTES: Final = 16 << 20

SHORTER_SIDE_PX: Final = 320
"""A photo is scaled down until its shorter side is this long. The variants resize to their own
input themselves, and the largest takes 260 pixels, so more would only make the request slow: a
12-megapixel photo is 36 MB of raw pixels, scaled down 0.4 MB."""


@dataclass(frozen=True, slots=True)
class Inference:
    """What the server said of a file's items.

    Attributes:
        reply: an answer, with the likeliest classes where answers are classes; or a refusal.
        texts: the text of each item, where answers are texts.
        numbers: the number of each item, where answers are numbers.
    """

    reply: InferReply
    texts: Sequence[str] | None = None
    numbers: Sequence[float] | None = None


def infer_file(
    file: Path, task: str, slo: SLO, *, url: str | None = None, home: Home = None
) -> Inference:
    """The classes, texts or numbers that the items in a file are answered with; or a refusal.

    Args:
        file: as ``read_tensor`` takes it; or ``.npz``, with an array for each input of the task.
        task: ``task``, ``task/model`` or ``task/model/variant``.
        url: of the server; default: the one that runs from ``home``.

    Raises:
        InvalidInputError: the file does not fit the task's inputs, or this prints no such outputs.
        UnavailableError: the server does not answer.
        ModellessError: nothing is up, or there is no such task.
    """
    check_file(file)
    if not task.strip("/"):
        raise InvalidInputError.of("task", task, "task, task/model or task/model/variant")
    address = find_url(home, url)
    with Client(address, _PATIENCE_S + (slo.latency_ms or 0.0) / 1e3) as client:
        described = client.get(f"/v2/models/{quote(task, safe='/@')}")
        inputs, outputs = specs_of(described["inputs"]), specs_of(described["outputs"])
        decoding = described.get("parameters", {}).get("decoding")
        texts = [spec.name for spec in outputs if spec.datatype == TEXT]
        numbers = [spec.name for spec in outputs if is_number(spec)]
        classes = [
            spec.name
            for spec in outputs
            if len(spec.shape) == 2 and spec.shape[1] != 1 and spec.name not in texts
        ]
        if decoding is None and not classes and not numbers and not texts:
            raise InvalidInputError(
                "this task's outputs are not classes, texts or numbers: use a v2 client"
            )
        wanted = None if decoding is not None or not classes else {classes[0]: _TOP}
        reply = client.send(encode_infer(task, _read_tensors(file, inputs), slo, classes=wanted))
    if not reply.is_answer or wanted is not None:
        return Inference(reply)
    if decoding is not None:
        read_as = CtcDecoding(decoding["output"], decoding["blank"])
        scores = reply.tensors[read_as.output]
        return Inference(reply, texts=decode_texts(scores, read_as, decoding["labels"]))
    found = reply.tensors[(texts or numbers)[0]].reshape(-1).tolist()
    if texts:
        return Inference(reply, texts=[text.decode() for text in found])
    return Inference(reply, numbers=found)


def _read_tensors(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    if path.suffix.lower() != ".npz":
        if len(inputs) != 1:
            named = ", ".join(spec.name for spec in inputs)
            allowed = f"an .npz file, as the task has {len(inputs)} inputs: {named}"
            raise InvalidInputError.of("file", str(path), allowed)
        return {inputs[0].name: read_tensor(path, inputs[0])}
    try:
        arrays: Mapping[str, NDArray[Any]] = read_arrays(path)
    except NPZ_ERRORS as error:
        allowed = f"an .npz file of plain arrays ({error})"
        raise InvalidInputError.of("file", str(path), allowed) from None
    names = [spec.name for spec in inputs]
    if missing := set(names) - set(arrays):
        allowed = f"also {', '.join(sorted(missing))}"
        raise InvalidInputError.of(f"file {path}: arrays", sorted(arrays), allowed)
    return {spec.name: _fitting(path, arrays[spec.name], spec) for spec in inputs}


def file_for(inputs: Sequence[TensorSpec]) -> str:
    """A name for a file that ``infer_file`` takes for these inputs of a task, to be replaced."""
    if len(inputs) != 1:
        return "ARRAYS.npz"
    (spec,) = inputs
    if len(spec.shape) <= 2:
        return "ITEMS.txt"
    try:
        _form_of(spec)
    except InvalidInputError:
        return "ARRAY.npy"
    return "PICTURE"


def read_tensor(path: Path, spec: TensorSpec) -> NDArray[Any]:
    """The items in a file, as an input takes them.

    A ``.npy`` file holds one item or several. Any other file is a picture, in a format that Pillow
    reads, where the input is one; bytes of UTF-8 where it is UINT8 [-1, -1]; a text a line, where
    it is BYTES; and numbers, an item a line, where it is a row of numbers or a single one.

    Raises:
        InvalidInputError: unreadable, or not of the right form.
        EnvironmentUnfitError: pictures need Pillow, which is not installed.
    """
    check_file(path)
    if path.suffix.lower() == ".npy":
        return _read_array(path, spec)
    return _read_text(path, spec) if len(spec.shape) <= 2 else _read_photo(path, spec)


def check_file(path: Path) -> None:
    """Raise InvalidInputError unless there is such a file."""
    if not path.is_file():
        raise InvalidInputError.of("file", str(path), "a picture, array or text that exists")


def _read_text(path: Path, spec: TensorSpec) -> NDArray[Any]:
    if path.stat().st_size > _MOST_TEXT_BYTES:
        allowed = f"up to {_MOST_TEXT_BYTES}"
        raise InvalidInputError.of(f"text {path}: bytes", path.stat().st_size, allowed)
    try:
        text = path.read_bytes().decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        allowed = f"a text in UTF-8, or a .npy file ({error})"
        raise InvalidInputError.of("file", str(path), allowed) from None
    if (spec.datatype, spec.shape) == ("UINT8", (-1, -1)):
        return _fitting(path, np.frombuffer(text.encode(), np.uint8), spec)
    if spec.datatype == TEXT:
        texts = np.array([line for line in text.splitlines() if line.strip()], np.object_)
        return _fitting(path, texts.reshape(-1, *[1] * (len(spec.shape) - 1)), spec)
    dtype = dtype_of(spec.datatype)
    try:
        rows = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
        numbers = np.array(rows, np.float64)
        with np.errstate(invalid="ignore"):
            array = numbers.astype(dtype)
    except ValueError as error:
        allowed = f"as many numbers in each line, which is an item ({error})"
        raise InvalidInputError.of("file", str(path), allowed) from None
    wrong = ~np.isfinite(numbers) if dtype.kind == "f" else array != numbers
    if wrong.any():
        raise InvalidInputError.of(f"text {path}", float(numbers[wrong][0]), spec.datatype)
    return _fitting(path, array.reshape(-1) if len(spec.shape) == 1 else array, spec)


def _read_array(path: Path, spec: TensorSpec) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        allowed = f"a .npy file of numbers ({error})"
        raise InvalidInputError.of("array", str(path), allowed) from None
    if not isinstance(array, np.ndarray):
        raise InvalidInputError.of("array", str(path), "one array, not an archive of several")
    return _fitting(path, array, spec)


def _fitting(path: Path, array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """The array with the axis that counts items; InvalidInputError if its shape is another."""
    if array.ndim == len(spec.shape) - 1:
        array = array[np.newaxis]
    fits = array.ndim == len(spec.shape) and all(
        wanted in (-1, size) and size > 0
        for wanted, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        allowed = f"{list(spec.shape)}, where -1 is 1 or more, or one item of it"
        raise InvalidInputError.of(f"array {path}: shape", list(array.shape), allowed)
    return array


def _read_photo(path: Path, spec: TensorSpec) -> NDArray[Any]:
    mode, sides = _form_of(spec)
    install = "pip install 'modelless[demo]'; .npy files need nothing"
    pillow, operations = (
        require(f"PIL.{name}", "reading photos", install) for name in ("Image", "ImageOps")
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(path) as opened:
                draft = (2 * SHORTER_SIDE_PX, 2 * SHORTER_SIDE_PX)
                opened.draft(None, draft)  # lets JPEG decode smaller
                photo: Any = in_mode(upright(opened), mode)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        reason = "it is no image, or it is damaged" if "identify" in str(error) else str(error)
        raise InvalidInputError.of("photo", str(path), f"an image file ({reason})") from None
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError):
        allowed = f"an image of up to {pillow.MAX_IMAGE_PIXELS} pixels"
        raise InvalidInputError.of("photo", str(path), allowed) from None
    width, height = sides
    if width is not None and height is not None:
        photo = operations.fit(photo, (width, height), pillow.Resampling.LANCZOS)
    elif (factor := _factor(photo.size, sides)) != 1.0:
        size = (
            wanted or max(1, round(side * factor))
            for side, wanted in zip(photo.size, sides, strict=True)
        )
        photo = photo.resize(tuple(size), pillow.Resampling.LANCZOS)
    pixels: NDArray[np.uint8] = np.asarray(photo, np.uint8)
    array = pixels[np.newaxis]
    if len(spec.shape) == 4 and spec.shape[3] == 1:
        array = array[..., np.newaxis]
    return array.astype(np.float32) if spec.datatype == "FP32" else array


def _factor(size: tuple[int, int], sides: tuple[int | None, int | None]) -> float:
    """What brings a photo to the side that is fixed; else to ``SHORTER_SIDE_PX`` at most."""
    for side, wanted in zip(size, sides, strict=True):
        if wanted is not None:
            return wanted / side
    return min(1.0, SHORTER_SIDE_PX / min(size))


def _form_of(spec: TensorSpec) -> tuple[str, tuple[int | None, int | None]]:
    """The image mode that fits ``spec``, and width and height where it fixes them."""
    shape = spec.shape
    grey = len(shape) == 3 or (len(shape) == 4 and shape[3] == 1)
    colour = len(shape) == 4 and shape[3] == 3
    if spec.datatype not in ("UINT8", "FP32") or not (grey or colour):
        raise InvalidInputError(
            f"the task's input {spec.name!r} ({spec.datatype} {list(shape)}) takes no photos; "
            "give a .npy file"
        )
    height, width = (None if side == -1 else side for side in shape[1:3])
    return "L" if grey else "RGB", (width, height)


def specs_of(described: Sequence[Mapping[str, Any]]) -> list[TensorSpec]:
    """The inputs or outputs in a model's metadata."""
    return [TensorSpec(each["name"], each["datatype"], tuple(each["shape"])) for each in described]
