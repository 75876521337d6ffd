"""The cluster: start it in the foreground or background, look at it, upgrade it, take it down."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, ModellessError
from modelless.controller.api.keys import KeyRing
from modelless.controller.config import (
    HistorySettings,
    Settings,
    is_loopback,
    load_settings,
    with_changes,
)
from modelless.controller.control.messages import Entry, EntryKind
from modelless.controller.history.audit import note_act, user_name
from modelless.controller.history.entries import write_entries
from modelless.controller.live.cluster import cluster, upgrade
from modelless.controller.live.cluster.ports import HeldPorts
from modelless.controller.live.cluster.run_folder import only_one
from modelless.controller.live.cluster.running import UpState, read_state
from modelless.controller.live.cluster.supervisor import (
    CHILD,
    Supervisor,
    read_note,
    watch_supervisor,
)
from modelless.controller.live.key_file import read_keys
from modelless.controller.live.settings_revisions import settings_in_force
from modelless.controller.replay.tape import SUFFIX
from modelless.controller.usecases.client import find_url, get_json
from modelless.controller.usecases.home import (
    AnyPath,
    Home,
    home_folder,
    open_home,
    path_or_none,
)
from modelless.controller.usecases.progress import Note, Progress, ignore
from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.device_records import DeviceRecords, describe_devices
from modelless.profiler.devices.host import read_facts
from modelless.variants.vocabulary import Task

POLL_S: Final = 0.1
PATIENCE_S: Final = 300.0
_ERROR: Final = "error: "

OWN_FILES: Final = 512
"""Files and sockets that a gateway opens beside those of its clients, at most."""


@dataclass(frozen=True, slots=True)
class Up:
    """A cluster that is up.

    Attributes:
        url: of its HTTP server.
        ready: whether all tasks that can be served here are.
        not_served: why tasks are not served, by name.
        log: of a process in the background; None in the foreground.
    """

    url: str
    pid: int
    ready: bool
    not_served: Mapping[str, str]
    log: Path | None = None


class BackgroundError(ModellessError):
    """The background process ended before it was ready; has its last error and exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # of this one, not of the class


def read_settings(
    config: AnyPath | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    gateways: int | None = None,
    record: AnyPath | None = None,
    insecure: bool = False,
) -> Settings:
    """The settings file with the other arguments in place of its values, all checked.

    Raises:
        InvalidInputError: an unknown key, or a value out of range.
    """
    settings = load_settings(path_or_none(config))
    folder = record or settings.record.folder
    changes = {
        "http.host": host,
        "http.port": port,
        "http.insecure": insecure or None,
        "gateways.count": gateways,
        "record.folder": str(Path(folder).resolve()) if folder else None,  # read elsewhere
    }
    return with_changes(settings, {key: each for key, each in changes.items() if each is not None})


def up(
    *,
    config: AnyPath | None = None,
    host: str | None = None,
    port: int | None = None,
    gateways: int | None = None,
    record: AnyPath | None = None,
    address: str | None = None,
    insecure: bool = False,
    supervise: bool = False,
    home: Home = None,
    on_progress: Progress = ignore,
) -> Up:
    """Start serving in the background; returns when the server is ready.

    If the caller is interrupted, the process is taken down.

    Args:
        config: the settings file.
        host, port: to listen on, in place of the settings' own.
        gateways: number of gateways, in place of the settings' own.
        record: record all decisions in this folder, for ``replay``.
        address: a Ray cluster to join: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; default: a
            cluster of its own on this machine.
        insecure: listen on an address that others reach, even without keys.
        supervise: start everything anew when a part dies that Ray cannot mend.
        home: see ``home_folder``.
        on_progress: receives the stages.

    Raises:
        BackgroundError: the process ended before it was ready; has its message and exit code.
        EnvironmentUnfitError: modelless is up already or being started, or did not become ready.
        InvalidInputError: the settings are wrong.

    Examples:
        >>> server = modelless.up(port=8080)  # doctest: +SKIP
        >>> server.url  # doctest: +SKIP
        'http://127.0.0.1:8080'
    """
    options: dict[str, Any] = {
        "config": config, "host": host, "port": port, "gateways": gateways, "record": record,
        "insecure": insecure,
    }  # fmt: skip
    settings = read_settings(**options)
    folder = home_folder(home)
    check_exposed(settings, read_keys(folder))
    settings_in_force(folder, settings)
    _make_record_folder(settings)
    running = read_state(folder)
    if running is not None:
        raise EnvironmentUnfitError(
            f"modelless is already up at {running.url} (process {running.pid}); "
            "'modelless down' takes it down"
        )
    with only_one(folder.resolve()):
        pass  # refused here, for a new process would begin the log of the other one anew
    log = folder.resolve() / "run" / "up.log"
    options |= {"address": address, "supervise": supervise}
    with log.open("wb") as output:
        child = subprocess.Popen(
            up_command(folder, options),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        state, not_served = _wait(folder, child, log, on_progress)
    except BaseException:
        _end(child)
        raise
    return Up(state.url, state.pid, not state.awaits, not_served, log)


def up_command(home: Path, options: Mapping[str, object]) -> list[str]:
    """The command line of ``modelless up`` in a process of its own.

    Args:
        options: values by name; True stands for a switch, None and False for nothing.
    """
    command = [sys.executable, "-P", "-m", "modelless.controller.cli"]
    command += ["--home", str(home.resolve()), "up"]
    for name, value in options.items():
        if value is not None and value is not False:
            command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return command


def supervise(
    settings: Settings,
    options: Mapping[str, object],
    say: Callable[[str], None],
    *,
    home: Home = None,
) -> int:
    """Keep a cluster up from this process until it is told to stop; returns the exit code.

    Args:
        settings: of the cluster.
        options: of ``up_command``, for the process that has the cluster.
        say: told what the supervisor does, for people.

    Raises:
        EnvironmentUnfitError: modelless is up already, the port is taken, or too many rebuilds did
            not help.
    """
    folder = home_folder(home).resolve()
    ports = settings.http.chosen_ports
    return Supervisor(folder, up_command(folder, options), ports, say).run()


def serve(
    settings: Settings,
    address: str | None,
    on_stage: Callable[[str], None],
    on_up: Callable[[Up], None],
    wait: Callable[[], None],
    *,
    home: Home = None,
) -> None:
    """Serve in this process until ``wait`` ends, and take everything down.

    Args:
        address: of a Ray cluster to join; None for one of its own.
        on_stage: receives the name of each stage of the start.
        wait: waits for the end, by returning or raising.

    Raises:
        EnvironmentUnfitError: Ray cannot start or serve, or modelless is up already.
        ModellessError: the settings do not fit the home or the machine, or the folder of a
            recording has one already.
    """
    supervisor, ports = int(os.environ.pop(CHILD, "0")), HeldPorts.inherited()
    environment = dict(os.environ)
    check_exposed(settings, read_keys(home_folder(home)))
    _, latest = settings_in_force(home_folder(home), settings)
    if latest.changes:
        told = ", ".join(f"{key} {value}" for key, value in latest.changes.items())
        on_stage(f"settings of revision {latest.number} ({told})")
    _make_record_folder(settings)
    if lacking := lacking_files(settings):
        on_stage(lacking)
    note_act(home_folder(home), "up", user_name(), url=settings.http.url, address=address)
    if settings.serve_unmeasured:
        facts = read_facts()
        with open_home(home) as registry:
            devices, records = default_device_classes(facts), DeviceRecords(registry.store)
            describe_devices(devices, facts, records, accept_noise=True)
    try:
        with cluster.Cluster(home_folder(home), settings, on_stage, address, ports) as running:
            on_stage("loading variants")
            is_ready = running.wait_ready()
            if supervisor:
                command = [*sys.orig_argv, "--supervise"]
                numbers = [port for _, port in settings.http.chosen_ports]
                watch_supervisor(supervisor, lambda: ports.start(numbers, command, environment))
            on_up(Up(running.url, os.getpid(), is_ready, dict(running.not_served)))
            wait()
    except Exception as error:
        # Ray's own errors, or the RuntimeError with which Serve gives a start up.
        if type(error) is not RuntimeError and not type(error).__module__.startswith("ray."):
            raise
        raise EnvironmentUnfitError(
            f"Ray could not start or serve: {error}; its logs lie in "
            "session_latest/logs of its temporary folder. Usually the machine is short of "
            "memory, or too busy with something else: try again."
        ) from error


def status(url: str | None = None, *, home: Home = None) -> dict[str, Any]:
    """The state of a running modelless: members, variants, memory, load, outcomes, predictions.

    Args:
        url: of the server; default: the one that runs from ``home``.
        home: see ``home_folder``.

    Raises:
        ModellessError: nothing is up.
        UnavailableError: the server does not answer.

    Examples:
        >>> [(each["id"], each["loaded"]) for each in modelless.status()["members"]]
        ... # doctest: +SKIP
    """
    note = read_note(home_folder(home)) if url is None else None
    try:
        address = find_url(home, url)
        found = get_json(address, "/modelless/status")
    except ModellessError as error:
        if note is None:
            raise
        raise type(error)(f"{error} (supervisor: {note})") from None
    at_s = found.get("at_s")
    age = {} if at_s is None else {"age_s": round(max(time.time() - at_s, 0.0), 1)}
    own = {"supervisor": str(note)} if note is not None else {}
    if url is None and (problem := _store_problem(home)):
        own["store_problem"] = problem
    state = read_state(home_folder(home)) if url is None else None
    shown = state.url if state is not None else address  # clients', where operators have their own
    return {"url": shown, **age, **own, **found}


def upgrade_cluster(
    *,
    config: Path | None = None,
    restart: bool = False,
    home: Home = None,
    on_progress: Progress = ignore,
) -> upgrade.Upgraded:
    """Move the running cluster to the installed release while it serves.

    Processes that run the release already are left alone, so an interrupted upgrade may be
    repeated. The history has entries of the begin and the end.

    Args:
        config: settings file of the cluster from then on; default: its settings stay.
        restart: replace processes that run this release already, too.

    Raises:
        ModellessError: nothing is up, or a new process does not start.
    """
    folder = home_folder(home)
    asked = load_settings(config) if config is not None else None
    note_act(folder, "upgrade", user_name(), config=config, restart=restart)
    has_begun = False

    def on_stage(stage: str) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            _note(home, "began", {"restart": restart}, on_progress)
        on_progress(Note(f"{stage} ..."))

    try:
        done = upgrade.upgrade(folder, asked, on_stage, restart=restart)
    except ModellessError as error:
        if has_begun:
            _note(home, "failed", {"error": str(error)}, on_progress)
        raise
    except KeyboardInterrupt:
        on_progress(
            Note("what was begun goes on in the cluster; 'modelless upgrade' sees the rest through")
        )
        raise
    if has_begun:
        _note(home, "done", asdict(done), on_progress)
    return done


def served_tasks(settings: Settings, up: Up, *, home: Home = None) -> list[Task]:
    """The tasks that are served."""
    with open_home(home) as registry:
        names = settings.tasks or [task.name for task in registry.tasks()]
        served = set(names) - up.not_served.keys()
        return [task for task in registry.tasks() if task.name in served]


def check_exposed(settings: Settings, keys: KeyRing) -> None:
    """Refuse to listen where others reach it while there is no key.

    Raises:
        EnvironmentUnfitError: names the ways out.
    """
    http = settings.http
    if keys.is_needed or http.insecure or is_loopback(http.host):
        return
    raise EnvironmentUnfitError(
        f"http.host: got {http.host!r}, which other machines reach, and there are no keys; allowed "
        "without keys: 127.0.0.1. Make one with 'modelless key create --tenant NAME', or say "
        "--insecure if something else keeps strangers out"
    )


def lacking_files(settings: Settings) -> str:
    """What a low limit of open files costs, and how to raise it; empty if it suffices.

    Ray raises the soft limit to the hard one, up to 65,536.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.limits.max_connections + OWN_FILES
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    return (
        f"open files: at most {hard} of a process, and a gateway with limits.max_connections "
        f"{settings.limits.max_connections} may need {needed}; clients beyond that cannot connect. "
        f"Raise the limit with 'ulimit -Hn {needed}' as root, or LimitNOFILE={needed} in systemd"
    )


def last_error(text: str) -> str:
    """The error that a log reports last, without the word ``error``; or its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(_ERROR)]
    return errors[-1].removeprefix(_ERROR) if errors else (lines[-1] if lines else "no word")


def _make_record_folder(settings: Settings) -> None:
    """Make the folder of a recording; it may exist, without a recording."""
    if settings.record.folder is None:
        return
    folder = Path(settings.record.folder)
    if any(folder.glob(f"*{SUFFIX}")):
        raise InvalidInputError.of("record.folder", str(folder), "a folder without a recording")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfitError(f"record.folder: {error}; name another one") from None
    if not os.access(folder, os.W_OK):
        raise EnvironmentUnfitError(f"record.folder: {folder} cannot be written; name another one")


def _wait(
    home: Path, child: subprocess.Popen[bytes], log: Path, on_progress: Progress
) -> tuple[UpState, Mapping[str, str]]:
    """The child's state once it serves all that it can, and what it does not serve.

    Its stages are reported meanwhile.
    """
    end_s = time.monotonic() + PATIENCE_S
    repeated = 0
    while time.monotonic() < end_s:
        code = child.poll()
        text = log.read_text(encoding="utf-8", errors="replace")
        for line in text[repeated:].splitlines(keepends=True):
            if line.endswith("\n"):
                repeated += len(line)
                if line.rstrip().endswith("..."):
                    on_progress(Note(line.rstrip()))
        if code is not None:
            raise BackgroundError(f"{last_error(text)} (log: {log})", code if code > 0 else 1)
        state = read_state(home)
        if state is not None and child.pid in (state.pid, _supervisor_pid(home)):
            if state.awaits:
                on_progress(Note(f"not every task is served yet: {state.awaits}"))
                return state, {}
            try:
                ready = get_json(state.operators_url or state.url, "/v2/health/ready", 2.0)
            except ModellessError:
                pass
            else:
                return state, ready.get("not_served", {})
        time.sleep(POLL_S)
    raise EnvironmentUnfitError(f"it did not become ready within {PATIENCE_S:.0f} s; log: {log}")


def _store_problem(home: Home) -> str:
    """Why the store cannot be read; empty if it can."""
    try:
        with open_home(home) as registry:
            registry.catalog()
    except ModellessError as error:
        return str(error)
    return ""


def _supervisor_pid(home: Path) -> int:
    note = read_note(home)
    return note.pid if note is not None else 0


def _end(child: subprocess.Popen[bytes]) -> None:
    """Terminate the child; kill it if it does not end."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _note(home: Home, reason: str, details: dict[str, Any], on_progress: Progress) -> None:
    """Write an entry to the history; a failure is only a note."""
    entry = Entry(EntryKind.UPGRADE, str(details.get("release", "modelless")), reason, details)
    try:
        with open_home(home) as registry:
            stamped = [(datetime.now(UTC), entry)]
            write_entries(registry.store, stamped, HistorySettings().max_entries)
    except ModellessError as error:
        on_progress(Note(f"the history has no entry of it: {error}"))
