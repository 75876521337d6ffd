"""What a run keeps in its home is for this user alone, and each run begins it anew."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from modelless.controller.live.loopback import LOOPBACK, ray_environment
from modelless.controller.live.run_folder import (
    LONGEST_SOCKET,
    SOCKET,
    empty_serve_folder,
    fits,
    remove_temporary,
)

NODE = "f" * 56


@pytest.fixture
def short() -> Iterator[Path]:
    """A run's folder whose path is short, as that of a usual home is."""
    folder = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def long(tmp_path: Path) -> Iterator[Path]:
    """One whose path is too long for a socket."""
    folder = tmp_path / ("a" * 100)
    folder.mkdir()
    yield folder
    remove_temporary(folder)


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_it_is_in_the_home_where_the_path_is_short_enough(short: Path) -> None:
    folder = empty_serve_folder(short)
    assert folder == short / "serve"
    assert not folder.is_symlink()
    assert mode_of(folder) == 0o700


def test_it_is_empty_and_private_whatever_an_earlier_run_left(short: Path) -> None:
    (short / "serve" / NODE).mkdir(parents=True)
    (short / "serve" / NODE / "haproxy.cfg").touch()
    (short / "serve").chmod(0o755)
    folder = empty_serve_folder(short)
    assert list(folder.iterdir()) == []
    assert mode_of(folder) == 0o700


def test_where_the_path_would_be_too_long_it_is_elsewhere_until_the_run_ends(long: Path) -> None:
    folder = empty_serve_folder(long)
    assert folder.parent == Path("/tmp")
    assert mode_of(folder) == 0o700
    assert fits(folder)
    assert (long / "serve").resolve() == folder.resolve()
    (folder / NODE).mkdir()
    remove_temporary(long)
    assert not folder.exists()
    assert list(long.iterdir()) == []


def test_a_temporary_folder_of_a_run_that_was_killed_goes_with_the_next(long: Path) -> None:
    killed = empty_serve_folder(long)
    folder = empty_serve_folder(long)
    assert folder.is_dir()
    assert folder != killed
    assert not killed.exists()


def test_a_link_that_leads_elsewhere_is_removed_and_what_it_leads_to_is_kept(
    short: Path, tmp_path: Path
) -> None:
    (tmp_path / "kept").touch()
    (short / "serve").symlink_to(tmp_path)
    assert empty_serve_folder(short) == short / "serve"
    assert (tmp_path / "kept").exists()


def test_a_folder_fits_up_to_the_longest_path_of_a_socket() -> None:
    room = LONGEST_SOCKET - len(f"/{NODE}/{SOCKET}")
    assert fits(Path("/" + "a" * (room - 1)))
    assert not fits(Path("/" + "a" * room))
    assert not fits(Path("/" + "ä" * (room // 2 + 1)))


def serve_would_say(variable: str, files: Path) -> Path:
    """The path that Serve makes of the variable for a node."""
    path = Path(ray_environment(LOOPBACK, haproxy=Path("/h"), files=files)[variable])
    return path / NODE if variable.endswith("_BASE") else path.parent / NODE / path.name


def test_all_that_serve_writes_for_haproxy_is_in_the_folder(short: Path) -> None:
    files = empty_serve_folder(short)
    names = ("SOCKET_PATH", "CONFIG_FILE_LOC", "SERVER_STATE_BASE", "SERVER_STATE_FILE")
    paths = [serve_would_say(f"RAY_SERVE_HAPROXY_{name}", files) for name in names]
    assert [path for path in paths if files not in path.parents] == []
    assert len(set(paths)) == len(names)
    # With the name under which HAProxy binds first, it is what Linux takes at most.
    assert len(os.fsencode(paths[0])) <= LONGEST_SOCKET <= 107 - len(".4194304.tmp")
    assert not [name for name in ray_environment(LOOPBACK, haproxy=None) if "HAPROXY" in name]


def test_serve_knows_the_variables_that_are_set_for_it() -> None:
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    text = (Path(spec.origin).parent / "serve" / "_private" / "constants.py").read_text()
    set_for_it = ray_environment(LOOPBACK, haproxy=Path("/h"), files=Path("/f"))
    assert [name for name in set_for_it if "SERVE" in name and f'"{name}"' not in text] == []
