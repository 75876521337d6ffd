"""A Ray cluster of several nodes that was there before: joined, and by a Serve config file.

The nodes differ in their labels, and their pools in threads: each answers by its own profile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import yaml
from prometheus_client.parser import text_string_to_metric_families

from modelless.variants.zoo.fashion_mnist import FashionMnist

from .nodes import Nodes, ray_nodes
from .running import Running, cluster, free_port, wait_ready

ROOT = Path(__file__).parents[2]
CONFIG = """
gateways: {count: 1, device_class: null}
policies: {selection: {policy: round-robin}}
pools:
- {device_class: cpu-1, workers: 1, labels: {site: edge}}
- {device_class: cpu-2, workers: 1, labels: {site: core}}
"""
SITES = {"cpu-1": "edge", "cpu-2": "core"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A Ray cluster with a node at each site."""
    with ray_nodes() as up:
        yield up


@pytest.fixture(scope="module")
def port() -> int:
    """Where Ray Serve listens: it keeps the port that it was first told."""
    return free_port()


def ask_until_both_answered(url: str) -> dict[str, dict[str, Any]]:
    """Ask on until each device class has answered; what the reply said, by device class."""
    images, labels = FashionMnist().test_split()
    said: dict[str, dict[str, Any]] = {}
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        for start in range(0, 1600, 8):
            tensor = triton.InferInput("image", [8, *images.shape[1:]], "UINT8")
            tensor.set_data_from_numpy(np.ascontiguousarray(images[start : start + 8]))
            result = client.infer("fashion-mnist", [tensor], parameters={"latency_ms": 5000})
            right = (result.as_numpy("probabilities").argmax(1) == labels[start : start + 8]).sum()
            assert right >= 4
            parameters = result.get_response()["parameters"]
            said[parameters["device"]] = parameters
            if set(said) == set(SITES):
                break
    return said


def site_of(process_id: int) -> str:
    """The site of a worker's node, by the command line of the node's daemon, its parent."""
    status = Path(f"/proc/{process_id}/status").read_text()
    (parent,) = [line.split()[1] for line in status.splitlines() if line.startswith("PPid:")]
    command = Path(f"/proc/{parent}/cmdline").read_text()
    (site,) = [site for site in SITES.values() if site in command.partition("--labels")[2][:200]]
    return site


def pool_workers(nodes: Nodes) -> dict[str, list[int]]:
    """The processes of each pool's workers, by device class."""
    found: dict[str, list[int]] = {name: [] for name in SITES}
    for process_id, command in nodes.processes().items():
        for name in SITES:
            if f"modelless-pool-{name}:PoolReplica" in command:
                found[name].append(process_id)
    return found


def test_pools_of_a_joined_cluster_stand_where_their_labels_say(
    live_home: Path, nodes: Nodes, port: int
) -> None:
    join = ("--address", nodes.address)
    with cluster(live_home, config=CONFIG, marker="joined", arguments=join, port=port) as running:
        said = ask_until_both_answered(running.url)
        assert set(said) == set(SITES)
        for parameters in said.values():
            assert parameters["predicted_latency_ms"] > 0.5  # with the hop; the model takes less
        for name, workers in pool_workers(nodes).items():
            assert [site_of(worker) for worker in workers] == [SITES[name]]
        time.sleep(2.5)  # the gateway tells the control loop once a second
        with urllib.request.urlopen(f"{running.url}/metrics", timeout=10) as reply:
            families = {f.name: f for f in text_string_to_metric_families(reply.read().decode())}
        batches = families["modelless_batch_items"].samples
        assert {sample.labels["device_class"] for sample in batches} == set(SITES)
    assert not any(pool_workers(nodes).values()), (
        "what was joined goes on without modelless's workers"
    )


def test_a_pool_whose_node_comes_later(live_home: Path, nodes: Nodes, port: int) -> None:
    config = CONFIG.replace("site: core", "site: far")
    join = ("--address", nodes.address)
    with cluster(live_home, config=config, marker="later", arguments=join, port=port) as running:
        told = (live_home / f"{running.marker}.log").read_text()
        assert "pools[1].labels {site: far} each: there is room for 0 of 1 now" in told
        assert set(ask_until_both_answered(running.url)) == {"cpu-1"}
        nodes.join("far")
        end_s = time.monotonic() + 90.0
        while set(ask_until_both_answered(running.url)) != set(SITES):
            assert time.monotonic() < end_s
        assert not [command for command in nodes.processes().values() if "PoolHead" in command]


def test_the_serve_config_file_deploys(
    live_home: Path, nodes: Nodes, port: int, tmp_path: Path
) -> None:
    document = yaml.safe_load((ROOT / "deploy" / "serve" / "config.yaml").read_text())
    document["http_options"]["port"] = port
    for application in document["applications"]:
        application["args"]["home"] = str(live_home)
        settings = application["args"]["settings"]
        settings |= {"serve_dominated": True, "policies": {"selection": "round-robin"}}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(document))
    with (tmp_path / "serve.log").open("wb") as log:
        serving = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ray.serve.scripts",
                "run",
                "--address",
                nodes.address,
                str(file),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
        )
        try:
            running = Running(serving, tmp_path, f"http://127.0.0.1:{port}", "serve")
            wait_ready(running)
            said = ask_until_both_answered(running.url)
            assert set(said) == set(SITES)
            for name, workers in pool_workers(nodes).items():
                assert [site_of(worker) for worker in workers] == [SITES[name]]
        finally:
            serving.terminate()
            serving.wait(60)
