"""Serves one gRPC stream: reads its queries, and writes their answers in the same order.

A stream is one HTTP request whose body and reply go on at the same time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from modelless.common.errors import ModellessError
from modelless.controller.api.grpc_calls import (
    END,
    PREFIX_BYTES,
    Call,
    error_metadata,
    error_text,
    frame,
    read_prefix,
    read_timeout_s,
)
from modelless.controller.api.grpc_messages import (
    InferMessage,
    write_stream_error,
    write_stream_part,
)
from modelless.controller.api.v2_errors import Words, invalid
from modelless.controller.api.v2_reply import Headers, Reader, Reply, render_error
from modelless.controller.live.front.bodies import Pace, make_room
from modelless.controller.live.front.frontend import V2Frontend

MOST_OPEN: Final = 16
"""While so many queries of a stream wait or run, nothing more is read."""
MOST_A_TURN, TURN_S = 16, 0.016
"""So many queries of a stream are read in so many seconds at most: a thousand a second. HAProxy
limits requests, but it does not see the queries of a stream."""
_UNAUTHENTICATED: Final = 401


class Connection(Reader, Protocol):
    """The connection that a stream is read from and written to."""

    def hold_stream(self, is_held: bool) -> None:
        """Stop reading, or read on."""
        ...


@dataclass(slots=True)
class _Open:
    """A query of the stream: its message, the frontend's number of it, and its reply."""

    message: memoryview
    number: int | None = None
    reply: Reply | None = None


class CallStream:
    """A call of ModelStreamInfer.

    Args:
        frontend: answers the queries.
        connection: the stream's connection.
        path, headers: those of the request.
        clock: returns the time in seconds.

    Attributes:
        is_held: whether nothing more is read for now, because many queries are open or came lately.

    Raises:
        InvalidInputError: the headers are malformed.
    """

    def __init__(
        self,
        frontend: V2Frontend,
        connection: Connection,
        path: bytes,
        headers: Headers,
        clock: Callable[[], float],
    ) -> None:
        self._frontend = frontend
        self._connection = connection
        self._path = path
        self._headers = headers
        self._clock = clock
        timeout_s = read_timeout_s(headers)
        self._end_s = None if timeout_s is None else clock() + timeout_s
        self._open: deque[_Open] = deque()
        self._rest = bytearray()
        self._room: memoryview | None = None
        self._filled = 0
        self._is_compressed = False
        self._began_s: float | None = None
        self._pace: Pace | None = None
        self.is_held = False
        self._is_reading = False
        self._turn_s, self._asked = clock(), 0
        self._rest_timer: asyncio.TimerHandle | None = None
        self._has_all = False
        self._is_over = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the request's body."""
        if self._is_over:
            return
        self._rest += data
        self._go_on()

    def feed_end(self) -> None:
        """Note that the client sends nothing more."""
        self._has_all = True
        self._go_on()

    def check_pace(self, now_s: float, *, is_excused: bool) -> None:
        """End the stream if a message comes too slowly; the time until now counts for nothing if
        it is excused."""
        if self._began_s is None:
            return
        if is_excused:
            self._pace = Pace(now_s, self._filled)
        elif self._pace is None:
            self._pace = Pace(self._began_s)
        try:
            self._pace.check(self._filled, now_s)
        except ModellessError as error:
            self._fail(render_error(error))

    def close(self) -> None:
        """Cancel the open queries: the stream has failed, or the client went away."""
        self._is_over = True
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        if self._room is not None:
            self._frontend.budget.give(self._filled)
            self._room = None
        for each in self._open:
            if each.reply is None:
                self._frontend.budget.give(len(each.message))
                if each.number is not None:
                    self._frontend.on_abandoned(each.number)
        self._open.clear()

    # -- messages in --------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Read messages until there are no more, or too many are open.

        An answer that comes at once calls this method again. The loop keeps such calls from nesting
        as deep as messages wait.
        """
        if self._is_reading or self._is_over:
            return
        self._is_reading = True
        try:
            while (
                not self._is_over
                and len(self._open) < MOST_OPEN
                and not self._is_resting()
                and self._read_piece()
            ):
                pass
        except ModellessError as error:
            self._fail(render_error(error))
        finally:
            self._is_reading = False
        if self._is_over:
            return
        is_held = len(self._open) >= MOST_OPEN or self._rest_timer is not None
        if is_held != self.is_held:
            self.is_held = is_held
            self._connection.hold_stream(is_held)
        if self._has_all and not self._open and not is_held:
            if self._room is not None or self._rest:
                cut_off = invalid("message", Words("a part of it"), "the whole message")
                self._fail(render_error(cut_off))
                return
            self._is_over = True
            self._connection.write_stream(END)
            self._connection.end_stream(is_whole=True)

    def _is_resting(self) -> bool:
        """Whether enough was read in this turn; if so, a timer reads on in the next one."""
        now_s = self._clock()
        if now_s - self._turn_s >= TURN_S:
            self._turn_s, self._asked = now_s, 0
        if self._asked < MOST_A_TURN:
            return False
        if self._rest_timer is None:
            wait_s = self._turn_s + TURN_S - now_s
            self._rest_timer = asyncio.get_running_loop().call_later(wait_s, self._wake)
        return True

    def _wake(self) -> None:
        self._rest_timer = None
        self._go_on()

    def _read_piece(self) -> bool:
        """Read the next part of what has arrived; returns whether there may be more to read."""
        rest = self._rest
        if rest and self._began_s is None:
            self._began_s = self._clock()
        if self._room is None:
            if len(rest) < PREFIX_BYTES:
                return False
            self._is_compressed, size = read_prefix(bytes(rest[:PREFIX_BYTES]))
            self._frontend.limits.check_body_bytes(PREFIX_BYTES + size, self._path)
            self._room = make_room(size)
            self._filled = 0
            del rest[:PREFIX_BYTES]
        size = min(len(rest), len(self._room) - self._filled)
        self._frontend.budget.take(size)
        self._room[self._filled : self._filled + size] = rest[:size]
        self._filled += size
        del rest[:size]
        if self._filled < len(self._room):
            return False
        message, self._room, self._began_s, self._pace = self._room, None, None, None
        self._filled = 0
        self._ask(message)
        return bool(rest)

    def _ask(self, message: memoryview) -> None:
        query = _Open(message)
        self._open.append(query)
        self._asked += 1
        now_s = self._clock()
        left_s = None if self._end_s is None else self._end_s - now_s
        call = Call(self._path, self._headers, message, self._is_compressed, now_s, left_s)

        def respond(reply: Reply) -> None:
            if self._is_over:
                return
            query.reply = reply
            self._frontend.budget.give(len(message))
            self._frontend.replies[reply.status] += 1
            self._write_answers()

        query.number = self._frontend.on_call(call, respond)

    # -- answers out --------------------------------------------------------------------------

    def _write_answers(self) -> None:
        while self._open and (reply := self._open[0].reply) is not None:
            query = self._open.popleft()
            if reply.status == _UNAUTHENTICATED:
                self._end_with(reply)
                return
            if reply.status == 200:
                part = write_stream_part(reply.body)
            else:
                part = write_stream_error(error_text(reply), self._request_id(query.message))
            self._connection.write_stream(frame(part))
        self._go_on()

    def _request_id(self, message: memoryview) -> str:
        with suppress(ModellessError):  # the message is compressed or malformed
            return InferMessage(message).request_id
        return ""

    def _fail(self, reply: Reply) -> None:
        """End the stream for an error of its own."""
        self._frontend.replies[reply.status] += 1
        self._end_with(reply)

    def _end_with(self, reply: Reply) -> None:
        self.close()
        trailers = b"".join(b"%b: %b\r\n" % pair for pair in error_metadata(reply))
        self._connection.write_stream(b"0\r\n" + trailers + b"\r\n")
        self._connection.end_stream(is_whole=self._has_all)
