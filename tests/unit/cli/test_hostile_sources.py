"""``make`` and ``register`` where code, data or options are not what they seem."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from modelless.variants.registry.registry import open_registry

from . import made_models
from .conftest import Run

HERE = made_models.__name__
CODE = {
    "quits": "import sys\nsys.exit(0)\n",
    "later": "import sys\ndef model(): sys.exit(0)\n",
    "number": "model = 42\n",
}


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Labelled digits."""
    pytest.importorskip("skl2onnx", reason="pip install 'modelless[sklearn]'")
    x, y = (each[made_models.TRAINED_ON :] for each in made_models.digits())
    np.savez(tmp_path / "digits.npz", pixels=x, labels=y)
    return tmp_path / "digits.npz"


@pytest.mark.parametrize(
    ("module", "words", "code", "says"),
    [
        ("quits", (), 3, "cannot be imported: SystemExit: 0"),
        ("later", ("--framework", "scikit-learn"), 2, "It raised SystemExit: 0"),
        ("number", (), 2, "It is 42, not a model"),
    ],
)
def test_code_that_quits_or_is_no_model_is_told(
    run: Run, digits: Path, monkeypatch: pytest.MonkeyPatch,
    module: str, words: tuple[str, ...], code: int, says: str,
) -> None:  # fmt: skip
    (digits.parent / f"hostile_{module}.py").write_text(CODE[module])
    monkeypatch.syspath_prepend(str(digits.parent))
    ran = run(
        "make", f"hostile_{module}:model", "--task", "digits", "--model", "m",
        "--validation", digits, *words,
    )  # fmt: skip
    assert ran.code == code, ran.err
    assert says in ran.err


def test_inputs_that_are_no_numbers_are_told_before_anything_is_converted(
    run: Run, digits: Path
) -> None:
    x, y = made_models.digits()
    np.savez(digits, pixels=np.full_like(x, np.nan), labels=y)
    ran = run(
        "make", f"{HERE}:instance", "--task", "digits", "--model", "m", "--validation", digits
    )
    assert ran.code == 2
    assert f"{digits}: pixels: got 'nan or infinity'" in ran.err


def test_an_empty_set_of_a_new_task_is_named(run: Run, digits: Path) -> None:
    x, y = made_models.digits()
    np.savez(digits, pixels=x[:0], labels=y[:0])
    ran = run(
        "make", f"{HERE}:instance", "--task", "digits", "--model", "m", "--validation", digits
    )
    assert ran.code == 2
    assert str(digits) in ran.err


def test_another_metric_than_the_tasks_is_refused(run: Run, registered: Path, digits: Path) -> None:
    ran = run("make", "pixels/mean/small", "--validation", digits, "--metric", "macro-f1", "--json")
    assert ran.code == ran.document["exit_code"] == 2
    assert "--metric: got 'macro-f1'; allowed: top-1" in ran.err


def test_register_without_a_name_makes_the_family(
    run: Run, home: Path, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelless.controller.usecases.registry.making._profile", lambda *_: {})
    ran = run(
        "register", f"{HERE}:instance", "--task", "digits", "--model", "m",
        "--validation", digits, "--engine", "onnxruntime-cpu", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = {row["name"]: row for row in ran.document["variants"]}
    assert {"fp32", "fp16", "int8"} <= rows.keys()
    assert {row["accuracy_provenance"] for row in rows.values()} == {"measured"}
    assert ran.document["left_out"]["fp32-192"]
    with closing(open_registry(home)) as registry:
        assert {variant.name for variant in registry.variants("digits", "m")} == rows.keys()
