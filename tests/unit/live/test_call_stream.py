"""gRPC calls and streams at the socket, in whatever pieces they come."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2

from modelless.common.errors import NotFoundError
from modelless.controller.api.grpc_calls import STREAM
from modelless.controller.api.keys import UnauthorizedError
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_reply import Reply, render_error
from modelless.controller.live.front.bodies import GRACE_S

from .test_http_socket import Echo, connect, feed

LIVE = b"/inference.GRPCInferenceService/ServerLive"
INFER = b"/inference.GRPCInferenceService/ModelInfer"


class Calls(Echo):
    """A frontend that answers a call with its own message, or with an error."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.calls = []
        self.error = None

    def on_call(self, call, respond):
        self.calls.append(call)
        self.responds.append(respond)
        if self.at_once:
            self.answer_call(len(self.calls) - 1)
        return len(self.calls) - 1

    def answer_call(self, number):
        reply = Reply(200, bytes(self.calls[number].message), [(b"content-type", b"grpc")])
        self.responds[number](reply if self.error is None else render_error(self.error))


def framed(message, flag=0):
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


def head(path, *extra):
    lines = [b"POST %b HTTP/1.1" % path, b"content-type: application/grpc", *extra]
    return b"\r\n".join(lines) + b"\r\n"


def chunked(path, body, *extra, size=50, end=True):
    chunks = [body[i : i + size] for i in range(0, len(body), size)]
    data = head(path, b"transfer-encoding: chunked", *extra) + b"\r\n"
    data += b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return data + b"0\r\n\r\n" * end


def split(sent):
    """The head and the messages of a reply, and its trailers."""
    top, _, rest = sent.partition(b"\r\n\r\n")
    messages = []
    while rest and not rest.startswith(b"0\r\n"):
        size, _, rest = rest.partition(b"\r\n")
        frame, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        assert frame[:1] == b"\0"
        assert int.from_bytes(frame[1:5], "big") == len(frame) - 5
        messages.append(frame[5:])
    return top, messages, rest[3:].strip().split(b"\r\n")


@pytest.mark.parametrize("piece", [1, 3, 6, 64, 1 << 20])
@pytest.mark.parametrize("size", [0, 1, 200, 90_000])
def test_a_call_is_whole_however_it_is_cut(piece, size):
    message = b"m" * (size if piece > 3 else min(size, 300))
    frontend = Calls()
    connection, wire = connect(frontend)
    feed(connection, chunked(INFER, framed(message), size=7 if size < 999 else 5000) * 2, piece)
    whole = head(INFER, b"content-length: %d" % (len(message) + 5)) + b"\r\n" + framed(message)
    feed(connection, whole, piece)
    assert [bytes(call.message) for call in frontend.calls] == [message] * 3
    assert wire.sent.count(b"grpc-status: 0\r\n\r\n") == 3
    _, messages, _ = split(wire.sent)
    assert messages == [message]
    assert frontend.budget.used_bytes == 0


@pytest.mark.parametrize(
    ("path", "body", "extra", "code", "says"),
    [
        (INFER, b"", (), 3, "one whole message"),
        (INFER, b"\0\0\0\0\5ab", (), 3, "one whole message"),
        (INFER, framed(b"a") + framed(b"b"), (), 3, "one"),
        (LIVE, framed(b"", 2), (), 3, "0 (plain) or 1 (compressed)"),
        (INFER, b"\0\xff\xff\xff\xff", (), 8, "4294967300 bytes"),
        (LIVE, b"\0\0\4\0\1" + b"x", (), 8, "allowed: up to 262144"),
        (INFER, framed(b"a"), (b"grpc-timeout: 5x",), 3, "grpc-timeout"),
        (STREAM, framed(b"", 2), (), 3, "0 (plain) or 1 (compressed)"),
        (STREAM, b"\0\0\0\0\5ab", (), 3, "the whole message"),
        (STREAM, b"\0\xff\xff\xff\xff", (), 8, "4294967300 bytes"),
        (STREAM, framed(b"a"), (b"grpc-timeout: 5x",), 3, "grpc-timeout"),
    ],
)
def test_what_is_no_call_is_refused_and_counted(path, body, extra, code, says):
    frontend = Calls()
    connection, wire = connect(frontend)
    feed(connection, chunked(path, body, *extra), 1 << 20)
    assert frontend.calls == []
    assert b"grpc-status: %d\r\n" % code in wire.sent
    (text,) = [line for line in wire.sent.split(b"\r\n") if line.startswith(b"grpc-message: ")]
    assert says.encode() in text
    assert wire.sent.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\n")
    assert sum(frontend.replies.values()) == 1
    assert 200 not in frontend.replies
    connection.connection_lost(None)
    assert frontend.budget.used_bytes == 0


def test_another_content_type_is_refused():
    frontend = Calls()
    connection, wire = connect(frontend)
    for path in (INFER, STREAM):
        request = chunked(path, framed(b"a")).replace(b"application/grpc", b"text/plain")
        feed(connect(frontend)[0] if path == STREAM else connection, request, 100)
    assert frontend.calls == []
    assert frontend.replies == {415: 2}
    assert b"grpc-status: 12" in wire.sent


@pytest.mark.parametrize("piece", [1, 11, 1 << 20])
def test_messages_of_a_stream_are_answered_in_order(piece):
    frontend = Calls(at_once=False)
    connection, wire = connect(frontend)
    names = ("one", "", "three" * 50)
    sent = [service_pb2.ModelInferResponse(id=name).SerializeToString() for name in names]
    body = b"".join(map(framed, sent))
    feed(connection, chunked(STREAM, body, b"grpc-timeout: 900S"), piece)
    assert [bytes(call.message) for call in frontend.calls] == sent
    assert all(0.0 < call.time_left_s < 900.0 for call in frontend.calls)
    for number in (2, 1):
        frontend.answer_call(number)
    assert split(wire.sent)[1] == []
    frontend.answer_call(0)
    _, messages, trailers = split(wire.sent)
    got = [service_pb2.ModelStreamInferResponse.FromString(each) for each in messages]
    assert tuple(each.infer_response.id for each in got) == names
    assert trailers == [b"grpc-status: 0"]
    assert frontend.budget.used_bytes == 0
    frontend.at_once = True
    feed(connection, chunked(LIVE, framed(b"")), piece)  # the connection goes on
    assert wire.sent.endswith(b"grpc-status: 0\r\n\r\n")
    assert len(frontend.calls) == 4
    assert not wire.closed


def test_an_error_in_a_stream_is_of_one_query_and_a_missing_key_of_all():
    frontend = Calls()
    connection, wire = connect(frontend)
    frontend.error = NotFoundError("no such task")
    request = service_pb2.ModelInferRequest(id="q7").SerializeToString()
    feed(connection, chunked(STREAM, framed(request), end=False), 100)
    _, (message,), _ = split(wire.sent)
    told = service_pb2.ModelStreamInferResponse.FromString(message)
    assert (told.error_message, told.infer_response.id) == ("no such task", "q7")
    assert not wire.closed
    frontend.error = UnauthorizedError("no key")
    body = framed(request) * 3
    feed(connection, b"%x\r\n%b\r\n" % (len(body), body), 100)
    _, _, trailers = split(wire.sent)
    assert trailers[:2] == [b"grpc-status: 16", b"grpc-message: no key"]
    assert wire.closed
    assert len(frontend.calls) == 2
    assert frontend.replies == {404: 1, 401: 1}


def test_a_stream_reads_no_more_while_many_are_open():
    frontend = Calls(at_once=False)
    connection, wire = connect(frontend)
    feed(connection, chunked(STREAM, framed(b"x") * 40), 1 << 20)
    assert len(frontend.calls) == 16
    assert wire.paused
    for number in range(24):
        frontend.answer_call(number)
    assert len(frontend.calls) == 40
    assert wire.paused
    for number in range(24, 40):
        frontend.answer_call(number)
    assert not wire.paused
    assert wire.sent.endswith(b"grpc-status: 0\r\n\r\n")


def test_a_client_that_goes_away_leaves_nothing():
    frontend = Calls(at_once=False)
    connection, _ = connect(frontend)
    feed(connection, chunked(STREAM, framed(b"x" * 100) * 3 + b"\0\0\0\1\0half", end=False), 100)
    frontend.answer_call(1)
    assert frontend.budget.used_bytes > 200
    connection.connection_lost(None)
    assert frontend.abandoned == [0, 2]
    assert frontend.budget.used_bytes == 0
    frontend.answer_call(0)  # in vain
    assert frontend.budget.used_bytes == 0


def test_who_has_no_key_begins_no_stream():
    frontend = Calls()
    frontend.refusal = UnauthorizedError("no key")
    connection, wire = connect(frontend)
    feed(connection, chunked(STREAM, framed(b"x")[:3], end=False), 100)
    assert b"grpc-status: 16\r\n" in wire.sent
    assert wire.closed
    assert frontend.calls == []


def test_a_message_that_drips_ends_its_stream_and_a_pause_does_not():
    frontend = Calls()
    connection, wire = connect(frontend)
    feed(connection, chunked(STREAM, framed(b"x"), end=False), 100)
    connection.check_pace(1e6)
    assert not wire.closed
    feed(connection, b"7\r\n\0\0\0\1\0ab\r\n", 100)
    connection.check_pace(GRACE_S / 2)
    assert not wire.closed
    feed(connection, b"3\r\nabc\r\n", 100)
    connection.check_pace(1e6)
    assert wire.closed
    assert b"grpc-status: 10\r\n" in wire.sent
    assert frontend.replies == {200: 1, 408: 1}


def test_a_message_is_not_late_while_nothing_is_read():
    frontend = Calls()
    connection, wire = connect(frontend)
    feed(connection, chunked(STREAM, framed(b"x"), end=False), 100)
    feed(connection, b"7\r\n\0\0\0\1\0ab\r\n", 100)
    connection.pause_writing()
    wire.unread = 1
    for now_s in (5.0, 15.0, 25.0):
        connection.check_pace(now_s)
    assert not wire.closed
    connection.resume_writing()
    connection.check_pace(34.0)
    assert not wire.closed
    connection.check_pace(36.0)
    assert wire.closed


def test_what_follows_a_stream_waits_for_its_end():
    frontend = Calls(at_once=False)
    connection, wire = connect(frontend)
    feed(connection, chunked(STREAM, framed(b"x")) + chunked(LIVE, framed(b"")), 1 << 20)
    assert wire.closed
    assert len(frontend.calls) == 1


def test_the_largest_body_of_a_call_is_that_of_a_query():
    limits = Limits(max_body_bytes=1000)
    for size, refused in ((995, 0), (996, 1)):
        frontend = Calls(limits=limits)
        connection, _ = connect(frontend)
        feed(connection, chunked(INFER, framed(b"x" * size), size=1000), 1 << 20)
        assert frontend.replies[413] == refused
