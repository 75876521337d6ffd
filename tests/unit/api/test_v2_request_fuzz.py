"""Whatever the bytes: a request is parsed or refused with a ModellessError, nothing else."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modelless.common.errors import ModellessError
from modelless.controller.api.v2_headers import decode_body, read_headers
from modelless.controller.api.v2_reply import render_error
from modelless.controller.api.v2_request import InferRequest, parse_infer
from modelless.controller.api.v2_routes import route

_HEAD = {
    "id": "a",
    "inputs": [
        {
            "name": "x",
            "shape": [2, 3],
            "datatype": "FP32",
            "parameters": {"binary_data_size": 24},
        },
        {"name": "s", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 11}},
        {"name": "j", "shape": [2, 1], "datatype": "INT8", "data": [[1], [2]]},
    ],
    "outputs": [{"name": "y", "parameters": {"classification": 2, "binary_data": True}}],
    "parameters": {"latency_ms": 40, "min_accuracy": 74.5, "priority": 1},
}
_JSON = json.dumps(_HEAD).encode()
VALID = _JSON + np.arange(6, dtype="<f4").tobytes() + b"\x01\0\0\0a\x02\0\0\0bc"


def parse_or_refuse(body: bytes, json_length: int | None) -> InferRequest | None:
    try:
        return parse_infer(body, json_length)
    except ModellessError as error:
        reply = render_error(error)
        assert reply.status in (400, 413)
        assert len(reply.body) < 2000
        return None


def test_the_valid_one() -> None:
    request = parse_infer(VALID, len(_JSON))
    assert request.tensors["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert request.tensors["s"].tolist() == [b"a", b"bc"]


@given(body=st.binary(max_size=200), json_length=st.none() | st.integers(-2, 220))
def test_any_bytes(body: bytes, json_length: int | None) -> None:
    parse_or_refuse(body, json_length)


@given(cut=st.integers(0, len(VALID) - 1), known=st.booleans())
def test_truncated(cut: int, known: bool) -> None:
    assert parse_or_refuse(VALID[:cut], len(_JSON) if known else None) is None


@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=4
    ),
    slip=st.integers(-2, 2),
)
def test_mutated(changes: list[tuple[int, int]], slip: int) -> None:
    body = bytearray(VALID)
    for place, value in changes:
        body[place] = value
    parse_or_refuse(bytes(body), len(_JSON) + slip)


_leaf = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["x", "FP32", "BYTES", "UINT8"])
)
_any_json = st.recursive(
    _leaf,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "shape", "datatype", "data", "parameters", "latency_ms"])
            | st.text(max_size=6),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
_tensor = st.fixed_dictionaries(
    {"name": st.just("x") | _any_json},
    optional={
        "shape": st.lists(st.integers(-1, 4), max_size=3) | _any_json,
        "datatype": st.sampled_from(["FP32", "FP16", "INT8", "BOOL", "BYTES"]) | _any_json,
        "data": st.lists(_leaf, max_size=4) | _any_json,
        "parameters": st.dictionaries(st.just("binary_data_size"), _leaf) | _any_json,
    },
)
_document = st.fixed_dictionaries(
    {"inputs": st.lists(_tensor, max_size=2) | _any_json},
    optional={
        "id": _any_json,
        "outputs": st.lists(_tensor, max_size=2) | _any_json,
        "parameters": st.dictionaries(
            st.sampled_from(["latency_ms", "priority", "tenant", "timeout", "min_acc"]), _any_json
        )
        | _any_json,
    },
)


@given(document=_document, payload=st.binary(max_size=12))
def test_any_document(document: object, payload: bytes) -> None:
    text = json.dumps(document).encode()
    parse_or_refuse(text + payload, len(text))


@given(
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    b"inference-header-content-length",
                    b"content-length",
                    b"content-encoding",
                    b"x-modelless-latency-ms",
                    b"x-modelless-priority",
                    b"x-modelless-tenant",
                ]
            )
            | st.binary(max_size=30).map(lambda end: b"x-modelless-" + end),
            st.binary(max_size=12) | st.from_regex(rb"-?[0-9.e]{1,8}", fullmatch=True),
        ),
        max_size=4,
    )
)
def test_any_headers(headers: list[tuple[bytes, bytes]]) -> None:
    with suppress(ModellessError):
        read_headers(headers)


@given(body=st.binary(max_size=60), encoding=st.sampled_from(["gzip", "deflate", "br"]))
def test_any_compressed_body(body: bytes, encoding: str) -> None:
    with suppress(ModellessError):
        decode_body(body, encoding, 1000)


@given(
    method=st.sampled_from(["GET", "POST", "PUT"]),
    path=st.binary(max_size=40)
    | st.lists(
        st.sampled_from([b"v2", b"models", b"..", b"versions", b"infer", b"a", b"%2e%2e", b""]),
        max_size=7,
    ).map(lambda parts: b"/" + b"/".join(parts)),
)
def test_any_path(method: str, path: bytes) -> None:
    found = route(method, path)
    assert ".." not in found.name
    assert not found.name.startswith("/")
