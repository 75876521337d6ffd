"""The photos the demo asks about, at the size a thrifty client sends, and their thumbnails."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.demo.answers import Photo

PHOTO_PX = 224
"""Side of the squares that are sent: what variants are profiled with. They take any size, but a
larger one costs more than the profile says, and a deadline of a few milliseconds feels it."""

_FRAMES = {"rocket": (200, 105, 310)}
"""Left, top and side of a square in the original: the subject, where the centre square holds more
besides. A rocket between four towers is a drilling rig to a network."""

_NEEDED = {"PIL": "pillow", "matplotlib": "matplotlib", "skimage": "scikit-image"}


def check_extras() -> None:
    """Raise EnvironmentUnfitError now, not minutes later, if the demo's extra is not installed."""
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise EnvironmentUnfitError(
            f"the demo needs {', '.join(missing)}: pip install 'modelless[cpu,demo]'"
        )


def load_photos() -> list[Photo]:
    """Photos from scikit-image and scikit-learn whose content ImageNet has a class for.

    Raises:
        EnvironmentUnfitError: a package that ships photos is not installed.
    """
    from modelless.variants.zoo.photos import LABELLED

    photos = []
    for scene in LABELLED:
        if scene.package in ("skimage", "sklearn"):
            pixels = scene.load()
            if scene.name in _FRAMES:
                left, top, side = _FRAMES[scene.name]
                pixels = pixels[top : top + side, left : left + side]
            photos.append(Photo(scene.name, square(pixels, PHOTO_PX), frozenset(scene.labels)))
    return photos


def square(pixels: NDArray[np.uint8], side_px: int) -> NDArray[np.uint8]:
    """The centre square of UINT8 [h, w, 3], scaled to ``side_px``."""
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(Image.fromarray(pixels), (side_px, side_px), Image.Resampling.LANCZOS)
    return np.ascontiguousarray(fitted, dtype=np.uint8)


def acceptable_indices(photo: Photo, labels: Sequence[str]) -> list[int]:
    """The classes whose label is acceptable for the photo."""
    return [index for index, label in enumerate(labels) if label in photo.acceptable]


def thumbnail(photo: Photo) -> str:
    """The photo as a small JPEG in a ``data:`` URL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(photo.pixels).save(buffer, "JPEG", quality=78)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
