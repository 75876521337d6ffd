"""A pool grows under load, shrinks when it goes, is at rest without any, and loses no query."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from modelless.variants.zoo.fashion_mnist import FashionMnist

from .running import Running, cluster, modelless

CONFIG = """
gateways: {count: 1, device_class: null}
pools: [{device_class: cpu-1, workers: 0, min_workers: 0, max_workers: 2}]
policies:
  scaling: {policy: expected-value, pools: {utilisation: 0.0002, down_after_s: 3, zero_after_s: 4}}
"""
"""A worker is planned to be busy so little that a few clients are work for two."""

BUSY_CLIENTS = 4
PAUSE_S = 1.5
"""Between a client's queries while there is only one."""


@pytest.fixture(scope="module")
def running(live_home: Path) -> Iterator[Running]:
    with cluster(live_home, config=CONFIG, marker="scaling") as up:
        yield up


class Clients:
    """Clients that ask one query after the other, as many as are wanted just now."""

    def __init__(self, running: Running) -> None:
        self.answered = 0
        self.refused: list[str] = []
        self._running = running
        self._wanted = 0
        self._threads: list[threading.Thread] = []

    def be(self, count: int) -> None:
        """Have so many from now on."""
        self._wanted = count
        for number in range(len(self._threads), count):
            thread = threading.Thread(target=self._ask_on, args=(number,))
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Wait until each has its last answer."""
        self._wanted = 0
        for thread in self._threads:
            thread.join(60.0)
            assert not thread.is_alive(), "a query hangs"

    def _ask_on(self, number: int) -> None:
        images, _ = FashionMnist().test_split()
        tensor = triton.InferInput("image", [1, *images.shape[1:]], "UINT8")
        tensor.set_data_from_numpy(images[:1])
        with triton.InferenceServerClient(self._running.address, network_timeout=60.0) as client:
            while number < self._wanted:
                self._ask(client, tensor)
                if self._wanted == 1:
                    time.sleep(PAUSE_S)

    def _ask(self, client: triton.InferenceServerClient, tensor: triton.InferInput) -> None:
        try:
            client.infer("fashion-mnist", [tensor], parameters={"latency_ms": 30_000.0})
            self.answered += 1
        except InferenceServerException as error:
            self.refused.append(str(error))


def workers(running: Running) -> list[str]:
    """The pool's workers that have something loaded."""
    members = running.get("/modelless/status")["members"]
    return [m["id"] for m in members if m["role"] == "worker" and m["loaded"]]


def wait_for(running: Running, count: int, most_s: float) -> float:
    """Wait until so many workers serve; returns how long that took."""
    begun_s = time.monotonic()
    while len(workers(running)) != count:
        assert time.monotonic() - begun_s < most_s, f"{workers(running)}; wanted: {count}"
        time.sleep(0.2)
    return time.monotonic() - begun_s


def test_from_none_to_two_and_back_without_a_lost_query(running: Running, live_home: Path) -> None:
    assert workers(running) == [], "ready, with nobody at work"
    clients = Clients(running)
    try:
        clients.be(1)
        wait_for(running, 1, most_s=60.0)
        clients.be(BUSY_CLIENTS)
        wait_for(running, 2, most_s=60.0)
        time.sleep(1.0)
        clients.be(1)
        wait_for(running, 1, most_s=60.0)
        time.sleep(1.0)
    finally:
        clients.end()
    assert clients.refused == []
    assert clients.answered > 50
    wait_for(running, 0, most_s=60.0)
    told = modelless(live_home, "history", "--kind", "scale", "--since", "10m", "--json")
    entries = json.loads(told.stdout)["entries"]
    assert all(entry["reason"] for entry in entries)
    assert {entry["details"]["workers"] for entry in entries} >= {1, 2, 0}
