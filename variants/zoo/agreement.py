"""How accurate a variant is, when the only accuracy that was ever measured is its original's.

No labelled ImageNet sample can be installed, so a variant is compared with the original it was made
from:

    P(variant right)  >=  P(both right)  =  P(original right) x P(variant agrees | original right)

The first factor is published. The second is measured on crops of photos whose content is known,
those where the original is right. That a variant may be right where its original is wrong is given
no credit, so the product errs on the low side. Such an accuracy is ``derived``, and says from what.
(Agreement on just any crops would not do: where the original only guesses, a disagreement says
nothing about being right.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from modelless.common.errors import InvalidInputError
from modelless.variants.making.session import Session
from modelless.variants.vocabulary import Accuracy, Provenance
from modelless.variants.zoo.efficientnet_lite import OUTPUT
from modelless.variants.zoo.photos import Crop


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often a variant gives its original's answer where that is right.

    Attributes:
        share: 0 to 1.
        low, high: 95 % interval of the share.
        crops, photos: on how many crops the original was right, and from how many photos they were
            cut.
    """

    share: float
    low: float
    high: float
    crops: int
    photos: int


def top_1(onnx_bytes: bytes, crops: Sequence[Crop]) -> list[int]:
    """The class that a variant puts first, crop by crop, each run alone and at its own size."""
    session = Session(onnx_bytes)
    (image,) = session.inputs

    def answer(crop: Crop) -> int:
        return int(session.run({image: crop.pixels[None]}, [OUTPUT])[OUTPUT].argmax())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(answer, crops))


@dataclass(frozen=True, slots=True)
class Original:
    """The original that variants are compared with.

    Attributes:
        crops: those that the original gets right.
        answers: the class it puts first, crop by crop.
    """

    crops: tuple[Crop, ...]
    answers: tuple[int, ...]

    @classmethod
    def of(cls, onnx_bytes: bytes, crops: Sequence[Crop], class_names: Sequence[str]) -> Original:
        """Ask the original; keep the crops where its answer is one of the photo's labels."""
        answers = top_1(onnx_bytes, crops)
        right = [
            (crop, answer)
            for crop, answer in zip(crops, answers, strict=True)
            if class_names[answer] in crop.photo.labels
        ]
        return cls(tuple(crop for crop, _ in right), tuple(answer for _, answer in right))

    def compare(self, onnx_bytes: bytes) -> Agreement:
        """How often another variant answers as the original does."""
        same: dict[str, list[bool]] = {}
        answers = top_1(onnx_bytes, self.crops)
        for crop, expected, found in zip(self.crops, self.answers, answers, strict=True):
            same.setdefault(crop.photo.name, []).append(expected == found)
        return agreement(same)


def agreement(same: Mapping[str, Sequence[bool]]) -> Agreement:
    """The share of agreement and its 95 % interval, crops of one photo being relatives.

    Jeffreys' interval (Brown, Cai and DasGupta, 2001, https://doi.org/10.1214/ss/1009213286) for an
    effective sample: as many independent crops as have the standard error that the spread between
    photos shows (Kish's design effect). Few photos may agree by luck, so for the lower end one more
    is imagined, on half of whose crops the two differ; else complete agreement would look like
    certainty.

    Args:
        same: whether the two agreed, by crop, under the photo's name.

    Raises:
        InvalidInputError: no photo, or one without crops.
    """
    photos = len(same)
    if not photos or not all(same.values()):
        counts = {name: len(values) for name, values in same.items()}
        raise InvalidInputError.of("same", counts, "a photo or more, each with crops")
    groups = [(float(sum(values)), float(len(values))) for values in same.values()]
    agreed, crops = (sum(column) for column in zip(*groups, strict=True))
    share = agreed / crops
    low, _ = _interval([*groups, (crops / photos / 2, crops / photos)])
    _, high = _interval(groups) if photos > 1 else (0.0, 1.0)
    return Agreement(share, min(low, share), max(high, share), int(crops), photos)


def derive(
    published_percent: float, measured: Agreement, *, original: str, publication: str
) -> Accuracy:
    """``published_percent`` times the agreement with the original it was published for.

    Args:
        original: what was published, e.g. ``efficientnet-lite0 fp32-224``.
        publication: where.
    """
    return Accuracy(
        percent=round(published_percent * measured.share, 2),
        low_percent=round(published_percent * measured.low, 2),
        high_percent=round(published_percent * measured.high, 2),
        metric="top-1",
        provenance=Provenance.DERIVED,
        sample_count=measured.crops,
        source=(
            f"{published_percent} % published for {original} ({publication}) x "
            f"{measured.share:.1%} top-1 agreement with it, measured on the {measured.crops} crops "
            f"of {measured.photos} photos that it gets right, none used for calibration; no credit "
            "where it is wrong. The interval is the agreement's."
        ),
    )


def _interval(groups: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Jeffreys' interval of a share seen in groups of (agreed, crops), two or more."""
    from scipy.stats import beta  # takes long to import

    agreed, crops = (sum(column) for column in zip(*groups, strict=True))
    share = agreed / crops
    # The variance of a ratio, linearised: it allows for groups of unequal sizes.
    squares = sum((here - share * size) ** 2 for here, size in groups)
    variance = len(groups) / (len(groups) - 1) * squares / crops**2
    count = share * (1 - share) / variance if variance > 0 else crops
    count = min(max(count, float(len(groups))), crops)
    low, high = beta.interval(0.95, share * count + 0.5, (1 - share) * count + 0.5)
    return float(low), float(high)
