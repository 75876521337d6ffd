"""Versions under load: a worse one is taken back by itself, a good one promoted, none lost."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.http as triton
from onnx import numpy_helper
from tritonclient.utils import InferenceServerException

from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry
from modelless.variants.zoo.fashion_mnist import FashionMnist

from .running import Running, cluster, modelless

NAME = "fashion-mnist/cnn-xs/fp32-28"
ITEMS = 8


@pytest.fixture(scope="module")
def home(live_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of its own: other tests count what is registered."""
    folder = tmp_path_factory.mktemp("versions")
    shutil.copytree(live_home, folder, ignore=shutil.ignore_patterns("run"), dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[Running]:
    with cluster(home, config="gateways: {count: 2}\n", marker="versions") as up:
        yield up


def register(home: Path, noise: float) -> str:
    """A new version of the variant: its own weights, with noise in them; other bytes anyhow.

    It is as large as the first and takes as long, so the first one's profile is its own.
    """
    with closing(open_registry(home)) as registry:
        first = registry.variant(f"{NAME}@1")
        model = onnx.load_from_string(registry.artifacts.read(first.artifact_sha256))
        rng = np.random.default_rng(1)
        for tensor in model.graph.initializer:
            weights = numpy_helper.to_array(tensor)
            if weights.dtype == np.float32 and weights.ndim >= 2:
                moved = weights + noise * weights.std() * rng.standard_normal(weights.shape)
                tensor.CopyFrom(numpy_helper.from_array(moved.astype(np.float32), tensor.name))
        model.doc_string = f"saved again, noise {noise}"
        added = registry.register_variant(
            task=first.task,
            model=first.model,
            name=first.name,
            precision=first.precision,
            engine=first.engine,
            accuracy=first.accuracy,  # so it says
            artifact=model.SerializeToString(),
            resolution_px=first.resolution_px,
        )
        records = Records(registry.store)
        for row in records.current(read_facts()):
            if row.variant_id == first.id:
                records.add(replace(row, variant_id=added.id))
    return added.id


@dataclass
class Load:
    """What clients saw: variants that answered, when each query was sent, and what went wrong."""

    answered: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    begun: dict[str, float] = field(default_factory=dict)  # the last, by variant
    lost: list[str] = field(default_factory=list)


@contextmanager
def load(running: Running, clients: int = 3) -> Iterator[Load]:
    """Queries and feedback on every answer, from several clients, while the block runs."""
    images, labels = FashionMnist().test_split()
    seen, stopping, lock = Load(), threading.Event(), threading.Lock()

    def ask(number: int) -> None:
        rng = np.random.default_rng(number)
        told: list[dict[str, Any]] = []
        with triton.InferenceServerClient(running.address, network_timeout=30.0) as client:
            while not stopping.is_set():
                rows = rng.integers(len(images), size=ITEMS)
                tensor = triton.InferInput("image", list(images[rows].shape), "UINT8")
                tensor.set_data_from_numpy(images[rows])
                begun_s = time.time()
                try:
                    result = client.infer(NAME, [tensor])
                except (InferenceServerException, OSError) as error:
                    with lock:
                        seen.lost.append(repr(error))
                    continue
                said = result.get_response()["parameters"]
                answer = result.as_numpy("probabilities").argmax(1)
                with lock:
                    seen.answered[said["variant"]] += 1
                    seen.right[said["variant"]] += int((answer == labels[rows]).sum())
                    seen.begun[said["variant"]] = max(seen.begun.get(said["variant"], 0.0), begun_s)
                told.append({"receipt_id": said["receipt_id"], "label": labels[rows].tolist()})
                if len(told) == 20:
                    try:
                        send_feedback(running, told)
                    except OSError as error:
                        with lock:
                            seen.lost.append(f"feedback: {error!r}")
                    told.clear()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stopping.set()
        for thread in threads:
            thread.join(35.0)


def send_feedback(running: Running, entries: list[dict[str, Any]]) -> dict[str, int]:
    request = urllib.request.Request(
        f"{running.url}/modelless/feedback", json.dumps({"feedback": entries}).encode()
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        became: dict[str, int] = json.loads(reply.read())
    return became


def history(home: Path, kind: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(home / "store.db")) as store:
        rows = store.execute(
            "SELECT at, subject, reason, details FROM history WHERE kind = ?", (kind,)
        )
        return [
            {"at": at, "subject": subject, "reason": reason, **json.loads(details)}
            for at, subject, reason, details in rows
        ]


def wait_for(home: Path, kind: str, most_s: float) -> dict[str, Any]:
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        found = history(home, kind)
        if found:
            return found[-1]
        time.sleep(0.1)
    pytest.fail(f"no {kind!r} after {most_s:.0f} s")


def seconds_of(at: str) -> float:
    return datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()


def test_versions_under_load(
    home: Path, running: Running, record_property: Callable[[str, object], None]
) -> None:
    worse = register(home, noise=0.2)
    with load(running) as seen:
        time.sleep(1.0)
        assert set(seen.answered) == {f"{NAME}@1"}  # registering it has changed nothing
        done = modelless(home, "canary", worse, "--share", "20%", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["against"] == f"{NAME}@1"
        end = wait_for(home, "canary-rolled-back", 60.0)
        time.sleep(2.0)
    assert not seen.lost, seen.lost[:3]
    assert end["who"] == "modelless"
    assert "accuracy" in end["reason"]
    record_property("rolled_back", f"{end['reason']}; {end['queries']}")
    assert seen.begun[worse] - seconds_of(end["at"]) < 1.0
    assert (
        seen.right[worse] / seen.answered[worse]
        < seen.right[f"{NAME}@1"] / seen.answered[f"{NAME}@1"]
    )

    good = register(home, noise=0.0)
    with load(running) as seen:
        done = modelless(
            home, "canary", good, "--share", "50%", "--accuracy-tolerance", "5%",
            "--error-tolerance", "2%", "--latency-tolerance", "20%",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        end = wait_for(home, "canary-promoted", 60.0)
        time.sleep(2.0)
        before = dict(seen.answered)
        time.sleep(1.0)
        assert seen.answered[f"{NAME}@1"] == before[f"{NAME}@1"]  # it serves nobody any more
        record_property("promoted", f"{end['reason']}; {end['queries']}")

        done = modelless(home, "rollback", NAME, "--reason", "a second thought")
        assert done.returncode == 0, done.stderr
        back = wait_for(home, "rolled-back", 1.0)
        time.sleep(2.0)
    assert not seen.lost, seen.lost[:3]
    took_s = seen.begun[good] - seconds_of(back["at"])
    record_property("last_query_begun_after_rollback_s", round(took_s, 3))
    assert took_s < 1.0
    assert back["reason"] == "a second thought"
    assert (back["before"]["current"], back["after"]["current"]) == (3, 1)
