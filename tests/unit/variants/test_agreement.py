"""Derived accuracy: the arithmetic, the photos, and the comparison itself."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.variants.vocabulary import Provenance
from modelless.variants.zoo.agreement import Agreement, Original, agreement, derive, top_1
from modelless.variants.zoo.efficientnet_lite import ARCHITECTURES, load_network, write_graph
from modelless.variants.zoo.imagenet import class_names
from modelless.variants.zoo.photos import LABELLED, UNLABELLED, Photo, crops


def test_the_share_is_counted_over_crops() -> None:
    found = agreement({"a": [True] * 9 + [False], "b": [True] * 30})
    assert (found.share, found.crops, found.photos) == (39 / 40, 40, 2)
    assert 0.0 < found.low < found.share < found.high <= 1.0


def test_crops_of_one_photo_count_for_less_than_crops_of_many() -> None:
    spread = {str(photo): [True] * 9 + [False] for photo in range(20)}
    lumped = {str(photo): [photo >= 2] * 10 for photo in range(20)}
    independent, related = agreement(spread), agreement(lumped)
    assert independent.share == related.share == 0.9
    assert related.low < independent.low
    assert related.high - related.low > 1.5 * (independent.high - independent.low)


def test_complete_agreement_on_a_few_photos_is_no_certainty() -> None:
    few = agreement({str(photo): [True] * 16 for photo in range(7)})
    many = agreement({str(photo): [True] * 16 for photo in range(70)})
    assert few.share == few.high == 1.0
    assert 0.6 < few.low < 0.9 < many.low < 1.0
    one_off = agreement({str(photo): [photo > 0] + [True] * 15 for photo in range(7)})
    assert one_off.low == pytest.approx(few.low, abs=0.03)


def test_the_interval_holds_the_share_wherever_it_lies() -> None:
    rng = np.random.default_rng(0)
    for chance in (0.0, 0.02, 0.5, 0.9, 1.0):
        for photos in (1, 2, 9):
            same = {str(p): [bool(x) for x in rng.random(12) < chance] for p in range(photos)}
            found = agreement(same)
            assert 0.0 <= found.low <= found.share <= found.high <= 1.0


@pytest.mark.parametrize("same", [{}, {"a": [True], "b": []}])
def test_nothing_to_compare_is_refused(same: dict[str, list[bool]]) -> None:
    with pytest.raises(InvalidInputError, match="same"):
        agreement(same)


def test_a_derived_accuracy_says_from_what() -> None:
    measured = Agreement(share=0.9, low=0.8, high=0.95, crops=120, photos=8)
    found = derive(75.1, measured, original="efficientnet-lite0 fp32-224", publication="the page")
    assert (found.percent, found.low_percent) == (67.59, 60.08)
    assert found.high_percent == pytest.approx(71.345, abs=0.006)
    assert found.provenance is Provenance.DERIVED
    assert found.sample_count == 120
    for fact in ("75.1 %", "efficientnet-lite0 fp32-224", "the page", "90.0%", "120 crops", "8 p"):
        assert fact in found.source


def test_variants_are_compared_where_the_original_is_right() -> None:
    network = load_network(ARCHITECTURES[0])
    native, small = (write_graph(network, side).SerializeToString() for side in (224, 128))
    names = class_names()
    asked = list(crops(np.random.default_rng(2), 16))
    original = Original.of(native, asked, names)
    right = [
        (crop, answer)
        for crop, answer in zip(asked, top_1(native, asked), strict=True)
        if names[answer] in crop.photo.labels
    ]
    assert 8 <= len(right) < 16
    assert list(zip(original.crops, original.answers, strict=True)) == right
    itself = original.compare(native)
    assert (itself.share, itself.crops) == (1.0, len(original.crops))
    smaller = original.compare(small)
    assert 0.4 < smaller.share <= 1.0
    answers = top_1(small, original.crops)
    same = sum(a == b for a, b in zip(answers, original.answers, strict=True))
    assert smaller.share == same / len(answers)


def test_labels_are_imagenet_classes() -> None:
    names = class_names()
    assert len(names) == 1000
    for photo in LABELLED:
        assert photo.labels
        assert set(photo.labels) <= set(names)
    assert not any(photo.labels for photo in UNLABELLED)


def test_no_photo_is_both_calibrated_and_compared_with() -> None:
    files = [photo.file for photo in (*LABELLED, *UNLABELLED)]
    assert len(set(files)) == len(files)
    assert not {"data/motorcycle_left.png", "data/motorcycle_right.png"} <= set(files)  # a pair


def test_photos_are_rgb_and_cannot_be_changed() -> None:
    for photo in (*LABELLED, *UNLABELLED):
        pixels = photo.load()
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3
        assert not pixels.flags.writeable


def test_crops_are_parts_of_their_photos_and_repeat_with_the_seed() -> None:
    first = list(crops(np.random.default_rng(9), 24))
    again = list(crops(np.random.default_rng(9), 24))
    other = list(islice(crops(np.random.default_rng(10), 24), 24))
    assert [crop.photo.name for crop in first[:7]] == [photo.name for photo in LABELLED]
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.pixels, two.pixels)
    assert any(one.pixels.shape != two.pixels.shape for one, two in zip(first, other, strict=True))
    for crop in first:
        height, width = crop.pixels.shape[:2]
        assert 0.7 < width / height < 1.4
        assert height <= crop.photo.load().shape[0]
        assert width <= crop.photo.load().shape[1]
        assert min(height, width) > 150
        assert crop.pixels.flags.c_contiguous


def test_a_missing_package_or_file_says_what_to_install() -> None:
    for photo in (Photo("x", "no_such_package", "x.png"), Photo("x", "skimage", "no/such.png")):
        with pytest.raises(EnvironmentUnfitError, match=r"pip install 'modelless\[demo\]'"):
            photo.load()
    assert Path(LABELLED[0].file).suffix == ".png"
