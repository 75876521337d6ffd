"""``modelless up``, ``down`` and ``status`` without a cluster: fakes at the seams."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.api.v2_reply import render_json
from modelless.controller.cli.cluster import Stopped, StopSignals, curl_line
from modelless.controller.live.cluster.run_folder import only_one
from modelless.controller.live.cluster.running import began_ticks, read_state
from modelless.controller.live.cluster.supervisor import SupervisorNote
from modelless.controller.replay.tape import SUFFIX
from modelless.controller.usecases.cluster import last_error
from modelless.controller.usecases.inferring import file_for
from modelless.variants.vocabulary import Task, TensorSpec

from .conftest import Run
from .servers import STATUS, Server, no_json, running
from .tiny import TASK


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that answers as modelless would."""
    with running() as server:
        yield server


def is_up(home: Path, url: str, pid: int | None = None, awaits: str = "") -> None:
    """Leave the note by which the other commands find what is up."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    state = {"pid": pid or os.getpid(), "url": url, "started_at": time.time(), "awaits": awaits}
    (home / "run" / "up.json").write_text(json.dumps(state))


def test_a_process_id_that_is_used_again_is_not_modelless(home: Path) -> None:
    is_up(home, "http://127.0.0.1:1")
    assert read_state(home) is not None
    note = home / "run" / "up.json"
    ticks = began_ticks(os.getpid())
    for began, found in ((ticks, True), (ticks + 1, False), (0, True)):
        note.write_text(json.dumps({**json.loads(note.read_text()), "began_ticks": began}))
        assert (read_state(home) is not None) == found


class FakeCluster:
    """Stands in for ``Cluster``: up at once; ``ending`` is raised while it is up."""

    ending: BaseException | None = None
    events: list[str]
    settings: Any
    address: str | None
    not_served: Mapping[str, str] = {}

    def __init__(
        self,
        home: Path,
        settings: Any,
        on_stage: Callable[[str], None],
        address: str | None = None,
        ports: object = None,
    ) -> None:
        self.url = f"http://{settings.http.host}:{settings.http.port}"
        self.on_stage = on_stage
        type(self).settings = settings
        type(self).address = address
        type(self).events = []

    def __enter__(self) -> FakeCluster:
        self.on_stage("starting")
        self.events.append("up")
        return self

    def __exit__(self, *_: object) -> None:
        self.events.append("down")

    def wait_ready(self) -> bool:
        self.events.append("ready")
        return True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[FakeCluster]:
    """No Ray: ``up`` is told to stop as soon as it is up."""
    monkeypatch.setattr("modelless.controller.live.cluster.cluster.Cluster", FakeCluster)

    def wait(_: StopSignals) -> None:
        if FakeCluster.ending is not None:
            raise FakeCluster.ending

    monkeypatch.setattr(StopSignals, "wait", wait)
    return FakeCluster


@pytest.mark.parametrize(
    ("ending", "code"),
    [(Stopped(), 0), (KeyboardInterrupt(), 130), (SystemExit(int(signal.SIGTERM)), 0)],
)
def test_up_serves_until_it_is_told_to_stop(
    run: Run,
    registered: Path,
    cluster: type[FakeCluster],
    monkeypatch: pytest.MonkeyPatch,
    ending: BaseException,
    code: int,
) -> None:
    monkeypatch.setattr(cluster, "ending", ending)
    ran = run("up", "--port", 9123, "--gateways", 3)
    assert ran.code == code
    assert cluster.events == ["up", "ready", "down"]
    assert (cluster.settings.http.port, cluster.settings.gateways.count) == (9123, 3)
    assert "ready: http://127.0.0.1:9123" in ran.out
    assert "curl -s http://127.0.0.1:9123/v2/models/pixels/infer -d '{" in ran.out
    assert "starting ..." in ran.err


def test_up_names_what_it_does_not_serve_and_why(
    run: Run, registered: Path, cluster: type[FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "task pixels has no profile on device class cpu-1: run 'modelless profile pixels'"
    monkeypatch.setattr(cluster, "not_served", {"pixels": reason})
    ran = run("up")
    assert ran.code == 0
    assert f"not served: {reason}" in ran.err
    assert "curl" not in ran.out
    assert run("up", "--json").document["not_served"] == {"pixels": reason}


@pytest.mark.parametrize("serve_unmeasured", [False, True])
def test_up_measures_the_devices_where_their_rates_are_served_by(
    run: Run,
    registered: Path,
    cluster: type[FakeCluster],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    serve_unmeasured: bool,
) -> None:
    asked: list[dict[str, Any]] = []

    def describe(*_: Any, **wanted: Any) -> dict[str, Any]:
        asked.append(wanted)
        return {}

    monkeypatch.setattr("modelless.controller.usecases.cluster.describe_devices", describe)
    config = tmp_path / "settings.yaml"
    config.write_text(f"serve_unmeasured: {str(serve_unmeasured).lower()}\n")
    monkeypatch.setattr(cluster, "ending", Stopped())
    assert run("up", "--config", config).code == 0
    assert asked == [{"accept_noise": True}] * serve_unmeasured, "noise is no reason to wait"


def test_up_says_when_ray_fails(
    run: Run, registered: Path, cluster: type[FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (
        RuntimeError,
        type("ActorDiedError", (Exception,), {"__module__": "ray.exceptions"}),
    ):
        monkeypatch.setattr(cluster, "ending", kind("the actor\nis dead"))
        ran = run("up")
        assert (ran.code, cluster.events[-1]) == (7, "down")
        assert "error: Ray could not start or serve: the actor is dead" in ran.err
    monkeypatch.setattr(cluster, "ending", ZeroDivisionError("a bug"))
    assert run("up").code == 70


def test_up_speaks_json(
    run: Run, registered: Path, cluster: type[FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ending", Stopped())
    ran = run("up", "--json")
    told = {"pid": os.getpid(), "ready": True, "not_served": {}}
    assert ran.document == {"url": "http://127.0.0.1:8080", **told}


def test_the_command_line_is_put_over_the_settings_file(
    run: Run,
    registered: Path,
    cluster: type[FakeCluster],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(cluster, "ending", Stopped())
    config = tmp_path / "config.yaml"
    config.write_text("http: {port: 9000, max_body_bytes: 4096}\nseed: 7\n")
    words = ("--config", config, "--port", 9001, "--host", "127.0.0.2", "--address", "auto")
    assert run("up", *words).code == 0
    assert cluster.address == "auto"
    told = cluster.settings.http.model_dump()
    assert (told["host"], told["port"], told["max_body_bytes"]) == ("127.0.0.2", 9001, 4096)
    assert cluster.settings.seed == 7


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--port", "0"], 2, "http.port"),
        (["--port", "70000"], 2, "http.port"),
        (["--gateways", "0"], 2, "gateways.count"),
        (["--config", "none.yaml"], 2, "none.yaml"),
        ([], 3, "registered"),
        (["--supervise", "--address", "auto"], 2, "--address: got 'auto'"),
        (["--supervise", "--record", "tape"], 2, "cannot go on with a recording"),
    ],
)
def test_up_refuses_what_is_wrong(run: Run, words: list[str], code: int, said: str) -> None:
    ran = run("up", *words)
    assert (ran.code, ran.out, said in ran.err) == (code, "", True), ran.err
    assert "ray" not in ran.err


def test_up_refuses_what_has_no_profile(run: Run, registered: Path) -> None:
    ran = run("up", "--port", _free_port())
    assert (ran.code, "modelless profile" in ran.err) == (3, True)


def test_up_refuses_a_port_that_is_taken(run: Run, profiled: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = run("up", "--port", taken.getsockname()[1], "--json")
    assert (ran.code, ran.document["exit_code"]) == (7, 7)
    assert "--port" in ran.err


def test_up_refuses_to_be_up_twice(run: Run, home: Path, registered: Path) -> None:
    is_up(home, "http://127.0.0.1:9")
    for words in (["up"], ["up", "--detach"]):
        ran = run(*words)
        assert (ran.code, "already up at http://127.0.0.1:9" in ran.err) == (7, True)


def test_up_in_the_background_keeps_the_log_of_one_that_is_being_started(
    run: Run, home: Path, process: type[FakeProcess]
) -> None:
    with only_one(home):
        (home / "run" / "up.log").write_text("starting Ray ...\n")
        ran = run("up", "--detach")
    assert (ran.code, "is being started" in ran.err) == (7, True)
    assert (home / "run" / "up.log").read_text() == "starting Ray ...\n"
    assert not hasattr(process, "words")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- in the background ------------------------------------------------------------------------


class FakeProcess:
    """Stands in for ``subprocess.Popen``: what the background process says and how it ends."""

    words: list[str]
    says = b""
    code: int | None = None
    terminated = False
    on_start: Callable[[int], None] = staticmethod(lambda pid: None)

    def __init__(self, command: list[str], *, stdout: Any, **settings: Any) -> None:
        type(self).words = command
        type(self).terminated = False
        assert settings["start_new_session"]
        self.pid = os.getpid()  # a process that is alive
        stdout.write(self.says)
        self.on_start(self.pid)

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        type(self).terminated = True

    def wait(self, timeout: float | None = None) -> int:
        return 0


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    """No process is started."""

    class Fresh(FakeProcess):
        pass

    monkeypatch.setattr("subprocess.Popen", Fresh)
    return Fresh


def test_the_background_process_is_waited_for(
    run: Run, registered: Path, home: Path, process: type[FakeProcess], server: Server
) -> None:
    process.says = b"starting Ray ...\nWARNING something\nloading variants ...\n"
    process.on_start = staticmethod(lambda pid: is_up(home, server.url, pid))
    ran = run("up", "--detach", "--port", 9001, "--gateways", 2)
    assert ran.code == 0, ran.err
    assert process.words[:4] == [sys.executable, "-P", "-m", "modelless.controller.cli"]
    assert process.words[4:] == ["--home", str(home), "up", "--port", "9001", "--gateways", "2"]
    assert f"ready: {server.url}" in ran.out
    assert ran.err.startswith("starting Ray ...\nloading variants ...\n")
    assert str(home / "run" / "up.log") in ran.err
    assert not process.terminated
    (home / "run" / "up.json").unlink()
    found = run("up", "--detach", "--json").document
    told = {"pid": os.getpid(), "ready": True, "not_served": {}}
    assert found == {"url": server.url, **told}


def test_a_recording_that_has_begun_is_no_obstacle_to_the_process_that_makes_it(
    run: Run, registered: Path, home: Path, process: type[FakeProcess], tmp_path: Path
) -> None:
    def start(pid: int) -> None:
        (tmp_path / f"gateway{SUFFIX}").write_bytes(b"")
        is_up(home, "http://127.0.0.1:9", pid, awaits="a GPU")

    config = tmp_path / "settings.yaml"
    config.write_text(f"record: {{folder: {tmp_path}}}\n")
    process.on_start = staticmethod(start)
    assert run("up", "--detach", "--config", config).code == 0
    (home / "run" / "up.json").unlink()
    assert "a folder without a recording" in run("up", "--detach", "--config", config).err


def test_a_background_process_that_awaits_nodes_goes_on(
    run: Run, registered: Path, home: Path, process: type[FakeProcess]
) -> None:
    nowhere = "http://127.0.0.1:9"
    process.on_start = staticmethod(lambda pid: is_up(home, nowhere, pid, awaits="a GPU"))
    ran = run("up", "--detach", "--json")
    assert ran.code == 0, ran.err
    assert ran.document == {"url": nowhere, "pid": os.getpid(), "ready": False, "not_served": {}}
    assert "not every task is served yet: a GPU" in ran.err
    assert not process.terminated


def test_the_background_process_passes_on_why_it_failed(
    run: Run, home: Path, process: type[FakeProcess]
) -> None:
    process.says = b"starting Ray ...\nerror: http.port: it is taken\n"
    process.code = 7
    ran = run("up", "--detach", "--json")
    assert ran.code == 7
    assert ran.document["error"].startswith("http.port: it is taken")
    assert ran.document["exit_code"] == 7


def test_interrupted_it_takes_the_background_process_down(
    run: Run, home: Path, process: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    ran = run("up", "--detach")
    assert (ran.code, process.terminated) == (130, True)


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("a\nerror: one\nerror: two\nb\n", "two"),
        ("a\nKilled\n\n", "Killed"),
        ("", "no word"),
    ],
)
def test_the_last_error_of_a_log(log: str, error: str) -> None:
    assert last_error(log) == error


# -- signals ----------------------------------------------------------------------------------


@pytest.fixture
def nothing_ignored() -> Iterator[None]:
    """As in a shell's foreground: whoever runs the tests may ignore signals, as nohup does."""
    stop = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in stop}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.usefixtures("nothing_ignored")
@pytest.mark.parametrize(
    ("number", "raised"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, Stopped),
        (signal.SIGHUP, Stopped),
    ],
)
def test_the_first_signal_counts_and_the_others_are_ignored(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    with StopSignals() as signals:
        signal.signal(number, signal.SIG_DFL)  # as a library might
        signals.arm()
        try:
            signal.raise_signal(number)
        except raised:  # all is taken down, which has stages, too
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.raise_signal(each)
            signals.arm()
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(raised):  # it was dropped, and nothing was taken down
            signals.arm()
        with pytest.raises(raised):
            signals.wait()
    assert {each: signal.getsignal(each) for each in before} == before


@pytest.mark.usefixtures("nothing_ignored")
def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopSignals():
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(Stopped):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# -- status and down --------------------------------------------------------------------------


def test_status_shows_what_is_up(run: Run, home: Path, server: Server) -> None:
    is_up(home, server.url)
    ran = run("status")
    assert ran.code == 0
    assert f"{server.url}, up for 1 min 5 s: 12.5 queries/s, 2 waiting" in ran.out
    assert "3.0 / 100.0" in ran.out
    assert "gateway, starting" in ran.out
    assert "cpu-1 to cpu-2" in ran.out
    assert "pool cpu-1: 2 workers asked for, of 1 to 4" in ran.out
    assert "queries: 2 refused, 40 served" in ran.out
    (line,) = [line for line in ran.out.splitlines() if "4321" in line]
    assert line.split() == ["cpu-1", "4321", "90.4", "%", "98.9", "%", "5.6", "%", "12"]
    assert "pixels/mean/small@1 on cpu-1 takes 1.50 times what was measured" in ran.err
    assert "modelless profile --drifted" in ran.err
    assert "70.5 % (66.0 to 74.9) of 400; demoted, counts for 61.2 %" in " ".join(ran.out.split())
    assert "shop: 70.5 % of 400" in ran.out
    assert "abc could not load pixels/mean/large@1: no room" in ran.err
    assert "not served: task stray has no profile on device class cpu-1" in ran.err
    found = run("status", "--json").document
    assert found["url"] == server.url
    assert found["members"][0]["id"] == "abc"
    assert found["outcomes"] == {"served": 40, "refused": 2}


def test_status_says_what_is_old_or_damaged_and_how_often_it_was_rebuilt(
    run: Run, home: Path, registered: Path, server: Server
) -> None:
    is_up(home, server.url)
    ran = run("status")
    assert not any(word in ran.out + ran.err for word in ("figures", "store", "supervisor"))
    server.answers["/modelless/status"] = render_json({**STATUS, "at_s": time.time() - 60.0})
    note = SupervisorNote(os.getpid(), 1, state="serving", why="it died", rebuilt_at_s=[1.0])
    (home / "run" / "supervisor.json").write_text(json.dumps(asdict(note)))
    with (home / "store.db").open("r+b") as store:
        store.write(bytes(4096))
    ran = run("status")
    assert ran.code == 0
    assert "these figures are 1 min" in ran.err
    assert "the store cannot be read" in ran.err
    assert "supervisor: serving, 1 times rebuilt, last because it died" in ran.out
    (home / "run" / "up.json").unlink()
    ran = run("status")
    assert (ran.code, "nothing is up" in ran.err, "rebuilt" in ran.err) == (1, True, True)


def test_status_of_a_server_elsewhere(run: Run, server: Server) -> None:
    assert run("status", "--url", server.url.removeprefix("http://")).code == 0


def test_status_with_nothing_up(run: Run, home: Path) -> None:
    ran = run("status")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: nothing is up: start it with 'modelless up'\n"
    assert run("status", "--json").document["exit_code"] == 1


def test_status_of_what_does_not_answer(run: Run, home: Path, server: Server) -> None:
    is_up(home, f"http://127.0.0.1:{_free_port()}")
    ran = run("status")
    assert (ran.code, "does not answer" in ran.err) == (8, True)
    server.answers["/modelless/status"] = no_json()
    assert run("status", "--url", server.url).code == 8


def test_down_takes_down_what_is_up(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("down").out == "nothing was up\n"
    assert run("down", "--json").document == {"was_up": False, "url": None}
    is_up(home, "http://127.0.0.1:9")
    monkeypatch.setattr(
        "modelless.controller.usecases.taking_down.take_down", lambda home, pid: None
    )
    assert run("down").out == "http://127.0.0.1:9 is down\n"
    assert run("down", "--json").document == {"was_up": True, "url": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("inputs", "file"),
    [
        ([("FP32", (-1, -1, -1, 3))], "PICTURE"),
        ([("FP32", (-1, 3, 224, 224))], "ARRAY.npy"),
        ([("BYTES", (-1, 1))], "ITEMS.txt"),
        ([("UINT8", (-1, -1))], "ITEMS.txt"),
        ([("FP32", (-1, 9))] * 2, "ARRAYS.npz"),
    ],
)
def test_the_file_to_try_fits_the_task(
    inputs: list[tuple[str, tuple[int, ...]]], file: str
) -> None:
    assert file_for([TensorSpec("x", datatype, shape) for datatype, shape in inputs]) == file


# -- what to type next ------------------------------------------------------------------------


def test_the_curl_line_asks_for_an_answer_where_it_is_short() -> None:
    line = curl_line("http://x:1", TASK)
    url, _, body = line.removeprefix("curl -s ").partition(" -d ")
    assert url == "http://x:1/v2/models/pixels/infer"
    request = json.loads(body.strip("'"))
    assert request["inputs"][0]["shape"] == [1, 2, 2, 3]
    assert len(request["inputs"][0]["data"]) == 12
    large = Task("big", (TensorSpec("image", "UINT8", (-1, 28, 28)),), TASK.outputs, "top-1")
    assert curl_line("http://x:1", large) == "curl -s http://x:1/v2/models/big"
