"""An open-loop load: queries are sent when they are due, whatever becomes of those before them.

Runs as a process of its own, ``python -m modelless.controller.demo.load SPEC.json``, so that
drawing tables and sending queries do not disturb each other. Each second it writes one line of
JSON: the queries that have ended since the last one. It ends by itself when nobody reads them.

It must not be the bottleneck: requests are prepared beforehand, replies are read by their length,
and a connection is a bare asyncio protocol.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from modelless.controller.demo.load_spec import LoadSpec, ScheduledQuery, schedule
from modelless.controller.demo.query_log import Row
from modelless.controller.usecases.client import encode_infer, read_class
from modelless.variants.vocabulary import SLO

GRACE_S = 12.0
"""How long to wait for the last replies: more than the deadline of queries that name none."""

_SEND_BUFFER_BYTES = 1 << 20
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_CLOSES = b"connection: close"


class _Sent(NamedTuple):
    """A query on its way, and when it was handed to a connection or began to wait for one."""

    shot: ScheduledQuery
    at_s: float


class Reply(NamedTuple):
    """An HTTP reply as far as it matters here: its status (0 for none), its body, or why none."""

    status: int
    body: bytes
    lost: str = ""


BROKEN = Reply(0, b"", "broken")
"""The connection broke under the query."""

TIMED_OUT = Reply(0, b"", "timed out")
"""No reply came until ``GRACE_S`` after the end."""

UNREACHED = Reply(0, b"", "unreached")
"""Nobody accepted a connection to send the query on."""


class ReplyReader:
    """Cuts the bytes of a keep-alive connection into replies, which come one at a time.

    Attributes:
        is_last: the server closes the connection after the last reply that was read.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 0
        self._body_at = 0
        self._status = 0
        self.is_last = False

    def feed(self, data: bytes) -> Reply | None:
        """Take what came; the reply if it is complete now."""
        self._buffer += data
        if not self._needed:
            end = self._buffer.find(_HEAD_END)
            if end < 0:
                return None
            head = bytes(self._buffer[: end + 2]).lower()
            self._status = int(head[9:12])
            self.is_last = _CLOSES in head
            start = head.find(_LENGTH)
            length = 0
            if start >= 0:
                start += len(_LENGTH)
                length = int(head[start : head.index(b"\r\n", start)])
            self._body_at = end + len(_HEAD_END)
            self._needed = self._body_at + length
        if len(self._buffer) < self._needed:
            return None
        reply = Reply(self._status, bytes(self._buffer[self._body_at : self._needed]))
        del self._buffer[: self._needed]
        self._needed = 0
        return reply


class _Connection(asyncio.Protocol):
    """One connection of the pool: idle, or waiting for one reply."""

    def __init__(
        self, on_idle: Callable[[_Connection], None], on_lost: Callable[[_Connection], None]
    ) -> None:
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._reader = ReplyReader()
        self._answered: Callable[[Reply], None] | None = None
        self._transport: asyncio.Transport | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # it is a stream
        made: Any = transport.get_extra_info("socket")
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self.is_open = True

    def send(self, request: bytes, answered: Callable[[Reply], None]) -> None:
        """Send ``request``; ``answered`` is called once, with BROKEN if the connection breaks."""
        self._answered = answered
        if self._transport is not None:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            reply = self._reader.feed(data)
        except ValueError:  # not HTTP
            if self._transport is not None:
                self._transport.abort()
            return
        if reply is not None:
            self._finish(reply)
            if self._reader.is_last:  # a query sent on it would be lost
                self.close()
            else:
                self._on_idle(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.is_open = False
        self._on_lost(self)
        self._finish(BROKEN)

    def close(self) -> None:
        """Close it; what waits for a reply gets none."""
        self._finish(TIMED_OUT)
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, reply: Reply) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(reply)


class Load:
    """Sends a schedule and keeps the rows.

    Args:
        spec: what to send.
        requests: the bytes of each kind's request with each of its images.
        report: called every second with the rows that are new, and whether they are the last.
    """

    def __init__(
        self,
        spec: LoadSpec,
        requests: Sequence[Sequence[bytes]],
        report: Callable[[list[Row], bool], None],
    ) -> None:
        self._spec = spec
        self._requests = requests
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._idle: deque[_Connection] = deque()
        self._waiting: deque[_Sent] = deque()
        self._connections: set[_Connection] = set()
        self._connecting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._rows: list[Row] = []
        self._open = 0
        self._begin_s = 0.0

    async def run(self) -> None:
        """Send everything when it is due, then wait for the replies, at most ``GRACE_S``."""
        shots = schedule(self._spec, [len(of_kind) for of_kind in self._requests])
        for _ in range(4):
            await self._connect()
        self._begin_s = self._loop.time() + 0.05
        reporter = self._loop.create_task(self._report_forever())
        itself = asyncio.current_task()

        def reporter_ended(task: asyncio.Task[None]) -> None:
            if itself is not None and not task.cancelled() and task.exception() is not None:
                itself.cancel()  # nobody reads any more

        reporter.add_done_callback(reporter_ended)
        try:
            for shot in shots:
                delay_s = self._begin_s + shot.due_s - self._loop.time()
                if delay_s > 0.0:
                    await asyncio.sleep(delay_s)
                self._send(shot)
            length_s = sum(step.seconds for step in self._spec.steps)
            end_s = self._begin_s + length_s
            while (left_s := end_s - self._loop.time()) > 0.0:
                await asyncio.sleep(min(left_s, 0.2))
            while self._open and self._loop.time() < end_s + GRACE_S:
                await asyncio.sleep(0.02)
        finally:
            reporter.cancel()
            while self._waiting:
                self._enter(self._waiting.popleft(), UNREACHED)
            for connection in tuple(self._connections):
                connection.close()
            await asyncio.sleep(0)  # the loop closes their sockets
        self._flush(is_last=True)

    def _send(self, shot: ScheduledQuery) -> None:
        self._open += 1
        sent = _Sent(shot, self._loop.time())
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                self._send_on(connection, sent)
                return
        self._waiting.append(sent)
        self._connect_soon()

    def _connect_soon(self) -> None:
        if len(self._connections) + self._connecting < self._spec.most_connections:
            task = self._loop.create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _send_on(self, connection: _Connection, sent: _Sent) -> None:
        request = self._requests[sent.shot.kind][sent.shot.image]
        connection.send(request, lambda reply: self._enter(sent, reply))

    async def _connect(self) -> None:
        parts = urlsplit(self._spec.url)
        host, port = parts.hostname or "", parts.port or 80
        self._connecting += 1
        try:
            _, connection = await self._loop.create_connection(
                lambda: _Connection(self._on_idle, self._on_lost),
                host,
                port,
            )
            self._connections.add(connection)
            self._on_idle(connection)
        except OSError:
            if self._waiting and not self._connections:  # nobody else will send it
                self._enter(self._waiting.popleft(), UNREACHED)
        finally:
            self._connecting -= 1

    def _on_lost(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if len(self._waiting) > self._connecting:  # they may have waited for this one
            self._connect_soon()

    def _on_idle(self, connection: _Connection) -> None:
        if self._waiting:
            self._send_on(connection, self._waiting.popleft())
        else:
            self._idle.append(connection)

    def _enter(self, sent: _Sent, reply: Reply) -> None:
        self._open -= 1
        shot = sent.shot
        latency_ms = (self._loop.time() - sent.at_s) * 1e3
        lag_ms = (sent.at_s - self._begin_s - shot.due_s) * 1e3
        kind = self._spec.kinds[shot.kind]
        acceptable = kind.labels[shot.image] if kind.labels else []
        self._rows.append(row_of(shot, reply, latency_ms, lag_ms, acceptable))

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._flush()

    def _flush(self, *, is_last: bool = False) -> None:
        rows, self._rows = self._rows, []
        self._report(rows, is_last)


def row_of(
    shot: ScheduledQuery, reply: Reply, latency_ms: float, lag_ms: float, acceptable: Sequence[int]
) -> Row:
    """Make the row of a reply.

    Args:
        shot: what was sent.
        reply: what came; a body that cannot be read counts as no reply, and as "unreadable".
        latency_ms: since it was sent.
        lag_ms: from when it was due until it was sent.
        acceptable: classes that are right; empty if that is not known.
    """
    if reply.status != 200:
        return Row(shot.kind, shot.due_s, reply.status, latency_ms, lag_ms, lost=reply.lost)
    try:
        document = json.loads(reply.body)
        said = document["parameters"]
        _, found, _ = read_class(document["outputs"][0]["data"][0])
        return Row(
            shot.kind,
            shot.due_s,
            200,
            latency_ms,
            lag_ms,
            float(said["observed_latency_ms"]),
            str(said["variant"]),
            float(said["accuracy"]),
            found in acceptable if acceptable else None,
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return Row(shot.kind, shot.due_s, 0, latency_ms, lag_ms, lost="unreadable")


def prepare_requests(spec: LoadSpec) -> list[list[bytes]]:
    """The bytes of each kind's request with each of its images."""
    host = urlsplit(spec.url).netloc
    read: dict[Path, NDArray[Any]] = {}
    requests = []
    for kind in spec.kinds:
        if kind.images not in read:
            read[kind.images] = np.load(kind.images, allow_pickle=False)
        slo = SLO(**kind.limits)  # type: ignore[arg-type]  # the limits are floats
        classes = {kind.output_name: 1}
        requests.append(
            [
                encode_infer(
                    kind.task, {kind.input_name: image[None]}, slo, classes=classes
                ).to_bytes(host)
                for image in read[kind.images]
            ]
        )
    return requests


def main(arguments: Sequence[str]) -> int:
    """Carry out the spec in the file named; see the module."""
    spec = LoadSpec.model_validate_json(Path(arguments[0]).read_text(encoding="utf-8"))
    requests = prepare_requests(spec)
    begun_s = time.process_time()

    def report(rows: list[Row], is_last: bool) -> None:
        cpu_s = round(time.process_time() - begun_s, 3)
        line = {"rows": rows, "is_last": is_last, "cpu_s": cpu_s}
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    async def run() -> None:
        await Load(spec, requests, report).run()

    try:
        asyncio.run(run())
    except (KeyboardInterrupt, BrokenPipeError, asyncio.CancelledError):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
