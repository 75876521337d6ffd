"""Ctrl-C at any moment leaves no process behind, and neither does the supervisor's sudden death."""

from __future__ import annotations

import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from .clients import Clients, wait_until
from .running import Running, modelless, start, stop, wait_ready


def wait_gone(running: Running, most_s: float) -> None:
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        if not running.processes():
            return
        time.sleep(0.1)
    pytest.fail(f"still there: {list(running.processes().values())}")


@pytest.mark.parametrize("after_s", [0.5, 4.0, 9.0])
def test_ctrl_c_while_starting(live_home: Path, after_s: float) -> None:
    running = start(live_home, config="", marker=f"interrupt-{after_s}")
    time.sleep(after_s)
    running.process.send_signal(signal.SIGINT)
    running.process.wait(90)
    # In the first moments it is Python itself, still importing, that ends by the signal.
    assert running.process.returncode in (130, -signal.SIGINT)
    wait_gone(running, 20.0)
    if after_s > 1.0:
        assert "Traceback" not in (live_home / f"{running.marker}.log").read_text()


def test_a_killed_supervisor_takes_everything_with_it(live_home: Path) -> None:
    running = start(live_home, config="gateways: {count: 1}\n", marker="killed")
    wait_ready(running)
    running.process.kill()
    running.process.wait()
    wait_gone(running, 20.0)
    status = modelless(live_home, "status")
    assert status.returncode == 1


def test_what_no_node_has_room_for(live_home: Path) -> None:
    pools = "pools: [{device_class: cpu-1, workers: 2, resources: {GPU: 4, NPU: 1}}]\n"
    running = start(live_home, config=pools, marker="no-room")
    assert running.process.wait(90) == 7
    wait_gone(running, 20.0)
    said = (live_home / f"{running.marker}.log").read_text()
    assert "pools[0].resources {GPU: 4, NPU: 1} each: there is room for 0 of 2" in said


def test_a_port_that_is_taken(live_home: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = modelless(live_home, "up", "--port", str(port))
    assert done.returncode == 7
    assert str(port) in done.stderr


def test_down_under_load_answers_what_it_took_in_and_a_killed_supervisor_is_forgotten(
    live_home: Path,
) -> None:
    first = start(live_home, config="gateways: {count: 1}\n", marker="died")
    wait_ready(first)
    first.process.kill()
    first.process.wait()
    wait_until(lambda: not first.processes(), 20.0)
    again = start(live_home, config="gateways: {count: 1}\n", marker="again")
    try:
        wait_ready(again)
        with Clients(again) as clients:
            stop(again)
            assert not again.processes()
        statuses = {name for name in clients.outcomes if name not in ("broken", "closed")}
        assert statuses <= {"200", "503"}, clients.outcomes
        # HAProxy's end closes connections that wait for a client's next query: one a client.
        assert clients.outcomes["broken"] <= 3, clients.outcomes
    finally:
        stop(again)


def test_what_a_gateway_raises_as_it_starts_is_told(live_home: Path) -> None:
    logs = live_home / "run" / "logs"
    shutil.rmtree(logs, ignore_errors=True)  # another run's, or its control.log would be waited for
    running = start(live_home, config="gateways: {count: 1}\n", marker="raises")
    try:
        wait_until((logs / "control.log").exists, 60.0)
        logs.rename(live_home / "run" / "control-logs")
        logs.touch()  # no folder: a gateway cannot begin its log
        assert running.process.wait(120) == 7
    finally:
        stop(running)
        logs.unlink(missing_ok=True)
        shutil.rmtree(live_home / "run" / "control-logs", ignore_errors=True)
    said = (live_home / f"{running.marker}.log").read_text()
    assert "the gateways did not start: GatewayReplica: FileExistsError: " in said
    (pattern,) = re.findall(r"The whole of it is in (\S+/controller_\*\.log)", said)
    texts = [path.read_text() for path in Path("/").glob(pattern.removeprefix("/"))]
    assert any(str(logs) in text and "Traceback" in text for text in texts)
