"""Parsing requests, with the real client as the oracle of what a request looks like."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from modelless.common.errors import InvalidInputError
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_errors import PayloadTooLargeError
from modelless.controller.api.v2_headers import SLO_PARAMETERS
from modelless.controller.api.v2_request import RequestedOutput, parse_infer
from modelless.variants.vocabulary import SLO

RNG = np.random.default_rng(7)


def made_by_client(
    array: np.ndarray[Any, Any], datatype: str, *, binary: bool = True, **kwargs: Any
) -> tuple[bytes, int | None]:
    tensor = InferInput("image", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    body, json_length = InferenceServerClient.generate_request_body([tensor], **kwargs)
    return body, json_length


def document(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}
    return {"inputs": [tensor], **changes}


def with_input(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0], **changes}
    return {"inputs": [{key: value for key, value in tensor.items() if value is not ...}]}


def parse(request: object, payload: bytes = b"", **kwargs: Any) -> Any:
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    return parse_infer(text + payload, len(text) if payload else None, **kwargs)


# --- what the real client sends


def test_bf16_arrives_as_fp32_and_never_in_json() -> None:
    sent = RNG.random((3, 5)).astype(bfloat16)
    request = parse_infer(*made_by_client(sent, "BF16"))
    assert request.tensors["image"].dtype == np.float32
    np.testing.assert_array_equal(request.tensors["image"], sent.astype(np.float32))
    with pytest.raises(InvalidInputError, match="BF16 in JSON"):
        parse(with_input(datatype="BF16"))
    entry = {"datatype": "BF16", "data": ..., "parameters": {"binary_data_size": 3}}
    with pytest.raises(InvalidInputError, match="got 3; allowed: 4, as BF16"):
        parse(with_input(**entry), b"abc")


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [("UINT8", np.uint8), ("FP32", np.float32), ("FP16", np.float16), ("INT64", np.int64)],
)
def test_client_tensor_arrives_unchanged(
    datatype: str, dtype: type, batch: int, binary: bool
) -> None:
    sent = (RNG.random((batch, 6, 5, 3)) * 255).astype(dtype)
    request = parse_infer(*made_by_client(sent, datatype, binary=binary, request_id="q"))
    assert request.id == "q"
    assert list(request.tensors) == ["image"]
    got = request.tensors["image"]
    assert got.dtype == sent.dtype
    assert got.flags.aligned
    np.testing.assert_array_equal(got, sent)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize(
    ("datatype", "values"),
    [("BOOL", [True, False, True]), ("BYTES", ["", "a", "é:1"]), ("UINT64", [0, 1, 2**64 - 1])],
)
def test_client_tensor_of_other_datatypes(
    datatype: str, values: list[object], binary: bool
) -> None:
    dtype = {"BOOL": np.bool_, "BYTES": np.object_, "UINT64": np.uint64}[datatype]
    request = parse_infer(*made_by_client(np.array([values], dtype=dtype), datatype, binary=binary))
    expected = [v.encode() if isinstance(v, str) else v for v in values]
    assert request.tensors["image"].tolist() == [expected]


def test_binary_tensor_is_a_view_of_the_body() -> None:
    sent = RNG.integers(0, 255, (1, 224, 224, 3), dtype=np.uint8)
    body, json_length = made_by_client(sent, "UINT8")
    got = parse_infer(body, json_length).tensors["image"]
    assert np.shares_memory(got, np.frombuffer(body, np.uint8))
    assert not got.flags.writeable


def test_memoryview_body() -> None:
    sent = RNG.random((2, 3)).astype(np.float32)
    body, json_length = made_by_client(sent, "FP32")
    got = parse_infer(memoryview(body), json_length).tensors["image"]
    np.testing.assert_array_equal(got, sent)


def test_client_without_outputs_wants_them_all_binary() -> None:
    request = parse_infer(*made_by_client(np.zeros((1, 2), np.uint8), "UINT8"))
    assert request.binary_default is True
    assert request.requested_outputs == ()
    assert request.slo == SLO()
    assert request.id is None


def test_client_requested_outputs() -> None:
    outputs = [
        InferRequestedOutput("a"),
        InferRequestedOutput("b", binary_data=False),
        InferRequestedOutput("c", binary_data=False, class_count=5),
    ]
    request = parse_infer(*made_by_client(np.zeros((1, 2), np.uint8), "UINT8", outputs=outputs))
    assert request.binary_default is False
    assert request.requested_outputs == (
        RequestedOutput("a", binary=True),
        RequestedOutput("b", binary=False),
        RequestedOutput("c", binary=False, class_count=5),
    )


def test_client_parameters_and_several_inputs() -> None:
    inputs = []
    for name, binary in (("a", True), ("b", False), ("c", True)):
        tensor = InferInput(name, [2], "INT32")
        tensor.set_data_from_numpy(np.array([1, 2], np.int32) * (ord(name) - 96), binary)
        inputs.append(tensor)
    request = parse_infer(
        *InferenceServerClient.generate_request_body(
            inputs,
            sequence_id=3,
            sequence_start=True,
            priority=2,
            timeout=5000,
            parameters={"latency_ms": 40, "min_accuracy": 74.5, "max_cost_usd": 1e-3},
        )
    )
    assert {name: array.tolist() for name, array in request.tensors.items()} == {
        "a": [1, 2],
        "b": [2, 4],
        "c": [3, 6],
    }
    assert request.slo == SLO(latency_ms=40, min_accuracy=74.5, max_cost_usd=1e-3, priority=2)
    assert request.parameters["timeout"] == 5000


# --- forms of valid requests


def test_nested_and_flat_json_are_the_same() -> None:
    nested = [[[1, 2], [3, 4], [5, 6]]]
    for data in (nested, [1, 2, 3, 4, 5, 6]):
        request = parse(with_input(shape=[1, 3, 2], datatype="INT8", data=data))
        assert request.tensors["x"].tolist() == nested


@pytest.mark.parametrize("data", [[], [[], []]], ids=["flat", "nested"])
def test_empty_tensor(data: list[object]) -> None:
    assert parse(with_input(shape=[2, 0], data=data)).tensors["x"].shape == (2, 0)


def test_empty_binary_tensor() -> None:
    request = with_input(shape=[0, 3], data=..., parameters={"binary_data_size": 0})
    text = json.dumps(request).encode()
    assert parse_infer(text, len(text)).tensors["x"].shape == (0, 3)


def test_null_members_are_left_out() -> None:
    request = parse(
        document(id=None, outputs=None, parameters={"latency_ms": None, "tenant": None})
    )
    assert (request.id, request.slo, request.requested_outputs) == (None, SLO(), ())


def test_slo_parameters_are_the_slo_fields() -> None:
    assert tuple(field.name for field in dataclasses.fields(SLO)) == SLO_PARAMETERS


def test_header_parameters_fill_in_and_may_repeat() -> None:
    given = {"latency_ms": 40.0, "priority": 3, "tenant": "acme"}
    request = parse(document(parameters={"latency_ms": 40}), header_parameters=given)
    assert request.slo == SLO(latency_ms=40, priority=3)
    assert request.tenant == "acme"


def test_header_contradicting_a_parameter() -> None:
    with pytest.raises(InvalidInputError, match=r"^parameters\.latency_ms: got 40 and, in the hea"):
        parse(document(parameters={"latency_ms": 40}), header_parameters={"latency_ms": 50.0})


# --- bad input: each names the field

BAD: list[tuple[object, str]] = [
    (b"", r"^body: got ''; allowed: valid JSON"),
    (b"{", r"^body: got '\{'"),
    (b"\xff\xfe", r"^body: .*UTF-8"),
    (b"[]", r"^body: got \[\]; allowed: a JSON object"),
    (b"[" * 100_000, r"^body: got JSON nested too deeply"),
    (b'{"id": ' + b"9" * 5000 + b"}", r"^body: "),
    (b'{"id": "a", "id": "b"}', r"^body: got 'id'; allowed: each key of a JSON object once"),
    (document(paramters={}), r"^paramters: .* Did you mean 'parameters'\?"),
    (document(id=7), r"^id: got 7"),
    (document(id="x" * 257), r"^id: "),
    (document(parameters=[]), r"^parameters: got \[\]"),
    ({}, r"^inputs: got None"),
    ({"inputs": []}, r"^inputs: got \[\]"),
    ({"inputs": {}}, r"^inputs: "),
    ({"inputs": [{}] * 65}, r"^inputs: .* 1 to 64 tensors"),
    ({"inputs": [3]}, r"^inputs\[0\]: got 3"),
    (with_input(dtype="FP32"), r"^inputs\[0\]\.dtype: .* Did you mean 'datatype'\?"),
    (with_input(name=...), r"^inputs\[0\]\.name: got None"),
    (with_input(name=""), r"^inputs\[0\]\.name"),
    ({"inputs": with_input()["inputs"] * 2}, r"^inputs\[1\]\.name: got 'x'; allowed: each name o"),
    (with_input(datatype="float32"), r"^inputs\[0\]\.datatype: got 'float32'; allowed: BOOL, UI"),
    (with_input(datatype=[]), r"^inputs\[0\]\.datatype: got \[\]"),
    (with_input(shape=...), r"^inputs\[0\]\.shape: got None"),
    (with_input(shape=2), r"^inputs\[0\]\.shape: got 2"),
    (with_input(shape=[2.0]), r"^inputs\[0\]\.shape: got \[2\.0\]"),
    (with_input(shape=[True, 2]), r"^inputs\[0\]\.shape"),
    (with_input(shape=[-1]), r"^inputs\[0\]\.shape: got \[-1\]; allowed: whole numbers from 0"),
    (with_input(shape=[1] * 9), r"^inputs\[0\]\.shape: .*up to 8 whole"),
    (with_input(shape=[2**40, 2**40]), r"^inputs\[0\]\.shape: .*elements"),
    (with_input(shape=[0, 2**62, 2**62]), r"^inputs\[0\]\.shape: .*elements"),
    (with_input(datatype="BYTES", shape=[16_385]), r"^inputs\[0\]\.shape: .*16384 strings"),
    (with_input(data=...), r"^inputs\[0\]: got no data; allowed: data, or parameters\.binary_d"),
    (with_input(data="1, 2"), r"^inputs\[0\]\.data: got '1, 2'; allowed: a list"),
    (with_input(data=[1]), r"^inputs\[0\]\.data: got 1 items; allowed: 2, as shape \[2\] says"),
    (with_input(data=[[1, 2]]), r"^inputs\[0\]\.data: got 1 items"),
    (with_input(data=["1", "2"]), r"^inputs\[0\]\.data: got '1'; allowed: numbers only"),
    (with_input(data=[1, None]), r"^inputs\[0\]\.data: got None"),
    (with_input(data=[1, True]), r"^inputs\[0\]\.data: got True"),
    (with_input(data=[1, [2]]), r"^inputs\[0\]\.data: got \[2\]"),
    (with_input(data=[1, 1e300]), r"^inputs\[0\]\.data: got 1e\+300; allowed: .*fit FP32"),
    (with_input(data=[1, 10**400]), r"^inputs\[0\]\.data: got 1000.*fit FP32"),
    (b'{"inputs": [{"data": [1e999, NaN]}]}', r"^body: got 'NaN'; allowed: JSON, which has no N"),
    (with_input(datatype="UINT8", data=[1, 256]), r"data: got 256; allowed: .*fit UINT8"),
    (with_input(datatype="INT8", data=[300, -1]), r"data: got 300; allowed: .*fit INT8"),
    (with_input(datatype="UINT64", data=[0, -1]), r"data: got -1; allowed: .*fit UINT64"),
    (with_input(datatype="UINT8", data=[1, 2.0]), r"data: got 2\.0; allowed: whole numbers only"),
    (with_input(datatype="BOOL", data=[True, 1]), r"data: got 1; allowed: true and false only"),
    (with_input(datatype="BYTES", data=["a", 1]), r"data: got 1; allowed: strings only"),
    (with_input(datatype="BYTES", data=["a", "\ud800"]), r"data: got '\\ud800'"),
    (with_input(shape=[2, 2], data=[[1, 2], [3]]), r"data: got 1 items on axis 1; allowed: 2"),
    (with_input(shape=[2, 2], data=[[1, 2], 3]), r"data: got lists of differing depth"),
    (with_input(shape=[2, 1], data=[[[1]], [[2]]]), r"data: got \[1\]"),
    (with_input(parameters=[]), r"^inputs\[0\]\.parameters: got \[\]"),
    (with_input(parameters={"binary_size": 8}), r"parameters\.binary_size: .* mean 'binary_data_s"),
    (with_input(parameters={"binary_data_size": 8}), r"size: got 8; allowed: data or a binary"),
    (with_input(parameters={"binary_data_size": -8}), r"binary_data_size: got -8"),
    (with_input(parameters={"binary_data_size": True}), r"binary_data_size: got True"),
    (
        with_input(data=..., parameters={"binary_data_size": 8}),
        r"size: got 8; .* Send the header Inference-Header-Content-Length",
    ),
    (
        with_input(parameters={"shared_memory_region": "r"}),
        r"^inputs\[0\]\.parameters\.shared_memory_region: .*inside the request",
    ),
    (document(outputs={}), r"^outputs: got \{\}"),
    (document(outputs=[1]), r"^outputs\[0\]: got 1"),
    (document(outputs=[{"name": 1}]), r"^outputs\[0\]\.name: got 1"),
    (document(outputs=[{"name": "y"}, {"name": "y"}]), r"^outputs\[1\]\.name: got 'y'; .*once"),
    (document(outputs=[{"name": "y", "data": []}]), r"^outputs\[0\]\.data"),
    (document(outputs=[{"name": "y", "parameters": 1}]), r"^outputs\[0\]\.parameters: got 1"),
    (
        document(outputs=[{"name": "y", "parameters": {"binary_data": 1}}]),
        r"^outputs\[0\]\.parameters\.binary_data: got 1; allowed: true or false",
    ),
    (
        document(outputs=[{"name": "y", "parameters": {"classification": -1}}]),
        r"^outputs\[0\]\.parameters\.classification: got -1",
    ),
    (
        document(outputs=[{"name": "y", "parameters": {"clasification": 1}}]),
        r"^outputs\[0\]\.parameters\.clasification: .* mean 'classification'",
    ),
]


@pytest.mark.parametrize(("request_", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_request(request_: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        parse(request_)
    assert len(str(caught.value)) < 500
    assert caught.value.http_status == 400


BAD_PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"latencyms": 4}, r"^parameters\.latencyms: .* Did you mean 'latency_ms'\?"),
    ({"latency-ms": 4}, r"^parameters\.latency-ms: .* Did you mean 'latency_ms'\?"),
    ({"min_acc": 4}, r"^parameters\.min_acc: .* Did you mean 'min_accuracy'\?"),
    ({"max_cost": 4}, r"^parameters\.max_cost: .* Did you mean 'max_cost_usd'\?"),
    ({"colour": "red"}, r"^parameters\.colour: got 'colour'; allowed: only binary_data_output, "),
    ({"x" * 9999: 1}, r"^parameters\.'xxxx"),
    ({"latency_ms": "40"}, r"^parameters\.latency_ms: got '40'; allowed: a number"),
    ({"latency_ms": True}, r"^parameters\.latency_ms: got True"),
    ({"latency_ms": [40]}, r"^parameters\.latency_ms: got \[40\]"),
    ({"latency_ms": 0}, r"^latency_ms: got 0; allowed: more than 0"),
    ({"latency_ms": -5}, r"^latency_ms: got -5"),
    ({"latency_ms": 1e12}, r"^latency_ms: got 1000000000000\.0"),
    ({"latency_ms": 10**4000}, r"^latency_ms: got 1000"),
    ({"min_accuracy": 101}, r"^min_accuracy: got 101"),
    ({"max_cost_usd": 0}, r"^max_cost_usd: got 0"),
    ({"priority": 1.5}, r"^priority: got 1\.5"),
    ({"priority": 10}, r"^priority: got 10"),
    ({"tenant": 1}, r"^parameters\.tenant: got 1"),
    ({"tenant": "No Such"}, r"^parameters\.tenant: got 'No Such'"),
    ({"binary_data_output": 1}, r"^parameters\.binary_data_output: got 1"),
]


@pytest.mark.parametrize(
    ("parameters", "message"), BAD_PARAMETERS, ids=[message for _, message in BAD_PARAMETERS]
)
def test_bad_parameter(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        parse(document(parameters=parameters))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_slo_that_is_no_json_number(constant: str) -> None:
    body = json.dumps(document(parameters={"latency_ms": 40})).replace("40", constant).encode()
    with pytest.raises(InvalidInputError, match=f"^body: got '{constant}'"):
        parse_infer(body)


def test_slo_that_overflows() -> None:
    body = json.dumps(document(parameters={"latency_ms": 40})).replace("40", "1e999").encode()
    with pytest.raises(InvalidInputError, match=r"^latency_ms: got inf"):
        parse_infer(body)


def test_same_limit_twice() -> None:
    body = b'{"parameters": {"latency_ms": 4, "latency_ms": 40}, "inputs": []}'
    with pytest.raises(InvalidInputError, match=r"^body: got 'latency_ms'; .*once"):
        parse_infer(body)


# --- binary sizes that lie


def binary(size: int, datatype: str = "FP32", shape: tuple[int, ...] = (2,)) -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return with_input(data=..., datatype=datatype, shape=list(shape), parameters=parameters)


@pytest.mark.parametrize(
    ("request_", "payload", "message"),
    [
        (binary(4), bytes(4), r"binary_data_size: got 4; allowed: 8, as FP32 \[2\] takes"),
        (binary(8), bytes(7), r"binary_data_size: got 8; allowed: up to 7, the bytes left in the"),
        (binary(8), bytes(9), r"^body: got 1 bytes after the last tensor; allowed: none"),
        (with_input(), b"x", r"^body: got 1 bytes after the last tensor"),
        (binary(2, "BOOL"), b"\x01\x02", r"binary_data_size: got 2; allowed: bytes 0 \(false\)"),
        (binary(7, "BYTES"), bytes(7), r"got 7 bytes; allowed: 4 or more for each of 2"),
        (binary(8, "BYTES"), b"\0\0\0\0\1\0\0\0", r"got element 1 of 1 bytes; allowed: up to 0"),
        (binary(8, "BYTES"), b"\4\0\0\0abcd", r"got 1 elements; allowed: 2"),
        (binary(9, "BYTES"), bytes(9), r"got 1 bytes more; allowed: 2 elements and no more"),
    ],
)
def test_binary_sizes_that_lie(request_: object, payload: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse(request_, payload)


@pytest.mark.parametrize("json_length", [0, -1, 10_000, 2**70])
def test_json_length_beyond_the_body(json_length: int) -> None:
    with pytest.raises(InvalidInputError, match=r"^inference-header-content-length: got"):
        parse_infer(json.dumps(document()).encode(), json_length)


def test_json_length_inside_the_json() -> None:
    with pytest.raises(InvalidInputError, match=r"^body: .*valid JSON.* it has 20 bytes\."):
        parse_infer(json.dumps(document()).encode(), 20)


# --- limits


def test_body_too_large() -> None:
    with pytest.raises(PayloadTooLargeError, match=r"^body: got .* bytes; allowed: up to 16") as e:
        parse(document(), limits=Limits(max_body_bytes=16))
    assert e.value.http_status == 413


def test_json_too_large() -> None:
    with pytest.raises(PayloadTooLargeError, match=r"Send tensors as binary data"):
        parse(document(), limits=Limits(max_json_bytes=16))
