"""Each statement of the Open Inference Protocol's text, at a gateway's own server.

Source: https://github.com/kserve/open-inference-protocol (specification/protocol/inference_rest.md
and inference_grpc.md). Triton's clients judge the same in ``test_grpc`` and ``test_texts``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from modelless.common.errors import ModellessError
from modelless.controller.api.grpc_calls import Call
from modelless.controller.api.grpc_messages import InferMessage
from modelless.controller.api.request_limits import DEFAULT_LIMITS
from modelless.controller.api.v2_reply import Reply
from modelless.controller.api.v2_request import parse_infer
from modelless.controller.api.v2_tensors import BYTES, item_bytes
from modelless.controller.live.knowledge import Knowledge

from .front import Answer, Front, serving

Test = Callable[[Front], Awaitable[None]]
MODEL = "/v2/models/pixels"
VARIANT = "/v2/models/pixels/mean/small"
TENSOR = {"name": "image", "shape": [1, 1, 2, 3], "datatype": "UINT8", "data": [0] * 6}
SIZES = {
    **dict.fromkeys(("BOOL", "UINT8", "INT8"), 1),
    **dict.fromkeys(("UINT16", "INT16", "FP16"), 2),
    **dict.fromkeys(("UINT32", "INT32", "FP32"), 4),
    **dict.fromkeys(("UINT64", "INT64", "FP64"), 8),
}
"""The table of the text: bytes of an element."""
CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}

STATEMENTS: dict[str, Test] = {}


def states(text: str) -> Callable[[Test], Test]:
    """Register a test of a statement."""

    def register(test: Test) -> Test:
        STATEMENTS[text] = test
        return test

    return register


async def get(front: Front, path: str) -> Answer:
    return await front.send("GET", path)


async def infer(front: Front, path: str = MODEL, **parts: Any) -> Answer:
    body = json.dumps({"inputs": [TENSOR], **parts}).encode()
    return await front.send("POST", f"{path}/infer", body)


async def call(front: Front, method: str, message: Any) -> Reply:
    answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    path = f"/inference.GRPCInferenceService/{method}".encode()
    sent = Call(path, [], memoryview(message.SerializeToString()), False, time.monotonic(), None)
    front.frontend.on_call(sent, answered.set_result)
    return await answered


@states("server live: 200, with the member live")
async def _(front: Front) -> None:
    answer = await get(front, "/v2/health/live")
    assert (answer.status, answer.document["live"]) == (200, True)


@states("server ready: whether all models are ready, with the member live")
async def _(front: Front) -> None:
    answer = await get(front, "/v2/health/ready")
    assert (answer.status, answer.document["live"]) == (200, True)
    front.frontend.is_draining = True
    assert (await get(front, "/v2/health/ready")).status != 200


@states("model ready: name and ready; the version in the path may be left out")
async def _(front: Front) -> None:
    for path in (MODEL, f"{MODEL}/versions/1", f"{VARIANT}/versions/1"):
        answer = await get(front, f"{path}/ready")
        name = path.removeprefix("/v2/models/").removesuffix("/versions/1")
        assert (answer.status, answer.document) == (200, {"name": name, "ready": True})


@states("server metadata: name, version, extensions")
async def _(front: Front) -> None:
    for path in ("/v2", "/v2/"):
        answer = await get(front, path)
        assert answer.status == 200
        assert {name: type(each) for name, each in answer.document.items()} == {
            "name": str, "version": str, "extensions": list,
        }  # fmt: skip


@states("model metadata: name, versions, platform, inputs and outputs; -1 for sizes that vary")
async def _(front: Front) -> None:
    for path in (MODEL, f"{VARIANT}/versions/1"):
        document = (await get(front, path)).document
        assert document["name"] == path.removeprefix("/v2/models/").removesuffix("/versions/1")
        assert "1" in document["versions"]
        assert isinstance(document["platform"], str)
        for kind in ("inputs", "outputs"):
            for tensor in document[kind]:
                assert tensor.keys() == {"name", "datatype", "shape"}
        assert document["inputs"][0]["shape"] == [-1, -1, -1, 3]


@states("a failed request: an HTTP error status, and a body with the member error")
async def _(front: Front) -> None:
    for path in ("/v2/models/none", f"{MODEL}/versions/7", "/v2/models/none/ready", "/v2/none"):
        answer = await get(front, path)
        assert answer.status >= 400
        assert isinstance(answer.document["error"], str)
    wrong = await infer(front, inputs=[])
    assert (wrong.status, type(wrong.document["error"])) == (400, str)
    wrong = await front.send("GET", f"{MODEL}/infer")
    assert (wrong.status, type(wrong.document["error"])) == (405, str)


@states("infer: 200, model_name, outputs with name, shape, datatype and data; no id without one")
async def _(front: Front) -> None:
    answer = await infer(front)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.document["model_name"] == "pixels"
    assert isinstance(answer.document["model_version"], str)
    assert "id" not in answer.document
    (output,) = answer.document["outputs"]
    assert output == {"name": "scores", "shape": [1, 4], "datatype": "FP32", "data": [0.25] * 4}


@states("infer with a version: it is the one that answers")
async def _(front: Front) -> None:
    answer = await infer(front, f"{VARIANT}/versions/1")
    assert (answer.status, answer.document["model_version"]) == (200, "1")
    assert (await infer(front, f"{VARIANT}/versions/2")).status == 404


@states("an id comes back")
async def _(front: Front) -> None:
    assert (await infer(front, id="42")).document["id"] == "42"


@states("parameters of request, inputs and outputs are objects that may be left out")
async def _(front: Front) -> None:
    outputs = [{"name": "scores", "parameters": {}}]
    inputs = [{**TENSOR, "parameters": {}}]
    answer = await infer(front, parameters={}, inputs=inputs, outputs=outputs)
    assert answer.status == 200
    assert (await infer(front, parameters=[])).status == 400


@states("outputs that are not named: all of them; named ones: those, in their order")
async def _(front: Front) -> None:
    assert [each["name"] for each in (await infer(front)).document["outputs"]] == ["scores"]
    named = await infer(front, outputs=[{"name": "scores"}])
    assert [each["name"] for each in named.document["outputs"]] == ["scores"]
    assert (await infer(front, outputs=[{"name": "none"}])).status == 400


@states("a batched input has the shape and the data of the whole batch")
async def _(front: Front) -> None:
    tensor = {**TENSOR, "shape": [3, 1, 2, 3], "data": [0] * 18}
    answer = await infer(front, inputs=[tensor])
    assert answer.document["outputs"][0]["shape"] == [3, 4]
    assert (await infer(front, inputs=[{**tensor, "data": [0] * 17}])).status == 400


@states("data is flat, row-major, or nested as the shape says")
async def _(front: Front) -> None:
    nested = {**TENSOR, "data": [[[[1, 2, 3], [4, 5, 6]]]]}
    for tensor in ({**TENSOR, "data": [1, 2, 3, 4, 5, 6]}, nested):
        assert (await infer(front, inputs=[tensor])).status == 200
        pixels = front.ran[-1].inputs[0]["image"]
        assert pixels.tolist() == nested["data"]


@states("name, shape, datatype and data of an input are required")
async def _(front: Front) -> None:
    for left_out in TENSOR:
        tensor = {name: each for name, each in TENSOR.items() if name != left_out}
        assert (await infer(front, inputs=[tensor])).status == 400
    assert (await front.send("POST", f"{MODEL}/infer", b"{}")).status == 400


@states("each dimension is an unsigned whole number")
async def _(front: Front) -> None:
    for size in (-1, 1.5, "1", 2**64, True):
        assert (await infer(front, inputs=[{**TENSOR, "shape": [size, 1, 2, 3]}])).status == 400


@states("gRPC: live, ready, model ready and both metadata; errors by status")
async def _(front: Front) -> None:
    live = await call(front, "ServerLive", pb.ServerLiveRequest())
    assert pb.ServerLiveResponse.FromString(live.body).live
    ready = await call(front, "ServerReady", pb.ServerReadyRequest())
    assert pb.ServerReadyResponse.FromString(ready.body).ready
    for version in ("", "1"):
        asked = pb.ModelReadyRequest(name="pixels", version=version)
        model = await call(front, "ModelReady", asked)
        assert pb.ModelReadyResponse.FromString(model.body).ready
    server = await call(front, "ServerMetadata", pb.ServerMetadataRequest())
    told = pb.ServerMetadataResponse.FromString(server.body)
    assert (told.name, bool(told.version), bool(told.extensions)) == ("modelless", True, True)
    found = await call(front, "ModelMetadata", pb.ModelMetadataRequest(name="pixels"))
    model_told = pb.ModelMetadataResponse.FromString(found.body)
    assert (model_told.name, list(model_told.versions)) == ("pixels", ["1"])
    assert list(model_told.inputs[0].shape) == [-1, -1, -1, 3]
    missing = await call(front, "ModelMetadata", pb.ModelMetadataRequest(name="none"))
    assert missing.status == 404


@states("gRPC: infer returns name, version and id, and raw contents in the order of the outputs")
async def _(front: Front) -> None:
    asked = pb.ModelInferRequest(model_name="pixels", id="42", raw_input_contents=[bytes(6)])
    asked.inputs.add(name="image", datatype="UINT8", shape=[1, 1, 2, 3])
    told = pb.ModelInferResponse.FromString((await call(front, "ModelInfer", asked)).body)
    assert (told.model_name, bool(told.model_version), told.id) == ("pixels", True, "42")
    assert [(each.name, each.datatype) for each in told.outputs] == [("scores", "FP32")]
    assert not told.outputs[0].HasField("contents")
    (raw,) = told.raw_output_contents
    assert np.frombuffer(raw, "<f4").tolist() == [0.25] * 4


@states("gRPC: raw contents must match the shape, and exclude typed ones")
async def _(front: Front) -> None:
    asked = pb.ModelInferRequest(model_name="pixels", raw_input_contents=[bytes(5)])
    asked.inputs.add(name="image", datatype="UINT8", shape=[1, 1, 2, 3])
    assert (await call(front, "ModelInfer", asked)).status == 400
    asked.raw_input_contents[:] = [bytes(6)]
    asked.inputs[0].contents.uint_contents[:] = [0] * 6
    assert (await call(front, "ModelInfer", asked)).status == 400
    asked.raw_input_contents[:] = []
    assert (await call(front, "ModelInfer", asked)).status == 200


@states("gRPC: parameters are booleans, whole numbers or texts")
async def _(front: Front) -> None:
    asked = pb.ModelInferRequest(model_name="pixels", raw_input_contents=[bytes(6)])
    asked.inputs.add(name="image", datatype="UINT8", shape=[1, 1, 2, 3])
    asked.parameters["priority"].int64_param = 3
    asked.parameters["explain"].bool_param = True
    asked.parameters["when_late"].string_param = "serve"
    told = pb.ModelInferResponse.FromString((await call(front, "ModelInfer", asked)).body)
    assert told.parameters["explanation"].string_param


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statement(knowledge: Knowledge, tmp_path: Path, statement: str) -> None:
    async def inside() -> None:
        async with serving(knowledge, tmp_path) as front:
            await STATEMENTS[statement](front)

    asyncio.run(inside())


@pytest.mark.parametrize(("datatype", "size_bytes"), SIZES.items())
def test_the_size_of_each_datatype_and_its_forms(datatype: str, size_bytes: int) -> None:
    """In JSON, as bytes after it, and in gRPC raw and in its own field; FP16 only raw there."""
    assert item_bytes(datatype) == size_bytes
    values = [True, False] if datatype == "BOOL" else [1, 2]
    tensor = {"name": "x", "shape": [2], "datatype": datatype}
    read = parse_infer(json.dumps({"inputs": [{**tensor, "data": values}]}).encode())
    array = read.tensors["x"]
    assert (array.tolist(), array.dtype.itemsize) == (values, size_bytes)
    raw = array.tobytes()
    binary = {**tensor, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [binary]}).encode()
    assert parse_infer(head + raw, len(head)).tensors["x"].tolist() == values

    def over_grpc(message: Any) -> Any:
        parsed = InferMessage(memoryview(message.SerializeToString()))
        return parsed.parse(DEFAULT_LIMITS, {}, {}, None, lambda _: None).tensors["x"].tolist()

    asked = pb.ModelInferRequest(model_name="m", raw_input_contents=[raw])
    asked.inputs.add(name="x", datatype=datatype, shape=[2])
    assert over_grpc(asked) == values
    asked.raw_input_contents[:] = []
    if datatype in CONTENTS:
        getattr(asked.inputs[0].contents, CONTENTS[datatype])[:] = values
        assert over_grpc(asked) == values
        getattr(asked.inputs[0].contents, CONTENTS[datatype]).append(1)
    with pytest.raises(ModellessError):  # the contents must fit the shape
        over_grpc(asked)


def test_bytes_are_of_any_length() -> None:
    texts = ["", "a", "long " * 1000]
    tensor = {"name": "x", "shape": [3], "datatype": BYTES}
    read = parse_infer(json.dumps({"inputs": [{**tensor, "data": texts}]}).encode())
    assert [bytes(each).decode() for each in read.tensors["x"]] == texts
    asked = pb.ModelInferRequest(model_name="m")
    asked.inputs.add(name="x", datatype=BYTES, shape=[3])
    asked.inputs[0].contents.bytes_contents[:] = [text.encode() for text in texts]
    parsed = InferMessage(memoryview(asked.SerializeToString()))
    found = parsed.parse(DEFAULT_LIMITS, {}, {}, None, lambda _: None).tensors["x"]
    assert [bytes(each).decode() for each in found] == texts
