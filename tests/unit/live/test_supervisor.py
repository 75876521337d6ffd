"""When a supervisor waits, kills, rebuilds and gives up, and what others learn of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.live.cluster import supervisor
from modelless.controller.live.cluster.reaper import MARK
from modelless.controller.live.cluster.run_folder import note_mark
from modelless.controller.live.cluster.running import began_ticks, end_left_over, take_down
from modelless.controller.live.cluster.supervisor import (
    MOST_REBUILDS,
    SILENT_S,
    START_S,
    STOPPED_S,
    WITHIN_S,
    Seen,
    Supervisor,
    SupervisorNote,
    Verdict,
    decide,
    read_note,
)

NOW_S = 10_000.0
SLEEPS = "import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("seen", "verdict", "words"),
    [
        (Seen(NOW_S), Verdict.WAIT, ""),
        (Seen(NOW_S, has_ended=True), Verdict.REBUILD, "the cluster's process has ended"),
        (Seen(NOW_S, lost=("the GCS", "the raylet")), Verdict.REBUILD, "the GCS and the raylet"),
        (Seen(NOW_S, silent_s=SILENT_S), Verdict.WAIT, ""),
        (Seen(NOW_S, silent_s=SILENT_S + 1.0), Verdict.REBUILD, "no health check"),
        (Seen(NOW_S, silent_s=SILENT_S + 1.0, is_ready=False), Verdict.WAIT, ""),
        (Seen(NOW_S, silent_s=START_S + 1.0, is_ready=False), Verdict.REBUILD, "no health check"),
        (Seen(NOW_S, stopped_s=STOPPED_S / 2.0), Verdict.WAIT, ""),
        (Seen(NOW_S, stopped_s=STOPPED_S), Verdict.KILL_STOPPED, "stood still"),
        (Seen(NOW_S, stopped_s=STOPPED_S, lost=("the GCS",)), Verdict.REBUILD, "the GCS died"),
    ],
)
def test_what_is_done_about_what_is_seen(seen: Seen, verdict: Verdict, words: str) -> None:
    decided, why = decide(seen, [])
    assert decided is verdict
    assert words in why


@pytest.mark.parametrize(
    ("lately", "long_ago", "verdict"),
    [
        (MOST_REBUILDS - 1, 0, Verdict.REBUILD),
        (MOST_REBUILDS, 0, Verdict.GIVE_UP),
        (MOST_REBUILDS - 1, 9, Verdict.REBUILD),
    ],
)
def test_the_last_of_many_rebuilds_within_a_while(
    lately: int, long_ago: int, verdict: Verdict
) -> None:
    rebuilt_at_s = [NOW_S - WITHIN_S - 1.0] * long_ago + [NOW_S - 1.0] * lately
    assert decide(Seen(NOW_S, lost=("the GCS",)), rebuilt_at_s)[0] is verdict


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest's own stay
    (tmp_path / "run").mkdir()
    return tmp_path


def supervise(home: Path, command: list[str]) -> Supervisor:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return Supervisor(home, command, [free.getsockname()])


def test_a_child_that_never_was_ready_is_not_started_again(home: Path) -> None:
    child = [sys.executable, "-c", "raise SystemExit(7)"]
    assert supervise(home, child).run() == 7
    assert read_note(home) is None


def test_one_that_is_supervised_already_is_refused(home: Path) -> None:
    note = SupervisorNote(os.getpid(), began_ticks(os.getpid()))
    assert note.is_alive
    supervise(home, [])._write()
    with pytest.raises(EnvironmentUnfitError, match=f"already up .process {os.getpid()}"):
        supervise(home, []).run()


def test_it_gives_up_with_a_state_that_others_can_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_S", 0.01)
    found = supervise(home, [sys.executable, "-c", "raise SystemExit(1)"])
    found._write(rebuilt_at_s=[time.time()] * (MOST_REBUILDS - 1))
    note = found._note
    supervisor._note_path(home).unlink()
    found._has_been_ready = True
    found._note = note
    with pytest.raises(EnvironmentUnfitError, match="gave up"):
        found.run()
    told = read_note(home)
    assert told is not None
    assert str(told) == (
        f"gave up, {MOST_REBUILDS} times rebuilt, last because the cluster's process has ended"
    )


def test_it_looks_at_once_when_a_daemon_has_ended(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_S", 600.0)
    found = supervise(home, [])
    with subprocess.Popen([sys.executable, "-c", SLEEPS]) as daemon:
        found._daemons = [os.getpid(), daemon.pid]
        threading.Timer(0.2, daemon.kill).start()
        assert not found._wait()
        assert began_ticks(daemon.pid) <= 0
        found._daemons = [os.getpid()]
        threading.Timer(0.2, found._ending.set).start()
        assert found._wait()


@pytest.fixture
def orphan(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of a cluster whose owner and reaper are gone."""
    note_mark(home / "run", "a-mark")
    environment = {**os.environ, MARK: "a-mark"}
    process = subprocess.Popen([sys.executable, "-c", SLEEPS], env=environment)
    yield process
    process.kill()
    process.wait()


def test_what_an_earlier_cluster_left_is_killed(
    home: Path, orphan: subprocess.Popen[bytes]
) -> None:
    assert end_left_over(home, 5.0, Event().wait) == []
    assert orphan.wait(5) == -9


def test_down_kills_what_does_not_stop_in_time(
    home: Path, orphan: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelless.controller.live.cluster.running.LEFT_OVER_S", 0.5)
    deaf = (
        f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); {SLEEPS}"
    )
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began_s = time.monotonic()
        take_down(home, process.pid, 1.0, Event().wait)
        assert time.monotonic() - began_s < 3.0
        assert process.wait(5) == -9
    assert orphan.wait(5) == -9
