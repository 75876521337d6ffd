"""Memory, live: one load for a crowd, what is pinned, and what the status tells of both."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from modelless.controller.usecases.client import Client, encode_infer
from modelless.variants.vocabulary import SLO
from modelless.variants.zoo.fashion_mnist import FashionMnist

from .clients import PINNED
from .running import Running

COLD = "fashion-mnist/cnn-l/fp32-28"
"""No other test of the shared cluster asks for it, or for what only it serves."""


def wait_for(running: Running, wanted: Any) -> dict[str, Any]:
    """The status, once it is as wanted: reports come once a second."""
    end_s = time.monotonic() + 30.0
    while True:
        status: dict[str, Any] = running.get("/modelless/status")
        if status and wanted(status):
            return status
        assert time.monotonic() < end_s, status
        time.sleep(0.2)


def test_what_is_pinned_says_so(shared: Running) -> None:
    status = wait_for(shared, lambda told: all(m["pinned"] for m in told["members"]))
    for member in status["members"]:
        assert member["pinned"] == [f"{PINNED}@1"]
        assert f"{PINNED}@1" in member["loaded"]


def test_fifty_cold_queries_at_once_cause_one_load_in_a_gateway(shared: Running) -> None:
    images, _ = FashionMnist().test_split()
    query = encode_infer(COLD, {"image": images[:1]}, SLO(latency_ms=30_000.0))
    before = shared.get("/modelless/status")
    assert not any(f"{COLD}@1" in member["loaded"] for member in before["members"])

    def ask(_: int) -> int:
        with Client(shared.url) as client:
            return client.send(query).status

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(ask, range(50))) == [200] * 50

    def loads(status: dict[str, Any]) -> list[dict[str, Any]]:
        changes = status["residency"]["recent"]
        return [c for c in changes if c["variant_id"] == f"{COLD}@1" and c["kind"] == "loaded"]

    wait_for(shared, lambda told: len(loads(told)) == 2)
    time.sleep(1.5)  # a report later
    told = loads(shared.get("/modelless/status"))
    assert len({load["worker_id"] for load in told}) == len(told) == 2
    for load in told:
        assert load["reason"] == "demand"
        assert load["seconds"] > 0.0
        assert load["memory_bytes"] > 0
