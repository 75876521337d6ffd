"""What the server says of itself and its models."""

from __future__ import annotations

import json
from typing import Any

import modelless
from modelless.controller.api.v2_metadata import (
    EXTENSIONS,
    model_config,
    model_metadata,
    model_ready,
    repository_index,
    server_live,
    server_metadata,
    server_ready,
)
from modelless.controller.api.v2_reply import Reply
from modelless.variants.vocabulary import CtcDecoding, Task, TensorSpec

TASK = Task(
    "imagenet",
    (TensorSpec("image", "UINT8", (-1, -1, -1, 3)), TensorSpec("note", "BYTES", (-1, 1))),
    (TensorSpec("probabilities", "FP32", (-1, 1000)),),
    "top-1",
)


def said(reply: Reply) -> Any:
    assert reply.status == 200
    assert (b"content-length", b"%d" % len(reply.body)) in reply.headers
    return json.loads(reply.body)


def test_server() -> None:
    assert said(server_metadata()) == {
        "name": "modelless",
        "version": modelless.__version__,
        "extensions": list(EXTENSIONS),
    }
    assert "binary_tensor_data" in EXTENSIONS
    assert said(server_live()) == {"live": True}
    assert said(server_ready(True)) == {"live": True, "ready": True}
    assert server_ready(False).status == 503


def test_model() -> None:
    assert said(model_metadata("imagenet/efficientnet-lite0", TASK, ["1", "2"])) == {
        "name": "imagenet/efficientnet-lite0",
        "versions": ["1", "2"],
        "platform": "modelless",
        "inputs": [
            {"name": "image", "datatype": "UINT8", "shape": [-1, -1, -1, 3]},
            {"name": "note", "datatype": "BYTES", "shape": [-1, 1]},
        ],
        "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 1000]}],
    }
    text = Task(
        "text",
        TASK.inputs,
        (TensorSpec("steps", "FP32", (-1, -1, 3)),),
        "cer",
        labels=("a", "", " "),
        decoding=CtcDecoding("steps", 1),
    )
    assert said(model_metadata("text", text, []))["parameters"] == {
        "decoding": {"kind": "ctc", "output": "steps", "blank": 1, "labels": ["a", "", " "]}
    }
    assert said(model_ready("imagenet", True)) == {"name": "imagenet", "ready": True}
    reply = model_ready("imagenet", False)
    assert (reply.status, json.loads(reply.body)["ready"]) == (503, False)


def test_config_leaves_out_the_first_axis() -> None:
    config = said(model_config("imagenet", TASK, 32))
    assert config["max_batch_size"] == 32
    assert config["input"] == [
        {"name": "image", "data_type": "TYPE_UINT8", "dims": [-1, -1, 3]},
        {"name": "note", "data_type": "TYPE_STRING", "dims": [1]},
    ]
    assert config["output"] == [{"name": "probabilities", "data_type": "TYPE_FP32", "dims": [1000]}]


def test_index() -> None:
    tasks = [("imagenet", True, ""), ("mnist", False, "not profiled")]
    assert said(repository_index(tasks)) == [
        {"name": "imagenet", "version": "", "state": "READY"},
        {"name": "mnist", "version": "", "state": "UNAVAILABLE", "reason": "not profiled"},
    ]
