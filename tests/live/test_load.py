"""The open-loop client over real sockets; no cluster is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from modelless.controller.demo.load import KindSpec, Load, LoadSpec, StepSpec, schedule
from modelless.controller.demo.query_log import Row

KIND = KindSpec(
    name="query",
    task="task",
    weight=1.0,
    deadline_ms=50.0,
    images=Path("none.npy"),
    labels=[],
    input_name="image",
    output_name="probabilities",
)
SPEC = LoadSpec(url="http://127.0.0.1:1", kinds=[KIND], steps=[StepSpec(seconds=0.3, per_s=200.0)])
"""About 60 queries."""


def send_to(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> tuple[list[Row], int]:
    """The rows of a load on a server of this process, and how many connections it made."""
    rows: list[Row] = []
    connections = 0

    async def run() -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await serve(reader, writer)
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        there = SPEC.model_copy(update={"url": f"http://127.0.0.1:{port}"})
        await Load(there, [[b"?\n"]], lambda new, _: rows.extend(new)).run()
        server.close()

    asyncio.run(run())
    return rows, connections


def test_each_query_is_answered_once() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 429 Busy\r\n\r\n")

    rows, connections = send_to(serve)
    assert {row.status for row in rows} == {429}
    assert sorted(row.due_s for row in rows) == [shot.due_s for shot in schedule(SPEC, [1])]
    assert 4 < connections < len(rows)


def test_connections_that_break_lose_one_query_each() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 429 Busy\r\n\r\n")
        await reader.readline()

    rows, connections = send_to(serve)
    assert len(rows) == len(schedule(SPEC, [1]))
    assert {row.lost for row in rows} == {"", "broken"}
    assert sum(row.lost == "broken" for row in rows) <= connections


def test_where_nobody_listens_queries_are_unreached() -> None:
    rows: list[Row] = []
    asyncio.run(Load(SPEC, [[b"?"]], lambda new, _: rows.extend(new)).run())
    assert len(rows) == len(schedule(SPEC, [1]))
    assert {row.lost for row in rows} == {"unreached"}
