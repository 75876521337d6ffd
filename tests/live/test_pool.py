"""A gateway without a device: every batch goes to a worker of a pool, and workers may die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from modelless.variants.zoo.fashion_mnist import FashionMnist

from .running import Running, cluster

CONFIG = """
gateways: {count: 1, device_class: null}
pools: [{device_class: cpu-2, workers: 2}]
"""


@pytest.fixture(scope="module")
def running(live_home: Path) -> Iterator[Running]:
    with cluster(live_home, config=CONFIG, marker="pool") as up:
        yield up


def ask(client: triton.InferenceServerClient, images: np.ndarray) -> triton.InferResult:
    tensor = triton.InferInput("image", list(images.shape), "UINT8")
    tensor.set_data_from_numpy(images)
    return client.infer("fashion-mnist", [tensor], parameters={"min_accuracy": 90.0})


def test_batches_run_in_the_pool_and_the_hop_is_priced(running: Running) -> None:
    images, labels = FashionMnist().test_split()
    with triton.InferenceServerClient(running.address) as client:
        result = ask(client, images[:8])
        said = result.get_response()["parameters"]
        assert said["device"] == "cpu-2"
        assert said["predicted_latency_ms"] > 0.5  # the model alone takes far less
        right = (result.as_numpy("probabilities").argmax(1) == labels[:8]).sum()
        assert right >= 6


def test_a_killed_worker_loses_no_query(running: Running) -> None:
    images, _ = FashionMnist().test_split()
    outcomes: list[str] = []
    stopping = threading.Event()

    def load() -> None:
        with triton.InferenceServerClient(running.address, network_timeout=30.0) as client:
            while not stopping.is_set():
                try:
                    ask(client, images[:1])
                    outcomes.append("answered")
                except InferenceServerException as error:
                    outcomes.append(f"refused: {error}")

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    workers = [pid for pid, name in running.processes().items() if "PoolReplica" in name]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    time.sleep(4.0)
    stopping.set()
    for thread in threads:
        thread.join(35.0)
        assert not thread.is_alive(), "a query hangs"
    refused = [outcome for outcome in outcomes if outcome != "answered"]
    assert len(outcomes) > 100
    assert not refused, refused[:3]
