"""Real photos that are on the disk already, in scikit-image, scikit-learn and matplotlib.

Two sets that share no photo: those whose content has a name in ImageNet, and the others, to
calibrate int8 with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import require
from modelless.variants.zoo.catalog import package_file

Pixels = NDArray[np.uint8]

_INSTALL = "pip install 'modelless[demo]'"
_SMALLEST_SHARE = 0.5
_LARGEST_ASPECT = 4 / 3


@dataclass(frozen=True, slots=True)
class Photo:
    """A photo in an installed package.

    Attributes:
        name: e.g. ``coffee``.
        package, file: import name of the package, and the path inside it.
        labels: the ImageNet classes, by their clean names, that a person would accept for it; empty
            where ImageNet has no class for what is in the picture. They say what is right, not what
            a model answers.
    """

    name: str
    package: str
    file: str
    labels: tuple[str, ...] = ()

    def load(self) -> Pixels:
        """uint8 [H, W, 3], RGB; grey photos with three equal channels. Read-only.

        Raises:
            EnvironmentUnfitError: the package that ships it, or Pillow, is not installed.
        """
        return _load(self.package, self.file)


@dataclass(frozen=True, slots=True)
class Crop:
    """A part of a photo: ``pixels`` is uint8 [h, w, 3], RGB."""

    photo: Photo
    pixels: Pixels


# Photos of things that ImageNet has a class for. There is none for a motorcycle
# proper.
LABELLED = (
    Photo("camera", "skimage", "data/camera.png", ("tripod",)),
    Photo(
        "chelsea",
        "skimage",
        "data/chelsea.png",
        ("Egyptian Mau", "tabby cat", "a cat having a striped coat"),
    ),
    Photo("china", "sklearn", "datasets/images/china.jpg", ("palace", "monastery")),
    Photo("coffee", "skimage", "data/coffee.png", ("espresso", "coffee mug", "tea cup")),
    Photo("hopper", "matplotlib", "mpl-data/sample_data/grace_hopper.jpg", ("military uniform",)),
    Photo("motorcycle", "skimage", "data/motorcycle_left.png", ("moped", "motor scooter")),
    Photo("rocket", "skimage", "data/rocket.jpg", ("missile", "space shuttle")),
)

# Photos of things that ImageNet has no class for: an astronaut, a clock blurred beyond recognition,
# coins, a dahlia, textures, skies, tissue and print. For calibration it counts only that every
# brightness, contrast and grain is among them.
UNLABELLED = (
    Photo("astronaut", "skimage", "data/astronaut.png"),
    Photo("brick", "skimage", "data/brick.png"),
    Photo("cell", "skimage", "data/cell.png"),
    Photo("clock", "skimage", "data/clock_motion.png"),
    Photo("coins", "skimage", "data/coins.png"),
    Photo("flower", "sklearn", "datasets/images/flower.jpg"),
    Photo("grass", "skimage", "data/grass.png"),
    Photo("gravel", "skimage", "data/gravel.png"),
    Photo("hubble", "skimage", "data/hubble_deep_field.jpg"),
    Photo("moon", "skimage", "data/moon.png"),
    Photo("page", "skimage", "data/page.png"),
    Photo("retina", "skimage", "data/retina.jpg"),
    Photo("tissue", "skimage", "data/ihc.png"),
)


def crops(
    rng: np.random.Generator, count: int, photos: tuple[Photo, ...] = LABELLED
) -> Iterator[Crop]:
    """``count`` random crops, of each photo in turn, at the photos' own scale.

    A crop is between 3:4 and 4:3, covers half to all of the largest such crop, and is mirrored half
    of the time, so that its subject is nearly always still in it.

    Args:
        rng: where the choices come from; equal states give equal crops.

    Raises:
        EnvironmentUnfitError: a photo's package is not installed.
    """
    for index in range(count):
        photo = photos[index % len(photos)]
        yield Crop(photo, _crop(rng, photo.load()))


def _crop(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    height, width = pixels.shape[:2]
    aspect = exp(rng.uniform(-log(_LARGEST_ASPECT), log(_LARGEST_ASPECT)))
    across = min(width, height * aspect) * sqrt(rng.uniform(_SMALLEST_SHARE, 1.0))
    w, h = max(1, int(across)), max(1, int(across / aspect))
    left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
    part = pixels[top : top + h, left : left + w]
    return np.ascontiguousarray(part[:, ::-1] if rng.random() < 0.5 else part)


@cache
def _load(package: str, file: str) -> Pixels:
    image_module = require("PIL.Image", f"photo {file}", _INSTALL)
    with image_module.open(package_file(package, file, _INSTALL)) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.uint8)
    pixels.setflags(write=False)
    return pixels
