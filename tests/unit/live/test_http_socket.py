"""The socket: HTTP/1.1 in whatever pieces it comes, one answer a request, in order."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from modelless.controller.api.keys import UnauthorizedError
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_reply import Reply
from modelless.controller.live.front.bodies import LEAST_BYTES_PER_S, BodyBudget
from modelless.controller.live.front.http_server import SocketConnection


class Wire:
    """A transport that keeps what is written."""

    def __init__(self):
        self.sent = b""
        self.closed = False
        self.paused = False
        self.unread = 0

    def get_write_buffer_size(self):
        return self.unread

    def write(self, data):
        self.sent += data

    def writelines(self, parts):
        for part in parts:
            self.write(bytes(part))

    def close(self):
        self.closed = True

    abort = write_eof = close

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False


class Echo:
    """A frontend that keeps what it is asked, and answers when told to (or at once)."""

    def __init__(self, *, at_once=True, limits=None, budget=None):
        self.limits = limits or Limits()
        self.budget = budget or BodyBudget(1 << 30)
        self.replies = Counter()
        self.at_once = at_once
        self.asked = []
        self.responds = []
        self.abandoned = []
        self.refusal = None

    def check_sender(self, method, path, headers):
        if self.refusal is not None:
            raise self.refusal

    def on_request(self, method, path, headers, body, arrival_s, respond):
        self.asked.append((method, path, dict(headers), bytes(body), arrival_s))
        self.responds.append(respond)
        if self.at_once:
            self.answer(len(self.asked) - 1)
        return len(self.asked) - 1

    def answer(self, number):
        body = b"%d" % number
        self.responds[number](Reply(200, body, [(b"content-length", b"%d" % len(body))]))

    def on_abandoned(self, query_id):
        self.abandoned.append(query_id)


def connect(frontend, most=8):
    ticks = itertools.count()
    connections = set()
    connection = SocketConnection(frontend, lambda: float(next(ticks)), connections, most)
    wire = Wire()
    connection.connection_made(wire)
    return connection, wire


def feed(connection, data, piece):
    """Hand over ``data`` as an event loop does: into the buffer it is given, piece by piece."""
    data = memoryview(data)
    while data:
        buffer = memoryview(connection.get_buffer(-1))
        size = min(piece, len(buffer), len(data))
        assert size > 0
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


def post(body, *extra):
    lines = [b"POST /v2/x HTTP/1.1", b"Host: h", b"Content-Length: %d" % len(body), *extra]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@pytest.mark.parametrize("piece", [1, 2, 7, 64, 1000, 1 << 20])
@pytest.mark.parametrize("size", [0, 1, 100, 200_000])
def test_a_body_is_whole_however_it_is_cut(piece, size):
    body = bytes(i * 31 % 251 for i in range(size)) if piece > 2 or size <= 100 else b"x" * 300
    frontend = Echo()
    connection, wire = connect(frontend)
    feed(connection, post(body) * 2, piece)
    assert [asked[:2] for asked in frontend.asked] == [("POST", b"/v2/x")] * 2
    assert [asked[3] for asked in frontend.asked] == [body, body]
    assert wire.sent.count(b"HTTP/1.1 200 OK") == 2
    assert not wire.closed


@pytest.mark.parametrize("size", range(1000, 1008))
@pytest.mark.parametrize("is_call", [False, True])
def test_the_end_of_a_body_is_aligned(size, is_call):
    frontend = Echo(at_once=False)
    frontend.on_call = lambda call, respond: frontend.bodies.append(call.message)
    frontend.on_request = lambda *given: frontend.bodies.append(given[3])
    frontend.bodies = []
    connection, _ = connect(frontend)
    if is_call:
        message = b"\0" + size.to_bytes(4, "big") + bytes(size)
        head = b"POST /inference.GRPCInferenceService/ModelInfer HTTP/1.1\r\nhost: x\r\n"
        head += b"content-type: application/grpc\r\ntransfer-encoding: chunked\r\n\r\n"
        feed(connection, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(message), message), 300)
    else:
        feed(connection, post(bytes(size)), 300)
    (body,) = frontend.bodies
    last = np.frombuffer(body, np.float64, 2, len(body) - 16)
    assert last.flags.aligned


def test_headers_are_lower_case_and_the_first_byte_is_the_arrival():
    frontend = Echo()
    connection, _ = connect(frontend)
    feed(connection, post(b"abc", b"X-Modelless-Latency-Ms: 5"), 10)
    _, _, headers, _, first_s = frontend.asked[0]
    assert headers[b"x-modelless-latency-ms"] == b"5"
    feed(connection, post(b"abc"), 10)
    assert frontend.asked[1][4] > first_s


@pytest.mark.parametrize("piece", [1, 9, 1 << 20])
def test_a_chunked_body_is_put_together(piece):
    chunks = [b"a" * 70_000, b"bc", b"d" * 10]
    data = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    data += b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    frontend = Echo()
    connection, _ = connect(frontend)
    feed(connection, data + post(b"next"), piece)
    assert [asked[3] for asked in frontend.asked] == [b"".join(chunks), b"next"]


@pytest.mark.parametrize("piece", [1, 9, 1 << 20])
@pytest.mark.parametrize("trailers", [b"x: 1\r\n", b"x:\r\n", b"host: x\r\nx: 1\r\n"])
def test_trailers_are_left_out_here_and_of_the_next_request(piece, trailers):
    data = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    frontend = Echo()
    connection, _ = connect(frontend)
    feed(connection, data + trailers + b"\r\n" + post(b"next"), piece)
    assert [asked[3] for asked in frontend.asked] == [b"a", b"next"]
    first, second = (asked[2] for asked in frontend.asked)
    assert {*first} == {b"host", b"transfer-encoding", b"x-request-id"}
    assert {*second} == {b"host", b"content-length", b"x-request-id"}
    assert first[b"host"] == second[b"host"] == b"h"


def test_a_body_already_handed_over_is_not_written_to_by_the_next():
    frontend = Echo(at_once=False)
    bodies = []
    frontend.on_request = lambda m, p, h, body, a, respond: (
        bodies.append(body) or respond(Reply(200, b"", [(b"content-length", b"0")]))
    )
    connection, _ = connect(frontend)
    feed(connection, post(b"1" * 100_000), 1 << 20)
    feed(connection, post(b"2" * 100_000), 1 << 20)
    assert bytes(bodies[0]) == b"1" * 100_000
    assert bytes(bodies[1]) == b"2" * 100_000


def test_a_pipelined_request_waits_for_the_answer_before_it():
    frontend = Echo(at_once=False)
    connection, wire = connect(frontend)
    feed(connection, post(b"one") + post(b"two"), 1 << 20)
    assert [asked[3] for asked in frontend.asked] == [b"one"]
    frontend.answer(0)
    assert [asked[3] for asked in frontend.asked] == [b"one", b"two"]
    frontend.answer(1)
    assert wire.sent.index(b"\r\n\r\n0") < wire.sent.index(b"\r\n\r\n1")


def test_many_pipelined_requests_stop_the_reading():
    frontend = Echo(at_once=False)
    connection, wire = connect(frontend)
    feed(connection, post(b"x") * 17, 1 << 20)
    assert wire.paused
    frontend.answer(0)
    assert not wire.paused


@pytest.mark.parametrize("at_once", [True, False])
def test_memory_for_bodies_is_given_back_with_the_answer(at_once):
    budget = BodyBudget(1000)
    frontend = Echo(at_once=at_once, budget=budget)
    connection, _ = connect(frontend)
    for number in range(5):
        feed(connection, post(b"x" * 900), 100)
        if not at_once:
            assert budget.used_bytes == 900
            frontend.answer(number)
        assert budget.used_bytes == 0


def test_a_body_that_is_only_announced_takes_no_memory():
    budget = BodyBudget(1000)
    frontend = Echo(at_once=False, budget=budget)
    wires = [connect(frontend) for _ in range(50)]
    for connection, _ in wires:
        feed(connection, post(b"x" * 900)[:-890], 1 << 20)
    assert budget.used_bytes == 500
    honest, _ = connect(frontend)
    feed(honest, post(b"y" * 300), 1 << 20)
    assert [asked[3] for asked in frontend.asked] == [b"y" * 300]
    for connection, _ in wires:
        connection.connection_lost(None)
    assert budget.used_bytes == 300


@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_a_body_that_finds_no_memory_is_refused_as_it_arrives(piece):
    budget = BodyBudget(1000)
    frontend = Echo(at_once=False, budget=budget)
    first, _ = connect(frontend)
    feed(first, post(b"x" * 900), 1 << 20)
    second, wire = connect(frontend)
    feed(second, post(b"x" * 200)[:-99], piece)
    assert wire.sent.startswith(b"HTTP/1.1 429 ")
    assert b"\r\nretry-after: 1\r\n" in wire.sent
    assert wire.closed
    assert frontend.replies == {429: 1}
    first.connection_lost(None)
    second.connection_lost(None)
    assert budget.used_bytes == 0
    third, _ = connect(frontend)
    feed(third, post(b"x" * 1000), 1 << 20)
    assert len(frontend.asked) == 2
    assert budget.used_bytes == 1000


def test_memory_for_chunks_counts_and_is_given_back():
    budget = BodyBudget(1 << 20)
    frontend = Echo(at_once=False, budget=budget)
    connection, _ = connect(frontend)
    data = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    feed(connection, data + b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n", 1 << 20)
    assert budget.used_bytes == 1000
    frontend.answer(0)
    assert budget.used_bytes == 0


def test_many_chunks_are_refused_for_a_length():
    frontend = Echo(limits=Limits(max_chunked_bytes=100_000))
    connection, wire = connect(frontend)
    data = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    feed(connection, data + b"186a1\r\n" + b"x" * 100_001, 1 << 20)
    assert wire.sent.startswith(b"HTTP/1.1 411 Length Required")
    assert frontend.replies == {411: 1}


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_drips_is_refused_and_one_that_is_only_large_is_not(chunked):
    frontend = Echo()
    connection, wire = connect(frontend)
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 1000000"
    feed(
        connection,
        b"POST /v2/models/x/infer HTTP/1.1\r\nHost: h\r\n" + length + b"\r\n\r\n",
        1 << 20,
    )
    connection.check_pace(9.0)
    part = b"x" * LEAST_BYTES_PER_S * 20
    feed(connection, (b"%x\r\n" % len(part) + part + b"\r\n") if chunked else part, 1 << 20)
    connection.check_pace(29.0)
    assert not wire.sent
    connection.check_pace(40.0)
    assert wire.sent.startswith(b"HTTP/1.1 408 Request Timeout")
    assert wire.closed
    assert frontend.replies == {408: 1}
    connection.connection_lost(None)
    assert frontend.budget.used_bytes == 0


def test_a_client_that_waits_for_its_answer_or_sends_nothing_is_not_too_slow():
    frontend = Echo(at_once=False)
    connection, wire = connect(frontend)
    connection.check_pace(1e6)
    feed(connection, post(b"x"), 1 << 20)
    connection.check_pace(1e6)
    frontend.answer(0)
    connection.check_pace(1e6)
    assert wire.sent.startswith(b"HTTP/1.1 200 ")
    assert not wire.closed
    assert frontend.replies == {200: 1}


def test_thousands_of_pipelined_requests_are_answered_in_order():
    frontend = Echo()
    connection, wire = connect(frontend)
    count = 5000  # far more than calls may nest
    feed(connection, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * count, 1 << 20)
    answers = [int(part.split(b"HTTP/1.1")[0]) for part in wire.sent.split(b"\r\n\r\n")[1:]]
    assert answers == list(range(count))
    assert not wire.closed
    assert not wire.paused


def test_those_that_waited_for_the_first_are_answered_in_order():
    frontend = Echo(at_once=False)
    connection, wire = connect(frontend)
    feed(connection, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 2000, 1 << 20)
    assert wire.paused
    frontend.at_once = True
    frontend.answer(0)
    assert len(frontend.asked) == 2000
    assert not wire.paused


def test_a_client_that_does_not_read_is_not_read_from_nor_answered():
    frontend = Echo()
    connection, wire = connect(frontend)
    connection.pause_writing()
    assert wire.paused
    feed(connection, post(b"one") + post(b"two"), 1 << 20)  # was on its way
    assert not frontend.asked
    connection.resume_writing()
    assert [asked[3] for asked in frontend.asked] == [b"one", b"two"]
    assert not wire.paused


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_body_beyond_the_limit_is_refused_before_it_is_read(piece):
    frontend = Echo(limits=Limits(max_body_bytes=1000))
    connection, wire = connect(frontend)
    head = post(b"x" * 1001)[:-1001]
    feed(connection, head, piece)
    assert wire.sent.startswith(b"HTTP/1.1 413 ")
    assert b"1001" in wire.sent
    assert wire.closed
    assert not frontend.asked


def test_chunks_beyond_the_limit_are_refused():
    frontend = Echo(limits=Limits(max_body_bytes=1000))
    connection, wire = connect(frontend)
    data = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    feed(connection, data + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx\r\n", 1 << 20)
    assert wire.sent.startswith(b"HTTP/1.1 413 ")
    assert not frontend.asked


def test_what_is_no_query_may_have_a_small_body_only():
    frontend = Echo()
    for path, status in ((b"/modelless/feedback", b"413"), (b"/v2/models/x/infer", b"200")):
        connection, wire = connect(frontend)
        data = post(b"x" * 300_000).replace(b"/v2/x", path)
        feed(connection, data[:80] if status == b"413" else data, 1 << 20)
        assert wire.sent.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_400_and_the_connection_ends(data):
    frontend = Echo()
    connection, wire = connect(frontend)
    feed(connection, data, 1 << 20)
    assert wire.sent.startswith(b"HTTP/1.1 400 ")
    assert wire.closed
    assert not frontend.asked


def test_expect_continue_is_answered_before_the_body():
    frontend = Echo()
    connection, wire = connect(frontend)
    data = post(b"body", b"Expect: 100-continue")
    feed(connection, data[:-4], 1 << 20)
    assert wire.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    feed(connection, b"body", 1 << 20)
    assert frontend.asked[0][3] == b"body"


def test_connection_close_is_kept():
    frontend = Echo()
    connection, wire = connect(frontend)
    feed(connection, post(b"x", b"Connection: close"), 1 << 20)
    assert b"connection: close" in wire.sent
    assert wire.closed


def test_a_client_that_leaves_abandons_what_is_unanswered():
    frontend = Echo(at_once=False)
    connection, wire = connect(frontend)
    feed(connection, post(b"x"), 1 << 20)
    connection.connection_lost(None)
    assert frontend.abandoned == [0]
    frontend.answer(0)  # nobody is there any more
    assert not wire.sent


def test_one_connection_too_many_is_closed_at_once():
    frontend = Echo()
    _, wire = connect(frontend, most=0)
    assert wire.closed
    assert frontend.replies == {503: 1}


@pytest.mark.parametrize("chunked", [True, False])
def test_who_may_not_send_a_body_is_refused_before_it_counts(chunked):
    frontend = Echo()
    frontend.refusal = UnauthorizedError("no key")
    connection, wire = connect(frontend)
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 900"
    head = b"POST /v2/models/x/infer HTTP/1.1\r\nHost: h\r\n" + length + b"\r\n\r\n"
    feed(connection, head + b"1\r\nx\r\n" * chunked, 1 << 20)
    assert wire.sent.startswith(b"HTTP/1.1 401 ")
    assert wire.closed
    assert frontend.budget.used_bytes == 0
    assert frontend.replies == {401: 1}


def test_a_refused_client_may_send_on_for_a_while():
    for sends, closed_s in ((False, 4), (True, 32)):
        connection, wire = connect(Echo())
        now_s = 0.0
        connection._clock = lambda: now_s  # noqa: B023
        wire.write_eof = lambda: None
        feed(connection, b"nonsense\r\n\r\n", 99)
        assert wire.sent.startswith(b"HTTP/1.1 400 ")
        while not wire.closed:
            now_s += 1.0
            if sends:
                feed(connection, b"x", 1)
            connection.check_pace(now_s + 0.5)
        assert now_s < closed_s
        assert not sends or now_s > 20.0


def test_nobody_is_late_while_the_process_stood_still():
    frontend = Echo()
    connection, wire = connect(frontend)
    head = b"POST /v2/models/x/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000\r\n\r\n"
    feed(connection, head, 999)
    connection.check_pace(2.0)
    connection.check_pace(50.0, is_late=True)
    assert not wire.closed
    connection.check_pace(61.0)
    assert wire.sent.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("chunked", [True, False])
def test_what_came_early_does_not_excuse_a_client_that_drips(chunked):
    frontend = Echo()
    connection, wire = connect(frontend)
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 9000000"
    feed(connection, b"POST /v2/models/x/infer HTTP/1.1\r\nHost: h\r\n" + length + b"\r\n\r\n", 999)
    part = b"x" * LEAST_BYTES_PER_S * 100
    feed(connection, (b"%x\r\n" % len(part) + part + b"\r\n") if chunked else part, 1 << 20)
    for now_s in range(2, 12):
        connection.check_pace(float(now_s))
    assert not wire.closed
    for now_s in range(12, 14):
        feed(connection, b"1\r\nx\r\n" if chunked else b"x", 1 << 20)
        connection.check_pace(float(now_s))
    assert wire.sent.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_reads_too_little_of_an_answer_is_left():
    for reads, closed in ((0, True), (1, True), (LEAST_BYTES_PER_S, False)):
        connection, wire = connect(Echo())
        connection.pause_writing()
        wire.unread = 10_000_000
        for now_s in range(100):
            connection.check_pace(float(now_s))
            wire.unread -= reads
        assert wire.closed is closed, reads


@pytest.mark.parametrize("piece", [1, 1 << 20])
@pytest.mark.parametrize(
    ("url", "path", "host"),
    [
        (b"http://a.example:80/v2/health/live?x=/", b"/v2/health/live?x=/", b"a.example:80"),
        (b"HTTPS://b", b"/", b"b"),
        (b"http://b?x=1", b"/?x=1", b"b"),
        (b"/v2", b"/v2", b"h"),
        (b"*", b"*", b"h"),
    ],
)
def test_a_whole_url_is_its_path_and_its_host(url, path, host, piece):
    frontend = Echo()
    connection, _ = connect(frontend)
    feed(connection, b"OPTIONS " + url + b" HTTP/1.1\r\nHost: h\r\n\r\n", piece)
    ((_, asked, headers, _, _),) = frontend.asked
    assert (asked, headers[b"host"]) == (path, host)
