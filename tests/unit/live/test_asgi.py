"""The way in through Serve's own HTTP server: bodies are bounded there, too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from modelless.controller.api.keys import UnauthorizedError
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_reply import Reply
from modelless.controller.live.front import asgi
from modelless.controller.live.front.access import OPERATORS
from modelless.controller.live.front.bodies import BodyBudget, Pace

SCOPE = {"type": "http", "method": "POST", "path": "/v2/models/t/infer", "headers": []}


class Frontend:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.budget = BodyBudget(10)
        self.replies: Counter[int] = Counter()
        self.abandoned: list[int] = []
        self.needs_key = False
        self.asked: list[tuple[bytes, Callable[[Reply], None]]] = []

    def check_sender(self, method: str, path: bytes, headers: Any) -> None:
        if self.needs_key:
            raise UnauthorizedError("no key")

    def on_request(
        self, method: str, path: bytes, headers: Any, body: Any, arrival_s: float, respond: Any
    ) -> int:
        self.asked.append((bytes(body), respond))
        self.headers, self.path = list(headers), path
        return len(self.asked)

    def on_abandoned(self, query_id: int) -> None:
        self.abandoned.append(query_id)


@pytest.fixture
def here() -> Iterator[SimpleNamespace]:
    frontend = Frontend()
    asgi.answer_with(frontend)
    yield SimpleNamespace(frontend=frontend, budget=frontend.budget)
    asgi._here.clear()


async def post(*parts: bytes, headers: Any = (), **more: Any) -> list[dict[str, Any]]:
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False
    sent: list[dict[str, Any]] = []
    scope: dict[str, Any] = {**SCOPE, "headers": [*headers], **more}

    async def receive() -> dict[str, Any]:
        scope["headers"].append((OPERATORS, b"socket"))  # a server may take a trailer for a header
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await asgi.asgi_app(scope, receive, send)
    return sent


def test_a_body_counts_until_it_is_answered(here: SimpleNamespace) -> None:
    async def serve() -> None:
        first = asyncio.ensure_future(post(b"1234", b"567"))
        await asyncio.sleep(0)
        assert here.budget.used_bytes == 7
        head, _ = await post(b"1234")
        assert head["status"] == 429
        assert here.budget.used_bytes == 7
        ((body, respond),) = here.frontend.asked
        assert body == b"1234567"
        respond(Reply(200, b"answer", []))
        head, answer = await first
        assert (head["status"], answer["body"]) == (200, b"answer")
        assert here.budget.used_bytes == 0
        assert here.frontend.replies == {200: 1, 429: 1}

    asyncio.run(serve())


def test_nobody_is_an_operator_here(here: SimpleNamespace) -> None:
    async def serve() -> None:
        given = [(b"host", b"h"), (OPERATORS, b"socket")]
        asked = asyncio.ensure_future(post(b"1", b"2", headers=given))
        while not here.frontend.asked:
            await asyncio.sleep(0)
        here.frontend.asked[0][1](Reply(200, b"", []))
        await asked
        assert [name for name, _ in here.frontend.headers] == [b"host", b"x-request-id"]

    asyncio.run(serve())


@pytest.mark.parametrize("more", [{}, {"raw_path": b"/v2/models/t/infer"}])
def test_a_query_string_is_part_of_the_path(here: SimpleNamespace, more: dict[str, bytes]) -> None:
    async def serve() -> None:
        asked = asyncio.ensure_future(post(b"", query_string=b"a=%20b", **more))
        while not here.frontend.asked:
            await asyncio.sleep(0)
        here.frontend.asked[0][1](Reply(200, b"", []))
        await asked
        assert here.frontend.path == b"/v2/models/t/infer?a=%20b"

    asyncio.run(serve())


def test_a_body_needs_a_key_before_it_is_read(here: SimpleNamespace) -> None:
    async def serve() -> None:
        here.frontend.needs_key = True
        head, _ = await post(b"1234", b"5678901234")  # more than there is room for
        assert head["status"] == 401
        assert here.budget.used_bytes == 0

    asyncio.run(serve())


def test_a_body_that_never_comes_is_refused(
    here: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()

    async def serve() -> None:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await asgi.asgi_app(SCOPE, never, send)
        assert sent[0]["status"] == 408
        assert here.frontend.replies == {408: 1}

    monkeypatch.setattr(asgi, "_LOOK_S", 0.01)
    monkeypatch.setattr(asgi, "Pace", partial(Pace, grace_s=0.02))
    asyncio.run(serve())


def test_a_body_that_drips_is_refused(
    here: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "Pace", partial(Pace, grace_s=-1.0))

    async def serve() -> None:
        head, _ = await post(b"1", b"2")
        assert head["status"] == 408
        assert here.budget.used_bytes == 0

    asyncio.run(serve())


def test_what_a_client_gives_up_counts_no_more(here: SimpleNamespace) -> None:
    async def serve() -> None:
        asked = asyncio.ensure_future(post(b"1234"))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert here.frontend.abandoned == [1]
        assert here.budget.used_bytes == 0

    asyncio.run(serve())
