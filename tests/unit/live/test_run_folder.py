"""What a run keeps in its home is for this user alone, and each run begins it anew."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from modelless.controller.live.cluster.loopback import absolute_paths, ray_environment
from modelless.controller.live.cluster.run_folder import (
    LONGEST_SOCKET,
    SOCKET,
    close_to_others,
    current_folder,
    empty_folder,
    fits,
    only_one,
    remove_temporary,
    token_path,
)
from modelless.variants.registry.registry import open_registry

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


def test_the_path_is_its_own_where_that_is_short_enough(short: Path) -> None:
    assert close_to_others(short) == short
    remove_temporary(short)
    assert list(short.iterdir()) == []


def test_a_long_path_has_a_short_one_that_nobody_else_can_use_until_the_run_ends(
    long: Path,
) -> None:
    path = close_to_others(long)
    assert path.parent.parent == Path("/tmp")
    assert mode_of(path.parent) == 0o700
    assert fits(path / "serve")
    assert path.resolve() == long.resolve()
    (long / "kept").touch()
    remove_temporary(long)
    assert not path.parent.exists()
    assert [file.name for file in long.iterdir()] == ["kept"]


def test_the_short_path_of_a_run_that_was_killed_goes_with_the_next(long: Path) -> None:
    killed = close_to_others(long)
    path = close_to_others(long)
    assert path.is_dir()
    assert path != killed
    assert not killed.parent.exists()


def test_a_note_that_names_another_folder_is_removed_and_the_folder_is_kept(
    short: Path, tmp_path: Path
) -> None:
    (short / "short-path").write_text(str(tmp_path))
    assert close_to_others(short) == short
    assert tmp_path.exists()
    assert [path.name for path in short.iterdir()] == ["ray-token"]


def test_a_folder_is_empty_and_private_whatever_an_earlier_run_left(short: Path) -> None:
    (short / "serve" / NODE).mkdir(parents=True)
    (short / "serve" / NODE / "haproxy.cfg").touch()
    (short / "serve").chmod(0o755)
    folder = empty_folder(short / "serve")
    assert list(folder.iterdir()) == []
    assert mode_of(folder) == 0o700


def test_a_link_that_leads_elsewhere_is_removed_and_what_it_leads_to_is_kept(
    short: Path, tmp_path: Path
) -> None:
    (tmp_path / "kept").touch()
    (short / "serve").symlink_to(tmp_path)
    assert not empty_folder(short / "serve").is_symlink()
    assert (tmp_path / "kept").exists()


def test_the_token_is_new_each_time_and_its_users_alone(short: Path) -> None:
    short.chmod(0o755)  # as an older modelless left it
    tokens = set()
    for _ in range(2):
        close_to_others(short)
        assert mode_of(token_path(short)) == 0o600
        tokens.add(token_path(short).read_text())
    assert {len(token) for token in tokens} == {64}
    assert len(tokens) == 2
    assert mode_of(short) == 0o700


def test_a_home_that_is_made_is_its_users_alone(tmp_path: Path) -> None:
    for make in (only_one, open_registry):
        home = tmp_path / make.__name__ / "home"
        with closing(make(home)) if make is open_registry else only_one(home):
            assert mode_of(home) == 0o700
    assert mode_of(tmp_path / "only_one" / "home" / "run") == 0o700


def test_ray_begins_in_a_private_folder_and_the_caller_stays_where_it_is(short: Path) -> None:
    before = Path.cwd()
    with current_folder(short):
        assert Path.cwd() == short / "cwd"
        assert mode_of(Path.cwd()) == 0o700
    assert Path.cwd() == before


def test_a_folder_fits_up_to_the_longest_path_of_a_socket() -> None:
    room = LONGEST_SOCKET - len(f"/{NODE}/{SOCKET}")
    assert fits(Path("/" + "a" * (room - 1)))
    assert not fits(Path("/" + "a" * room))
    assert not fits(Path("/" + "ä" * (room // 2 + 1)))


def serve_would_say(variable: str, files: Path) -> Path:
    """The path that Serve makes of the variable for a node."""
    environment = ray_environment(Path("/t"), haproxy=Path("/h"), files=files)
    path = Path(environment[variable])
    return path / NODE if variable.endswith("_BASE") else path.parent / NODE / path.name


def test_all_that_serve_writes_for_haproxy_is_in_the_folder(short: Path) -> None:
    files = empty_folder(short / "serve")
    names = ("SOCKET_PATH", "CONFIG_FILE_LOC", "SERVER_STATE_BASE", "SERVER_STATE_FILE")
    paths = [serve_would_say(f"RAY_SERVE_HAPROXY_{name}", files) for name in names]
    assert [path for path in paths if files not in path.parents] == []
    assert len(set(paths)) == len(names)
    # With the name under which HAProxy binds first, it is what Linux takes at most.
    assert len(os.fsencode(paths[0])) <= LONGEST_SOCKET <= 107 - len(".4194304.tmp")
    assert not [name for name in ray_environment(Path("/t"), haproxy=None) if "HAPROXY" in name]


def test_serve_knows_the_variables_that_are_set_for_it() -> None:
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    text = (Path(spec.origin).parent / "serve" / "_private" / "constants.py").read_text()
    set_for_it = ray_environment(Path("/t"), haproxy=Path("/h"), files=Path("/f"))
    assert [name for name in set_for_it if "SERVE" in name and f'"{name}"' not in text] == []


def test_relative_paths_are_made_absolute_for_processes_that_begin_elsewhere(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(short)
    assert absolute_paths({}) == absolute_paths({"MODELLESS_STORE_URL": ""}) == {}
    told = {"PYTHONPATH": ":mine::/else/where:", "MODELLESS_STORE_URL": "sqlite:///a/b.db"}
    assert absolute_paths(told) == {
        "PYTHONPATH": f"{short}/mine:/else/where",
        "MODELLESS_STORE_URL": f"sqlite:///{short}/a/b.db",
    }
    for url in ("sqlite:////a/b.db", "postgresql+psycopg://me:secret@host/db"):
        assert absolute_paths({"MODELLESS_STORE_URL": url}) == {"MODELLESS_STORE_URL": url}


def test_the_longest_of_rays_sockets_is_shorter_than_haproxys() -> None:
    session = "session_2026-01-01_00-00-00_000000_4194304"
    sockets = f"ray/{session}/sockets/plasma_store.1"
    assert 107 - len(sockets) >= LONGEST_SOCKET - len(f"serve/{NODE}/{SOCKET}")
