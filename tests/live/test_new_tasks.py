"""A task that is registered and profiled beside a running server is served, and goes when retired.

Nothing is started again, and no query is lost: neither of the new task nor of the others.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.usecases.client import InferReply, decode_infer, encode_infer
from modelless.variants.vocabulary import SLO
from tests.unit.cli.tiny import TASK, add_variants

from .clients import Clients, wait_until
from .running import Running, cluster, modelless

SERVED_S = 10.0
"""Within so long after ``profile`` has ended, every gateway answers."""
IMAGE = np.zeros((1, 4, 4, 3), np.uint8)
QUERY = encode_infer(TASK.name, {"image": IMAGE}, SLO(latency_ms=8000.0))


@pytest.fixture
def home(live_home: Path, tmp_path: Path) -> Path:
    shutil.copytree(live_home, tmp_path, ignore=shutil.ignore_patterns("run"), dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def running(home: Path) -> Iterator[Running]:
    with cluster(home, config="gateways: {count: 2}\n", marker="new-tasks") as up:
        yield up


def ask(running: Running) -> InferReply:
    """One query to the new task."""
    request = urllib.request.Request(
        running.url + QUERY.path, QUERY.body, dict(QUERY.headers), method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return decode_infer(reply.status, reply.headers, reply.read())
    except urllib.error.HTTPError as error:
        return decode_infer(error.code, error.headers, error.read())


def is_served_everywhere(running: Running) -> bool:
    """Whether both gateways answer, and no query that is sent meanwhile is refused."""
    gateways = set()
    for _ in range(100):
        reply = ask(running)
        if reply.status != 200:
            return False
        gateways.add(str(reply.parameters["receipt_id"]).rpartition("-")[0])
        if len(gateways) == 2:
            return True
    return False


def loaded(running: Running) -> set[str]:
    members = running.get("/modelless/status")["members"]
    held = (name for each in members for name in (*each["loaded"], *each["loading"]))
    return {name for name in held if name.startswith(f"{TASK.name}/")}


def test_a_new_task_is_served_and_a_retired_one_goes(
    home: Path, running: Running, record_property: Callable[[str, object], None]
) -> None:
    def is_known() -> bool:
        return {row["name"] for row in index()} >= {TASK.name}

    def is_refused() -> bool:
        reply = ask(running)
        return reply.status == 503 and "run 'modelless profile pixels" in reply.error

    def index() -> list[dict[str, Any]]:
        request = urllib.request.Request(f"{running.url}/v2/repository/index", b"", method="POST")
        with urllib.request.urlopen(request, timeout=10) as reply:
            rows: list[dict[str, Any]] = json.loads(reply.read())
        return rows

    assert ask(running).status == 404
    with Clients(running) as others:
        add_variants(home)
        wait_until(lambda: all(is_known() and is_refused() for _ in range(8)), SERVED_S)
        done = modelless(home, "profile", TASK.name, "--accept-noise", "--batches", "1,2")
        assert done.returncode == 0, done.stderr
        ended_s = time.monotonic()
        wait_until(lambda: is_served_everywhere(running), SERVED_S)
        record_property("served_after_profile_s", round(time.monotonic() - ended_s, 1))
        assert running.get("/v2/health/ready")["ready"]

        seen: list[tuple[float, int, str]] = []
        retired_s: list[float] = []

        def ask_on() -> None:
            while not retired_s or time.monotonic() < retired_s[0] + 3.0:
                begun_s = time.monotonic()
                reply = ask(running)
                seen.append((begun_s, reply.status, reply.error))

        threads = [threading.Thread(target=ask_on) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(seen) > 30, 20.0)
        done = modelless(home, "retire", TASK.name)
        assert done.returncode == 0, done.stderr
        retired_s.append(time.monotonic())
        for thread in threads:
            thread.join(40.0)
        assert {status for _, status, _ in seen} == {200, 404}, {each[1:] for each in seen}
        last_s = max(begun_s for begun_s, status, _ in seen if status == 200)
        record_property("last_query_begun_after_retire_s", round(last_s - retired_s[0], 2))
        assert last_s - retired_s[0] < 2.0
        wait_until(lambda: not loaded(running), 30.0)
        done = modelless(home, "remove", TASK.name)
        assert done.returncode == 0, done.stderr
        assert not is_known()
        others.answered_again()
    assert others.outcomes.keys() == {"200"}, others.outcomes
