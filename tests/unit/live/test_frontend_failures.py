"""What goes wrong behind a query costs nobody an answer: each is answered, and nothing is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modelless.common.errors import UnavailableError
from modelless.controller.config import parse_settings
from modelless.controller.dispatch.messages import CatalogChanged
from modelless.controller.live.front import frontend, gateway
from modelless.controller.live.front.gateway import Gateway
from modelless.controller.live.front.side_thread import Aside
from modelless.controller.live.knowledge import Knowledge

from .front import INFER, Front, query, serving, until

LARGE = (1, 90, 90, 3)  # more JSON than is read on the loop
MOST_S = 20.0
Test = Callable[[Front], Awaitable[None]]


@pytest.fixture
def run(knowledge: Knowledge, tmp_path: Path) -> Callable[[Test], None]:
    def go(test: Test) -> None:
        async def inside() -> None:
            settings = parse_settings({"cache": {"scopes": ["pixels"]}})
            async with serving(knowledge, tmp_path, settings=settings) as front:
                await test(front)

        asyncio.run(inside())

    return go


async def two_equal(front: Front) -> list[asyncio.Task[Any]]:
    """Two queries: the device runs the first, whose answer the second waits for."""
    front.answers_at_once = False
    first = asyncio.create_task(front.send("POST", INFER, query(latency_ms=5000.0)))
    await until(lambda: front.ran)
    second = asyncio.create_task(front.send("POST", INFER, query(latency_ms=20_000.0)))
    await until(lambda: len(front.frontend._open) == 2)
    front.answers_at_once = True
    return [first, second]


async def statuses(tasks: list[asyncio.Task[Any]]) -> list[int]:
    return [(await asyncio.wait_for(task, MOST_S)).status for task in tasks]


def test_a_variant_that_is_gone_while_it_runs_still_answers(
    run: Callable[[Test], None], knowledge: Knowledge
) -> None:
    async def test(front: Front) -> None:
        tasks = await two_equal(front)
        gone = front.ran[0].variant_id
        left = {name: each for name, each in knowledge.catalog.versions.items() if name != gone}
        front.frontend.decide(CatalogChanged(left, knowledge.cost_model))
        front.finish(front.ran[0])
        assert await statuses(tasks) == [200, 200]
        parameters = (await tasks[0]).document["parameters"]
        variant = knowledge.catalog.versions[gone]
        assert (parameters["variant"], parameters["accuracy"]) == (gone, variant.accuracy.percent)
        assert not front.has_open

    run(test)


@pytest.mark.parametrize("broken", ["reply_parameters", "error_of"])
def test_an_answer_that_cannot_be_made_is_an_internal_error(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()  # the next one can be made
        raise KeyError("a bug")

    async def test(front: Front) -> None:
        tasks = await two_equal(front)
        monkeypatch.setattr(frontend, broken, fail)
        batch = front.ran[0]
        if broken == "error_of":
            front.frontend.on_batch_done(batch.batch_id, 0.0, ValueError("broken"), lost=False)
        else:
            front.finish(batch)
        assert await statuses(tasks) == [500, 200]
        assert not front.has_open
        assert not front.frontend._outputs

    run(test)


def test_those_that_wait_get_the_answer_though_its_counting_fails(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise KeyError("a bug")

    async def test(front: Front) -> None:
        tasks = await two_equal(front)
        monkeypatch.setattr(front.frontend._desk, "count_answer", fail)
        front.finish(front.ran[0])
        assert await statuses(tasks) == [200, 200]
        assert len(front.ran) == 1
        assert not front.has_open

    run(test)


def test_work_that_a_closed_thread_does_not_do_says_when_to_come_again() -> None:
    async def close() -> list[object]:
        aside, told, go_on = Aside(), list[object](), threading.Event()
        aside.begin(lambda: go_on.wait(MOST_S), told.append)
        aside.begin(lambda: "never", told.append)
        assert len(aside) == 2
        aside.close()
        go_on.set()
        with pytest.raises(UnavailableError, match="about to end"):
            aside.begin(lambda: "never", told.append)
        await until(lambda: len(told) == 2)
        assert not len(aside)
        return told

    error, done = asyncio.run(close())
    assert done is True
    assert isinstance(error, UnavailableError)
    assert (error.http_status, error.retry_after_s) == (503, 1.0)


def gateway_of(front: Front) -> Gateway:
    """A gateway that has this frontend, and neither a device nor a control loop."""
    made = Gateway.__new__(Gateway)
    made.frontend = front.frontend
    made._dispatcher = front.frontend._dispatcher
    made._tasks, made._logs = [], []
    made._wake = made._tape = made._device = None
    made._desk = SimpleNamespace(for_others=list)  # type: ignore[assignment]
    made._report = lambda: None  # type: ignore[assignment,method-assign,return-value]

    async def say_goodbye(*_: object) -> None:
        """Nobody hears it."""

    made._control = SimpleNamespace(say_goodbye=say_goodbye)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("most_s", [MOST_S, 0.0])
def test_a_gateway_ends_when_large_requests_are_answered_or_the_time_is_up(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch, most_s: float
) -> None:
    async def no_time(_: float) -> None:
        await asyncio.sleep(0)

    async def test(front: Front) -> None:
        go_on = threading.Event()
        front.frontend._aside.begin(lambda: go_on.wait(MOST_S), lambda _: None)
        asked = asyncio.create_task(front.send("POST", INFER, query(LARGE)))
        await until(lambda: front.is_reading)
        monkeypatch.setattr(gateway, "asyncio", SimpleNamespace(sleep=no_time))
        ending = asyncio.create_task(gateway_of(front).drain(most_s))
        for _ in range(100):
            await asyncio.sleep(0)
        assert ending.done() is (most_s == 0.0)
        go_on.set()
        assert await statuses([asked]) == [200 if most_s else 503]
        await ending
        late = await front.send("POST", INFER, query(LARGE))
        assert (late.status, late.headers["retry-after"]) == (503, "1")
        assert front.frontend.budget.used_bytes == 0

    run(test)
