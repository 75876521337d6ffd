"""What is killed or hangs under load costs no query its answer, and comes back by itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import numpy as np
import pytest

from modelless.controller.demo.v2_client import encode_infer
from modelless.variants.vocabulary import SLO

from .running import Running, cluster, start, stop, wait_ready

CONFIG = """
gateways: {count: 2, device_class: null}
pools: [{device_class: cpu-2, workers: 2}]
"""
ROLES = {
    "gateway": "GatewayReplica",
    "worker": ":PoolReplica",
    "haproxy": "bin/haproxy",
    "control": "ray::ControlLoop",
}
QUERY = encode_infer(
    "fashion-mnist",
    {"image": np.random.default_rng(0).integers(0, 255, (1, 28, 28), np.uint8)},
    SLO(latency_ms=8000.0, min_accuracy=90.0),
)


@pytest.fixture(scope="module")
def running(live_home: Path) -> Iterator[Running]:
    with cluster(live_home, config=CONFIG, marker="recovery") as up:
        wait_until(lambda: holding(up) == 2, 30.0)
        yield up


def wait_until(condition: Callable[[], bool], most_s: float) -> None:
    """Until it is so; a server that does not answer yet is not there yet."""
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        try:
            if condition():
                return
        except (OSError, HTTPException):
            pass
        time.sleep(0.1)
    pytest.fail(f"not so after {most_s:.0f} s")


def holding(running: Running) -> int:
    """How many workers hold something."""
    members = running.get("/modelless/status")["members"]
    return sum(m["role"] == "worker" and bool(m["loaded"]) for m in members)


def gateways(running: Running) -> int:
    members = running.get("/modelless/status")["members"]
    return sum(m["role"] == "gateway" for m in members)


def one_of(running: Running, role: str) -> int:
    return min(pid for pid, name in running.processes().items() if ROLES[role] in name)


class Clients:
    """A few clients that ask one query after another; a broken connection is opened anew.

    Attributes:
        outcomes: HTTP statuses; ``broken`` for a query whose connection broke, ``closed`` for one
            that could not be sent: nobody listened.
    """

    def __init__(self, running: Running, count: int = 3) -> None:
        self.outcomes: Counter[str] = Counter()
        self._address = running.address
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.outcomes["200"] > 20, 30.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30.0)
            assert not thread.is_alive(), "a query hangs"

    def answered_again(self, more: int = 30, most_s: float = 30.0) -> None:
        """Wait until that many further queries are answered."""
        wanted = self.outcomes["200"] + more
        wait_until(lambda: self.outcomes["200"] >= wanted, most_s)

    def _ask_on(self) -> None:
        connection = HTTPConnection(self._address, timeout=25)
        while not self._stopping.is_set():
            try:
                connection.request("POST", QUERY.path, QUERY.body, dict(QUERY.headers))
                reply = connection.getresponse()
                reply.read()
                self.outcomes[str(reply.status)] += 1
            except ConnectionRefusedError:
                self.outcomes["closed"] += 1
                time.sleep(0.01)
            except (OSError, HTTPException):
                self.outcomes["broken"] += 1
                connection.close()
        connection.close()


@pytest.mark.parametrize("role", ["worker", "gateway", "control"])
def test_what_is_killed_costs_no_query_its_answer(running: Running, role: str) -> None:
    with Clients(running) as clients:
        os.kill(one_of(running, role), signal.SIGKILL)
        clients.answered_again(60)
        wait_until(lambda: holding(running) == 2 and gateways(running) == 2, 60.0)
        clients.answered_again()
    assert set(clients.outcomes) == {"200"}, clients.outcomes


def test_a_killed_haproxy_is_stood_in_for_at_once(running: Running) -> None:
    victim = one_of(running, "haproxy")
    with Clients(running) as clients:
        os.kill(victim, signal.SIGKILL)
        killed_s = time.monotonic()
        clients.answered_again(1)
        assert time.monotonic() - killed_s < 3.0  # Serve alone takes 9 s
        clients.answered_again(60)
    assert clients.outcomes["broken"] <= 6, clients.outcomes  # one a client, in that very moment
    assert set(clients.outcomes) <= {"200", "broken", "closed"}


def test_a_worker_that_hangs_is_put_in_quarantine_and_taken_back(running: Running) -> None:
    victim = one_of(running, "worker")

    def quarantined() -> bool:
        members = running.get("/modelless/status")["members"]
        return any("hanging" in str(member["quarantine"]) for member in members)

    with Clients(running) as clients:
        os.kill(victim, signal.SIGSTOP)
        try:
            wait_until(quarantined, 4.0)
            clients.answered_again(60)
        finally:
            os.kill(victim, signal.SIGCONT)
        wait_until(lambda: holding(running) == 2 and not quarantined(), 30.0)
    assert set(clients.outcomes) == {"200"}, clients.outcomes


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
        assert clients.outcomes["broken"] == 0, clients.outcomes
    finally:
        stop(again)
