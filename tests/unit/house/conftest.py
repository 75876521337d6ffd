"""What the house's tests look at."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from .tree import ROOT, Module, read_modules


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    """Every module of the package."""
    return read_modules()


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    """The project's settings."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
