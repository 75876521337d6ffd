"""The cache of answers: what it answers, what it may not, and what it forgets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.api.grpc_calls import Call
from modelless.controller.api.keys import KeyRing, make_key
from modelless.controller.api.v2_headers import RequestHeaders
from modelless.controller.api.v2_reply import Reply
from modelless.controller.api.v2_request import InferRequest
from modelless.controller.config import CacheSettings, Settings, parse_settings
from modelless.controller.control.served_versions import Service
from modelless.controller.dispatch.messages import WorkerReport, WorkerReported
from modelless.controller.live.front.answer_cache import AnswerCache, key_of
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from modelless.profiler.measure.records import Records
from modelless.variants.registry.catalog import Scope
from modelless.variants.registry.registry import open_registry
from modelless.variants.registry.versions import Line, Trial
from modelless.variants.vocabulary import SLO, Accuracy, Engine, Precision
from tests.unit.cli.tiny import (
    MODEL,
    PUBLISHED,
    TASK,
    add_measurements,
    add_variants,
    measurement,
    tiny_bytes,
)
from tests.unit.dispatch.world import make_variant

from .front import INFER, Answer, Front, query, serving, until

SMALL = "pixels/mean/small"
KEEPS_ALL = {"cache": {"scopes": ["pixels"]}}
CHEAP = {"max_cost_usd": 1e-7}  # only what takes 5 ms
TEST = Callable[[Front], Awaitable[None]]


@pytest.fixture(scope="module")
def knowledge(tmp_path_factory: pytest.TempPathFactory) -> Knowledge:
    """Three variants, and a second version of one of them."""
    home = tmp_path_factory.mktemp("home")
    add_variants(home)
    with closing(open_registry(home)) as registry:
        registry.register_variant(
            task=TASK.name,
            model=MODEL.name,
            name="small",
            precision=Precision.FP32,
            engine=Engine.ONNXRUNTIME_CPU,
            accuracy=Accuracy(71.0, "top-1", PUBLISHED, "a page"),
            artifact=tiny_bytes(9.0),
        )
        for batch in (1, 2, 4, 8):
            Records(registry.store).add(measurement(f"{SMALL}@2", batch, 5.0 * batch))
    add_measurements(home)
    return read_knowledge(home, Settings())


@pytest.fixture
def run(knowledge: Knowledge, tmp_path: Path) -> Callable[..., None]:
    def go(test: TEST, settings: dict[str, Any] | None = None) -> None:
        async def inside() -> None:
            given = parse_settings(KEEPS_ALL if settings is None else settings)
            async with serving(knowledge, tmp_path, settings=given) as front:
                serve(front, knowledge, Line(SMALL, 1))
                await test(front)

        asyncio.run(inside())

    return go


def serve(front: Front, knowledge: Knowledge, line: Line) -> None:
    """Put these versions into service, all of them loaded."""
    service = Service(str(line), {SMALL: line})
    front.frontend.serve(service, knowledge.served_by(service).catalog)
    held = service.serving(list(knowledge.catalog.versions))
    front.frontend.decide(WorkerReported(WorkerReport("g", "cpu-1", held)))


def is_cached(answer: Answer) -> bool:
    assert answer.status == 200, answer.document
    return bool(answer.document["parameters"].get("cached", False))


async def ask(front: Front, name: str = "pixels", **parameters: Any) -> Answer:
    return await front.send("POST", f"/v2/models/{name}/infer", query(**parameters))


def test_the_same_inputs_get_the_same_answer_and_nothing_runs(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        first = await ask(front)
        again = await ask(front, latency_ms=5000.0, priority=3, explain=True)
        assert (is_cached(first), is_cached(again)) == (False, True)
        assert len(front.ran) == 1
        assert again.document["outputs"] == first.document["outputs"]
        told, before = again.document["parameters"], first.document["parameters"]
        assert (told["variant"], told["accuracy"]) == (before["variant"], before["accuracy"])
        assert (told["cost_usd"], told["explanation"]["reason"]) == (0.0, "cached")
        assert told["receipt_id"] != before["receipt_id"]
        assert not {"device", "predicted_latency_ms"} & told.keys()
        receipt = await front.send("GET", f"/modelless/receipts/{told['receipt_id']}")
        assert (receipt.document["cached"], receipt.document["outcome"]) == (True, "served")
        assert receipt.document["observed_latency_ms"] > 0.0
        other = await front.send("POST", INFER, query((2, 2, 2, 3)))
        assert not is_cached(other)
        assert not front.has_open
        assert not front.frontend._outputs

    run(test)


def test_a_hit_is_rendered_as_it_is_asked_for_over_grpc_too(run: Callable[..., None]) -> None:
    from tritonclient.grpc import InferInput, service_pb2
    from tritonclient.grpc._utils import _get_inference_request

    async def test(front: Front) -> None:
        await ask(front)
        document = json.loads(query())
        document["outputs"] = [{"name": "scores", "parameters": {"classification": 1}}]
        classes = await front.send("POST", INFER, json.dumps(document).encode())
        assert is_cached(classes)
        assert classes.document["outputs"][0]["data"] == ["0.250000:0:black"]

        image = InferInput("image", [1, 2, 2, 3], "UINT8")
        image.set_data_from_numpy(np.zeros((1, 2, 2, 3), np.uint8))
        asked = _get_inference_request(
            "pixels", [image], "", "", None, 0, False, False, 0, None, None
        )
        message = memoryview(asked.SerializeToString())
        replies: list[Reply] = []
        path = b"/inference.GRPCInferenceService/ModelInfer"
        call = Call(path, [], message, False, time.monotonic(), None)
        front.frontend.on_call(call, replies.append)
        answer = service_pb2.ModelInferResponse.FromString(replies[0].body)
        assert answer.parameters["cached"].bool_param
        assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [0.25] * 4
        assert len(front.ran) == 1

    run(test)


def test_a_hit_is_as_accurate_as_was_asked_for(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        cheap = await ask(front, **CHEAP)
        assert cheap.document["parameters"]["accuracy"] == 70.0
        assert is_cached(await ask(front, min_accuracy=70.0))
        better = await ask(front, min_accuracy=72.0)
        assert not is_cached(better)
        for limits in ({"min_accuracy": 72.0}, {}, CHEAP):  # what is kept costs nothing
            again = await ask(front, **limits)
            assert is_cached(again)
            assert again.document["parameters"]["accuracy"] >= 75.0
        assert not is_cached(await ask(front, cache_control="no-cache", **CHEAP))
        assert is_cached(await ask(front, min_accuracy=75.0))  # the better one is still kept

    run(test)


def test_a_query_can_ask_to_be_run(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        assert not is_cached(await ask(front, cache_control="no-store"))
        assert not is_cached(await ask(front, cache_control="no-cache"))
        assert is_cached(await ask(front))
        headers = {"cache-control": "max-age=60, No-Cache"}
        assert not is_cached(await front.send("POST", INFER, query(), headers))
        headers = {"cache-control": "max-age=60"}
        assert is_cached(await front.send("POST", INFER, query(), headers))
        wrong = await ask(front, cache_control="never")
        assert (wrong.status, wrong.document["field"]) == (400, "parameters.cache_control")
        assert "no-cache or no-store" in wrong.document["error"]

    run(test)


def test_only_what_settings_name_is_kept(run: Callable[..., None]) -> None:
    async def nothing(front: Front) -> None:
        for _ in range(2):
            assert not is_cached(await ask(front))
        assert not front.frontend._cache._answers

    async def one(front: Front) -> None:
        names = ("pixels", "pixels/mean", SMALL, SMALL)
        assert [is_cached(await ask(front, name)) for name in names] == [False, False, False, True]

    run(nothing, {})
    run(one, {"cache": {"scopes": [SMALL]}})


def test_a_tenant_gets_no_answer_of_another(run: Callable[..., None]) -> None:
    made = [make_key(name, ("infer",), 0, 0.0, None) for name in ("shop", "bank")]

    async def test(front: Front) -> None:
        front.ring = KeyRing([key for key, _ in made])
        found = []
        for _, secret in (*made, *made):
            headers = {"authorization": f"Bearer {secret}"}
            answer = await front.send("POST", INFER, query(), headers)
            found.append(answer.status if answer.status != 200 else is_cached(answer))
        assert found == expected

    expected: list[Any] = [False, False, True, True]
    run(test)
    expected = [False, 404, True, 404]
    run(test, {**KEEPS_ALL, "tenants": {"shop": {"private": ["pixels"]}}})


def test_large_bodies_and_queries_at_once(run: Callable[..., None]) -> None:
    shape = (1, 90, 90, 3)  # of more JSON than is read on the loop

    async def test(front: Front) -> None:
        answers = await asyncio.gather(*(front.send("POST", INFER, query(shape)) for _ in range(3)))
        assert {answer.status for answer in answers} == {200}
        again = await front.send("POST", INFER, query(shape))
        assert is_cached(again)
        assert len(front.ran) <= 3
        assert front.frontend.budget.used_bytes == 0

    run(test)


def test_equal_queries_that_come_while_the_first_runs_share_its_run(
    run: Callable[..., None],
) -> None:
    async def test(front: Front) -> None:
        front.answers_at_once = False
        strict = asyncio.create_task(ask(front, latency_ms=2000.0, min_accuracy=70.0))
        await until(lambda: len(front.ran) == 1)
        others = [{"latency_ms": 3000.0}, {"latency_ms": 2900.0, "min_accuracy": 60.0}, {}]
        waiting = [asyncio.create_task(ask(front, **limits)) for limits in others]
        await until(lambda: len(front.frontend._open) == 4)
        alone = [{"latency_ms": 500.0}, {"priority": 1}, {"cache_control": "no-cache"}]
        alone += [{"min_accuracy": 72.0}]
        tasks = [asyncio.create_task(ask(front, **limits)) for limits in alone]
        await until(lambda: len(front.frontend._open) == 8)
        front.answers_at_once = True
        front.finish(front.ran[0])
        assert not is_cached(await strict)
        for answer in await asyncio.gather(*waiting):
            assert is_cached(answer)
            assert answer.document["outputs"] == (await strict).document["outputs"]
            assert answer.document["parameters"]["cost_usd"] == 0.0
        assert not any(is_cached(answer) for answer in await asyncio.gather(*tasks))
        assert sum(len(batch.inputs) for batch in front.ran) == 5
        cache = front.frontend._cache
        assert (len(cache._running), len(cache._waiting), front.has_open) == (0, 0, False)

    run(test)


@pytest.mark.parametrize("ends", ["fails", "goes away"])
def test_queries_that_wait_for_one_that_ends_otherwise(run: Callable[..., None], ends: str) -> None:
    async def test(front: Front) -> None:
        front.answers_at_once = False
        first = asyncio.create_task(ask(front, latency_ms=2000.0))
        await until(lambda: len(front.ran) == 1)
        waiting = [asyncio.create_task(ask(front, latency_ms=20_000.0)) for _ in range(3)]
        await until(lambda: len(front.frontend._open) == 4)
        if ends == "goes away":  # what others wait for runs on
            front.frontend.on_abandoned(1)
            front.finish(front.ran[0])
            assert (await first).status == 200
            assert all(is_cached(answer) for answer in await asyncio.gather(*waiting))
            return
        batch = front.ran[0]
        front.frontend.on_batch_done(batch.batch_id, 0.0, ValueError("broken"), lost=False)
        await until(lambda: len(front.ran) == 2)  # for all three
        assert (await first).status == 500
        front.finish(front.ran[1])
        shared = [is_cached(answer) for answer in await asyncio.gather(*waiting)]
        assert sorted(shared) == [False, True, True]

    run(test)


def test_a_query_that_goes_away_while_it_waits_is_forgotten(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        front.answers_at_once = False
        first = asyncio.create_task(ask(front))
        await until(lambda: len(front.ran) == 1)
        other = asyncio.create_task(ask(front))
        await until(lambda: len(front.frontend._open) == 2)
        other.cancel()
        await until(lambda: len(front.frontend._open) == 1)
        front.finish(front.ran[0])
        assert not is_cached(await first)
        assert not front.has_open

    run(test)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (1, 0, 2)])
def test_a_query_is_cancelled_once_nobody_waits_for_its_answer(
    run: Callable[..., None], order: tuple[int, ...]
) -> None:
    async def test(front: Front) -> None:
        front.answers_at_once = False
        busy = asyncio.create_task(front.send("POST", INFER, query((2, 2, 2, 3))))
        await until(lambda: front.ran)
        equal = []
        for number in range(3):
            equal.append(asyncio.create_task(ask(front)))
            await until(lambda count=number + 2: len(front.frontend._open) == count)
        for left in order[:2]:
            equal[left].cancel()
            used_bytes = front.frontend.budget.used_bytes
            await until(lambda used=used_bytes: front.frontend.budget.used_bytes < used)
        assert front.frontend._dispatcher.open_queries == 2  # the busy one, and theirs
        equal[order[2]].cancel()
        await until(lambda: len(front.frontend._open) == 1)
        assert front.frontend._dispatcher.open_queries == 1
        cache = front.frontend._cache
        assert not cache._waiting
        assert not cache._waits_for
        assert not front.frontend._awaited
        front.finish(front.ran[0])
        assert (await busy).status == 200
        assert len(front.ran) == 1

    run(test)


def test_versions_that_change_empty_it_and_late_answers_do_not_come_back(
    run: Callable[..., None], knowledge: Knowledge
) -> None:
    async def test(front: Front) -> None:
        async def versions(*names: str) -> list[tuple[str, bool]]:
            answers = [await ask(front, name) for name in names]
            return [(each.document["model_version"], is_cached(each)) for each in answers]

        assert await versions(SMALL, SMALL) == [("1", False), ("1", True)]
        serve(front, knowledge, Line(SMALL, 2, (1,)))  # promoted
        assert await versions(SMALL, SMALL) == [("2", False), ("2", True)]
        front.answers_at_once = False
        late = asyncio.create_task(
            front.send("POST", f"/v2/models/{SMALL}/infer", query((2, 1, 1, 3)))
        )
        while len(front.ran) < 3:
            await asyncio.sleep(0)
        serve(front, knowledge, Line(SMALL, 1))  # rolled back
        front.answers_at_once = True
        front.finish(front.ran[-1])
        assert (await late).document["model_version"] == "2"
        for expected in (False, True):
            again = await front.send("POST", f"/v2/models/{SMALL}/infer", query((2, 1, 1, 3)))
            assert (again.document["model_version"], is_cached(again)) == ("1", expected)
        assert await versions(SMALL, SMALL) == [("1", False), ("1", True)]
        trial = Trial(SMALL, 2, 1, 0.5, 7, 0.0)
        serve(front, knowledge, Line(SMALL, 1, trial=trial))
        both = await versions(*[SMALL] * 20)  # each is counted in its arm
        assert {version for version, _ in both} == {"1", "2"}
        assert not any(cached for _, cached in both)
        assert await versions(f"{SMALL}@2", f"{SMALL}@2") == [("2", False), ("2", True)]

    run(test)


GOOD, POOR = make_variant("pixels/mean/a@1", 80.0), make_variant("pixels/mean/b@1", 60.0)
SCOPE = Scope("pixels", TASK, (GOOD, POOR))


def test_the_least_recently_used_go_when_bytes_are_full() -> None:
    cache = AnswerCache(CacheSettings(scopes=("pixels",), max_bytes=1 << 16))
    whole = np.zeros((64, 5000), np.float32)  # outputs are parts of a batch's
    for name in (b"a", b"b", b"c"):
        cache.keep(name, GOOD, 80.0, {"scores": whole[:1]})
    assert cache.find(b"a", SCOPE, 0.0) is not None
    cache.keep(b"d", GOOD, 80.0, {"scores": whole[1:2]})
    kept = [name for name in (b"a", b"b", b"c", b"d") if cache.find(name, SCOPE, 0.0)]
    assert kept == [b"a", b"c", b"d"]
    assert cache._bytes == sum(each.size_bytes for each in cache._answers.values()) <= 1 << 16
    found = cache.find(b"d", SCOPE, 0.0)
    assert found is not None
    assert found.outputs["scores"].base is None
    cache.keep(b"e", GOOD, 80.0, {"scores": whole})
    cache.keep(b"f", GOOD, 80.0, {"texts": np.array([b"x" * 70_000], object)})
    assert [cache.find(name, SCOPE, 0.0) for name in (b"e", b"f")] == [None, None]
    cache.clear()
    assert cache._bytes == len(cache._answers) == 0


def test_an_answer_holds_while_its_variant_is_in_scope_and_accurate() -> None:
    cache = AnswerCache(CacheSettings(scopes=("pixels",)))
    cache.keep(b"a", POOR, 60.0, {"scores": np.zeros(4)})
    assert cache.find(b"a", SCOPE, 61.0) is None
    cache.keep(b"a", GOOD, 80.0, {"scores": np.ones(4)})
    cache.keep(b"a", POOR, 60.0, {"scores": np.zeros(4)})
    found = cache.find(b"a", SCOPE, 80.0)
    assert found is not None
    assert found.variant is GOOD
    assert cache.find(b"a", Scope("pixels", TASK, (POOR,)), 0.0) is None
    assert len(cache._answers) == 0


def test_a_key_is_of_every_byte_shape_type_name_and_owner() -> None:
    request = InferRequest(None, SLO(), {}, (), False, None, {})
    image = np.arange(12, dtype=np.uint8)
    different: list[tuple[str, dict[str, Any]]] = [
        ("pixels ", {"image": image}),
        ("pixels shop", {"image": image}),
        ("pixels/mean ", {"image": image}),
        ("pixels ", {"other": image}),
        ("pixels ", {"image": image.view(np.int8)}),
        ("pixels ", {"image": image.reshape(2, 6)}),
        ("pixels ", {"image": image[::-1]}),
        ("pixels ", {"image": image[:6], "mask": image[6:]}),
        ("pixels ", {"image": np.array([b"ab", b"c"], object)}),
        ("pixels ", {"image": np.array([b"a", b"bc"], object)}),
    ]  # fmt: skip
    keys = [key_of(owner, RequestHeaders(), request, inputs) for owner, inputs in different]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    strided = np.repeat(image, 2)[::2]
    assert key_of("pixels ", RequestHeaders(), request, {"image": strided}) == keys[0]
    assert key_of(None, RequestHeaders(), request, {}) is None
    silent = request._replace(cache_control="no-store")
    assert key_of("pixels ", RequestHeaders(), silent, {}) is None
