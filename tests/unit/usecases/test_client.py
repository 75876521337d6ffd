"""The client speaks what the server's codec reads, and reads what it writes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from modelless.common.errors import (
    DeadlineExceededError,
    InfeasibleError,
    InvalidInputError,
    ModellessError,
    OverloadedError,
    UnavailableError,
)
from modelless.controller.api.keys import UnauthorizedError
from modelless.controller.api.v2_errors import PayloadTooLargeError, TooSlowError
from modelless.controller.api.v2_headers import read_headers
from modelless.controller.api.v2_reply import Headers, Reply, render_error, render_infer
from modelless.controller.api.v2_request import parse_infer
from modelless.controller.api.v2_tensors import NUMBERS
from modelless.controller.usecases.client import (
    JSON_LENGTH,
    AsyncClient,
    Client,
    EncodedQuery,
    InferReply,
    _Keys,
    decode_infer,
    encode_infer,
    read_class,
)
from modelless.variants.vocabulary import SLO


def plain(headers: Headers) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


PHOTO = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]], np.float32)


def parse(query: EncodedQuery):  # type: ignore[no-untyped-def]
    said = read_headers((name.encode(), value.encode()) for name, value in query.headers.items())
    body = memoryview(query.body)
    return parse_infer(body, said.json_length, header_parameters=said.parameters)


def test_the_codec_reads_what_is_encoded() -> None:
    slo = SLO(latency_ms=12.5, min_accuracy=74.0, max_cost_usd=1e-6)
    query = encode_infer("imagenet", {"image": PHOTO, "weight": SCORES}, slo, query_id="q1")
    request = parse(query)
    assert query.path == "/v2/models/imagenet/infer"
    assert request.id == "q1"
    assert request.slo == slo
    assert request.binary_default
    np.testing.assert_array_equal(request.tensors["image"], PHOTO)
    np.testing.assert_array_equal(request.tensors["weight"], SCORES)


def test_an_array_that_is_not_contiguous_is_sent_as_it_looks() -> None:
    turned = PHOTO.transpose(0, 2, 1, 3)[:, ::-1]
    request = parse(encode_infer("imagenet", {"image": turned}))
    np.testing.assert_array_equal(request.tensors["image"], turned)
    assert request.slo == SLO()


def test_narrowed_names_stand_in_the_path() -> None:
    query = encode_infer("imagenet/efficientnet-lite0/int8-224@1", {"image": PHOTO})
    assert query.path == "/v2/models/imagenet/efficientnet-lite0/int8-224%401/infer"


@pytest.mark.parametrize("classes", [None, {"probabilities": 2}])
def test_replies_are_read_as_they_are_rendered(classes: dict[str, int] | None) -> None:
    request = parse(encode_infer("imagenet", {"image": PHOTO}, classes=classes))
    parameters = {"variant": "imagenet/m/v@1", "accuracy": 75.0}
    body, headers = render_infer(
        request,
        {"probabilities": SCORES},
        model_name="imagenet",
        model_version="1",
        parameters=parameters,
        labels=("one", "two: b", "three"),
    )
    reply = decode_infer(200, plain(headers), body)
    assert reply.is_answer
    assert reply.parameters == parameters
    if classes is None:
        np.testing.assert_array_equal(reply.tensors["probabilities"], SCORES)
    else:
        first, second = reply.classes["probabilities"]
        assert [found[1:] for found in first] == [(1, "two: b"), (2, "three")]
        assert second[0] == (0.5, 0, "one")


def test_json_tensors_are_read_too() -> None:
    output = {"name": "y", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
    reply = decode_infer(200, {}, json.dumps({"outputs": [output]}).encode())
    np.testing.assert_array_equal(reply.tensors["y"], np.array([[1.0, 2.0]], np.float32))


def test_refusals_keep_the_servers_words() -> None:
    rendered = render_error(InfeasibleError("nearest feasible: latency_ms 9"))
    reply = decode_infer(rendered.status, plain(rendered.headers), rendered.body)
    assert not reply.is_answer
    assert (reply.status, reply.parameters) == (rendered.status, {"code": "infeasible"})
    assert "latency_ms 9" in reply.error
    with pytest.raises(InfeasibleError, match="latency_ms 9"):
        reply.raise_for_status()


@pytest.mark.parametrize("error", [
    InvalidInputError.of("inputs[0].shape", 3, "4", "Send 4."), OverloadedError("busy", 0.25),
    UnauthorizedError("no key"), PayloadTooLargeError("large"), TooSlowError("slow"),
])  # fmt: skip
def test_errors_are_those_of_the_server(error: ModellessError) -> None:
    rendered = render_error(error)
    reply = decode_infer(rendered.status, plain(rendered.headers), rendered.body)
    with pytest.raises(type(error)) as raised:
        reply.raise_for_status()
    found = raised.value
    assert type(found) is type(error)
    told = (str(found), found.field, found.hint, found.retry_after_s)
    assert told == (str(error), error.field, error.hint, error.retry_after_s)


@pytest.mark.parametrize(
    ("status", "length", "body"),
    [
        (200, None, b"<html>"),
        (200, None, b"{}"),
        (200, "4", b"null"),
        (200, "many", b"{}"),
        (502, None, b"bad gateway"),
        (502, None, b"[]"),
        (200, None, b'{"outputs":[{"name":"y","shape":[1],"datatype":"FP99","data":[1]}]}'),
    ],
)
def test_what_is_no_reply_is_refused(status: int, length: str | None, body: bytes) -> None:
    with pytest.raises(InvalidInputError, match="a reply of the protocol v2"):
        decode_infer(status, {JSON_LENGTH: length} if length else {}, body)


def test_a_body_shorter_than_it_says_is_refused() -> None:
    request = parse(encode_infer("imagenet", {"image": PHOTO}))
    body, headers = render_infer(
        request, {"y": SCORES}, model_name="m", model_version="1", parameters={}
    )
    with pytest.raises(InvalidInputError, match="shorter than it says"):
        decode_infer(200, plain(headers), body[:-4])


def test_classes_without_a_label() -> None:
    assert read_class("0.5:7") == (0.5, 7, "")
    assert read_class("0.5:7:a: b") == (0.5, 7, "a: b")


def test_requests_as_bytes() -> None:
    query = EncodedQuery("/p", {"content-length": "2"}, b"ab")
    assert query.to_bytes("h:1") == b"POST /p HTTP/1.1\r\nhost: h:1\r\ncontent-length: 2\r\n\r\nab"


class Scripted:
    """A server that does as it is told with one request after another: None breaks the connection.

    Attributes:
        seen: the headers of the requests.
    """

    def __init__(self, script: Sequence[Reply | None]) -> None:
        self.script, self.seen = list(script), list[dict[str, str]]()

    @contextmanager
    def running(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=self._serve, args=(listening,))
            thread.start()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            thread.join(30.0)

    def _serve(self, listening: socket.socket) -> None:
        while self.script:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as stream:
                while self.script and (first := stream.readline()):
                    assert first.startswith(b"POST")
                    lines = iter(stream.readline, b"\r\n")
                    pairs = (line.decode().rstrip().split(": ", 1) for line in lines)
                    headers = {name.lower(): value for name, value in pairs}
                    stream.read(int(headers["content-length"]))
                    self.seen.append(headers)
                    reply = self.script.pop(0)
                    if reply is None:
                        break
                    head = [f"HTTP/1.1 {reply.status} x"]
                    head += [f"{name}: {value}" for name, value in plain(reply.headers).items()]
                    connection.sendall("\r\n".join([*head, "", ""]).encode() + reply.body)


def answer_of_scores() -> Reply:
    request = parse(encode_infer("imagenet", {"image": PHOTO}))
    said: dict[str, Any] = {"model_name": "m", "model_version": "1", "parameters": {}}
    return Reply(200, *render_infer(request, {"y": SCORES}, **said))


def ask(is_async: bool, url: str, retries: int = 5, **limits: Any) -> InferReply:
    if not is_async:
        with Client(url, retries=retries) as client:
            return client.infer("imagenet", {"image": PHOTO}, **limits)

    async def go() -> InferReply:
        async with AsyncClient(url, retries=retries) as client:
            return await client.infer("imagenet", {"image": PHOTO}, **limits)

    return asyncio.run(go())


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long clients slept before they tried again, seconds."""
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float, *_: object) -> None:
        if seconds:
            slept.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr("modelless.controller.usecases.client.time.sleep", slept.append)
    return slept


LATER = render_error(OverloadedError("busy", 0.25))
asynchronous = pytest.mark.parametrize("is_async", [False, True])


@asynchronous
def test_a_query_is_sent_again_with_its_key_and_what_is_left_of_its_deadline(
    is_async: bool, slept: list[float]
) -> None:
    server = Scripted([None, None, LATER, answer_of_scores()])
    with server.running() as url:
        reply = ask(is_async, url, latency_ms=20_000.0, priority=3, slo="x")
    np.testing.assert_array_equal(reply.tensors["y"], SCORES)
    assert len({headers["idempotency-key"] for headers in server.seen}) == 1
    left_ms = [float(headers["x-modelless-latency-ms"]) for headers in server.seen]
    assert left_ms[0] == 20_000.0
    assert left_ms == sorted(left_ms, reverse=True)
    assert left_ms[3] <= 20_000.0 - 250.0
    assert len(slept) == 2  # the first time it tries again at once
    assert 0.05 <= slept[0] <= 0.1
    assert slept[1] >= 0.25


@asynchronous
def test_what_cannot_help_is_not_tried(is_async: bool, slept: list[float]) -> None:
    refused = render_error(InfeasibleError("no"))
    server = Scripted([LATER, refused, LATER])
    with server.running() as url:
        assert ask(is_async, url, latency_ms=200.0).status == 429  # its deadline is before that
        assert ask(is_async, url).status == 422
        assert ask(is_async, url, retries=0).retry_after_s == 0.25
    assert slept == []
    assert ["idempotency-key" in headers for headers in server.seen] == [True, True, False]


@asynchronous
def test_attempts_end(is_async: bool, slept: list[float]) -> None:
    server = Scripted([None] * 3)
    with server.running() as url, pytest.raises(UnavailableError, match="does not answer"):
        ask(is_async, url, retries=2)
    assert len(server.seen) == 3


@asynchronous
def test_a_server_that_says_nothing_is_given_up_in_time(is_async: bool) -> None:
    query = encode_infer("imagenet", {"image": PHOTO})

    async def send(url: str) -> None:
        async with AsyncClient(url, timeout_s=0.05) as client:
            await client.send(query)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(DeadlineExceededError, match=r"within 0\.05 s"):
            asyncio.run(send(url)) if is_async else Client(url, timeout_s=0.05).send(query)


def test_a_connection_is_used_again_from_any_thread() -> None:
    server = Scripted([answer_of_scores()] * 8)
    with server.running() as url, Client(url) as client:
        for _ in range(8):
            thread = threading.Thread(target=client.infer, args=("imagenet", {"image": PHOTO}))
            thread.start()
            thread.join(30.0)
        assert len(client._idle) == 1
    assert len(server.seen) == 8


def test_keys_of_queries_that_follow_one_another_begin_alike() -> None:
    made = _Keys()
    keys = []
    for _ in range(2):
        with made.key() as first, made.key() as second:
            keys += [first, second]
    assert len(set(keys)) == 4
    one, other, again, _ = (key.partition(".")[0] for key in keys)
    assert one == again != other


def test_queries_at_the_same_time_are_spread_over_the_gateways() -> None:
    made, gateways = _Keys(), 3

    def gateway(key: str) -> str:
        number = crc32(key.partition(".")[0].encode()) % gateways
        return f"of-{gateways}-{number}"  # those that come in an upgrade have other names

    def ask(count: int) -> Counter[str]:
        """So many queries at once; returns how many each gateway got."""
        with ExitStack() as stack:
            keys = [stack.enter_context(made.key()) for _ in range(count)]
            for key in keys:
                made.learn(key, InferReply(200, {"receipt_id": f"{gateway(key)}-7.ab"}))
        return Counter(map(gateway, keys))

    assert sum((ask(1) for _ in range(9)), Counter()).most_common(1)[0][1] == 9
    for gateways in (3, 2, 4):
        for _ in range(20):
            ask(12)
        found = ask(12)
        assert set(found.values()) == {12 // gateways}
        assert sum((ask(1) for _ in range(9)), Counter()).most_common(1)[0][1] == 9
    assert not made._open
    with made.key() as key:
        made.learn(key, InferReply(503))  # of HAProxy, which names no gateway
    assert len(made._gateways) == 4


@pytest.mark.parametrize("datatype", [*NUMBERS, "BYTES"])
def test_all_datatypes_go_and_come(datatype: str) -> None:
    tensor = np.array([[b"a", b"", "é".encode() * 300]], np.object_)
    if datatype != "BYTES":
        tensor = np.arange(3).reshape(1, 3).astype(NUMBERS[datatype])
    request = parse(encode_infer("t", {"x": tensor}))
    np.testing.assert_array_equal(request.tensors["x"], tensor)
    said: dict[str, Any] = {"model_name": "m", "model_version": "1", "parameters": {}}
    body, headers = render_infer(request, {"y": tensor}, **said)
    found = decode_infer(200, plain(headers), body).tensors["y"]
    np.testing.assert_array_equal(found, tensor)
    assert found.dtype == tensor.dtype


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"inputs\.x: dtype: got 'complex128'"):
        encode_infer("t", {"x": np.ones(1, np.complex128)})


def test_no_server() -> None:
    with Client("http://127.0.0.1:1", 1.0) as client, pytest.raises(UnavailableError):
        client.get("/v2")
    with pytest.raises(InvalidInputError, match="http://host:port"):
        Client("ftp://127.0.0.1")


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0..1:8080", "http://a b", "http://.", "http://" + "a" * 70, "http://a\x00b",
     "http://ä..de", "a b:80"],
)  # fmt: skip
def test_a_host_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"url: got .*http://host:port"):
        Client(url)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("127.0.0.1:80", "127.0.0.1"),
        ("http://[::1]:80", "::1"),
        ("https://münchen.example/", "münchen.example"),
        ("http://a_b.local.", "a_b.local."),
    ],
)
def test_other_hosts_are_taken(url: str, host: str) -> None:
    assert Client(url)._server.host == host


def test_white_space_around_a_key_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELLESS_KEY", " mk_SECRET\n")
    assert Client("http://h")._server.headers == {"authorization": "Bearer mk_SECRET"}
    assert Client("http://h", key="mk_OTHER\r\n")._server.headers == {
        "authorization": "Bearer mk_OTHER"
    }
    monkeypatch.setenv("MODELLESS_KEY", "\n")
    assert Client("http://h")._server.headers == {}


@pytest.mark.parametrize("key", ["mk_SECRETé", "mk_\nSECRET", "mk_SECRET\x7f", "mk_\u2028SECRET"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_told(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    with pytest.raises(InvalidInputError, match=r"^key: got one with") as refused:
        Client("http://h", key=key)
    monkeypatch.setenv("MODELLESS_KEY", key)
    with pytest.raises(InvalidInputError, match=r"^MODELLESS_KEY: got one with") as of_variable:
        AsyncClient("http://h")
    for error in (refused.value, of_variable.value):
        assert "SECRET" not in str(error)
        assert error.field in ("key", "MODELLESS_KEY")
