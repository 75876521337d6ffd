"""A small process that has the cluster in a child, and starts it anew when a part of it dies.

``modelless up --supervise`` is this process. The child is ``modelless up`` as it is without. Ray
itself replaces workers, gateways, Serve's controller and the control loop, and the child replaces
HAProxy. Nothing replaces Ray's own daemons: after the death of one the whole of Ray goes, and comes
back with the same settings. The child watches this process in turn, and starts it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from modelless.common.errors import EnvironmentUnfitError
from modelless.common.files import write_whole
from modelless.controller.live.cluster.ports import HeldPorts
from modelless.controller.live.cluster.run_folder import cluster_members, only_one
from modelless.controller.live.cluster.running import (
    answers,
    began_ticks,
    end_left_over,
    process_state,
    read_state,
    send_signal,
)

LOOK_S, SEARCH_S = 0.5, 2.0
GLANCE_S = 0.05
"""So often it looks whether one of Ray's daemons has ended: until everything else is killed, what
is left of the cluster refuses queries that would otherwise wait."""
STOPPED_S = 1.0
"""A process that stands still (SIGSTOP) for so long is killed, and replaced as if it had died."""
SILENT_S = 30.0
"""A cluster that answers no health check for so long is started anew."""
START_S = 300.0
"""It may take so long to become ready."""
MOST_REBUILDS, WITHIN_S = 5, 600.0
"""After so many within so long the next failure is the last."""
STOP_S = 15.0
"""From the request to stop until what is left is killed."""
CHILD = "MODELLESS_SUPERVISED"
"""In the environment of the child, until it has read it: the supervisor's process id."""

PARTS: Mapping[str, tuple[str, float]] = {
    "the GCS": ("/gcs/gcs_server ", 0.0),
    "the raylet": ("/raylet/raylet ", 0.0),
    "Ray's agents": ("/ray_agent.py ", 0.0),
    "HAProxy": ("/bin/haproxy -", SILENT_S),
    "Serve's controller": ("ray::ServeController", SILENT_S),
    "the control loop": ("ray::ControlLoop", SILENT_S),
}
"""What a part's command has in it, and how many seconds others have to replace it."""


class Verdict(StrEnum):
    """What to do."""

    WAIT = "wait"
    KILL_STOPPED = "kill what stands still"
    REBUILD = "rebuild"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of the cluster at one moment.

    Attributes:
        now_s: when, on any clock.
        has_ended: whether the child has.
        lost: the parts that were there and that nobody replaced in time.
        stopped_s: how long a process has stood still; 0 if none does.
        silent_s: since the last answer to a health check, or the child's start.
        is_ready: whether it has answered one since it was started.
    """

    now_s: float
    has_ended: bool = False
    lost: tuple[str, ...] = ()
    stopped_s: float = 0.0
    silent_s: float = 0.0
    is_ready: bool = True


def decide(seen: Seen, rebuilt_at_s: Sequence[float]) -> tuple[Verdict, str]:
    """What to do about a cluster, and why, in words.

    Args:
        rebuilt_at_s: when it was rebuilt so far, on the same clock.
    """
    patience_s = SILENT_S if seen.is_ready else START_S
    if seen.has_ended:
        why = "the cluster's process has ended"
    elif seen.lost:
        why = f"{' and '.join(seen.lost)} died"
    elif seen.silent_s > patience_s:
        why = f"no health check was answered for {patience_s:.0f} s"
    elif seen.stopped_s >= STOPPED_S:
        return Verdict.KILL_STOPPED, f"a process stood still for {STOPPED_S:.0f} s: killed"
    else:
        return Verdict.WAIT, ""
    lately = sum(at_s > seen.now_s - WITHIN_S for at_s in rebuilt_at_s)
    return (Verdict.GIVE_UP if lately >= MOST_REBUILDS else Verdict.REBUILD), why


@dataclass(frozen=True, slots=True)
class SupervisorNote:
    """What ``run/supervisor.json`` says.

    Attributes:
        began_ticks: when the supervisor began, as the kernel counts.
        cluster_pid: of the child; 0 while there is none.
        state: ``serving``, ``starting``, ``rebuilding`` or ``gave up``.
        why: it was rebuilt last, or given up.
        rebuilt_at_s: when it was rebuilt, seconds since the epoch.
    """

    pid: int
    began_ticks: int
    cluster_pid: int = 0
    state: str = "starting"
    why: str = ""
    rebuilt_at_s: list[float] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        """Whether its supervisor runs."""
        return _is_alive(self.pid, self.began_ticks)

    def __str__(self) -> str:
        times = f"{len(self.rebuilt_at_s)} times rebuilt"
        return f"{self.state}, {times}" + (f", last because {self.why}" if self.why else "")


def read_note(home: Path) -> SupervisorNote | None:
    """What the last supervisor of this home noted; None if there was none."""
    try:
        return SupervisorNote(**json.loads(_note_path(home).read_text()))
    except (OSError, ValueError, TypeError):
        return None


class Supervisor:
    """Keeps a cluster up until it is told to stop.

    Args:
        home: absolute.
        command: of the child, which inherits the ports' sockets.
        ports: (host, port) where clients come in, and others that nobody else may get meanwhile.
        say: told what it does, for people.
    """

    def __init__(
        self,
        home: Path,
        command: Sequence[str],
        ports: Sequence[tuple[str, int]],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._home = home
        self._chosen_ports = ports
        self._ports = HeldPorts.inherited()
        self._say = say
        self._command = command
        self._ending = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._pid = self._ticks = 0
        self._has_been_ready = False
        self._note = SupervisorNote(os.getpid(), began_ticks(os.getpid()))
        self._forget()

    def run(self) -> int:
        """Keep it up; returns the exit code: 0 after a stop that was asked for.

        Raises:
            EnvironmentUnfitError: it is up already, the port is taken, or too many rebuilds did not
                help.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, lambda *_: self._ending.set())
        if not self._adopt():
            self._start()
        while not self._wait():
            code = self._child.poll() if self._child is not None else None
            if code is not None and (code == 0 or not self._has_been_ready):
                self._end()
                return max(code, 0) or int(code < 0)
            seen, stopped = self._look()
            if seen.is_ready and self._note.state != "serving":
                self._write(state="serving")
            verdict, why = decide(seen, self._note.rebuilt_at_s)
            if verdict is Verdict.KILL_STOPPED:
                self._tell(why)
                send_signal(stopped, signal.SIGKILL)
            elif verdict is Verdict.REBUILD:
                self._tell(f"{why}: starting everything anew")
                times = [*self._note.rebuilt_at_s, time.time()]
                self._write(state="rebuilding", why=why, rebuilt_at_s=times)
                self._kill(self._members())
                self._start()
            elif verdict is Verdict.GIVE_UP:
                self._ports.close()
                self._kill()
                self._write(state="gave up", why=why, cluster_pid=0)
                raise EnvironmentUnfitError(
                    f"{why}, after {MOST_REBUILDS} rebuilds within {WITHIN_S / 60.0:.0f} minutes: "
                    f"gave up. The logs are in {self._home / 'run'}; 'modelless up' starts it again"
                )
        self._end()
        return 0

    # -- the child ----------------------------------------------------------------------------

    def _adopt(self) -> bool:
        """Take over the cluster of a supervisor that died; whether there is one."""
        note, state = read_note(self._home), read_state(self._home)
        other = note.pid if note is not None and note.is_alive else 0
        if state is None and not other:
            return False
        if note is None or state is None or other or note.cluster_pid != state.pid:
            raise EnvironmentUnfitError(
                f"modelless is already up (process {other or (state and state.pid)}); "
                "'modelless down' takes it down"
            )
        self._pid, self._ticks, self._has_been_ready = state.pid, state.began_ticks, True
        times = note.rebuilt_at_s
        self._write(cluster_pid=state.pid, state="serving", why=note.why, rebuilt_at_s=times)
        return True

    def _start(self) -> None:
        ports = [self._ports.hold(host, port) for host, port in self._chosen_ports]
        environment = {**os.environ, CHILD: str(os.getpid())}
        self._child = self._ports.start(ports, self._command, environment)
        self._pid, self._ticks = self._child.pid, began_ticks(self._child.pid)
        self._forget()
        self._write(cluster_pid=self._pid)

    def _forget(self) -> None:
        """What was seen belongs to an earlier child."""
        self._seen_at_s: dict[str, float] = {}
        self._stopped_at_s: dict[int, float] = {}
        self._answered_at_s = time.monotonic()
        self._is_ready = False
        self._searched_s, self._found = -SEARCH_S, list[int]()
        self._daemons: list[int] = []

    def _kill(self, members: Iterable[int] = ()) -> None:
        """Kill all of the cluster, its known ``members`` at once: none may take more queries."""
        if self._is_child_alive():
            send_signal([self._pid], signal.SIGKILL)  # first: it would start another HAProxy
        send_signal(members, signal.SIGKILL)
        while self._is_child_alive():
            time.sleep(0.05)
        # Where another process has the home, the child was refused, and nothing is left of it.
        with contextlib.suppress(EnvironmentUnfitError), only_one(self._home):
            end_left_over(self._home, STOP_S)

    def _end(self) -> None:
        """Have the child take everything down; kill what is left after ``STOP_S``."""
        self._ports.close()
        if self._is_child_alive():
            send_signal([self._pid], signal.SIGTERM)
        end_s = time.monotonic() + STOP_S
        while time.monotonic() < end_s and self._is_child_alive():
            time.sleep(0.05)
        self._kill()
        _note_path(self._home).unlink(missing_ok=True)

    def _is_child_alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return _is_alive(self._pid, self._ticks)

    # -- looking ------------------------------------------------------------------------------

    def _wait(self) -> bool:
        """Wait for ``LOOK_S``, or until one of Ray's daemons ends; whether to stop."""
        end_s = time.monotonic() + LOOK_S
        while time.monotonic() < end_s and all(began_ticks(each) > 0 for each in self._daemons):
            if self._ending.wait(GLANCE_S):
                return True
        return self._ending.is_set()

    def _look(self) -> tuple[Seen, list[int]]:
        """The cluster's state, and the processes that have stood still for too long."""
        found = self._members()
        commands = [_command(process_id) for process_id in found]
        now_s = time.monotonic()
        self._daemons = []
        for name, (words, patience_s) in PARTS.items():
            its = [pid for pid, command in zip(found, commands, strict=True) if words in command]
            if its:
                self._seen_at_s[name] = now_s
            if not patience_s:
                self._daemons += its
        since_s = {
            process_id: self._stopped_at_s.get(process_id, now_s)
            for process_id in (self._pid, *found)
            if process_state(process_id)[0] == b"T"
        }
        self._stopped_at_s = since_s
        state = read_state(self._home)
        if state is not None and state.pid != self._pid:
            state = None
        # What stands still may be what would answer: it is looked at again, without waiting.
        if state is not None and not since_s and answers(state.operators_url or state.url, "live"):
            self._answered_at_s = time.monotonic()
            self._is_ready = self._has_been_ready = True
        # While the child starts, or takes all down itself because it cannot, parts come and go.
        least_s = 0.0 if state is not None and read_state(self._home) is not None else SILENT_S
        lost = [
            name
            for name, at_s in self._seen_at_s.items()
            if now_s - at_s > max(PARTS[name][1], least_s)
        ]
        seen = Seen(
            now_s=time.time(),
            has_ended=not self._is_child_alive(),
            lost=tuple(lost),
            stopped_s=max((now_s - at_s for at_s in since_s.values()), default=0.0),
            silent_s=max(now_s - self._answered_at_s, 0.0),
            is_ready=self._is_ready,
        )
        return seen, [pid for pid, at_s in since_s.items() if now_s - at_s >= STOPPED_S]

    def _members(self) -> list[int]:
        """The cluster's processes; new ones are searched for every ``SEARCH_S``."""
        now_s = time.monotonic()
        if now_s >= self._searched_s + SEARCH_S:
            self._searched_s, self._found = now_s, cluster_members(self._home / "run")
        return [process_id for process_id in self._found if began_ticks(process_id) > 0]

    def _tell(self, words: str) -> None:
        with contextlib.suppress(OSError):  # nobody may read it any more
            self._say(f"supervisor: {words}")

    def _write(self, **changed: object) -> None:
        self._note = SupervisorNote(**{**asdict(self._note), **changed})
        with contextlib.suppress(OSError):  # a full disk keeps nobody from being served
            write_whole(_note_path(self._home), json.dumps(asdict(self._note)).encode(), mode=0o600)


def watch_supervisor(pid: int, start: Callable[[], subprocess.Popen[bytes]]) -> None:
    """In the child: start the supervisor again, from a thread, whenever it dies.

    Args:
        pid: of the supervisor, which started this process.
        start: starts a supervisor, without the mark of the cluster, which it has to outlive.
    """

    def watch() -> None:
        while os.getppid() == pid:
            time.sleep(LOOK_S)
        while True:
            start().wait()
            time.sleep(LOOK_S)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def _note_path(home: Path) -> Path:
    return home / "run" / "supervisor.json"


def _is_alive(process_id: int, ticks: int) -> bool:
    return began_ticks(process_id) == ticks > 0


def _command(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (OSError, UnicodeDecodeError):
        return ""
