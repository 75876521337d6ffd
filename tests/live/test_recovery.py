"""Batches run in a pool; what is killed or hangs costs no query its answer, and comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from modelless.controller.usecases.client import Client

from .clients import QUERY, Clients, wait_until
from .running import Running, cluster

CONFIG = """
gateways: {count: 2, device_class: null}
pools: [{device_class: cpu-2, workers: 2}]
"""
ROLES = {
    "gateway": "GatewayReplica",
    "worker": ":PoolReplica",
    "haproxy": "bin/haproxy",
    "proxy-manager": "ray::HAProxyManager",
    "control": "ray::ControlLoop",
}


@pytest.fixture(scope="module")
def running(live_home: Path) -> Iterator[Running]:
    with cluster(live_home, config=CONFIG, marker="recovery") as up:
        wait_until(lambda: len(members(up)) == 4, 30.0)
        yield up


def members(running: Running) -> set[str]:
    """Gateways, and workers that hold something; one that died is told of for some seconds more."""
    told = running.get("/modelless/status")["members"]
    return {m["id"] for m in told if m["role"] == "gateway" or m["loaded"]}


def control_began_s(running: Running) -> float:
    """When the control loop began; while there is none, gateways repeat what the last one said."""
    return float(running.get("/modelless/status")["began_s"])


def one_of(running: Running, role: str) -> int:
    return min(pid for pid, name in running.processes().items() if ROLES[role] in name)


def haproxies(running: Running) -> dict[int, str]:
    """Command by process id, in the order in which they were started."""
    found = running.processes().items()
    return dict(sorted((pid, name) for pid, name in found if ROLES["haproxy"] in name))


def busiest_worker(running: Running) -> int:
    """The worker that has computed most within a second."""

    def ticks(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    pids = [pid for pid, name in running.processes().items() if ROLES["worker"] in name]
    before = {pid: ticks(pid) for pid in pids}
    time.sleep(1.0)
    return max(pids, key=lambda pid: ticks(pid) - before[pid])


def test_batches_run_in_the_pool_and_the_hop_is_priced(running: Running) -> None:
    with Client(running.url, 30.0) as client:
        reply = client.send(QUERY)
    assert reply.status == 200
    assert reply.parameters["device"] == "cpu-2"
    assert reply.parameters["predicted_latency_ms"] > 0.5  # the model alone takes far less


@pytest.mark.parametrize("role", ["worker", "gateway", "control"])
def test_what_is_killed_costs_no_query_its_answer(running: Running, role: str) -> None:
    before, victim, killed_s = members(running), one_of(running, role), time.time()

    def is_replaced() -> bool:
        now = members(running)
        is_new = control_began_s(running) > killed_s if role == "control" else now != before
        return len(now) == 4 and is_new

    with Clients(running) as clients:
        os.kill(victim, signal.SIGKILL)
        clients.answered_again(60)
        wait_until(is_replaced, 60.0)
        clients.answered_again()
    assert set(clients.outcomes) == {"200"}, clients.outcomes


@pytest.mark.parametrize("role", ["haproxy", "proxy-manager"])
def test_a_killed_haproxy_is_stood_in_for_until_serve_has_another(
    running: Running, role: str
) -> None:
    before, victim = haproxies(running), one_of(running, role)

    def serve_has_the_port() -> bool:
        now = {pid for pid, name in haproxies(running).items() if "stand-in.cfg" not in name}
        return len(haproxies(running)) == 1 == len(now - before.keys())

    with Clients(running) as clients:
        os.kill(victim, signal.SIGKILL)
        killed_s = time.monotonic()
        clients.answered_again(1)
        assert time.monotonic() - killed_s < 3.0  # Serve alone takes 9 s
        clients.answered_again(60)
        wait_until(serve_has_the_port, 60.0)
        clients.answered_again(60)
    assert clients.outcomes["broken"] <= 6, clients.outcomes  # one a client, in that very moment
    assert set(clients.outcomes) <= {"200", "broken", "closed"}


def test_clients_that_retry_lose_nothing_to_a_killed_haproxy_and_nothing_runs_twice(
    running: Running,
) -> None:
    def served() -> int:
        outcomes = running.get("/modelless/status")["outcomes"]
        return sum(count for name, count in outcomes.items() if name.startswith("served"))

    def ask_until(end_s: float) -> int:
        answered = 0
        with Client(running.url) as client:
            while time.monotonic() < end_s:
                client.send(QUERY).raise_for_status()
                answered += 1
        return answered

    time.sleep(2.0)  # reports come once a second: what was served before is counted by now
    before = served()
    with ThreadPoolExecutor(4) as clients:
        end_s = time.monotonic() + 15.0
        asking = [clients.submit(ask_until, end_s) for _ in range(4)]
        for _ in range(4):
            time.sleep(3.0)
            for victim in haproxies(running):
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
        answered = sum(each.result() for each in asking)
    assert answered > 50
    wait_until(lambda: served() - before >= answered, 10.0)
    time.sleep(2.0)  # reports come once a second
    assert served() - before == answered


def test_a_worker_that_hangs_is_put_in_quarantine_and_taken_back(running: Running) -> None:
    def quarantined() -> bool:
        members = running.get("/modelless/status")["members"]
        return any("hanging" in str(member["quarantine"]) for member in members)

    with Clients(running) as clients:
        victim = busiest_worker(running)  # one that is given nothing is not found to hang
        os.kill(victim, signal.SIGSTOP)
        try:
            wait_until(quarantined, 4.0)
            clients.answered_again(60)
        finally:
            os.kill(victim, signal.SIGCONT)
        wait_until(lambda: len(members(running)) == 4 and not quarantined(), 30.0)
    assert set(clients.outcomes) == {"200"}, clients.outcomes
