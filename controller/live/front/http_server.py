"""The gateway's Unix socket: HTTP/1.1 and gRPC straight onto the frontend, with nothing in between.

Ray Serve's own path to a replica's code costs about 0.5 ms of CPU a request (identifiers, metrics,
tasks, contexts); this costs 0.03. Only HAProxy is told of the socket.
Parsing is httptools' (llhttp). One request at a time a connection: pipelined ones wait, and while
too many do, or the client does not read its answers, nothing more is read from it.

gRPC needs HTTP/2, which HAProxy speaks to clients: a call arrives here as a chunked POST, and its
status goes out as a trailer (``api/grpc_calls``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, cast

import httptools

from modelless.common.errors import InvalidInputError, ModellessError
from modelless.controller.api.grpc_calls import (
    BEGINNING,
    PREFIX_BYTES,
    STREAM,
    Call,
    as_call_reply,
    check_content_type,
    is_call,
    read_message,
    read_prefix,
    read_timeout_s,
)
from modelless.controller.api.v2_errors import Words, invalid
from modelless.controller.api.v2_headers import REQUEST_ID
from modelless.controller.api.v2_reply import (
    Headers,
    Reply,
    RequestIds,
    render_error,
    with_request_id,
)
from modelless.controller.live.front.bodies import UNREAD_S, Pace, make_room
from modelless.controller.live.front.call_stream import CallStream
from modelless.controller.live.front.frontend import V2Frontend
from modelless.controller.live.front.interfaces import Respond

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
REQUEST_IDS = RequestIds()
"""Of this process."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_READ_BYTES = 1 << 16
_HEAD_BYTES = 1 << 13
"""Of what begins a request: the rest of its body is read to where it stays."""
_BODY_BYTES = 1 << 18
"""Of the beginning of a body, at once."""
_MOST_WAITING = 16
"""Pipelined requests of a connection from which on nothing is read; one read may bring more."""
_LOOK_S = 1.0
"""How often it is looked whether bodies arrive fast enough."""
_LATE_S = 2.0
"""If that comes so much later, this process stood still, and clients' bytes wait unread."""
_END_S = 1.0
"""For so long a refused client may be silent: what it still sends is read, for up to ``UNREAD_S``,
as who is sending would else lose the reply."""
_NO_ROOM = memoryview(bytearray())


class _Request(NamedTuple):
    method: str
    path: bytes
    headers: Headers
    body: memoryview
    arrival_s: float
    keep_alive: bool


class SocketConnection(asyncio.BufferedProtocol):
    """One connection.

    A body of known length, which is nearly every one, is read from the socket straight into the
    memory that its tensors will be views of: the parser sees the head, and what came with it. Its
    bytes count as they arrive: who only announces a body takes no other client's memory.

    Args:
        frontend: what answers.
        clock: seconds; finer than the event loop's, which may be as coarse as 1 ms.
        connections: those that are open, so that a closing server can close them.
        max_connections: how many of those there may be; one more is closed at once.
    """

    def __init__(
        self,
        frontend: V2Frontend,
        clock: Callable[[], float],
        connections: set[SocketConnection],
        max_connections: int,
    ) -> None:
        self._budget = frontend.budget
        self._taken_bytes = 0
        self._frontend = frontend
        self._clock = clock
        self._connections = connections
        self._max_connections = max_connections
        self._transport: asyncio.Transport | None = None
        self._received = memoryview(bytearray(_READ_BYTES))
        self._waiting: deque[_Request] = deque()
        self._busy = False
        self._is_going = False
        self._is_stalled = self._is_paused = False
        self._ending_since_s: float | None = None
        self._thrown_away_s = 0.0
        self._query_id: int | None = None
        self._stream: CallStream | None = None
        self._on_gone: Callable[[], None] | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._method, self._path = "", b""
        self._headers: Headers = []
        self._keep_alive = True
        self._length: int | None = None
        self._body_began_s: float | None = None
        self._pace: Pace | None = None
        self._unread: Pace | None = None
        self._room = _NO_ROOM
        self._filled = 0
        self._begin()

    def close(self) -> None:
        """Close the connection; what is being answered is abandoned."""
        if self._transport is not None:
            self._transport.close()

    # -- asyncio's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        if len(self._connections) >= self._max_connections:
            self._frontend.replies[503] += 1  # HAProxy asks another gateway, or says 503
            self._transport.abort()
            return
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._connections.discard(self)
        self._transport = None
        self._waiting.clear()
        self._take_bytes(-self._taken_bytes)
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._on_gone is not None:
            self._on_gone()
            self._on_gone = None
        if self._query_id is not None:
            self._frontend.on_abandoned(self._query_id)
            self._query_id = None

    def pause_writing(self) -> None:
        """The client does not read: answer, and read, no more until it does."""
        self._is_stalled = True
        self._pause()

    def resume_writing(self) -> None:
        """The client has read."""
        self._is_stalled = False
        self._unread = None
        self._go_on()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        if self._is_direct:
            # Small: uvloop fills up to 32 in a row while the client sends; 8 MiB took it 40 ms.
            filled = self._filled
            return self._room[filled : max(filled + _READ_BYTES, _BODY_BYTES)]
        is_within = self._body_began_s is not None or self._stream is not None
        return self._received if is_within else self._received[:_HEAD_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self._ending_since_s is not None:  # what a refused client still sends is thrown away
            self._thrown_away_s = self._clock()
            return
        if not self._is_direct:
            self._parse(self._received[:nbytes])
            return
        try:
            self._take_bytes(nbytes)
        except ModellessError as error:
            self._fail(error)
            return
        self._filled += nbytes
        if self._filled == len(self._room):
            self._parser = httptools.HttpRequestParser(self)  # the old one waits for the body
            self.on_message_complete()

    def check_pace(self, now_s: float, *, is_late: bool = False) -> None:
        """Refuse a body that comes too slowly; close what a client keeps open or does not read.

        Args:
            now_s: on the clock of the event loop, seconds.
            is_late: whether this process stood still, so that slowness proves nothing.
        """
        if self._is_stalled and self._transport is not None:
            left = self._transport.get_write_buffer_size()
            if self._unread is None or is_late:
                self._unread = Pace(now_s, -left, UNREAD_S)
            if self._unread.is_too_slow(-left, now_s):
                self._transport.abort()
                return
        if self._ending_since_s is not None:
            is_silent = now_s - self._thrown_away_s > _END_S
            if is_silent or now_s - self._ending_since_s > UNREAD_S:
                self.close()
            return
        is_excused = is_late or self._is_paused
        if self._stream is not None:
            self._stream.check_pace(now_s, is_excused=is_excused)
        if self._body_began_s is None:
            return
        if is_excused:
            self._pace = Pace(now_s, self._filled)
        elif self._pace is None:
            self._pace = Pace(self._body_began_s)
        try:
            self._pace.check(self._filled, now_s)
        except ModellessError as error:
            self._fail(error)

    def _parse(self, data: memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(InvalidInputError("upgrade: not offered; speak HTTP/1.1."))
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, ModellessError) else error)
        except httptools.HttpParserError as error:
            self._fail(InvalidInputError(f"not an HTTP/1.1 request: {error}."))
        else:
            self._is_direct = self._length is not None
            if self._body_began_s is not None and not self._is_let_in:  # the body is still to come
                self._let_in()

    def _let_in(self) -> None:
        self._is_let_in = True
        try:
            self._frontend.check_sender(self._method, self._path, self._headers)
        except ModellessError as error:
            self._fail(error)

    # -- the parser's side --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_headers:  # a trailer: HAProxy checks headers only, so it counts for nothing
            return
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._has_headers = True
        if not self._path.startswith(b"/"):
            self._use_path_of_url()
        if self._stream is not None:
            raise InvalidInputError("a request behind a stream: send it when the stream has ended.")
        self._method = self._parser.get_method().decode("ascii")
        self._keep_alive = self._parser.should_keep_alive()
        self._body_began_s = self._clock()
        for name, value in self._headers:
            if name == b"content-length":
                self._length = int(value)
                self._frontend.limits.check_body_bytes(self._length, self._path)
                self._room = make_room(self._length)
            elif name == b"expect" and value.lower() == b"100-continue" and self._transport:
                self._transport.write(_CONTINUE)
        if self._path == STREAM and self._method == "POST":
            self._begin_stream()

    def _use_path_of_url(self) -> None:
        """Take path and host of a request for ``http://HOST/PATH`` apart (RFC 9112, 3.2.2)."""
        scheme, _, rest = self._path.partition(b"://")
        if scheme.lower() not in (b"http", b"https"):
            return
        authority = rest.partition(b"/")[0].partition(b"?")[0]
        self._path = rest.removeprefix(authority)
        if not self._path.startswith(b"/"):
            self._path = b"/" + self._path
        others = [pair for pair in self._headers if pair[0] != b"host"]
        self._headers = [*others, (b"host", authority)]

    def on_body(self, body: bytes) -> None:
        if self._stream is not None:
            self._stream.feed(body)
            return
        end = self._filled + len(body)
        if self._length is None and not is_call(self._path):
            self._frontend.limits.check_chunked_bytes(end, self._path)
        self._take_bytes(len(body))
        if end > len(self._room):
            self._enlarge_room(body, end)
        self._room[self._filled : end] = body
        self._filled = end

    def _enlarge_room(self, body: bytes, end: int) -> None:
        """Make room for a chunked body up to ``end``, of which ``body`` comes next.

        The length is known when the last chunk is there, except for that of a call.
        """
        size = max(2 * end, _READ_BYTES)
        if is_call(self._path):
            prefix = bytes(self._room[: min(self._filled, PREFIX_BYTES)]) + body[:PREFIX_BYTES]
            if len(prefix) >= PREFIX_BYTES:
                size = PREFIX_BYTES + read_prefix(prefix)[1]
                if end > size:
                    raise invalid("body", Words("more than one message"), "one message")
            self._frontend.limits.check_body_bytes(size, self._path)
        room = make_room(size)
        room[: self._filled] = self._room[: self._filled]
        self._room = room

    def on_message_complete(self) -> None:
        if self._stream is not None:
            self._stream.feed_end()
            self._begin()
            return
        transport = self._transport
        if transport is None or transport.is_closing() or self._ending_since_s is not None:
            return  # a stream has failed
        request = _Request(
            self._method,
            self._path,
            self._headers,
            self._room[: self._filled],
            self._arrival_s,
            self._keep_alive,
        )
        self._begin()
        self._waiting.append(request)
        if len(self._waiting) >= _MOST_WAITING:
            self._pause()
        self._go_on()

    # -- answering ----------------------------------------------------------------------------

    def _begin(self) -> None:
        self._arrival_s = self._clock()
        self._path = b""
        self._headers = []
        self._has_headers = False
        self._length = self._body_began_s = None
        self._is_direct = self._is_let_in = False
        self._pace = None
        self._room = _NO_ROOM
        self._filled = 0

    def _go_on(self) -> None:
        """Answer what waits, one after the other, until an answer takes its time.

        A loop, as answers that are there at once would else nest as deep as requests wait.
        """
        if self._is_going:
            return
        self._is_going = True
        try:
            while self._waiting and not self._busy and not self._is_stalled:
                self._answer(self._waiting.popleft())
        finally:
            self._is_going = False
        is_ready = len(self._waiting) < _MOST_WAITING and not self._is_stalled
        is_ready = is_ready and not (self._stream is not None and self._stream.is_held)
        if self._is_paused and is_ready and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _answer(self, request: _Request) -> None:
        self._busy = True
        request_id = REQUEST_IDS.of(request.headers)

        def respond(reply: Reply) -> None:
            reply = with_request_id(reply, request_id)
            self._query_id = None
            self._take_bytes(-min(len(request.body), self._taken_bytes))
            with_body = request.method != "HEAD"
            self._write(reply, request.path, request.keep_alive, with_body=with_body)

        if is_call(request.path) and request.method == "POST":
            query_id = self._call(request, respond)
        else:
            query_id = self._frontend.on_request(
                request.method,
                request.path,
                request.headers,
                request.body,
                request.arrival_s,
                respond,
            )
        if self._busy:  # not answered yet
            self._query_id = query_id

    def _call(self, request: _Request, respond: Respond) -> int | None:
        try:
            check_content_type(request.headers)
            is_compressed, message = read_message(request.body)
            left_s = read_timeout_s(request.headers)
        except ModellessError as error:
            respond(render_error(error))
            return None
        call = Call(
            request.path, request.headers, message, is_compressed, request.arrival_s, left_s
        )
        return self._frontend.on_call(call, respond)

    def _write(
        self, reply: Reply, path: bytes, keep_alive: bool, *, with_body: bool = True
    ) -> None:
        self._busy = False
        self._frontend.replies[reply.status] += 1
        if is_call(path):
            reply = as_call_reply(reply)
        transport = self._transport
        if transport is None or transport.is_closing() or self._ending_since_s is not None:
            return
        head = _render_head(reply, keep_alive)
        if reply.begin is not None and with_body:
            transport.write(head)
            self._busy = True
            self._on_gone = reply.begin(self)
            return
        transport.writelines((head, reply.body) if with_body else (head,))
        if keep_alive:
            self._go_on()
        else:
            self._waiting.clear()
            self._end(transport)

    def _end(self, transport: asyncio.Transport) -> None:
        """Close the connection once the client has: who is sending would else lose the reply.

        (The kernel tells a client whose data were not read that the connection broke, and nothing
        of what was written to it before.)
        """
        self._ending_since_s = self._thrown_away_s = self._clock()
        self._is_direct = False
        transport.write_eof()
        if self._is_paused:
            transport.resume_reading()

    # -- streams ------------------------------------------------------------------------------

    def _begin_stream(self) -> None:
        """Write the head of a stream's reply, and read messages from now on."""
        if self._busy:
            raise InvalidInputError("a stream: got one behind other requests; send it alone.")
        check_content_type(self._headers)
        self._frontend.check_sender(self._method, self._path, self._headers)
        self._stream = CallStream(self._frontend, self, self._path, self._headers, self._clock)
        self._busy = True
        self._length = self._body_began_s = None
        headers = [*BEGINNING, (REQUEST_ID, REQUEST_IDS.of(self._headers))]
        self.write_stream(_render_head(Reply(200, b"", headers), self._keep_alive))

    def write_stream(self, data: bytes) -> None:
        """See ``call_stream.Connection``."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    @property
    def is_slow(self) -> bool:
        """See ``v2_reply.Reader``."""
        return self._is_stalled

    def hold_stream(self, is_held: bool) -> None:
        """See ``call_stream.Connection``."""
        if is_held:
            self._pause()
        else:
            self._go_on()

    def end_stream(self, *, is_whole: bool) -> None:
        """See ``call_stream.Connection``."""
        self._stream = self._on_gone = None
        self._busy = False
        if is_whole and self._keep_alive:
            self._go_on()
        elif self._transport is not None and self._is_stalled:
            self._transport.abort()  # closing waits until the client has read
        elif self._transport is not None:
            self._transport.close()

    def _take_bytes(self, size_bytes: int) -> None:
        """Set memory aside for a body, or give it back if it is less than 0."""
        if size_bytes > 0:
            self._budget.take(size_bytes)
        else:
            self._budget.give(-size_bytes)
        self._taken_bytes += size_bytes

    def _fail(self, error: Exception) -> None:
        """The connection cannot be understood any further: say why, and close it."""
        reply = with_request_id(render_error(error), REQUEST_IDS.of(self._headers))
        self._take_bytes(-self._filled)
        self._body_began_s = None
        self._room, self._filled, self._is_direct = _NO_ROOM, 0, False
        if not self._busy:
            self._write(reply, self._path, keep_alive=False)
        elif self._transport is not None:
            self._frontend.replies[reply.status] += 1
            self._transport.close()


def _render_head(reply: Reply, keep_alive: bool) -> bytes:
    lines = [b"HTTP/1.1 %d %s" % (reply.status, _REASONS[reply.status])]
    lines += [name + b": " + value for name, value in reply.headers]
    if not keep_alive:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def socket_path(folder: Path, replica_id: str) -> Path:
    """Where the gateway of this replica listens; the launcher finds it by its name."""
    return folder / f"{replica_id}.sock"


async def open_socket(
    frontend: V2Frontend, path: str, max_connections: int
) -> tuple[asyncio.AbstractServer, set[SocketConnection]]:
    """Listen on the Unix socket ``path``; returns the server and its open connections.

    Args:
        frontend: what answers.
        path: where to listen.
        max_connections: open at a time.
    """
    loop = asyncio.get_running_loop()
    connections: set[SocketConnection] = set()
    server = await loop.create_unix_server(
        lambda: SocketConnection(frontend, time.monotonic, connections, max_connections),
        path,
        backlog=max_connections,  # HAProxy takes a gateway that refuses three for dead
    )

    def look(due_s: float) -> None:
        is_late = time.monotonic() - due_s > _LATE_S
        for connection in tuple(connections):
            connection.check_pace(time.monotonic(), is_late=is_late)
        if server.is_serving():
            loop.call_later(_LOOK_S, look, time.monotonic() + _LOOK_S)

    look(time.monotonic())
    return server, connections
