"""Files appear whole, with the rights that the user's umask leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modelless.common.files import write_whole


@pytest.mark.parametrize(("umask", "mode", "found"), [(0o077, 0o644, 0o600), (0o022, 0o644, 0o644)])
def test_the_umask_holds(tmp_path: Path, umask: int, mode: int, found: int) -> None:
    path = tmp_path / "a"
    before = os.umask(umask)
    try:
        write_whole(path, b"x", mode=mode)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == found
    assert list(tmp_path.iterdir()) == [path]
