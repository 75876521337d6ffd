"""The linked layout: four folders at the top, one import name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .tree import FOLDERS


@pytest.mark.parametrize("folder", FOLDERS)
def test_link(root: Path, folder: str) -> None:
    link = root / "src" / "modelless" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("../..") / folder
    assert link.samefile(root / folder)


def test_nothing_else_is_in_the_import_folder(root: Path) -> None:
    names = {path.name for path in (root / "src" / "modelless").iterdir()}
    assert names - {"__pycache__"} == {"__init__.py", "common", "py.typed", *FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_bare_import_is_refused_with_a_hint(root: Path, folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"ImportError: '{folder}' is a folder of modelless" in done.stderr
    assert f"import 'modelless.{folder}' instead" in done.stderr


def test_linter_bans_bare_imports(pyproject: dict[str, Any]) -> None:
    lint = pyproject["tool"]["ruff"]["lint"]
    assert "TID" in lint["select"]
    assert not {"TID", "TID251"} & {*lint["ignore"]}
    assert not any(
        "TID" in rule for rules in lint.get("per-file-ignores", {}).values() for rule in rules
    )
    banned = lint["flake8-tidy-imports"]["banned-api"]
    assert {name: banned[name]["msg"] for name in FOLDERS} == {
        name: f"import modelless.{name}" for name in FOLDERS
    }


def test_the_design_names_what_exists(root: Path) -> None:
    text = (root / "docs" / "design.md").read_text()
    named = set(re.findall(r"`([a-z]\w+(?:/\w+)+)`", text))
    places = (root, root / "controller", root / "src" / "modelless")
    assert len(named) > 40
    missing = {
        name
        for name in named
        if not any((p / name).is_dir() or (p / f"{name}.py").is_file() for p in places)
    }
    assert missing == set()
