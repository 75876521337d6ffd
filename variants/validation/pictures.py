"""Pictures as a task takes them: read, bounded, brought into the colours its input has."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError, require
from modelless.variants.signature import pad
from modelless.variants.vocabulary import Task, TensorSpec

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
MOST_FILE_BYTES: Final = 64 << 20
MOST_PIXELS: Final = 64_000_000
"""Of one picture, unpacked; checked before anything is unpacked."""

_FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")


@dataclass(frozen=True, slots=True)
class PictureInput:
    """The task's input, where it is a picture.

    Attributes:
        name: of the tensor.
        mode: Pillow's: ``RGB``, or ``L`` for grey.
        size_px: height and width; None where free.
        has_channels: whether the last axis counts channels.
        suffixes: of the files that hold one.
        spec: of the tensor.
    """

    suffixes = SUFFIXES

    name: str
    mode: str
    size_px: tuple[int | None, int | None]
    has_channels: bool
    spec: TensorSpec

    @classmethod
    def of(cls, task: Task) -> PictureInput:
        """The picture that ``task`` takes; InvalidInputError if it takes none.

        Nothing is scaled to other numbers: what a network does to bytes is part of its graph.
        """
        spec = task.inputs[0]
        grey = len(spec.shape) == 3 or (len(spec.shape) == 4 and spec.shape[3] == 1)
        is_picture = grey or (len(spec.shape) == 4 and spec.shape[3] == 3)
        if len(task.inputs) != 1 or spec.datatype != "UINT8" or not is_picture:
            raise InvalidInputError.of(
                f"task {task.name!r}: inputs",
                list(map(str, task.inputs)),
                "one picture: UINT8 [-1, height, width], with 1 or 3 channels as a last axis",
                "Pictures are fed as bytes: put arrays of other types into an .npz file.",
            )
        height, width = (size if size > 0 else None for size in spec.shape[1:3])
        return cls(spec.name, "L" if grey else "RGB", (height, width), len(spec.shape) == 4, spec)

    def read(self, path: Path, where: str) -> NDArray[np.uint8]:
        """The picture in a file, as ``array`` gives it; of several the first.

        Raises:
            InvalidInputError: unreadable, broken, too large, or not of the input's size.
            EnvironmentUnfitError: Pillow is not installed.
        """
        try:
            if path.stat().st_size > MOST_FILE_BYTES:
                raise InvalidInputError.of(
                    f"{where}: bytes", path.stat().st_size, f"up to {MOST_FILE_BYTES}"
                )
            data = path.read_bytes()
        except OSError as error:
            raise InvalidInputError(f"{where}: cannot be read ({error.strerror}).") from None
        return self.decode(data, where)

    def decode(self, data: bytes, where: str) -> NDArray[np.uint8]:
        """The same of a file's bytes."""
        image = _pillow()
        try:
            with image.open(io.BytesIO(data), formats=_FORMATS) as picture:
                return self.array(picture, where)
        except InvalidInputError:
            raise
        # Pillow's decoders raise all of these, the last at what would unpack to gigabytes.
        except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
            raise InvalidInputError(
                f"{where}: not a sound picture ({error}). Replace it, or take it out."
            ) from None

    def array(self, picture: Image, where: str) -> NDArray[np.uint8]:
        """A Pillow picture as uint8 [height, width] or [height, width, channels].

        It is read and padded as in service: a network may answer otherwise to anything else.

        Raises:
            InvalidInputError: it has too many pixels, or is not of the input's size.
        """
        width, height = picture.size
        if width * height > MOST_PIXELS:
            raise InvalidInputError.of(f"{where}: pixels", width * height, f"up to {MOST_PIXELS}")
        picture = upright(picture)
        width, height = picture.size
        for size, wanted in zip((height, width), self.size_px, strict=True):
            if wanted is not None and size != wanted:
                raise InvalidInputError.of(
                    f"{where}: height and width",
                    (height, width),
                    f"{self.size_px}, as the task's input {self.name!r} has",
                    "Resize the pictures as the model was trained.",
                )
        pixels = np.asarray(in_mode(picture, self.mode), dtype=np.uint8)
        item = pixels[..., None] if self.has_channels and pixels.ndim == 2 else pixels
        padded: NDArray[np.uint8] = pad(self.spec, item[None])[0]
        return padded


def upright(picture: Image) -> Image:
    """The picture as it was held: cameras turn it by a note, not by its pixels."""
    from PIL.ImageOps import exif_transpose

    picture.load()
    try:
        return exif_transpose(picture)
    except Exception:  # noqa: BLE001 (Pillow raises many kinds for a damaged note, which says nothing)
        return picture


def in_mode(picture: Image, mode: str) -> Image:
    """The picture in ``mode``, what is transparent on white."""
    from PIL import Image

    if picture.mode.startswith(("I", "F")):  # 16 or 32 bits of grey, which Pillow would clip
        values = np.asarray(picture, np.float64)
        ranges = (1.0, 255.0) if picture.mode == "F" else (255.0,)
        most = next((each for each in ranges if values.max() <= each), 65535.0)
        picture = Image.fromarray(np.clip(values / most * 255.0, 0, 255).astype(np.uint8), "L")
    if "transparency" in picture.info or picture.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture.convert(mode)


def _pillow() -> Any:
    return require("PIL.Image", "reading pictures", "pip install 'modelless[validation]'")
