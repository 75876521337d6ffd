"""Rendering replies, with the real client as their reader."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult

from modelless.common.errors import (
    InfeasibleError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
)
from modelless.controller.api.v2_errors import MethodNotAllowedError, PayloadTooLargeError
from modelless.controller.api.v2_reply import (
    REPLY_PARAMETERS,
    Headers,
    Reply,
    RequestIds,
    classify,
    render_error,
    render_infer,
    render_json,
    with_request_id,
)
from modelless.controller.api.v2_request import InferRequest, parse_infer

RNG = np.random.default_rng(11)
SAID = {
    "variant": "imagenet/efficientnet-lite0/int8-224@1",
    "device": "cpu-1",
    "predicted_latency_ms": 7.25,
    "observed_latency_ms": np.float64(7.5),
    "accuracy": 74.4,
    "accuracy_provenance": "published",
    "cost_usd": 1.5e-6,
    "predicted_cost_usd": 1.4e-6,
    "receipt_id": "r-1",
}


def asked(
    outputs: list[InferRequestedOutput] | None = None, request_id: str = "q-1"
) -> InferRequest:
    tensor = InferInput("image", [1, 2], "UINT8")
    tensor.set_data_from_numpy(np.zeros((1, 2), np.uint8))
    return parse_infer(
        *InferenceServerClient.generate_request_body([tensor], outputs, request_id=request_id)
    )


def header(headers: Headers, name: bytes) -> str | None:
    found = [value for key, value in headers if key == name]
    assert len(found) <= 1
    return found[0].decode() if found else None


def answer(
    request: InferRequest, outputs: dict[str, np.ndarray[Any, Any]], **kwargs: Any
) -> InferResult:
    """Render a reply and read it back with the client, checking what both say of its form."""
    kwargs = {"model_name": "imagenet", "model_version": "1", "parameters": SAID, **kwargs}
    body, headers = render_infer(request, outputs, **kwargs)
    assert header(headers, b"content-length") == str(len(body))
    length = header(headers, b"inference-header-content-length")
    binary = length is not None
    expected = "application/octet-stream" if binary else "application/json"
    assert header(headers, b"content-type") == expected
    return InferenceServerClient.parse_response_body(
        body, header_length=int(length) if length is not None else None
    )


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64, np.float16, np.bool_])
def test_client_reads_the_tensor_unchanged(dtype: type, batch: int, binary: bool) -> None:
    sent = (RNG.random((batch, 1000)) * 100).astype(dtype)
    result = answer(asked([InferRequestedOutput("y", binary)]), {"y": sent})
    np.testing.assert_array_equal(result.as_numpy("y"), sent)
    assert result.as_numpy("y").dtype == sent.dtype


def test_reply_says_what_served_it() -> None:
    response = answer(asked(), {"y": np.zeros((1, 3), np.float32)}).get_response()
    assert response["model_name"] == "imagenet"
    assert response["model_version"] == "1"
    assert response["id"] == "q-1"
    assert response["parameters"] == {**SAID, "observed_latency_ms": 7.5}
    assert set(response["parameters"]) == set(REPLY_PARAMETERS) - {"explanation", "cached"}


def test_no_id_asked_none_given() -> None:
    response = answer(asked(request_id=""), {"y": np.zeros((1, 3), np.float32)}).get_response()
    assert "id" not in response


def test_all_outputs_binary_and_json_mixed() -> None:
    outputs = {
        "a": RNG.random((2, 3)).astype(np.float32),
        "b": np.array([[1], [2]], np.int32),
        "c": np.array([[b"x", "é"], [b"", b"\xff"]], np.object_),
    }
    for request in (
        asked(),
        asked([InferRequestedOutput(name, name != "b") for name in ("c", "b", "a")]),
    ):
        result = answer(request, outputs)
        for name in ("a", "b"):
            np.testing.assert_array_equal(result.as_numpy(name), outputs[name])
        assert result.as_numpy("c").tolist() == [[b"x", "é".encode()], [b"", b"\xff"]]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2],
        np.arange(12, dtype=">i8").reshape(3, 4),
        np.zeros((0, 4), np.float32),
        np.array(3.5, np.float32),
    ],
    ids=["transposed", "strided-big-endian", "big-endian", "empty", "scalar"],
)
def test_arrays_of_any_layout(array: np.ndarray[Any, Any], binary: bool) -> None:
    result = answer(asked([InferRequestedOutput("y", binary)]), {"y": array})
    np.testing.assert_array_equal(result.as_numpy("y"), array)


@given(
    array=hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int8, np.uint32]),
        hnp.array_shapes(max_dims=3, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False},
    ),
    binary=st.booleans(),
)
def test_round_trip(array: np.ndarray[Any, Any], binary: bool) -> None:
    result = answer(asked([InferRequestedOutput("y", binary)]), {"y": array})
    np.testing.assert_array_equal(result.as_numpy("y"), array)


# --- classification


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_client_reads_classes(binary: bool) -> None:
    scores = np.array([[0.1, 0.7, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25]], np.float32)
    request = asked([InferRequestedOutput("y", binary, class_count=2)])
    result = answer(request, {"y": scores}, labels=("cat", "dog", "épée:2", "eel"))
    found = [
        [text if isinstance(text, str) else text.decode() for text in row]
        for row in result.as_numpy("y")
    ]
    assert found == [
        ["0.700000:1:dog", "0.200000:2:épée:2"],
        ["0.250000:0:cat", "0.250000:1:dog"],
    ]
    assert result.get_output("y")["datatype"] == "BYTES"
    assert result.get_output("y")["shape"] == [2, 2]


def test_classes_without_labels_and_beyond_them() -> None:
    scores = np.array([[3, 1, 2]], np.uint8)
    assert classify(scores, 9).tolist() == [[b"3:0", b"2:2", b"1:1"]]
    assert classify(scores, 2, ["a"]).tolist() == [[b"3:0:a", b"2:2"]]


@pytest.mark.parametrize("dtype", [np.uint64, np.int8, np.float32])
def test_equal_scores_come_by_index(dtype: type) -> None:
    scores = np.array([[1, 2, 1, 2]], dtype)
    assert [text.split(b":")[1] for text in classify(scores, 4)[0]] == [b"1", b"3", b"0", b"2"]


def test_nan_comes_last_and_axes_count_as_classes() -> None:
    scores = np.array([[[np.nan, 1.0], [2.0, -np.inf]]], np.float32)
    assert [text.split(b":")[1] for text in classify(scores, 4)[0]] == [b"2", b"1", b"3", b"0"]


def test_classes_of_strings_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"classification: got 'BYTES'"):
        classify(np.array([["a"]], np.object_), 1)


# --- what cannot be rendered


def render(request: InferRequest, array: np.ndarray[Any, Any], **parameters: Any) -> bytes:
    body, _ = render_infer(
        request, {"y": array}, model_name="m", model_version="1", parameters=parameters
    )
    return body


def test_output_that_does_not_exist() -> None:
    with pytest.raises(InvalidInputError, match=r"^outputs\[0\]\.name: got 'z'; allowed: y"):
        render(asked([InferRequestedOutput("z")]), np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_json_has_no_nan(value: float) -> None:
    array = np.array([[1.0, value]], np.float32)
    with pytest.raises(InvalidInputError, match=r"^outputs\[0\]: got (nan|inf); .* as binary_data"):
        render(asked([InferRequestedOutput("y", binary_data=False)]), array)
    assert np.frombuffer(render(asked(), array)[-8:], "<f4")[1:].tobytes() == array[:, 1:].tobytes()


def test_unknown_parameter_values_become_null() -> None:
    request = asked([InferRequestedOutput("y", binary_data=False)])
    body = render(request, np.array([[1]], np.int8), a=float("inf"), b=np.float32("nan"), c=1.5)
    assert json.loads(body)["parameters"] == {"a": None, "b": None, "c": 1.5}


def test_json_text_that_is_not_utf8() -> None:
    with pytest.raises(InvalidInputError, match=r"Ask for binary_data"):
        render(asked([InferRequestedOutput("y", False)]), np.array([[b"\xff"]], np.object_))


# --- errors and plain JSON


def test_error_says_its_words() -> None:
    status, body, headers, _ = render_error(NotFoundError("task 'x' does not exist"))
    assert status == 404
    assert json.loads(body) == {"error": "task 'x' does not exist", "code": "not-found"}
    assert header(headers, b"content-type") == "application/json"
    assert header(headers, b"content-length") == str(len(body))
    assert header(headers, b"retry-after") is None


def test_statuses() -> None:
    assert render_error(InvalidInputError("x")).status == 400
    assert render_error(InfeasibleError("x")).status == 422
    assert render_error(PayloadTooLargeError("x")).status == 413


@pytest.mark.parametrize(
    ("retry_after_s", "expected"),
    [(0.01, "1"), (1.0, "1"), (1.2, "2"), (30, "30"), (float("inf"), "60"), (float("nan"), "60")],
)
def test_overload_says_when_to_come_again(retry_after_s: float, expected: str) -> None:
    reply = render_error(OverloadedError("full", retry_after_s))
    assert reply.status == 429
    assert header(reply.headers, b"retry-after") == expected


def test_wrong_method_names_the_right_ones() -> None:
    reply = render_error(MethodNotAllowedError("PUT", ("GET", "HEAD")))
    assert reply.status == 405
    assert header(reply.headers, b"allow") == "GET, HEAD"
    message = "method: got 'PUT'; allowed here: GET, HEAD."
    assert json.loads(reply.body) == {"error": message, "code": "method-not-allowed"}


def test_a_bug_keeps_its_text_inside() -> None:
    reply = render_error(RuntimeError("/secret/path"))
    assert reply.status == 500
    assert b"secret" not in reply.body


def test_render_json_keeps_any_text_in_ascii() -> None:
    assert render_json({"a": "\ud800é"}, 503).body == b'{"a":"\\ud800\\u00e9"}'
    with pytest.raises(TypeError):
        render_json({"a": object()})


def test_an_error_has_a_code_and_says_what_it_is_about() -> None:
    reply = render_error(InvalidInputError.of("inputs[0].shape", [1], "2 axes", "Send 2."))
    assert json.loads(reply.body) == {
        "error": "inputs[0].shape: got [1]; allowed: 2 axes. Send 2.",
        "code": "invalid-input",
        "field": "inputs[0].shape",
        "hint": "Send 2.",
    }
    assert json.loads(render_error(KeyError("x")).body)["code"] == "internal"


def test_a_request_has_an_id_in_the_header_and_in_the_body_of_an_error() -> None:
    reply = with_request_id(render_error(NotFoundError("no")), b"r-1")
    assert json.loads(reply.body) == {"error": "no", "code": "not-found", "request_id": "r-1"}
    headers = dict(reply.headers)
    assert headers[b"x-request-id"] == b"r-1"
    assert int(headers[b"content-length"]) == len(reply.body)
    answer = Reply(200, b'{"error":1}', [])
    assert with_request_id(answer, b"r-1") == Reply(200, answer.body, [(b"x-request-id", b"r-1")])


def test_ids_are_the_clients_if_they_are_plain() -> None:
    ids = RequestIds()
    assert ids.of([(b"host", b"h"), (b"x-request-id", b"a/b:7+=._-")]) == b"a/b:7+=._-"
    made = {ids.of([(b"x-request-id", bad)]) for bad in (b"", b'"', b"a b", b"x" * 129, b"\xff")}
    assert len(made) == 5
    assert made.isdisjoint({RequestIds().of([]) for _ in range(10)})
