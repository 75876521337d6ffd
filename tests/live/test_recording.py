"""A run is recorded, replayed to identical effects and simulated; why and history answer of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.demo.v2_client import Client, encode_infer
from modelless.variants.vocabulary import SLO

from .running import cluster, modelless


def said(home: Path, *words: str) -> Any:
    done = modelless(home, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def recorded(
    live_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, list[str], dict[str, Any]]:
    """A home, the recording of a short run of it, its receipts' ids, and one while it was up."""
    folder = tmp_path_factory.mktemp("recording")
    pools = "pools: [{device_class: cpu-1, workers: 1}]"
    config = f"gateways: {{count: 2}}\n{pools}\nrecord: {{folder: {folder}}}\n"
    image = np.zeros((1, 28, 28), dtype=np.uint8)
    ids = []
    with cluster(live_home, config=config, marker="recorded") as running:
        with Client(running.url, 30.0) as client:
            for number in range(60):
                slo = SLO(500.0, 99.9 if number % 10 == 9 else 88.0)
                reply = client.infer(encode_infer("fashion-mnist", {"image": image}, slo))
                ids.append(str(reply.parameters["receipt_id"]))
        live = said(live_home, "why", ids[0], "--json")
    return live_home, folder, ids, live


def test_why_answers_while_it_is_up_and_after(
    recorded: tuple[Path, Path, list[str], dict[str, Any]],
) -> None:
    home, _, ids, live = recorded
    assert live["receipt_id"] == ids[0]
    assert live["candidates"]
    served = said(home, "why", ids[0], "--json")
    assert served["outcome"].startswith("served")
    assert served["variant"] == live["variant"]
    assert any(entry["kind"] == "load" for entry in served["before"])
    refused = said(home, "why", ids[-1], "--json")
    assert (refused["outcome"], refused["reason"]) == ("refused", "too-inaccurate")
    words = modelless(home, "why", ids[-1])
    assert "nothing loaded is as accurate as was asked for" in words.stdout
    assert len(said(home, "why", "--json")["receipts"]) == 20


def test_history_tells_of_loads_and_their_cost(
    recorded: tuple[Path, Path, list[str], dict[str, Any]],
) -> None:
    home = recorded[0]
    entries = said(home, "history", "--task", "fashion-mnist", "--json")["entries"]
    decided = {(e["subject"], e["details"]["worker"]) for e in entries if e["kind"] == "load"}
    loaded = [e for e in entries if e["kind"] == "loaded"]
    assert loaded
    for entry in loaded:
        assert (entry["subject"], entry["details"]["worker"]) in decided
        assert entry["details"]["load_s"] > 0.0
        assert entry["details"]["memory_bytes"] > 0


def test_the_run_replays_to_identical_effects(
    recorded: tuple[Path, Path, list[str], dict[str, Any]],
) -> None:
    home, folder, ids, _ = recorded
    told = said(home, "replay", str(folder), "--json")
    assert told["identical"]
    assert Counter(tape["core"] for tape in told["tapes"]) == {
        "control": 1,
        "device": 3,
        "gateway": 2,
    }
    assert {tape["ending"] for tape in told["tapes"]} == {"end"}
    effects = Counter[str]()
    for tape in told["tapes"]:
        effects[tape["core"]] += tape["effects"]
    assert effects["gateway"] >= len(ids)
    assert effects["device"] > 0
    assert effects["control"] > 0


def test_the_recording_is_a_world(
    recorded: tuple[Path, Path, list[str], dict[str, Any]], tmp_path: Path
) -> None:
    home, folder, ids, _ = recorded
    world = tmp_path / "again.yaml"
    assert said(home, "replay", str(folder), "--as-world", str(world), "--json")["queries"] == 60
    figures = said(home, "simulate", str(world), "--json")
    assert figures["queries"] == len(ids)
    assert figures["violations"].get("too-inaccurate") == 6
