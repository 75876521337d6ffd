"""Feedback demotes a variant in all gateways, and brings it back."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from modelless.variants.zoo.fashion_mnist import FashionMnist

from .clients import wait_until
from .running import Running, modelless

NAME = "fashion-mnist/cnn-m/fp32-28"
IMAGES, LABELS = FashionMnist().test_split()


@pytest.fixture
def client(shared: Running) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(shared.address) as client:
        yield client


def ask(client: triton.InferenceServerClient, start: int = 0, **limits: float) -> dict[str, Any]:
    """The parameters of the reply to a query of eight images, the first of which is ``start``."""
    images = IMAGES[start : start + 8]
    tensor = triton.InferInput("image", list(images.shape), "UINT8")
    tensor.set_data_from_numpy(images)
    reply = client.infer(NAME, [tensor], parameters={"latency_ms": 20_000.0, **limits})
    parameters: dict[str, Any] = reply.get_response()["parameters"]
    return parameters


def tell(running: Running, client: triton.InferenceServerClient, *, right: bool) -> None:
    """Have 40 queries answered and give feedback on all; a label that is 3 off is never right."""
    entries = []
    for start in range(0, 320, 8):
        receipt_id = ask(client, start)["receipt_id"]
        entry = {"correct": [True] * 8} if right else {"label": _off(start)}
        entries.append({"receipt_id": receipt_id, **entry})
    body = json.dumps({"feedback": entries}).encode()
    with urllib.request.urlopen(f"{running.url}/modelless/feedback", body, timeout=10) as reply:
        became = json.load(reply)
    assert became["ignored"] == 0
    assert became["counted"] + became["passed_on"] == len(entries)


def _off(start: int) -> list[int]:
    return ((LABELS[start : start + 8].astype(np.int64) + 3) % 10).tolist()


def row_of(running: Running) -> dict[str, Any] | None:
    rows = running.get("/modelless/status")["feedback"]
    return next((row for row in rows if row["variant"] == f"{NAME}@1"), None)


def test_feedback_demotes_a_variant_and_brings_it_back(
    shared: Running, client: triton.InferenceServerClient
) -> None:
    stated = ask(client)["accuracy"]
    assert stated > 85.0
    tell(shared, client, right=False)
    wait_until(lambda: (row_of(shared) or {}).get("demoted_to") is not None, 20.0)
    row = row_of(shared)
    assert row is not None
    assert row["demoted_to"] <= row["accuracy"] < 60.0

    def counts_for_less() -> bool:
        return all(ask(client, start)["accuracy"] < 60.0 for start in range(0, 64, 8))

    wait_until(counts_for_less, 10.0)
    with pytest.raises(InferenceServerException, match="min_accuracy 80"):
        ask(client, min_accuracy=80.0)
    text = urllib.request.urlopen(f"{shared.url}/metrics", timeout=10).read().decode()
    assert f'modelless_demoted_accuracy_ratio{{variant="{NAME}@1"}}' in text
    assert "counts for" in modelless(shared.home, "status").stdout

    def is_back() -> bool:
        tell(shared, client, right=True)
        return (row_of(shared) or {})["demoted_to"] is None

    wait_until(is_back, 60.0)
    wait_until(lambda: ask(client, min_accuracy=80.0)["accuracy"] == stated, 10.0)
    said = modelless(shared.home, "history", "--task", NAME, "--json").stdout
    kinds = [entry["kind"] for entry in json.loads(said)["entries"]]
    assert [kind for kind in kinds if kind.startswith("accuracy-")][-2:] == [
        "accuracy-demoted",
        "accuracy-restored",
    ]
