"""The home folder by default, and files that are checked before a long computation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modelless.common.errors import InvalidInputError
from modelless.common.files import default_home
from modelless.controller.usecases.home import check_writable, home_folder
from modelless.controller.usecases.measuring.profile_report import check_can_draw


@pytest.mark.parametrize(
    ("named", "found"), [("~/mine", "mine"), ("", ".modelless"), (None, ".modelless")]
)
def test_the_home_by_default_is_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, found: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MODELLESS_HOME", raising=False)
    if named is not None:
        monkeypatch.setenv("MODELLESS_HOME", named)
    assert default_home() == home_folder(None) == tmp_path / found


def test_only_files_can_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for name in ("pipe", "file/below", "nowhere/file", "x" * 300):
        with pytest.raises(InvalidInputError, match=f"--csv: got .*{name[:9]}.*allowed: a file"):
            check_writable("--csv", tmp_path / name)
    check_writable("--csv", tmp_path / "file")
    check_writable("--csv", tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "file"}


def test_a_folder_that_is_there_but_takes_no_file_is_refused() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidInputError, match="--report: got '/proc'; allowed: a folder"):
        check_can_draw(Path("/proc"))
