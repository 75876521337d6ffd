"""gRPC messages against the classes that Google's compiler makes of Triton's definitions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.grpc._utils import _get_inference_request
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from modelless.common.errors import DeadlineExceededError, InvalidInputError, ModellessError
from modelless.controller.api import grpc_messages as messages
from modelless.controller.api import protobuf as pb
from modelless.controller.api.grpc_messages import InferMessage
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_errors import PayloadTooLargeError
from modelless.controller.api.v2_metadata import model_config, model_metadata, server_metadata
from modelless.controller.api.v2_request import InferRequest, RequestedOutput
from modelless.controller.api.v2_tensors import DATATYPES
from modelless.variants.vocabulary import SLO
from tests.unit.cli.tiny import TASK

CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def parse(message: bytes, left_s: float | None = None, **header: Any) -> InferRequest:
    return InferMessage(memoryview(message)).parse(Limits(), header, {}, left_s)


def triton_request(tensor: NDArray[Any], **more: Any) -> service_pb2.ModelInferRequest:
    given_input = triton.InferInput("x", list(tensor.shape), np_to_triton_dtype(tensor.dtype))
    given_input.set_data_from_numpy(tensor)
    settings: dict[str, Any] = {
        "model_name": "pixels", "inputs": [given_input], "model_version": "", "request_id": "",
        "outputs": None, "sequence_id": 0, "sequence_start": False, "sequence_end": False,
        "priority": 0, "timeout": None, "parameters": None,
    }  # fmt: skip
    return _get_inference_request(**{**settings, **more})


def random_tensor(datatype: str, batch: int) -> NDArray[Any]:
    rng = np.random.default_rng(batch)
    shape = (batch, 2, 3)
    if datatype == "BYTES":
        texts = np.array([f"{i} \u00e9".encode() for i in range(batch * 6)], np.object_)
        return texts.reshape(shape)
    dtype = np.dtype(triton_to_np_dtype(datatype))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "f" or datatype == "BF16":
        return rng.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    tensor = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    tensor.flat[:2] = info.min, info.max
    return tensor


def typed(request: service_pb2.ModelInferRequest, tensor: NDArray[Any]) -> bytes:
    """The request with its tensor in typed contents."""
    del request.raw_input_contents[:]
    contents = getattr(request.inputs[0].contents, CONTENTS[request.inputs[0].datatype])
    contents.extend(tensor.ravel().tolist())
    return request.SerializeToString()


@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_comes_in_raw_and_typed(datatype: str, batch: int) -> None:
    tensor = random_tensor(datatype, batch)
    request = triton_request(tensor)
    whole = [request.SerializeToString()]
    if datatype in CONTENTS:
        whole.append(typed(request, tensor))
    for message in whole:
        got = parse(message).tensors["x"]
        expected = tensor.astype(np.float32) if datatype == "BF16" else tensor
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("datatype", [each for each in DATATYPES if each != "BF16"])
def test_every_datatype_goes_out_raw_and_typed(datatype: str, raw: bool) -> None:
    tensor = random_tensor(datatype, 3)
    request = InferRequest("id-1", SLO(), {}, (), raw, None, {})

    def write() -> bytes:
        return messages.write_infer(
            request, {"y": tensor}, model_name="pixels", model_version="7",
            parameters={"variant": "v", "cost_usd": 0.5, "n": -3, "b": True},
        )  # fmt: skip

    if not raw and datatype not in CONTENTS:
        with pytest.raises(InvalidInputError, match="raw contents"):
            write()
        return
    reply = service_pb2.ModelInferResponse.FromString(write())
    assert (reply.model_name, reply.model_version, reply.id) == ("pixels", "7", "id-1")
    told = reply.parameters
    assert told["variant"].string_param == "v"
    assert told["cost_usd"].double_param == 0.5
    assert told["n"].int64_param == -3
    assert told["b"].bool_param is True
    assert bool(reply.raw_output_contents) is raw
    if raw:
        np.testing.assert_array_equal(triton.InferResult(reply).as_numpy("y"), tensor)
        return
    contents = getattr(reply.outputs[0].contents, CONTENTS[datatype])
    assert list(contents) == tensor.ravel().tolist()


@given(
    arrays.arrays(np.int64, st.integers(1, 40)) | arrays.arrays(np.uint64, st.integers(1, 40)),
    st.integers(1, 12),
)
def test_packed_and_unpacked_integers_are_the_same(tensor: NDArray[Any], cut: int) -> None:
    request = triton_request(tensor)
    message = typed(request, tensor)
    np.testing.assert_array_equal(parse(message).tensors["x"], tensor)
    field, number = CONTENTS[request.inputs[0].datatype], (3 if tensor.dtype.kind == "i" else 5)
    unpacked = service_pb2.InferTensorContents()
    del request.inputs[0].contents.__getattribute__(field)[cut:]
    head = request.inputs[0].contents.SerializeToString()
    for value in tensor[cut:].tolist():  # one by one, as proto2 writes them
        head += messages.pb.write_number(number, value)
    unpacked.ParseFromString(head)
    assert list(getattr(unpacked, field)) == tensor.tolist()
    part = request.inputs[0]
    part.ClearField("contents")
    whole = messages.pb.write_part(5, part.SerializeToString() + messages.pb.write_part(5, head))
    np.testing.assert_array_equal(parse(whole).tensors["x"], tensor)


def test_limits_outputs_and_ids_come_as_parameters() -> None:
    outputs = [triton.InferRequestedOutput("scores", class_count=2)]
    parameters = {"latency_ms": 40, "min_accuracy": 74.5, "when_late": "serve", "tenant": "shop"}
    request = triton_request(
        np.zeros((1, 3), np.uint8), outputs=outputs, request_id="q", parameters=parameters,
        sequence_id=3, timeout=9,
    )  # fmt: skip
    got = parse(request.SerializeToString())
    assert got.slo == SLO(latency_ms=40, min_accuracy=74.5, when_late="serve")
    assert (got.id, got.tenant, got.parameters["sequence_id"]) == ("q", "shop", 3)
    assert got.requested_outputs == (RequestedOutput("scores", True, 2),)


def test_the_earlier_deadline_holds() -> None:
    image = np.zeros((1, 3), np.uint8)
    plain = triton_request(image).SerializeToString()
    limited = triton_request(image, parameters={"latency_ms": 500}).SerializeToString()
    assert parse(plain, 0.25).slo.latency_ms == 250
    assert parse(limited, 0.25).slo.latency_ms == 250
    assert parse(limited, 0.75).slo.latency_ms == 500
    assert parse(plain, 7200.0).slo.latency_ms is None
    with pytest.raises(DeadlineExceededError):
        parse(plain, 0.0)
    assert parse(plain, None, latency_ms=3.0).slo.latency_ms == 3.0
    with pytest.raises(InvalidInputError, match=r"parameters\.latency_ms"):
        parse(limited, None, latency_ms=3.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.inputs[0].shape.append(2), r"raw_input_contents\[0\]: got 3; allowed: 6"),
        (lambda r: r.raw_input_contents.append(b""), "raw_input_contents: got 2 tensors"),
        (lambda r: setattr(r.inputs[0], "datatype", "FP8"), r"inputs\[0\]\.datatype"),
        (lambda r: setattr(r.inputs[0], "name", ""), r"inputs\[0\]\.name"),
        (lambda r: r.inputs[0].shape.extend([1] * 9), r"inputs\[0\]\.shape"),
        (lambda r: r.inputs[0].contents.uint_contents.append(1), "both raw and typed"),
        (lambda r: r.parameters["latncy_ms"].__setattr__("int64_param", 1), "latency_ms"),
        (lambda r: r.parameters["latency_ms"].__setattr__("string_param", "1"), "latency_ms"),
        (lambda r: r.parameters["latency_ms"].SetInParent(), "no value"),
        (lambda r: r.ClearField("inputs"), "inputs|raw_input_contents"),
        (lambda r: setattr(r, "id", "x" * 300), "id: got"),
        (lambda r: setattr(r, "model_name", "x" * 5000), "model_name: got 5000 bytes"),
        (lambda r: r.inputs[0].parameters["shared_memory_region"].SetInParent(), "no value"),
    ],
)  # fmt: skip
def test_a_bad_request_names_its_field(change: Any, says: str) -> None:
    request = triton_request(np.zeros((1, 3), np.uint8))
    change(request)
    with pytest.raises(InvalidInputError, match=says):
        parse(request.SerializeToString())


@pytest.mark.parametrize(
    ("datatype", "values", "says"),
    [
        ("UINT8", [0, 256, 1], "got 256; allowed: numbers from 0 to 255"),
        ("INT8", [0, -129, 1], "got -129"),
        ("UINT8", [0, 1], "2 elements; allowed: 3"),
        ("UINT8", [0, 1, 2, 3], "more elements; allowed: 3"),
        ("BYTES", [b"a"], "1 elements; allowed: 3"),
        ("FP32", [1.0], "got 4; allowed: 12"),
    ],
)
def test_typed_contents_must_fit(datatype: str, values: list[Any], says: str) -> None:
    request = service_pb2.ModelInferRequest(model_name="pixels")
    entry = request.inputs.add(name="x", datatype=datatype, shape=[1, 3])
    getattr(entry.contents, CONTENTS[datatype]).extend(values)
    with pytest.raises(InvalidInputError, match=says):
        parse(request.SerializeToString())
    entry.contents.ClearField(CONTENTS[datatype])
    other = "fp64_contents" if datatype != "FP64" else "fp32_contents"
    getattr(entry.contents, other).append(1.0)
    with pytest.raises(InvalidInputError, match=f"got {other}"):
        parse(request.SerializeToString())


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_whatever_comes_is_read_or_refused(noise: bytes, place: int, byte: int) -> None:
    whole = bytearray(triton_request(np.zeros((4, 3), np.uint8)).SerializeToString())
    whole[place % len(whole)] = byte
    for message in (noise, bytes(whole), bytes(whole[: place % len(whole)])):
        try:
            parse(message)
        except ModellessError:
            continue


def test_a_bomb_of_empty_parts_is_refused_at_once() -> None:
    with pytest.raises(InvalidInputError, match="more fields"):
        InferMessage(memoryview(b"\x2a\x00" * 4_000_000))
    many = service_pb2.ModelInferRequest()
    part = messages.pb.write_part(5, b"\x42\x00" * 100_000)  # empty strings
    message = messages.pb.write_part(5, many.SerializeToString() + b"\x0a\x01x" + part)
    with pytest.raises(InvalidInputError):
        parse(message)


def test_many_values_in_pieces_are_refused_rather_than_joined() -> None:
    def read(count: int) -> NDArray[Any]:
        request = triton_request(np.zeros(2 * count, np.uint8))
        typed(request, np.ones(count, np.uint8))
        (given_input,) = request.inputs
        half = service_pb2.ModelInferRequest.InferInputTensor(contents=given_input.contents)
        whole = given_input.SerializeToString() + half.SerializeToString()
        return parse(pb.write_part(5, whole)).tensors["x"]

    assert read(500).sum() == 1000
    with pytest.raises(InvalidInputError, match=r"inputs\[0\].contents: got many values in pieces"):
        read(1 << 20)


def test_memory_is_set_aside_for_packed_numbers_before_they_are_unpacked() -> None:
    message = typed(triton_request(np.ones(4096, np.int64)), np.ones(4096, np.int64))
    assert len(message) < 4200
    taken: list[int] = []
    found = InferMessage(memoryview(message))
    found.parse(Limits(), {}, {}, None, taken.append)
    assert taken == [8 * 4096]
    with pytest.raises(PayloadTooLargeError, match="32768 bytes; allowed: up to 32767"):
        found.parse(Limits(max_body_bytes=8 * 4096 - 1), {}, {}, None, taken.append)
    assert taken == [8 * 4096]


def test_descriptions_are_those_of_http() -> None:
    told = json.loads(server_metadata().body)
    server = service_pb2.ServerMetadataResponse.FromString(messages.write_server_metadata(told))
    assert (server.name, list(server.extensions)) == ("modelless", told["extensions"])
    told = json.loads(model_metadata("pixels", TASK, ["1"]).body)
    model = service_pb2.ModelMetadataResponse.FromString(messages.write_model_metadata(told))
    assert (model.name, list(model.versions), model.platform) == ("pixels", ["1"], "modelless")
    assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [
        ("image", "UINT8", [-1, -1, -1, 3])
    ]
    assert [(each.name, list(each.shape)) for each in model.outputs] == [("scores", [-1, 4])]
    told = json.loads(model_config("pixels", TASK, 8).body)
    config = service_pb2.ModelConfigResponse.FromString(messages.write_model_config(told)).config
    assert (config.name, config.backend, config.max_batch_size) == ("pixels", "modelless", 8)
    assert config.input[0].data_type == model_config_pb2.TYPE_UINT8
    assert list(config.output[0].dims) == [4]
    assert config.output[0].data_type == model_config_pb2.TYPE_FP32
