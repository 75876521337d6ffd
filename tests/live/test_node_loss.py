"""A whole node dies under load: other nodes' workers take over, and its pool comes back with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .clients import Clients, wait_until
from .nodes import Nodes, ray_nodes
from .running import Running, cluster

pytestmark = pytest.mark.timeout(300, func_only=True)  # to start two clusters takes its time
CONFIG = """
gateways: {count: 1, device_class: null, labels: {site: head}}
pools:
- {device_class: cpu-1, workers: 1, labels: {site: edge}}
- {device_class: cpu-2, workers: 1, labels: {site: core}}
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A Ray cluster with a node at each site."""
    with ray_nodes() as up:
        yield up


@pytest.fixture(scope="module")
def running(live_home: Path, nodes: Nodes) -> Iterator[Running]:
    join = ("--address", nodes.address)
    with cluster(live_home, config=CONFIG, marker="node-loss", arguments=join) as up:
        wait_until(lambda: has_loaded_all(up), 60.0)
        yield up


def held(running: Running) -> dict[str, set[str]]:
    """What workers hold, by their device class; those that hold nothing are left out."""
    told = running.get("/modelless/status")["members"]
    workers = [member for member in told if member["role"] == "worker" and member["loaded"]]
    return {worker["device_class"]: set(worker["loaded"]) for worker in workers}


def has_loaded_all(running: Running) -> bool:
    """Whether both workers hold variants, and no further ones for a while."""
    first = held(running)
    time.sleep(2.0)
    return set(first) == {"cpu-1", "cpu-2"} and held(running) == first


@pytest.mark.parametrize(("site", "device_class"), [("edge", "cpu-1"), ("core", "cpu-2")])
def test_a_node_that_dies_is_stood_in_for_and_its_pool_comes_back(
    running: Running, nodes: Nodes, site: str, device_class: str
) -> None:
    before = held(running)
    with Clients(running) as clients:
        nodes.kill(site)
        clients.answered_again(200)
        wait_until(lambda: set(held(running)) == set(before) - {device_class}, 40.0)
        clients.answered_again()
        nodes.join(site)
        wait_until(lambda: held(running) == before, 90.0)
        clients.answered_again()
    # Every node has a proxy of Ray Serve's, not our HAProxy, all on one port: connections of the
    # dead one break with it, one a client at most.
    assert clients.outcomes["broken"] <= 3, clients.outcomes
    assert set(clients.outcomes) <= {"200", "broken"}, clients.outcomes
