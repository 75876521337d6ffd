"""Triton's gRPC clients at a real cluster, on the port on which it speaks HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from modelless.variants.zoo.fashion_mnist import FashionMnist

from .clients import wait_until
from .running import Running

TASK = "fashion-mnist"
LIMITS = {"latency_ms": 5000, "min_accuracy": 90.0}


def image_input(images: np.ndarray) -> triton.InferInput:
    tensor = triton.InferInput("image", list(images.shape), "UINT8")
    return tensor.set_data_from_numpy(images)


def test_an_unmodified_grpc_client_gets_right_answers(shared: Running) -> None:
    images, labels = FashionMnist().test_split()
    with triton.InferenceServerClient(shared.address) as client:
        assert client.is_server_live()
        assert client.is_model_ready(TASK)
        assert client.get_model_metadata(TASK).inputs[0].name == "image"
        right = 0
        for start in range(0, 160, 8):
            part = images[start : start + 8]
            result = client.infer(TASK, [image_input(part)], parameters=LIMITS)
            scores = result.as_numpy("probabilities")
            right += int((scores.argmax(1) == labels[start : start + 8]).sum())
        assert right / 160 > 0.85  # as in test_gateway
        assert result.get_response().parameters["accuracy"].double_param >= 90.0
        with pytest.raises(InferenceServerException, match="99") as error:
            client.infer(TASK, [image_input(images[:1])], parameters={"min_accuracy": 99.9})
        assert "FAILED_PRECONDITION" in str(error.value.status())

    def is_counted() -> bool:
        with urlopen(f"http://{shared.address}/metrics") as reply:
            return 'modelless_http_replies_total{code="422"}' in reply.read().decode()

    wait_until(is_counted, 10.0)  # gateways report once a second


def test_calls_and_a_stream_share_the_gateways(shared: Running) -> None:
    images, labels = FashionMnist().test_split()

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(50):
            yield {
                "model_name": TASK,
                "inputs": [image_input(images[number : number + 1])],
                "request_id": str(number),
                "parameters": LIMITS,
            }

    async def ask() -> tuple[list[int], int]:
        async with triton_aio.InferenceServerClient(shared.address) as client:
            calls = [
                asyncio.create_task(client.infer(TASK, [image_input(images[:1])]))
                for _ in range(16)
            ]
            found = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                assert result.get_response().id == str(len(found))
                found.append(int(result.as_numpy("probabilities").argmax()))
                if len(found) == 50:
                    break
            return found, len(await asyncio.gather(*calls))

    found, calls = asyncio.run(ask())
    assert (np.array(found) == labels[:50]).mean() > 0.8
    assert calls == 16
