"""A task that nothing can serve is left out, and says why; all others are served all the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.api.v2_reply import Reply
from modelless.controller.config import Settings, parse_settings
from modelless.controller.control.messages import MemberReport
from modelless.controller.dispatch.trials import TrialArms
from modelless.controller.live.cluster import cluster as clusters
from modelless.controller.live.cluster.cluster import Cluster
from modelless.controller.live.control import control_loop as control
from modelless.controller.live.control.control_loop import ControlLoop
from modelless.controller.live.front.feedback import FeedbackDesk
from modelless.controller.live.front.frontend import V2Frontend
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Accuracy, Engine, Model, Precision, Provenance, Task
from tests.unit.cli.tiny import TASK, add_measurements, add_variants, measurement, tiny_bytes

STRAY = "stray"
NO_PROFILE = (
    "task stray has no profile on device class cpu-1: run 'modelless profile stray "
    "--device-class cpu-1'; a running modelless serves it seconds later"
)
IMAGE = {"name": "image", "shape": [1, 1, 1, 3], "datatype": "UINT8", "data": [0, 0, 0]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a task that is profiled, and one that was never."""
    add_variants(tmp_path)
    add_measurements(tmp_path)
    with closing(open_registry(tmp_path)) as registry:
        registry.add_task(Task(STRAY, TASK.inputs, TASK.outputs, TASK.accuracy_metric))
        registry.add_model(Model(STRAY, "mean", "tiny", "tests", "Apache-2.0"))
        registry.register_variant(
            task=STRAY,
            model="mean",
            name="small",
            precision=Precision.FP32,
            engine=Engine.ONNXRUNTIME_CPU,
            accuracy=Accuracy(70.0, "top-1", Provenance.PUBLISHED, "a page"),
            artifact=tiny_bytes(7.0),
        )
    return tmp_path


@pytest.fixture
def knowledge(home: Path) -> Knowledge:
    return read_knowledge(home, Settings())


def frontend(knowledge: Knowledge, served: set[str]) -> V2Frontend:
    instances = SimpleNamespace(is_served=lambda scope: scope in served)
    tasks = knowledge.catalog.tasks
    return V2Frontend(
        knowledge.catalog,
        knowledge.servable(),
        SimpleNamespace(instances=instances),  # type: ignore[arg-type]
        SimpleNamespace(status=dict, variant_rows=list),  # type: ignore[arg-type]
        lambda: 0.0,
        Settings(),
        "g",
        FeedbackDesk("g", TrialArms(0, "g", lambda scope: scope in served), tasks),
    )


def ask(front: V2Frontend, method: str, path: str, body: object = None) -> tuple[int, Any]:
    replies: list[Reply] = []
    sent = json.dumps(body).encode() if body is not None else b""
    front.on_request(method, path.encode(), [], sent, 0.0, replies.append)
    (reply,) = replies
    return reply.status, json.loads(reply.body)


def test_the_server_is_ready_without_a_task_that_nothing_can_serve(knowledge: Knowledge) -> None:
    status, told = ask(frontend(knowledge, {TASK.name}), "GET", "/v2/health/ready")
    assert (status, told) == (
        200,
        {"live": True, "ready": True, "not_served": {STRAY: NO_PROFILE}},
    )
    assert ask(frontend(knowledge, set()), "GET", "/v2/health/ready")[0] == 503


def test_the_task_itself_says_why_it_is_not_ready(knowledge: Knowledge) -> None:
    front = frontend(knowledge, {TASK.name})
    status, told = ask(front, "GET", f"/v2/models/{STRAY}/ready")
    assert (status, told) == (503, {"name": STRAY, "ready": False, "reason": NO_PROFILE})
    status, told = ask(front, "GET", f"/v2/models/{STRAY}%2Fmean/ready")
    assert status == 503
    assert "stray/mean has no profile" in told["reason"]
    _, rows = ask(front, "POST", "/v2/repository/index")
    assert {row["name"]: row.get("reason", "") for row in rows} == {
        TASK.name: "",
        STRAY: NO_PROFILE,
    }


def test_what_only_has_to_be_loaded_gives_no_such_reason(knowledge: Knowledge) -> None:
    status, told = ask(frontend(knowledge, set()), "GET", f"/v2/models/{TASK.name}/ready")
    assert (status, told) == (503, {"name": TASK.name, "ready": False})


def test_a_query_for_it_gets_the_reason(knowledge: Knowledge) -> None:
    front = frontend(knowledge, {TASK.name})
    status, told = ask(front, "POST", f"/v2/models/{STRAY}/infer", {"inputs": [IMAGE]})
    assert (status, told["error"]) == (503, NO_PROFILE)


def test_the_control_loop_tells_of_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "log_to", lambda home, name: None)

    async def status() -> Any:
        loop = ControlLoop(home, Settings(), None)
        await loop.exchange(MemberReport("g", True, None))
        return loop.status()

    assert asyncio.run(status())["not_served"] == {STRAY: NO_PROFILE}


def test_a_profile_of_another_device_class_is_none(home: Path) -> None:
    with closing(open_registry(home)) as registry:
        Records(registry.store).add(
            measurement("stray/mean/small@1", 1, 5.0, device_class="cpu-2", threads=2)
        )
    assert read_knowledge(home, Settings()).servable().not_served == {STRAY: NO_PROFILE}
    both = parse_settings({"pools": [{"device_class": "cpu-2"}]})
    assert read_knowledge(home, both).servable().not_served == {}


def test_a_task_without_variants_says_so(tmp_path: Path) -> None:
    add_variants(tmp_path)
    add_measurements(tmp_path)
    with closing(open_registry(tmp_path)) as registry:
        registry.add_task(Task(STRAY, TASK.inputs, TASK.outputs, TASK.accuracy_metric))
    (problem,) = read_knowledge(tmp_path, Settings()).servable().not_served.values()
    assert problem.startswith("task stray has no variants: 'modelless register' adds one")


def test_with_nothing_to_serve_at_all_nothing_starts(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> Iterator[None]:
        raise AssertionError("Ray must not be started")

    monkeypatch.setattr(clusters.Cluster, "_start", never)
    settings = parse_settings({"gateways": {"device_class": "cpu-2"}})
    with pytest.raises(NotFoundError, match=r"task pixels has no profile .* cpu-2.*; task stray"):
        Cluster(home, settings).__enter__()


def test_prices_are_the_settings(home: Path) -> None:
    told = parse_settings({"prices_usd_per_hour": {"cpu-1": 0.5}})
    by_name = read_knowledge(home, told).device_classes
    assert by_name["cpu-1"].price_usd_per_hour == 0.5
    by_default = read_knowledge(home, Settings()).device_classes
    assert by_name["cpu-2"] == by_default["cpu-2"]
    assert by_default["cpu-1"].price_usd_per_hour == 0.05


def test_a_price_of_nothing_there_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"prices_usd_per_hour.*'cpu-9'.*cpu-1"):
        parse_settings({"prices_usd_per_hour": {"cpu-9": 0.5}})
    with pytest.raises(InvalidInputError, match=r"prices_usd_per_hour\.cpu-1"):
        parse_settings({"prices_usd_per_hour": {"cpu-1": -1}})
    parse_settings({"prices_usd_per_hour": {"gpu-1": 2}})  # though this machine may have none
