"""The client speaks what the server's codec reads, and reads what it writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from modelless.common.errors import InfeasibleError, InvalidInputError, UnavailableError
from modelless.controller.api.v2_reply import render_error, render_infer
from modelless.controller.api.v2_request import parse_infer
from modelless.controller.usecases.client import (
    JSON_LENGTH,
    Client,
    EncodedQuery,
    decode_infer,
    encode_infer,
    read_class,
)
from modelless.variants.vocabulary import SLO

PHOTO = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]], np.float32)


def parse(query: EncodedQuery):  # type: ignore[no-untyped-def]
    return parse_infer(memoryview(query.body), int(query.headers[JSON_LENGTH]))


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
    length = dict(headers).get(JSON_LENGTH.encode())
    reply = decode_infer(200, None if length is None else int(length), body)
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
    reply = decode_infer(200, None, json.dumps({"outputs": [output]}).encode())
    np.testing.assert_array_equal(reply.tensors["y"], np.array([[1.0, 2.0]], np.float32))


def test_refusals_keep_the_servers_words() -> None:
    rendered = render_error(InfeasibleError("nearest feasible: latency_ms 9"))
    reply = decode_infer(rendered.status, None, rendered.body)
    assert not reply.is_answer
    assert (reply.status, reply.parameters) == (rendered.status, {})
    assert "latency_ms 9" in reply.error


@pytest.mark.parametrize(
    ("status", "length", "body"),
    [
        (200, None, b"<html>"),
        (200, None, b"{}"),
        (200, 4, b"null"),
        (502, None, b"bad gateway"),
        (502, None, b"[]"),
        (200, None, b'{"outputs":[{"name":"y","shape":[1],"datatype":"FP99","data":[1]}]}'),
    ],
)
def test_what_is_no_reply_is_refused(status: int, length: int | None, body: bytes) -> None:
    with pytest.raises(InvalidInputError, match="a reply of the protocol v2"):
        decode_infer(status, length, body)


def test_a_body_shorter_than_it_says_is_refused() -> None:
    request = parse(encode_infer("imagenet", {"image": PHOTO}))
    body, headers = render_infer(
        request, {"y": SCORES}, model_name="m", model_version="1", parameters={}
    )
    with pytest.raises(InvalidInputError, match="shorter than it says"):
        decode_infer(200, int(dict(headers)[JSON_LENGTH.encode()]), body[:-4])


def test_classes_without_a_label() -> None:
    assert read_class("0.5:7") == (0.5, 7, "")
    assert read_class("0.5:7:a: b") == (0.5, 7, "a: b")


def test_requests_as_bytes() -> None:
    query = EncodedQuery("/p", {"content-length": "2"}, b"ab")
    assert query.to_bytes("h:1") == b"POST /p HTTP/1.1\r\nhost: h:1\r\ncontent-length: 2\r\n\r\nab"


def test_no_server() -> None:
    with Client("http://127.0.0.1:1", timeout_s=1.0) as client, pytest.raises(UnavailableError):
        client.get("/v2")
    with pytest.raises(InvalidInputError, match="http://host:port"):
        Client("ftp://127.0.0.1")
