"""Ports are ours from the moment they are chosen, and only who listens gets connections."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.live.cluster.ports import HeldPorts, check_reachable
from modelless.controller.live.haproxy.configuration import LISTENER

HOST = "127.0.0.1"


@pytest.fixture
def ports() -> Iterator[HeldPorts]:
    held = HeldPorts()
    yield held
    held.close()


def sharing_listener(port: int) -> socket.socket:
    """What HAProxy and Serve's proxies do."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((HOST, port))
    listener.listen()
    return listener


def test_nobody_gets_a_held_port_who_does_not_share(ports: HeldPorts) -> None:
    port = ports.hold(HOST)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, port))


@pytest.mark.parametrize("address", ["{host}:{port}", "ray://{host}:{port}"])
def test_a_cluster_that_is_not_there_is_told_at_once(ports: HeldPorts, address: str) -> None:
    named = address.format(host=HOST, port=ports.hold(HOST))  # held, and nobody listens
    with pytest.raises(EnvironmentUnfitError, match=r"--address: got .*nobody answers.*auto, HOST"):
        check_reachable(named)
    with sharing_listener(ports.hold(HOST)) as listener:
        check_reachable(address.format(host=HOST, port=listener.getsockname()[1]))


def test_what_names_no_port_is_left_to_ray() -> None:
    check_reachable("auto")


def test_a_listener_that_shares_gets_every_connection(ports: HeldPorts) -> None:
    port = ports.hold(HOST)
    for _ in range(2):  # the second is one that was started again
        with sharing_listener(port) as listener:
            for _ in range(50):
                with socket.create_connection((HOST, port), timeout=5):
                    listener.accept()[0].close()


def test_connections_wait_for_who_is_to_accept_them(ports: HeldPorts) -> None:
    port = ports.hold(HOST)
    ports.listen(port)
    accepts = f"""
import os, socket
listener = socket.socket(fileno=int(os.environ["{LISTENER}"]))
listener.accept()[0].sendall(b"served")
"""
    for _ in range(2):  # the second is one that was started after the first had died
        with socket.create_connection((HOST, port), timeout=30) as client:
            process = ports.start([port], [sys.executable, "-c", accepts], os.environ)
            assert client.recv(16) == b"served"
            assert process.wait(30) == 0


def test_a_process_that_inherits_ports_holds_them(ports: HeldPorts) -> None:
    clients, operators = ports.hold(HOST), ports.hold(HOST)
    ports.listen(clients)
    heir = f"""
from modelless.controller.live.cluster.ports import HeldPorts
ports = HeldPorts.inherited()
assert [ports.hold("{HOST}", port) for port in ({clients}, {operators})]
print(flush=True)
import time; time.sleep(60)
"""
    command = [sys.executable, "-c", heir]
    process = ports.start([clients, operators], command, os.environ, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        ports.close()
        socket.create_connection((HOST, clients), timeout=5).close()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, operators))
        process.kill()


def test_only_a_held_port_is_listened_on(ports: HeldPorts) -> None:
    with pytest.raises(OSError, match="not held"):
        ports.listen(9)


@pytest.mark.parametrize("shares", [False, True])
def test_a_port_that_somebody_listens_on_is_refused(ports: HeldPorts, shares: bool) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares))
        taken.bind((HOST, 0))
        taken.listen()
        with pytest.raises(EnvironmentUnfitError, match="--port"):
            ports.hold(HOST, taken.getsockname()[1])


def test_a_port_that_was_let_go_of_can_be_held_again(ports: HeldPorts) -> None:
    port = ports.hold(HOST)
    ports.close()
    assert ports.hold(HOST, port) == port
