"""Inferring: the classes of one photo, by the running modelless."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.controller.usecases.client import Client, InferReply, encode_infer, find_url
from modelless.controller.usecases.home import Home
from modelless.variants.vocabulary import SLO, TensorSpec

_TOP = 5
_PATIENCE_S = 30.0  # beyond the deadline


SHORTER_SIDE_PX: Final = 320
"""A photo is scaled down until its shorter side is this long. The variants resize to their own
input themselves, and the largest takes 260 pixels, so more would only make the request slow: a
12-megapixel photo is 36 MB of raw pixels, scaled down 0.4 MB."""


def infer_photo(
    photo: Path, task: str, slo: SLO, *, url: str | None = None, home: Home = None
) -> InferReply:
    """The likeliest classes of a photo, of one output; or the server's refusal.

    Args:
        photo: an image file, or a ``.npy`` array of one or several items.
        task: ``task``, ``task/model`` or ``task/model/variant``.
        slo: the limits.
        url: of the server; default: the one that runs from ``home``.
        home: see ``home_folder``.

    Raises:
        InvalidInputError: the photo, or the task takes no photos.
        UnavailableError: the server does not answer.
        ModellessError: nothing is up, or there is no such task.
    """
    check_file(photo)
    if not task.strip("/"):
        raise InvalidInputError.of("task", task, "task, task/model or task/model/variant")
    address = find_url(home, url)
    with Client(address, _PATIENCE_S + (slo.latency_ms or 0.0) / 1e3) as client:
        spec, output = _signature(client.get(f"/v2/models/{quote(task, safe='/@')}"))
        tensors = {spec.name: read_tensor(photo, spec)}
        return client.send(encode_infer(task, tensors, slo, classes={output: _TOP}))


def read_tensor(path: Path, spec: TensorSpec) -> NDArray[Any]:
    """The array that is in a ``.npy`` file, or the pixels of a photo, as ``spec`` takes them.

    Raises:
        InvalidInputError: unreadable, neither an array nor a photo, or not of the right form.
        EnvironmentUnfitError: photos need Pillow, which is not installed.
    """
    check_file(path)
    read = _read_array if path.suffix.lower() == ".npy" else _read_photo
    return read(path, spec)


def check_file(path: Path) -> None:
    """Raise InvalidInputError unless there is such a file."""
    if not path.is_file():
        raise InvalidInputError.of("photo", str(path), "an image file or a .npy file that exists")


def _read_array(path: Path, spec: TensorSpec) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        allowed = f"a .npy file of numbers ({error})"
        raise InvalidInputError.of("array", str(path), allowed) from None
    if not isinstance(array, np.ndarray):
        raise InvalidInputError.of("array", str(path), "one array, not an archive of several")
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
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise EnvironmentUnfitError(
            "reading photos needs Pillow: pip install 'modelless[demo]'; .npy files need nothing"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                photo = _upright(opened, ImageOps)
                photo = _in_mode(photo, mode, Image)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        reason = "it is no image, or it is damaged" if "identify" in str(error) else str(error)
        raise InvalidInputError.of("photo", str(path), f"an image file ({reason})") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        allowed = f"an image of up to {Image.MAX_IMAGE_PIXELS} pixels"
        raise InvalidInputError.of("photo", str(path), allowed) from None
    if sides is not None:
        photo = ImageOps.fit(photo, sides, Image.Resampling.LANCZOS)
    elif min(photo.size) > SHORTER_SIDE_PX:
        factor = SHORTER_SIDE_PX / min(photo.size)
        width, height = (max(1, round(side * factor)) for side in photo.size)
        photo = photo.resize((width, height), Image.Resampling.LANCZOS)
    pixels: NDArray[np.uint8] = np.asarray(photo, np.uint8)
    array = pixels[np.newaxis]
    if len(spec.shape) == 4 and spec.shape[3] == 1:
        array = array[..., np.newaxis]
    return array.astype(np.float32) if spec.datatype == "FP32" else array


def _form_of(spec: TensorSpec) -> tuple[str, tuple[int, int] | None]:
    """The image mode that fits ``spec``, and (width, height) if it fixes them."""
    shape = spec.shape
    grey = len(shape) == 3 or (len(shape) == 4 and shape[3] == 1)
    colour = len(shape) == 4 and shape[3] == 3
    if spec.datatype not in ("UINT8", "FP32") or not (grey or colour):
        raise InvalidInputError(
            f"the task's input {spec.name!r} ({spec.datatype} {list(shape)}) takes no photos; "
            "give a .npy file"
        )
    height, width = shape[1], shape[2]
    if (height == -1) != (width == -1):
        raise InvalidInputError(
            f"the task's input {spec.name!r} fixes one side only; give a .npy file"
        )
    return "L" if grey else "RGB", None if height == -1 else (width, height)


def _upright(photo: Any, operations: Any) -> Any:
    """The photo as it was held, decoded: cameras turn the picture by a note, not by its pixels."""
    photo.draft(None, (2 * SHORTER_SIDE_PX, 2 * SHORTER_SIDE_PX))  # lets JPEG decode smaller
    photo.load()
    return operations.exif_transpose(photo)


def _in_mode(photo: Any, mode: str, image: Any) -> Any:
    """The photo in ``mode``, what is transparent on white."""
    if photo.mode.startswith(("I", "F")):  # 16 or 32 bits of grey, which Pillow would clip
        values = np.asarray(photo, np.float64)
        most = 65535.0 if values.max() > 255.0 else 255.0
        photo = image.fromarray(np.clip(values / most * 255.0, 0, 255).astype(np.uint8), "L")
    if "transparency" in photo.info or photo.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        photo = photo.convert("RGBA")
        white = image.new("RGBA", photo.size, "white")
        photo = image.alpha_composite(white, photo)
    return photo.convert(mode)


def _signature(described: Any) -> tuple[TensorSpec, str]:
    """The one input of the task, and the output that is read as classes."""
    inputs, outputs = described["inputs"], described["outputs"]
    if len(inputs) != 1:
        raise InvalidInputError(
            f"this task has {len(inputs)} inputs; 'modelless infer' fills one: use a v2 client"
        )
    spec = TensorSpec(inputs[0]["name"], inputs[0]["datatype"], tuple(inputs[0]["shape"]))
    classes = [output["name"] for output in outputs if len(output["shape"]) == 2]
    if not classes:
        raise InvalidInputError("this task's outputs are not classes: use a v2 client")
    return spec, str(classes[0])
