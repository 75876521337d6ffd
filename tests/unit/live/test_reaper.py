"""Which processes are the cluster's, which only look on; the reaper waits for none without end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from modelless.controller.live.cluster import reaper
from modelless.controller.live.cluster.reaper import GRACE_S, MARK, PATIENCE_S, end_all, members

CLUSTER = "0123abcd"
RAY = "/home/a/.modelless/run/ray"
SESSION = f"{RAY}/session_2026-01-01_1"
SUPERVISOR, REAPER = 100, 99
READING, WRITING, APPENDING, BOTH = "0100000", "0100001", "0102001", "0100002"


class Processes:
    """A folder as the kernel shows processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        process_id: int,
        *,
        parent: int = 1,
        mark: str = "",
        state: str = "S",
        opened: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """One with these files open, each with its flags."""
        own = self.folder / str(process_id)
        for name in ("fd", "fdinfo"):
            (own / name).mkdir(parents=True)
        environ = f"HOME=/root\0{MARK}={mark}\0A=b\0" if mark else "HOME=/root\0"
        (own / "environ").write_text(environ)
        (own / "stat").write_text(f"{process_id} (a) b) {state} {parent} 1 1 0 -1")
        for number, (path, flags) in enumerate(opened, start=3):
            (own / "fd" / str(number)).symlink_to(path)
            info = f"pos:\t0\nflags:\t{flags}\nmnt_id:\t24\nino:\t7\n"
            (own / "fdinfo" / str(number)).write_text(info)

    def members(self) -> list[int]:
        return members(CLUSTER, RAY, SUPERVISOR, self.folder)


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(os, "getpid", lambda: REAPER)  # theirs could be one of those below
    (tmp_path / "meminfo").write_text("")
    return Processes(tmp_path)


def test_the_marked_and_what_descends_from_them_belong(processes: Processes) -> None:
    processes.add(7, mark=CLUSTER)
    processes.add(8, parent=7)
    processes.add(9, parent=8)
    processes.add(10, mark="another")
    processes.add(11, parent=10)
    processes.add(12, mark=f"{CLUSTER}4")
    assert processes.members() == [7, 8, 9]


@pytest.mark.parametrize(
    ("flags", "belongs"), [(READING, False), (WRITING, True), (APPENDING, True), (BOTH, True)]
)
def test_of_the_unmarked_those_that_write_into_the_session_belong(
    processes: Processes, flags: str, *, belongs: bool
) -> None:
    processes.add(7, opened=(("/dev/null", BOTH), (f"{SESSION}/logs/a.log", flags)))
    assert processes.members() == ([7] if belongs else [])


def test_another_ray_is_somebody_elses(processes: Processes) -> None:
    processes.add(7, opened=((f"{RAY}9/session_1/logs/a.log", WRITING),))
    processes.add(8, opened=(("/home/a/notes", WRITING), (f"{SESSION}/logs/a.log", READING)))
    assert processes.members() == []


def test_neither_the_supervisor_nor_the_reaper_nor_the_dead_belong(processes: Processes) -> None:
    opened = ((f"{SESSION}/logs/a.log", WRITING),)
    processes.add(SUPERVISOR, mark=CLUSTER, opened=opened)
    processes.add(REAPER, parent=SUPERVISOR, mark=CLUSTER, opened=opened)
    processes.add(9, mark=CLUSTER, state="Z")
    processes.add(10, parent=SUPERVISOR)
    assert processes.members() == []


def test_a_process_that_ends_meanwhile_is_passed_over(processes: Processes) -> None:
    (processes.folder / "6").mkdir()
    processes.add(7, opened=((f"{SESSION}/logs/a.log", WRITING),))
    (processes.folder / "7" / "fdinfo" / "3").unlink()
    processes.add(8, mark=CLUSTER)
    assert processes.members() == [8]


OPENS = "import sys; f = open(sys.argv[1], sys.argv[2]); print(flush=True); sys.stdin.read()"


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_who_follows_a_log_is_not_the_clusters(tmp_path: Path, started: ExitStack) -> None:
    log = tmp_path / "raylet.log"
    log.touch()
    ids = []
    for mode in ("r", "a"):
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", OPENS, str(log), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.callback(process.communicate)
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        ids.append(process.pid)
    assert members(CLUSTER, str(tmp_path), SUPERVISOR) == ids[1:]


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_what_ends_by_itself_is_not_killed() -> None:
    time, killed = Time(), list[int]()
    left = end_all(lambda: [7] if time.now_s < 2.0 else [], killed.append, time.clock, time.sleep)
    assert (left, killed) == ([], [])
    assert time.now_s < GRACE_S


def test_what_does_not_is_killed_after_the_grace() -> None:
    time, killed = Time(), set[int]()
    left = end_all(lambda: sorted({7, 8} - killed), killed.add, time.clock, time.sleep)
    assert (left, killed) == ([], {7, 8})
    assert GRACE_S < time.now_s < GRACE_S + 1.0


def test_what_cannot_be_killed_is_given_up_and_named() -> None:
    time, killed = Time(), list[int]()
    left = end_all(lambda: [7], killed.append, time.clock, time.sleep)
    assert left == [7]
    assert set(killed) == {7}
    assert GRACE_S + PATIENCE_S < time.now_s < GRACE_S + PATIENCE_S + 1.0


def test_it_starts_without_site_packages_and_ends_with_its_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", reaper.__file__, "nobody-bears-this", "/of/nobody"],
        input=b"",
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
