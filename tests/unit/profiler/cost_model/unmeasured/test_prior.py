"""A prior that is damaged is refused by name; nothing is guessed, and nothing crashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.unmeasured.features import LEVELS
from modelless.profiler.cost_model.unmeasured.kernel import TERMS
from modelless.profiler.cost_model.unmeasured.prior import (
    digest_of,
    parse_prior,
    read_prior,
    shipped_prior,
)

CONTENT = (
    files("modelless.profiler.cost_model.unmeasured").joinpath("data", "prior.json").read_bytes()
)
Document = dict[str, Any]


def changed(change: Callable[[Document], object], *, signed: bool = True) -> bytes:
    """The shipped prior, changed; with a digest that fits if ``signed``."""
    document = json.loads(CONTENT)
    change(document)
    if signed:
        document.pop("sha256", None)
        document["sha256"] = digest_of(document)
    return json.dumps(document).encode()


def put(value: object, *keys: str) -> Callable[[Document], None]:
    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


def drop(*keys: str) -> Callable[[Document], None]:
    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        del document[keys[-1]]

    return change


def test_the_shipped_prior_is_whole() -> None:
    prior = shipped_prior()
    assert prior.kernel.variances.shape == (len(LEVELS), len(TERMS))
    assert np.isfinite(prior.kernel.variances).all()
    assert prior.kernel.variances.min() >= 0.0
    assert 0.0 < prior.kernel.noise_variance < 1.0
    assert prior.version
    assert {"cpu", "gpu", "npu"} <= set(prior.roofline.constants)
    assert len(CONTENT) < 100_000


def test_it_is_read_from_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    path.write_bytes(changed(put("mine", "version")))
    assert read_prior(path).version == "mine"
    np.testing.assert_array_equal(
        read_prior(path).kernel.variances, shipped_prior().kernel.variances
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"3",
        b'"text"',
        b"{}",
        b"\xff\xfe\x00",
        b"\x00" * 100,
        CONTENT[:-20],
        CONTENT + CONTENT,
        changed(put(0.5, "noise_variance"), signed=False),
        CONTENT.replace(b'"noise_variance": 0.', b'"noise_variance": NaN, "other": 0.'),
        changed(put(1, "noise_variance"), signed=False),
        changed(drop("sha256"), signed=False),
        pytest.param(
            b"[" * 100_000,
            id="deep",
        ),
    ],
)
def test_what_is_no_such_file_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInputError, match=r"the name.*make_prior"):
        parse_prior(content, "the name")


def test_a_file_that_is_no_small_one_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    path.write_bytes(CONTENT + b" " * (2 << 20))
    with pytest.raises(InvalidInputError, match="a small JSON file"):
        read_prior(path)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (put(2, "format"), "format"),
        (drop("format"), "format"),
        (put("1", "format"), "format"),
        (put(-1e-3, "variances", "all", "constant"), "variances.all.constant"),
        (put(float("nan"), "variances", "all", "constant"), "variances.all.constant"),
        (put(float("inf"), "variances", "kind", "smooth"), "variances.kind.smooth"),
        (put(None, "variances", "kind", "smooth"), ""),
        (put([1.0], "variances", "kind", "smooth"), ""),
        (put("many", "variances", "kind", "smooth"), ""),
        (put({}, "variances"), ""),
        (put([], "variances"), ""),
        (drop("variances", "setting"), "setting"),
        (drop("variances", "device", "name"), "name"),
        (put(0.0, "noise_variance"), "noise_variance"),
        (put(-1.0, "noise_variance"), "noise_variance"),
        (drop("noise_variance"), "noise_variance"),
        (drop("roofline", "cpu"), "cpu"),
        (drop("roofline", "npu", "ms_per_layer"), "ms_per_layer"),
        (put(-1.0, "roofline", "gpu", "ms_per_gmac"), "roofline.gpu.ms_per_gmac"),
        (put(float("nan"), "roofline", "gpu", "ms_per_gmac"), "roofline.gpu.ms_per_gmac"),
        (put("fast", "roofline"), ""),
        (drop("version"), "version"),
    ],
)
def test_figures_that_cannot_be_are_refused_by_name(
    change: Callable[[Document], object], field: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_prior(changed(change), "the name")
    message = str(caught.value)
    assert message.startswith("the name")
    assert field in message


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InvalidInputError, match="readable prior"):
            read_prior(path)
