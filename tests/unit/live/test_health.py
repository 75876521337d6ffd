"""Liveness and readiness: each says no when it should."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from modelless.controller.api.v2_reply import Reply, render_text
from modelless.controller.config import Settings
from modelless.controller.device.messages import ChangeKind, LoadInstance, UnloadInstance
from modelless.controller.dispatch.trials import TrialArms
from modelless.controller.live.control.metrics import ClusterMetrics
from modelless.controller.live.front.access import Headers
from modelless.controller.live.front.feedback import FeedbackDesk
from modelless.controller.live.front.frontend import V2Frontend
from modelless.controller.live.front.interfaces import Respond
from modelless.controller.live.servable import Servable
from modelless.controller.live.worker import device as devices
from modelless.controller.live.worker.device import STALLED_S, LocalDevice
from modelless.policies.reasons import Reason
from modelless.variants.registry.catalog import Catalog
from modelless.variants.vocabulary import DeviceClass
from tests.builders import TASK, tiny_bytes, variant_of
from tests.unit.dispatch.world import FakeCostModel

CPU = DeviceClass("cpu-1", "cpu", 1, 1 << 30, 0.05, 8.0)
WAIT_S = 30.0


def frontend(served: set[str], check_health: Callable[[], None] = lambda: None) -> V2Frontend:
    instances = SimpleNamespace(is_served=lambda scope: scope in served)

    def scrape(accept: str, respond: Respond) -> None:
        respond(render_text(*ClusterMetrics({}, list).render(accept)))

    variant = variant_of(tiny_bytes(), "v")
    catalog = Catalog([TASK], [], [variant])
    return V2Frontend(
        catalog,
        Servable(catalog, FakeCostModel({variant.id: 0.01}), ["cpu-1"]),
        SimpleNamespace(instances=instances),  # type: ignore[arg-type]
        SimpleNamespace(  # type: ignore[arg-type]
            status=dict,
            variant_rows=list,
            check_health=check_health,
            cluster=SimpleNamespace(scrape=scrape),
        ),
        lambda: 0.0,
        Settings(),
        "g",
        FeedbackDesk("g", TrialArms(0, "g", lambda scope: scope in served), {TASK.name: TASK}),
    )


def get(front: V2Frontend, path: bytes, headers: Headers = ()) -> Reply:
    replies: list[Reply] = []
    front.on_request("GET", path, headers, b"", 0.0, replies.append)
    (reply,) = replies
    return reply


def test_ready_means_that_every_task_has_something_loaded() -> None:
    assert get(frontend({TASK.name}), b"/v2/health/ready").status == 200
    assert get(frontend(set()), b"/v2/health/ready").status == 503


def test_one_that_drains_is_not_ready_but_alive() -> None:
    front = frontend({TASK.name})
    front.is_draining = True
    assert get(front, b"/v2/health/ready").status == 503
    assert get(front, b"/v2/health/live").status == 200


def test_live_says_what_is_wrong() -> None:
    def sick() -> None:
        raise RuntimeError("the thread has died")

    reply = get(frontend({TASK.name}, sick), b"/v2/health/live")
    assert reply.status == 503
    assert json.loads(reply.body) == {"live": False, "problem": "the thread has died"}


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ([], b"text/plain; version=0.0.4"),
        ([(b"accept", b"application/openmetrics-text;version=1.0.0")], b"application/openmetrics"),
    ],
)
def test_metrics_come_as_prometheus_wants_them(accept: Headers, content_type: bytes) -> None:
    reply = get(frontend(set()), b"/metrics", accept)
    assert reply.status == 200
    assert dict(reply.headers)[b"content-type"].startswith(content_type)
    assert b"\nmodelless_up 1.0\n" in bytes(reply.body)


class Hanging:
    """A loaded variant whose batches take until they are let go."""

    memory_bytes = 1
    load_s = 0.0

    def __init__(self) -> None:
        self.started, self.let_go = threading.Event(), threading.Event()

    def infer(self, inputs: Any) -> Any:
        self.started.set()
        self.let_go.wait(WAIT_S)
        return inputs

    def unload(self) -> None:
        pass


def test_a_device_whose_batch_hangs_is_sick_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging()
    runtime = SimpleNamespace(load=lambda *args, **more: hanging)
    monkeypatch.setattr(devices, "find_runtime", lambda engine: runtime)
    variant = variant_of(tiny_bytes(), "v")

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loaded, done = asyncio.Event(), loop.create_future()
        tasks = {TASK.name: TASK}
        device = LocalDevice("w", CPU, 1 << 30, lambda _: tmp_path, tasks, loaded.set)
        orders = [LoadInstance("w", variant.id, Reason.WANTED)]
        device.obey(orders * 2, set(), {variant.id: variant})
        await asyncio.wait_for(loaded.wait(), WAIT_S)
        (change,) = device.take_changes()
        assert (change.kind, change.variant_id, change.reason) == (
            ChangeKind.LOADED,
            variant.id,
            "wanted",
        )
        device.check_health(time.monotonic() + 10 * STALLED_S)  # nothing runs
        image = np.zeros((1, 8, 8, 3), np.uint8)
        device.run(1, variant.id, [{"image": image}], lambda *said: done.set_result(said))
        await asyncio.to_thread(hanging.started.wait, WAIT_S)
        device.check_health(time.monotonic())
        with pytest.raises(RuntimeError, match="a batch has run in w for"):
            device.check_health(time.monotonic() + STALLED_S + 1.0)
        hanging.let_go.set()
        await asyncio.wait_for(done, WAIT_S)
        device.check_health(time.monotonic() + 10 * STALLED_S)
        device.obey([UnloadInstance("w", variant.id, Reason.ROOM_NEEDED)] * 2, set(), {})
        device.close()
        for thread in threading.enumerate():
            if thread.name.startswith("modelless-"):
                await asyncio.to_thread(thread.join, WAIT_S)
        await asyncio.sleep(0)  # what the threads said last is heard
        (change,) = device.take_changes()
        assert (change.kind, change.reason) == (ChangeKind.UNLOADED, "room-needed")
        with pytest.raises(RuntimeError, match="has died"):
            device.check_health(time.monotonic())

    asyncio.run(serve())
