"""The cache of answers, live: hits in replies, receipts and metrics of a cluster that records."""

from __future__ import annotations

import re
import urllib.request

import numpy as np

from modelless.controller.usecases.client import Client
from modelless.variants.zoo.fashion_mnist import FashionMnist

from .clients import wait_until
from .conftest import CACHED
from .running import Running, modelless


def hits(running: Running) -> float:
    with urllib.request.urlopen(running.url + "/metrics", timeout=10) as reply:
        text = reply.read().decode()
    found = re.search(r'^modelless_cache_hits_total\{task="fashion-mnist"\} (.*)$', text, re.M)
    return float(found[1]) if found else 0.0


def test_what_was_asked_before_is_answered_from_the_cache(shared: Running) -> None:
    images, _ = FashionMnist().test_split()
    before = hits(shared)
    with Client(shared.url) as client:
        replies = [client.infer(CACHED, {"image": images[:2]}) for _ in range(20)]
        anew = client.infer(CACHED, {"image": images[:2]}, cache_control="no-cache")
        other = client.infer(CACHED, {"image": images[2:4]}, cache_control="no-store")
    first, *_ = [reply.raise_for_status() for reply in (*replies, anew, other)]
    cached = [reply for reply in replies if reply.parameters.get("cached")]
    assert len(cached) >= 18  # each of the two gateways runs it once
    assert not {"cached"} & (first.parameters.keys() | anew.parameters.keys())
    assert "cached" not in other.parameters
    for reply in cached:
        assert reply.parameters["cost_usd"] == 0.0
        assert reply.parameters["accuracy"] == first.parameters["accuracy"]
        np.testing.assert_allclose(
            reply.tensors["probabilities"], first.tensors["probabilities"], rtol=1e-5
        )
    wait_until(lambda: hits(shared) - before >= len(cached), 30.0)
    told = modelless(shared.home, "why", cached[-1].parameters["receipt_id"])
    assert f"{CACHED}@1 from the cache: the same inputs were answered before" in told.stdout
