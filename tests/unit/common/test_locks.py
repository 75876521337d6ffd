"""One process at a time, and none for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.common.files import held


def test_a_second_holder_is_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with (
        held(path, "building"),
        pytest.raises(EnvironmentUnfitError, match=f"building: process {os.getpid()} is at it"),
        held(path, "building"),
    ):
        pytest.fail("two at a time")
    with held(path, "building"):
        pass


def test_it_ends_with_its_holder(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from modelless.common.files import held\n"
        "with held(Path(sys.argv[1]), 'x'):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "lock"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=60,
    )
    assert done.returncode == -9
    assert path.read_text().strip() not in ("", str(os.getpid()))
    with held(path, "x"):
        assert path.read_text().strip() == str(os.getpid())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(EnvironmentUnfitError, match="cannot be made"),
        held(tmp_path / "file" / "lock", "x"),
    ):
        pytest.fail("held")
