"""A home of its own for each test, and a way to run the command line inside the process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from modelless.controller.cli.app import app

from .tiny import add_measurements, add_rates, add_variants


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its answer as JSON: all of stdout, and nothing else."""
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``modelless ...`` with a home in ``tmp_path``."""
    for name in ("MODELLESS_STORE_URL", "MODELLESS_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODELLESS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Ran:
        result = CliRunner().invoke(app, [str(word) for word in words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def home(tmp_path: Path, run: Run) -> Path:
    """The home that ``run`` uses."""
    del run
    return tmp_path / "home"


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Homes made once, to be copied: ``registered`` and ``profiled``."""
    folder = tmp_path_factory.mktemp("homes")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MODELLESS_STORE_URL", raising=False)
        add_variants(folder / "registered")
        add_rates(folder / "registered")
        shutil.copytree(folder / "registered", folder / "profiled")
        add_measurements(folder / "profiled")
    return folder


@pytest.fixture
def registered(home: Path, homes: Path) -> Path:
    """A home with three tiny variants of the task ``pixels``, not profiled."""
    return shutil.copytree(homes / "registered", home)


@pytest.fixture
def profiled(home: Path, homes: Path) -> Path:
    """The same, with measurements."""
    return shutil.copytree(homes / "profiled", home)
