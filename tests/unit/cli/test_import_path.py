"""What lies in the folder where a command is run is not imported unless PYTHONPATH says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAP = "import pathlib; pathlib.Path(__file__).with_suffix('.sprung').touch()\n"
WORLD = """
tasks: [{name: vision, variants: {kind: ladder, count: 2, latency_ms: [4, 8], accuracy: [62, 80]}}]
queries: [{tasks: [vision], arrivals: {kind: poisson, rate_per_s: 5}, slos: [{latency_ms: 60}]}]
policies: {selection: "mine:Mine"}
devices: [{name: cpu-1, count: 1, memory_mib: 64}]
duration_s: 1
"""


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder with a policy, and with modules that have names of modelless's dependencies."""
    for name in ("typer", "sqlalchemy", "numpy", "yaml", "click"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    (tmp_path / "world.yaml").write_text(WORLD)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(
        "from modelless.policies.selection.uniform_random import UniformRandom as Mine\n"
    )
    return tmp_path


def run(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def sprung(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.sprung"))


def test_the_traps_work(trapped: Path) -> None:
    run(trapped, "-c", "import typer")
    assert sprung(trapped) == ["typer"]


@pytest.mark.parametrize("options", [(), ("-P",)])
def test_no_module_of_the_current_folder_is_imported(
    trapped: Path, options: tuple[str, ...]
) -> None:
    words = (*options, "-m", "modelless.controller.cli", "simulate", "world.yaml")
    done = run(trapped, *words)
    assert sprung(trapped) == []
    assert done.returncode != 0
    assert "No module named 'mine'. Put the folder that it is in on PYTHONPATH" in done.stderr


def test_one_of_a_folder_on_pythonpath_is(trapped: Path) -> None:
    (trapped / "folder").mkdir()
    (trapped / "mine").rename(trapped / "folder" / "mine")
    words = ("-m", "modelless.controller.cli", "simulate", "world.yaml", "--json")
    done = run(trapped, *words, path="folder")
    assert done.returncode == 0, done.stderr
    assert sprung(trapped) == []
