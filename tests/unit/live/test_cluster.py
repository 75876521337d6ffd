"""A cluster takes down what it started and nothing else, and a home has one at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.config import Settings
from modelless.controller.live.cluster.cluster import Cluster
from tests.unit.cli.tiny import add_measurements, add_variants

REFUSED = "being started, is up or is being taken down"


class FakeRay:
    """Stands in for the module, as a program has it that uses Ray itself."""

    def __init__(self, *, connected: bool) -> None:
        self.connected = connected
        self.inits: list[object] = []
        self.shutdowns = 0

    def is_initialized(self) -> bool:
        return self.connected

    def init(self, **arguments: object) -> None:
        self.inits.append(arguments.get("address"))

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.connected = False


@pytest.fixture
def home(tmp_path: Path) -> Path:
    add_variants(tmp_path)
    add_measurements(tmp_path)
    return tmp_path


@pytest.fixture
def set_ray(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRay], FakeRay]:
    def set_it(ray: FakeRay) -> FakeRay:
        monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]  # as if
        return ray

    return set_it


@pytest.fixture
def no_start(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Homes whose clusters would have started."""
    started: list[Path] = []
    monkeypatch.setattr(Cluster, "_start", lambda cluster: started.append(cluster._home))
    return started


@pytest.mark.parametrize("address", [None, "auto"])
def test_the_callers_own_connection_is_refused_and_left_alone(
    home: Path,
    no_start: list[Path],
    set_ray: Callable[[FakeRay], FakeRay],
    address: str | None,
) -> None:
    ray = set_ray(FakeRay(connected=True))
    with (
        pytest.raises(EnvironmentUnfitError, match=r"already connected.*ray\.shutdown\(\) first"),
        Cluster(home, Settings(), address=address),
    ):
        pytest.fail("it started")
    assert (ray.shutdowns, ray.connected, no_start) == (0, True, [])
    assert not (home / "run").exists()


@pytest.mark.parametrize("connect", [Cluster._join_ray, lambda cluster, _: cluster._connect()])
def test_what_connected_meanwhile_is_left_alone(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_ray: Callable[[FakeRay], FakeRay],
    connect: Callable[[Cluster, str], None],
) -> None:
    ray = set_ray(FakeRay(connected=False))

    def start(cluster: Cluster) -> None:
        ray.connected = True
        connect(cluster, "1.2.3.4:6379")

    monkeypatch.setattr(Cluster, "_start", start)
    with (
        pytest.raises(EnvironmentUnfitError, match="already connected"),
        Cluster(home, Settings()),
    ):
        pytest.fail("it started")
    assert (ray.inits, ray.shutdowns, ray.connected) == ([], 0, True)


@pytest.mark.parametrize("mode", ["disabled", "DISABLED", ""])
def test_a_ray_that_lets_everybody_in_is_not_started(
    home: Path, no_start: list[Path], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with (
        pytest.raises(EnvironmentUnfitError, match=f"RAY_AUTH_MODE: got '{mode}'.*unset RAY_AUTH"),
        Cluster(home, Settings()),
    ):
        pytest.fail("it started")
    assert no_start == []
    with Cluster(home, Settings(), address="1.2.3.4:6379"):  # who started that one has said so
        assert no_start == [home]


def test_its_own_connection_ends_with_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, set_ray: Callable[[FakeRay], FakeRay]
) -> None:
    ray = set_ray(FakeRay(connected=False))
    monkeypatch.setattr(Cluster, "_start", lambda cluster: cluster._join_ray("1.2.3.4:6379"))
    with Cluster(home, Settings()):
        assert (ray.inits, ray.shutdowns) == (["1.2.3.4:6379"], 0)
    assert ray.shutdowns == 1


def test_a_second_one_of_a_home_is_refused_and_touches_nothing(
    home: Path, no_start: list[Path]
) -> None:
    with Cluster(home, Settings()):
        files = [home / "run" / name for name in ("logs/control.log", "sockets/a.sock", "x.json")]
        for file in files:
            file.parent.mkdir(exist_ok=True)
            file.touch()
        with (
            pytest.raises(EnvironmentUnfitError, match=f"process {os.getpid()} .*{REFUSED}"),
            Cluster(home, Settings()),
        ):
            pytest.fail("two at a time")
        assert [file for file in files if not file.exists()] == []
        with pytest.raises(EnvironmentUnfitError, match=REFUSED):  # still
            Cluster(home, Settings()).__enter__()
    assert no_start == [home]


def test_a_home_is_free_after_one_that_was_up_and_one_that_did_not_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [None, OSError("no room"), None]

    def start(cluster: Cluster) -> None:
        if (error := outcomes.pop()) is not None:
            raise error

    monkeypatch.setattr(Cluster, "_start", start)
    with Cluster(home, Settings()):
        pass
    with pytest.raises(EnvironmentUnfitError, match="no room"), Cluster(home, Settings()):
        pytest.fail("it started")
    with Cluster(home, Settings()):
        assert outcomes == []


def test_what_it_started_and_outlives_it_does_not_keep_the_home(
    home: Path, no_start: list[Path]
) -> None:
    with Cluster(home, Settings()):
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE, close_fds=False
        )
    try:
        with Cluster(home, Settings()):
            assert no_start == [home, home]
            assert child.poll() is None
    finally:
        child.communicate(b"\n")


def test_two_homes_are_independent(home: Path, no_start: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    add_variants(other)
    add_measurements(other)
    with Cluster(home, Settings()), Cluster(other, Settings()):
        assert no_start == [home, other]
