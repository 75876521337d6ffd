"""The way in: frameworks by name, and what is said where one is missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, NotFoundError
from modelless.variants.conversion.converted import FRAMEWORKS, convert
from modelless.variants.making.calibration import CalibrationData

DATA = CalibrationData.of({"x": np.zeros((2, 3), np.float32)})


def test_an_unknown_framework() -> None:
    with pytest.raises(NotFoundError, match="'caffe' does not exist; there are: pytorch, "):
        convert("caffe", "models:make", DATA)


def test_nothing_is_converted_unverified() -> None:
    with pytest.raises(InvalidInputError, match="one call of real inputs at least"):
        convert("pytorch", "models:make", CalibrationData())


@pytest.mark.parametrize(
    ("framework", "missing", "hint"),
    [
        ("scikit-learn", "skl2onnx", r"pip install 'modelless\[sklearn\]'"),
        ("pytorch", "torch", "install PyTorch, https://pytorch.org"),
        ("tensorflow", "tf2onnx", "pip install tensorflow tf2onnx"),
    ],
)
def test_what_is_missing_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, framework: str, missing: str, hint: str
) -> None:
    assert framework in FRAMEWORKS
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EnvironmentUnfitError, match=f"{missing}.*{hint}"):
        convert(framework, "models:make", DATA)
