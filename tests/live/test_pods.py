"""The pods of ``deploy/kuberay`` as KubeRay starts, probes and ends them, head and worker.

KubeRay makes the command, the probes and the deployment from the manifest; so does this, as its
release 1.5 does. Of the manifest only the home, the ports and the machine's addresses are replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.files import DEPLOY, document, environment

from .clients import Clients, wait_until
from .running import Running, free_port, own_environment, wait_ready

SPEC = document("kuberay", "base", "rayservice.yaml")["spec"]
CLUSTER = SPEC["rayClusterConfig"]
HEAD, (WORKER,) = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"]
TOKEN = "a-token-of-kuberays"  # noqa: S105


class Pods:
    """Pods on this machine, each a ``ray start --block`` with the environment of its container."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.gcs, self.dashboard, self.serve = free_port(), free_port(), free_port()
        self.agents: dict[int, int] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        marker = f"pods-{uuid.uuid4().hex[:8]}"
        self._environment = {
            **own_environment(marker),
            **environment(DEPLOY / "docker" / "Dockerfile.cpu"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "MODELLESS_HOME": str(home),
            "RAY_AUTH_MODE": CLUSTER["authOptions"]["mode"],
            "RAY_AUTH_TOKEN": TOKEN,
        }
        self.head = self.start(
            HEAD, "--head", f"--port={self.gcs}", f"--dashboard-port={self.dashboard}",
            f"--temp-dir={folder}",
        )  # fmt: skip
        self.running = Running(self.head, home, f"http://127.0.0.1:{self.serve}", marker)

    def start(self, group: dict[str, Any], *words: str) -> subprocess.Popen[bytes]:
        """Start a pod of a group."""
        (container,) = group["template"]["spec"]["containers"]
        given = {**group["rayStartParams"], "num-cpus": container["resources"]["limits"]["cpu"]}
        given |= {"labels": ",".join(f"{name}={value}" for name, value in group["labels"].items())}
        if "dashboard-host" in given:
            given["dashboard-host"] = "127.0.0.1"
        agent = free_port()
        command = ["ray", "start", *words, "--node-ip-address=127.0.0.1", "--block"]
        command += [f"--{name}={value}" for name, value in given.items()]
        command += [f"--dashboard-agent-listen-port={agent}"]
        told = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        log = (self._folder / f"{agent}.log").open("wb")
        with log:
            process = subprocess.Popen(
                command, env={**self._environment, **told}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.agents[process.pid] = agent
        self.processes.append(process)
        return process

    def ask(self, port: int, path: str, body: bytes | None = None) -> bytes:
        """The answer of one of Ray's own servers."""
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", body, headers, method="PUT" if body else "GET"
        )
        most_s = 60 if body else 10  # a deployment is answered once Serve has started
        with urllib.request.urlopen(request, timeout=most_s) as reply:
            found: bytes = reply.read()
        return found

    def is_healthy(self, pod: subprocess.Popen[bytes]) -> bool:
        """KubeRay's probes of liveness and readiness; a worker's asks Serve's proxy, too."""
        is_well = b"success" in self.ask(self.agents[pod.pid], "/api/local_raylet_healthz")
        if pod is self.head:
            return is_well and b"success" in self.ask(self.dashboard, "/api/gcs_healthz")
        return is_well and b"success" in self.ask(self.serve, "/-/healthz")


@pytest.fixture
def pods(live_home: Path, tmp_path: Path) -> Iterator[Pods]:
    home = tmp_path / "home"
    shutil.copytree(live_home, home, ignore=shutil.ignore_patterns("run"))
    folder = Path("/tmp") / f"pods-{uuid.uuid4().hex[:6]}"
    folder.mkdir(mode=0o700)
    found = Pods(home, folder)
    yield found
    for process_id in found.running.processes():
        os.kill(process_id, 9)
    for process in found.processes:
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def test_pods_start_are_probed_serve_and_end_in_the_time_that_they_get(pods: Pods) -> None:
    wait_until(lambda: pods.is_healthy(pods.head), 120.0)
    worker = pods.start(WORKER, f"--address=127.0.0.1:{pods.gcs}")
    serving = yaml.safe_load(SPEC["serveConfigV2"])
    serving["http_options"] |= {"host": "127.0.0.1", "port": pods.serve}
    for application in serving["applications"]:
        application["args"]["home"] = str(pods.running.home)
        settings = application["args"]["settings"]
        settings["http"] |= {"host": "127.0.0.1", "port": pods.serve}
        settings["serve_dominated"] = True
    pods.ask(pods.dashboard, "/api/serve/applications/", json.dumps(serving).encode())
    wait_ready(pods.running)
    wait_until(lambda: pods.is_healthy(worker), 60.0)
    with Clients(pods.running) as clients:
        another = pods.start(WORKER, f"--address=127.0.0.1:{pods.gcs}")
        wait_until(lambda: pods.is_healthy(another), 60.0)
        end(another, WORKER)
        clients.answered_again()
        assert set(clients.outcomes) == {"200"}, clients.outcomes
        end(pods.head, HEAD)
    # On one machine the worker's HAProxy may get the port of the head's, with which the gateways
    # went: it asks Serve's own proxy, which says 404 or 500, and ends as its Ray does. So each of
    # the three clients may lose a connection twice.
    allowed = {"200", "404", "500", "503", "broken", "closed"}
    assert set(clients.outcomes) <= allowed, clients.outcomes
    assert clients.outcomes["broken"] <= 6, clients.outcomes
    end(worker, WORKER)


def end(pod: subprocess.Popen[bytes], group: dict[str, Any]) -> None:
    """End a pod, which fails if it takes longer than it gets."""
    pod.terminate()
    pod.wait(group["template"]["spec"]["terminationGracePeriodSeconds"])
