"""A pool with a card beside gateways on CPU cores: profiled, served and chosen by limits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from modelless.controller.usecases.client import Client
from modelless.variants.vocabulary import Engine
from modelless.variants.zoo.fashion_mnist import FashionMnist
from tests.builders import need

from .running import cluster, modelless

pytestmark = pytest.mark.gpu
need(Engine.ONNXRUNTIME_CUDA)

CONFIG = """
gateways: {count: 2}
pools: [{device_class: gpu-1, workers: 1, resources: {GPU: 1}}]
"""
TASK = "fashion-mnist"
ITEMS = 32


def test_the_card_and_the_cores_answer_alike(tmp_path: Path) -> None:
    built = max(FashionMnist().build(lambda *_: None), key=lambda each: each.accuracy.percent)
    model, graph = built.model.name, tmp_path / "net.onnx"
    graph.write_bytes(built.onnx_bytes)
    home = tmp_path / "home"
    steps = [
        ["zoo", "add", TASK],
        [
            "register", str(graph), "--task", TASK, "--model", model, "--name", "on-card",
            "--precision", built.precision.value, "--engine", "onnxruntime-cuda",
            "--accuracy", str(built.accuracy.percent), "--provenance", "published",
            "--accuracy-source", "its test split",
        ],
        ["profile", f"{TASK}/{model}", "--device-class", "cpu-1,gpu-1", "--accept-noise"],
    ]  # fmt: skip
    for arguments in steps:
        ran = modelless(home, *arguments)
        assert ran.returncode == 0, ran.stderr
    listed = json.loads(modelless(home, "variants", TASK, "--json").stdout)
    (on_card,) = [each for each in listed["variants"] if each["name"] == "on-card"]
    assert on_card["profiled_on"] == ["gpu-1"]
    images, _ = FashionMnist().test_split()
    with cluster(home, config=CONFIG, marker="gpu") as up, Client(up.url) as client:
        scores = {}
        for name in ("on-card", built.name):
            reply = client.infer(
                f"{TASK}/{model}/{name}", {"image": images[:ITEMS]}, latency_ms=30_000
            )
            reply.raise_for_status()
            scores[name] = next(iter(reply.tensors.values()))
        np.testing.assert_allclose(scores["on-card"], scores[built.name], atol=2e-2)  # TF32
        reply = client.infer(TASK, {"image": images[:1]}, latency_ms=1_000)
        reply.raise_for_status()
