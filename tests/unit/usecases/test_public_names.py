"""What ``import modelless`` and ``modelless.policies`` offer: pinned, documented, and lazy."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest

import modelless
from modelless import policies

NAMES = [
    *(
        "AsyncClient",
        "Client",
        "__version__",
        "batch",
        "compare",
        "down",
        "make",
        "profile",
        "register",
        "select",
    ),
    *("simulate", "status", "tune", "up", "validate", "whatif", "zoo_add"),
]
POLICY_NAMES = [
    *("BatchingPolicy", "Bind", "Candidates", "Choice", "Clairvoyant", "ClusterView"),
    *("CustomReason", "Defer", "Demand", "EvictionPolicy", "Forecaster", "Instance"),
    *("PlacementPolicy", "Pool"),
    *("QueryView", "QueueView", "Reason", "Reject", "ResidentView", "Run", "ScalingPolicy"),
    *("SelectionPolicy", "Targets", "VariantFacts", "Wait", "WorkerState", "WorkerView"),
    "testing",
]
HEAVY = {
    *("numpy", "pydantic", "onnx", "onnxruntime", "ray", "pandas", "sklearn", "sqlalchemy"),
    *("typer", "rich", "yaml", "pytest"),
}


def test_the_names_are_pinned() -> None:
    assert modelless.__all__ == NAMES
    assert policies.__all__ == POLICY_NAMES


@pytest.mark.parametrize(
    "package", ["modelless", "modelless.policies", "modelless.controller.usecases.taking_down"]
)
def test_the_import_is_light(package: str) -> None:
    script = f"import sys, {package}; print({HEAVY!r} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.mark.parametrize("module", [modelless, policies])
def test_every_name_resolves_and_is_listed(module: Any) -> None:
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = module.nonsense


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_every_function_has_types_and_an_example_and_says_what_its_arguments_are(name: str) -> None:
    value = getattr(modelless, name)
    text = inspect.getdoc(value)
    assert text is not None
    assert "Examples:" in text
    assert f"modelless.{name}(" in text
    called = value.__init__ if inspect.isclass(value) else value
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(value).parameters
    assert "home" in parameters
    assert parameters["home"].default is None
    assert parameters.keys() <= get_type_hints(called).keys()
    _, _, arguments = text.partition("Args:")
    for parameter in parameters:
        assert parameter in arguments or name == "down", parameter
