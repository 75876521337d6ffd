"""Distillation: the student learns, the same way each time, and stands in for its teacher."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.fidelity import compare, run_all
from modelless.variants.making.maker import build_maker
from modelless.variants.making.session import Session

from . import students
from .networks import FASHION, made, node, pictures, random_weights, run, write

HERE = f"{students.__name__}:"
HAS_TORCH = find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")


def step(student: str = "small", **settings: object) -> object:
    return {"distil": {"student": HERE + student, **settings}}


@pytest.mark.torch
@needs_torch
def test_a_student_answers_as_its_teacher_on_what_it_never_saw() -> None:
    learned = made(step(epochs=20), FASHION, pictures(2048))
    data = CalibrationData(pictures(4096).feeds[64:])
    agreement = compare(run_all(Session(FASHION), data), run_all(Session(learned), data))
    assert agreement.top_1_agreement is not None
    assert agreement.top_1_agreement > 0.75
    assert len(learned) < len(FASHION)
    (output,) = Session(learned).run(data.feeds[0]).values()
    (wanted,) = Session(FASHION).run(data.feeds[0]).values()
    assert bool(np.allclose(output.sum(1), 1.0, atol=1e-3)) == bool(
        np.allclose(wanted.sum(1), 1.0, atol=1e-3)
    ), "probabilities where the teacher gives them"


@pytest.mark.torch
@needs_torch
def test_several_values_an_item_are_learned_as_values_and_not_as_classes() -> None:
    weights = random_weights(w=(4, 3)) | {"b": np.array([5.0, 6.0, 7.0], np.float32)}
    teacher = write([node("Gemm", "x w b", "y")], weights, ["N", 4], ["N", 3])
    x = np.random.default_rng(1).normal(size=(512, 4)).astype(np.float32)
    data = CalibrationData.of({"x": x}, 32)
    learned = made(step("three_values", epochs=200, learning_rate=0.02), teacher, data)
    (found,) = Session(learned).run({"x": x}).values()
    np.testing.assert_allclose(found, run(teacher, x), atol=0.1)


@pytest.mark.torch
@needs_torch
def test_it_learns_the_same_each_time() -> None:
    data = pictures(128)
    assert made(step(epochs=2), FASHION, data) == made(step(epochs=2), FASHION, data)
    assert made(step(epochs=2), FASHION, data) != made(step(epochs=2, seed=1), FASHION, data)


@pytest.mark.torch
@needs_torch
def test_a_student_of_other_answers_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"the student returns.*\[32, 3\].*\[32, 10\]"):
        made(step("narrow"), FASHION, pictures(64))


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_without_pytorch_it_says_what_to_install() -> None:
    with pytest.raises(EnvironmentUnfitError, match=r"install PyTorch"):
        made(step(), FASHION, pictures(64))


def test_a_student_whose_code_changes_is_another_student(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "a_student.py"
    file.write_text("make = None\n")
    first = build_maker("distil", {"student": "a_student:make"})
    assert first == build_maker("distil", first.model_dump())
    file.write_text("make = 1\n")
    assert first != build_maker("distil", {"student": "a_student:make"})
    with pytest.raises(InvalidInputError, match=r"student_sha256.*another one"):
        build_maker("distil", first.model_dump())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "student"),
        ({"student": HERE + "small", "temperature": 0.0}, "temperature"),
        ({"student": HERE + "small", "epochs": 0}, "epochs"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        build_maker("distil", settings)
