"""The way in through Serve's own HTTP server, for where a gateway has no socket.

A module of its own: Serve pickles a deployment's class with copies of its module's globals, and
what is reached through an import is shared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from modelless.common.errors import ModellessError, NotFoundError
from modelless.controller.api.v2_reply import Reply, render_error, with_request_id
from modelless.controller.live.front.access import OPERATORS
from modelless.controller.live.front.bodies import Pace
from modelless.controller.live.front.frontend import V2Frontend
from modelless.controller.live.front.http_server import REQUEST_IDS

_LOOK_S = 1.0
"""After so long without a part of a body it is looked whether it comes fast enough."""

_here: list[V2Frontend] = []
"""The frontend of this process: a replica has a process to itself."""


def answer_with(frontend: V2Frontend) -> None:
    """From now on the frontend answers."""
    _here[:] = [frontend]


async def asgi_app(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
    """The way in through Serve's own HTTP server: the same frontend, where there is no socket."""
    if scope["type"] != "http":
        return
    frontend = _here[0]
    budget = frontend.budget
    loop = asyncio.get_running_loop()
    arrival_s = time.monotonic()
    body = bytearray()
    raw_path = scope.get("raw_path") or scope["path"].encode()
    if query := scope.get("query_string"):
        raw_path += b"?" + query
    answered: asyncio.Future[Reply] = loop.create_future()
    pace = Pace(arrival_s)

    def respond(reply: Reply) -> None:
        if not answered.done():
            answered.set_result(reply)

    # Only what came through HAProxy and a socket can be an operator's.
    headers = [pair for pair in scope["headers"] if pair[0] != OPERATORS]
    request_id = REQUEST_IDS.of(headers)
    number: int | None = None
    try:
        if scope["method"] == "POST":
            frontend.check_sender("POST", raw_path, headers)
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    message = await receive()
            except TimeoutError:
                pace.check(len(body), time.monotonic())
                continue
            if message["type"] == "http.disconnect":
                return
            part = message.get("body", b"")
            frontend.limits.check_body_bytes(len(body) + len(part), raw_path)
            budget.take(len(part))
            body += part
            pace.check(len(body), time.monotonic())
            if not message.get("more_body"):
                break
        number = frontend.on_request(
            scope["method"], raw_path, headers, memoryview(body), arrival_s, respond
        )
        reply = await answered
    except ModellessError as error:
        reply = render_error(error)
    finally:
        budget.give(len(body))
        if number is not None and (not answered.done() or answered.cancelled()):
            frontend.on_abandoned(number)
    if reply.begin is not None:
        reply = render_error(NotFoundError("a stream comes only through HAProxy"))
    reply = with_request_id(reply, request_id)
    frontend.replies[reply.status] += 1
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    await send({"type": "http.response.body", "body": reply.body})
