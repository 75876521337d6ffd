"""A cluster under load is replaced process by process; one that crashed comes back as it was."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .clients import Clients, ask, wait_until
from .running import Running, free_port, modelless, start, stop, wait_ready

CONFIG = """
gateways: {count: 2, device_class: null}
pools: [{device_class: cpu-2, workers: 2}]
policies: {scaling: on-demand}
residency: {preload: last-run}
"""
REPLACED = ("GatewayReplica", ":PoolReplica", "ray::ControlLoop")
KEPT = ("bin/haproxy", "gcs_server", "raylet/raylet")
WANTED = {f"fashion-mnist/cnn-{size}/fp32-28@1" for size in ("s", "m", "xl")}


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def running(live_home: Path, port: int) -> Iterator[Running]:
    (live_home / "last-run.json").unlink(missing_ok=True)
    up = start(live_home, config=CONFIG, marker="upgrade", port=port)
    try:
        wait_ready(up)
        wait_until(lambda: len(up.get("/modelless/status")["members"]) == 4, 30.0)
        for variant_id in WANTED:  # nothing else holds it: it is loaded on demand
            ask(up, variant_id.partition("@")[0])
        wait_until(lambda: loaded(up) >= WANTED, 30.0)
        yield up
    finally:
        kill(up)


def loaded(running: Running) -> set[str]:
    """The variants that are ready somewhere."""
    return {v for m in running.get("/modelless/status")["members"] for v in m["loaded"]}


def member_ids(running: Running) -> set[str]:
    """The processes that are there, and for some seconds those that ended."""
    return {member["id"] for member in running.get("/modelless/status")["members"]}


def gateway_ids(running: Running) -> set[str]:
    members = running.get("/modelless/status")["members"]
    return {member["id"] for member in members if member["role"] == "gateway"}


def sockets(home: Path) -> set[str]:
    """The gateways whose sockets are in the run folder, by id."""
    return {path.stem for path in (home / "run" / "sockets").glob("*.sock")}


def pids(running: Running, names: tuple[str, ...]) -> set[int]:
    return {pid for pid, name in running.processes().items() if any(each in name for each in names)}


def kill(running: Running) -> None:
    """Everything at once, in no order, with no chance to say anything."""
    while processes := running.processes():
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    running.process.wait(10.0)


def upgrade_reasons(running: Running) -> list[str]:
    history = modelless(running.home, "history", "--kind", "upgrade", "--json")
    return [each["reason"] for each in json.loads(history.stdout)["entries"]]


def test_an_upgrade_under_load_loses_no_query(running: Running) -> None:
    before, replaced, kept = loaded(running), pids(running, REPLACED), pids(running, KEPT[1:])
    members = member_ids(running)
    earlier = upgrade_reasons(running)  # of other tests with this home
    assert len(replaced) == 5
    with Clients(running) as clients:
        done = modelless(running.home, "upgrade", "--restart", "--json")
        assert done.returncode == 0, done.stderr
        clients.answered_again(60)
        wait_until(lambda: len(now := member_ids(running)) == 4 and not now & members, 30.0)
        clients.answered_again(60)
    assert set(clients.outcomes) == {"200"}, clients.outcomes
    assert len(pids(running, REPLACED)) == 5
    assert pids(running, REPLACED).isdisjoint(replaced)
    assert pids(running, KEPT[1:]) == kept
    assert running.process.poll() is None
    assert loaded(running) >= before
    told = json.loads(done.stdout)
    assert told["replaced"] == 4
    assert "2 of 2 gateways replaced" in done.stderr
    assert upgrade_reasons(running) == [*earlier, "began", "done"]


def test_what_runs_the_release_already_is_left_alone(running: Running) -> None:
    before = pids(running, REPLACED)
    done = modelless(running.home, "upgrade", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["replaced"] == 0
    assert pids(running, REPLACED) == before


def test_what_takes_a_new_start_is_refused(running: Running, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("http: {port: 1234}\n" + CONFIG)
    done = modelless(running.home, "upgrade", "--config", str(file))
    assert done.returncode == 2
    assert "http.port" in done.stderr


def test_after_a_crash_the_next_up_loads_what_was_loaded(running: Running, port: int) -> None:
    before, home = loaded(running), running.home

    def is_noted() -> bool:
        return set(json.loads((home / "last-run.json").read_text())["loaded"]) == before

    wait_until(is_noted, 30.0)
    kill(running)
    assert (home / "run" / "up.json").exists()
    assert modelless(home, "status").returncode == 1  # nothing is up, and it says so

    again = start(home, config=CONFIG, marker="crashed", port=port)
    try:
        wait_ready(again)
        wait_until(lambda: loaded(again) >= before, 60.0)
        wait_until(lambda: sockets(home) == gateway_ids(again), 20.0)  # those of the dead are gone
        with Clients(again) as clients:
            clients.answered_again(20)
        assert set(clients.outcomes) == {"200"}, clients.outcomes
    finally:
        stop(again)
    assert not again.processes()
