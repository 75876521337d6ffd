"""Memory, live: one load for a crowd, what is pinned and preloaded, and what the status tells."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.usecases.client import Client, encode_infer
from modelless.variants.vocabulary import SLO
from modelless.variants.zoo.fashion_mnist import FashionMnist

from .running import Running, cluster

PINNED = "fashion-mnist/cnn-m/int8-28"
COLD = "fashion-mnist/cnn-xl/fp32-28"
CONFIG = f"""
gateways: {{count: 1}}
policies: {{scaling: on-demand, eviction: miss-cost, placement: room-to-load}}
residency: {{pinned: [{PINNED}], preload: [{PINNED}]}}
"""


@pytest.fixture(scope="module")
def running(live_home: Path) -> Iterator[Running]:
    with cluster(live_home, config=CONFIG, marker="memory") as up:
        yield up


def wait_for(running: Running, wanted: Any) -> dict[str, Any]:
    """The status, once it is as wanted: reports come once a second."""
    end_s = time.monotonic() + 30.0
    while True:
        status: dict[str, Any] = running.get("/modelless/status")
        if status and wanted(status):
            return status
        assert time.monotonic() < end_s, status
        time.sleep(0.2)


def test_what_is_preloaded_and_pinned_is_there_and_says_so(running: Running) -> None:
    status = wait_for(running, lambda told: told["members"][0]["pinned"])
    (member,) = status["members"]
    assert member["pinned"] == [f"{PINNED}@1"]
    assert f"{PINNED}@1" in member["loaded"]


def test_fifty_cold_queries_at_once_cause_one_load(running: Running) -> None:
    images, _ = FashionMnist().test_split()
    query = encode_infer(COLD, {"image": images[:1]}, SLO(latency_ms=30_000.0))
    before = running.get("/modelless/status")
    assert f"{COLD}@1" not in before["members"][0]["loaded"]

    def ask(_: int) -> int:
        with Client(running.url) as client:
            return client.send(query).status

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(ask, range(50))) == [200] * 50

    def loads(status: dict[str, Any]) -> list[dict[str, Any]]:
        changes = status["residency"]["recent"]
        return [c for c in changes if c["variant_id"] == f"{COLD}@1" and c["kind"] == "loaded"]

    (load,) = loads(wait_for(running, loads))
    assert load["reason"] == "demand"
    assert load["seconds"] > 0.0
    assert load["memory_bytes"] > 0
    assert len(loads(running.get("/modelless/status"))) == 1
