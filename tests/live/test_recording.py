"""A run is recorded, replayed to identical effects and simulated; why and history answer of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.usecases.client import Client, encode_infer
from modelless.variants.vocabulary import SLO

from .running import Running, cluster, modelless


def said(home: Path, *words: str) -> Any:
    done = modelless(home, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ask(running: Running) -> list[str]:
    """The receipts' ids of 60 queries; every tenth wants what no variant has, and is refused."""
    image = np.zeros((1, 28, 28), dtype=np.uint8)
    ids = []
    with Client(running.url, 30.0) as client:
        for number in range(60):
            slo = SLO(500.0, 99.9 if number % 10 == 9 else 88.0)
            reply = client.send(encode_infer("fashion-mnist", {"image": image}, slo))
            ids.append(str(reply.parameters["receipt_id"]))
    return ids


@pytest.fixture(scope="module")
def recorded(
    live_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, list[str]]:
    """A home, the recording of a short run of it that has ended, and its receipts' ids."""
    folder = tmp_path_factory.mktemp("recording")
    pools = "pools: [{device_class: cpu-1, workers: 1}]"
    config = f"gateways: {{count: 2}}\n{pools}\nrecord: {{folder: {folder}}}\n"
    with cluster(live_home, config=config, marker="recorded") as running:
        ids = ask(running)
    return live_home, folder, ids


def check_receipts(home: Path, ids: list[str]) -> None:
    """Assert that ``why`` tells of one query that was served and of one that was refused."""
    served = said(home, "why", ids[0], "--json")
    assert served["receipt_id"] == ids[0].partition(".")[0]  # without the tag
    assert served["outcome"].startswith("served")
    assert served["candidates"]
    assert any(entry["kind"] == "load" for entry in served["before"])
    refused = said(home, "why", ids[-1], "--json")
    assert (refused["outcome"], refused["reason"]) == ("refused", "too-inaccurate")


def test_a_run_that_goes_on_is_told_of_and_replays_to_identical_effects(shared: Running) -> None:
    ids = ask(shared)
    check_receipts(shared.home, ids)
    time.sleep(1.0)  # what was recorded is written once in a while
    told = said(shared.home, "replay", str(shared.home / "recording"), "--json")
    assert told["identical"]
    kinds = sorted(tape["core"] for tape in told["tapes"])
    assert kinds == ["control", "device", "device", "gateway", "gateway"]
    gateways = [tape for tape in told["tapes"] if tape["core"] == "gateway"]
    assert sum(tape["effects"] for tape in gateways) >= len(ids)


def test_why_answers_after_it_has_ended(recorded: tuple[Path, Path, list[str]]) -> None:
    home, _, ids = recorded
    check_receipts(home, ids)
    words = modelless(home, "why", ids[-1])
    assert "nothing loaded is as accurate as was asked for" in words.stdout
    assert len(said(home, "why", "--json")["receipts"]) == 20


def test_history_tells_of_loads_and_their_cost(
    recorded: tuple[Path, Path, list[str]],
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
    recorded: tuple[Path, Path, list[str]],
) -> None:
    home, folder, ids = recorded
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


def test_the_recording_is_a_world(recorded: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    home, folder, ids = recorded
    world = tmp_path / "again.yaml"
    assert said(home, "replay", str(folder), "--as-world", str(world), "--json")["queries"] == 60
    figures = said(home, "simulate", str(world), "--json")
    assert figures["queries"] == len(ids)
    assert figures["violations"].get("too-inaccurate") == 6
