"""What a source is, told by its name alone where that can be."""

from __future__ import annotations

import pytest

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.variants.conversion.converted import framework_of, read_source
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.zoo.fashion_mnist import DATA

from . import models

HERE = f"{models.__name__}:"


@pytest.mark.parametrize(
    ("source", "said", "framework"),
    [
        ("a/net.onnx", None, "onnx"),
        ("net.pt2", None, "pytorch"),
        ("net.skops", None, "scikit-learn"),
        (HERE + "RIDGE", None, "scikit-learn"),
        (HERE + "ridge", "scikit-learn", "scikit-learn"),
        ("net.bin", "onnx", "onnx"),
    ],
)
def test_frameworks(source: str, said: str | None, framework: str) -> None:
    assert framework_of(source, said) == framework


@pytest.mark.parametrize("suffix", ["h5", "keras", "pkl", "joblib", "pt", "pth"])
def test_programs_are_not_read(suffix: str) -> None:
    with pytest.raises(InvalidInputError, match=f"A .{suffix} file may run whatever its author"):
        framework_of(f"model.{suffix}")


def test_a_function_is_not_called_to_find_out() -> None:
    with pytest.raises(InvalidInputError, match="--framework: got None; allowed: pytorch, scikit"):
        framework_of(HERE + "failing")


def test_what_is_not_there() -> None:
    with pytest.raises(NotFoundError, match="NOTHING"):
        framework_of(HERE + "NOTHING")
    with pytest.raises(InvalidInputError, match="got 'jax'; allowed: pytorch"):
        framework_of("x.onnx", "jax")
    with pytest.raises(InvalidInputError, match=r"allowed: an \.onnx file"):
        framework_of("net")


def test_an_onnx_file_is_taken_as_it_is_without_inputs() -> None:
    def no_inputs() -> CalibrationData:
        pytest.fail("nothing is converted")

    path = DATA / "cnn-s-fp32.onnx"
    found = read_source(str(path), None, no_inputs)
    assert (found.onnx_bytes, found.framework, found.tools) == (path.read_bytes(), "onnx", {})
