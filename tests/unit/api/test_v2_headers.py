"""Headers and compressed bodies."""

from __future__ import annotations

import gzip
import zlib

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.api.v2_errors import PayloadTooLargeError, UnsupportedEncodingError
from modelless.controller.api.v2_headers import (
    SLO_HEADERS,
    RequestHeaders,
    decode_body,
    read_headers,
)


def test_picks_what_concerns_it() -> None:
    found = read_headers(
        [
            (b"host", b"localhost"),
            (b"inference-header-content-length", b"217"),
            (b"content-encoding", b"GZip"),
            (b"x-modelless-latency-ms", b" 40 "),
            (b"x-modelless-min-accuracy", b"74.5"),
            (b"x-modelless-max-cost-usd", b"1e-3"),
            (b"x-modelless-priority", b"2"),
            (b"x-modelless-tenant", b"acme"),
        ]
    )
    assert found == RequestHeaders(
        json_length=217,
        content_encoding="gzip",
        parameters={
            "latency_ms": 40.0,
            "min_accuracy": 74.5,
            "max_cost_usd": 0.001,
            "priority": 2,
            "tenant": "acme",
        },
    )


def test_nothing_of_concern() -> None:
    assert read_headers([(b"accept", b"*/*"), (b"content-encoding", b"identity")]) == (
        RequestHeaders()
    )


def test_repeating_the_same_is_harmless() -> None:
    twice = [(b"x-modelless-priority", b"2")] * 2 + [(b"inference-header-content-length", b"9")] * 2
    assert read_headers(twice).parameters == {"priority": 2}


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({b"inference-header-content-length": b"-5"}, r"^inference-header-.*: got '-5'"),
        ({b"inference-header-content-length": b"9" * 40}, r"a whole number of bytes"),
        ({b"x-modelless-latency-ms": b"nan"}, r"^x-modelless-latency-ms: got 'nan'; allowed: a n"),
        ({b"x-modelless-latency-ms": b"inf"}, r"got 'inf'"),
        ({b"x-modelless-latency-ms": b"1_0"}, r"got '1_0'"),
        ({b"x-modelless-latency-ms": b""}, r"got ''"),
        ({b"x-modelless-priority": b"1.5"}, r"^x-modelless-priority: got '1.5'; allowed: a whole"),
        (
            {b"x-modelless-latencyms": b"4"},
            r"^x-modelless-latencyms: .* Did you mean 'x-modelless-latency-ms'\?",
        ),
        ({b"x-modelless-\xff": b"4"}, r"allowed: x-modelless-latency-ms, "),
    ],
)
def test_bad_header(headers: dict[bytes, bytes], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_headers(headers.items())


@pytest.mark.parametrize("name", [b"x-modelless-latency-ms", b"inference-header-content-length"])
def test_headers_that_contradict_each_other(name: bytes) -> None:
    with pytest.raises(InvalidInputError, match=r"got 4.* and 5.*Send the header once"):
        read_headers([(name, b"4"), (name, b"5")])


def test_every_header_has_a_parameter() -> None:
    assert sorted(SLO_HEADERS.values()) == [
        "latency_ms",
        "max_cost_usd",
        "min_accuracy",
        "priority",
        "slo",
        "tenant",
        "when_late",
    ]


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress)],
)
def test_compressed_body(encoding: str, compress: object) -> None:
    plain = bytes(range(256)) * 10
    packed = compress(plain)  # type: ignore[operator]
    taken: list[int] = []
    assert decode_body(packed, encoding, len(plain), taken.append) == plain
    assert sum(taken) == len(plain)
    with pytest.raises(InvalidInputError, match=r"a whole"):
        decode_body(packed[:-1], encoding, 10_000)
    with pytest.raises(InvalidInputError, match=r"got 1 bytes more"):
        decode_body(packed + b"x", encoding, 10_000)


@pytest.mark.parametrize("size", [0, 1 << 16, (1 << 16) + 1, 3 << 16])
@pytest.mark.parametrize("level", [0, 9])
def test_compressed_bodies_of_any_length(size: int, level: int) -> None:
    plain = bytes(i * i * 31 % 251 for i in range(size))
    assert decode_body(gzip.compress(plain, level), "gzip", size) == plain


def test_bomb_is_stopped() -> None:
    taken: list[int] = []
    with pytest.raises(PayloadTooLargeError, match=r"up to 100000 bytes"):
        decode_body(gzip.compress(bytes(10_000_000)), "gzip", 100_000, taken.append)
    assert sum(taken) <= 100_000


def test_unknown_encoding() -> None:
    with pytest.raises(UnsupportedEncodingError, match=r"^content-encoding: got 'br'") as caught:
        decode_body(b"", "br", 1)
    assert caught.value.http_status == 415
    with pytest.raises(UnsupportedEncodingError, match=r"given twice"):
        read_headers([(b"content-encoding", b"gzip")] * 2)


SPAN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (SPAN, SPAN),
        (SPAN.replace("00-", "01-", 1) + "-more", SPAN.replace("00-", "01-", 1)),
        (SPAN.upper(), ""),
        (SPAN[:-1], ""),
        ("00-" + "0" * 32 + SPAN[35:], ""),
        ("", ""),
    ],
)
def test_a_trace_is_read_and_a_malformed_one_left_out(sent: str, read: str) -> None:
    found = read_headers([(b"traceparent", sent.encode()), (b"x-request-id", b"r-1")])
    assert (found.traceparent, found.request_id) == (read, "r-1")
