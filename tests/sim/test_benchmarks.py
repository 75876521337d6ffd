"""Every benchmark can be imported: what it takes from the package is still there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

IMPORT_ALL = """
import importlib, sys, traceback

failed = False
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        failed = True
        traceback.print_exc()
sys.exit(failed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["serving", "simulation", "profiling"])
def test_every_benchmark_can_be_imported(folder: str) -> None:
    names = sorted(path.stem for path in (BENCHMARKS / folder).glob("*.py"))
    assert names
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=BENCHMARKS / folder,  # with -c, the folder is the first on the path
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_every_benchmark_is_in_a_folder() -> None:
    assert not list(BENCHMARKS.glob("*.py"))
