"""Triton's gRPC clients at a real HAProxy before a real gateway's server."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from modelless.controller.api.grpc_calls import STATUS_CODES
from modelless.controller.api.keys import KeyRing, make_key
from modelless.controller.api.request_limits import Limits
from modelless.controller.live.knowledge import Knowledge
from tests.unit.cli.tiny import TASK

from .front import until
from .proxied import Proxied, run


def image(batch: int = 1, side: int = 2, typed: bool = False, fp32: bool = False) -> Any:
    """The input of a query."""
    pixels = np.zeros((batch, side, side, 3), np.float32 if fp32 else np.uint8)
    found = triton.InferInput("image", list(pixels.shape), "FP32" if fp32 else "UINT8")
    return found if typed else found.set_data_from_numpy(pixels)


def failure(error: pytest.ExceptionInfo[InferenceServerException]) -> tuple[str, str]:
    """The code and the message of a call that failed."""
    return str(error.value.status()).removeprefix("StatusCode."), str(error.value.message())


def in_thread(
    test: Callable[[Proxied, triton.InferenceServerClient], None],
    knowledge: Knowledge,
    folder: Path,
    **rules: Any,
) -> None:
    """Run a test with Triton's blocking client beside the server's event loop."""

    async def go(proxy: Proxied) -> None:
        def call() -> None:
            client = triton.InferenceServerClient(f"127.0.0.1:{proxy.clients}")
            with client:
                test(proxy, client)

        await asyncio.to_thread(call)

    run(go, knowledge, folder, **rules)


def test_every_method_answers(knowledge: Knowledge, tmp_path: Path) -> None:
    def test(proxy: Proxied, client: triton.InferenceServerClient) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(TASK.name)
        assert client.is_model_ready(f"{TASK.name}/mean/small", "1")
        assert client.get_server_metadata().name == "modelless"
        metadata = client.get_model_metadata(TASK.name, as_json=True)
        assert [each["name"] for each in metadata["inputs"]] == ["image"]
        assert client.get_model_config(TASK.name).config.max_batch_size == 8
        proxy.front.statistics = {
            "queries": {TASK.name: [5, 2, 0.25], f"{TASK.name}/mean": [1, 0, 0.125]},
            "batches": {f"{TASK.name}/mean/small@1": [8, 3, 0.5]},
        }
        for name, served, ns in ((TASK.name, 6, 375_000_000), (f"{TASK.name}/mean/small", 0, 0)):
            (row,) = client.get_inference_statistics(name).model_stats
            told = row.inference_stats
            assert (row.name, row.inference_count, row.execution_count) == (name, 8, 3)
            assert (told.success.count, told.success.ns) == (served, ns)
            assert (told.fail.count, told.compute_infer.ns) == (2 * (served > 0), 500_000_000)
        (row,) = client.get_inference_statistics().model_stats
        assert (row.name, row.version) == (TASK.name, "1")
        index = client.get_model_repository_index(as_json=True)["models"]
        assert [(each["name"], each["state"]) for each in index] == [(TASK.name, "READY")]
        for ask, code in (
            (lambda: client.get_model_metadata("none"), "NOT_FOUND"),
            (lambda: client.is_model_ready(TASK.name, "9"), "NOT_FOUND"),
            (lambda: client.load_model("none"), "NOT_FOUND"),
            (client.get_cuda_shared_memory_status, "UNIMPLEMENTED"),
        ):
            with pytest.raises(InferenceServerException) as error:
                ask()
            assert failure(error)[0] == code
        assert proxy.front.frontend.replies[404] == 4

    in_thread(test, knowledge, tmp_path)


def test_load_and_unload_pin_and_unpin_for_operators(knowledge: Knowledge, tmp_path: Path) -> None:
    def test(proxy: Proxied, client: triton.InferenceServerClient) -> None:
        with pytest.raises(InferenceServerException) as error:
            client.load_model(TASK.name)  # on the clients' port
        assert failure(error)[0] == "NOT_FOUND"
        with triton_http.InferenceServerClient(f"127.0.0.1:{proxy.operators}") as http:
            http.load_model(TASK.name)
        with triton.InferenceServerClient(f"127.0.0.1:{proxy.operators}") as operator:
            operator.unload_model(f"{TASK.name}/mean")
        by = "operators' port"
        assert proxy.front.pins == [(TASK.name, True, by), (f"{TASK.name}/mean", False, by)]

    in_thread(test, knowledge, tmp_path)


def test_queries_of_all_sizes_are_answered(knowledge: Knowledge, tmp_path: Path) -> None:
    def test(proxy: Proxied, client: triton.InferenceServerClient) -> None:
        for batch in range(1, 9):
            for fp32 in (False, True):
                result = client.infer(TASK.name, [image(batch, fp32=fp32)], request_id=f"q{batch}")
                np.testing.assert_array_equal(result.as_numpy("scores"), np.full((batch, 4), 0.25))
                assert result.get_response().id == f"q{batch}"
        parameters = result.get_response().parameters
        assert parameters["variant"].string_param.startswith(f"{TASK.name}/mean/")
        assert parameters["accuracy"].double_param > 0
        assert parameters["receipt_id"].string_param.startswith("g-")

        result = client.infer(TASK.name, [image(1)], parameters={"explain": True})
        told = json.loads(result.get_response().parameters["explanation"].string_param)
        assert told["choice"]["variant"].startswith(f"{TASK.name}/mean/")

        large = client.infer(TASK.name, [image(1, 1200)])  # 4 MB
        assert large.as_numpy("scores").shape == (1, 4)
        for algorithm in ("gzip", "deflate"):
            for side in (2, 1200):
                packed = client.infer(TASK.name, [image(1, side)], compression_algorithm=algorithm)
                assert packed.as_numpy("scores").shape == (1, 4)
        classes = client.infer(
            TASK.name, [image()], outputs=[triton.InferRequestedOutput("scores", class_count=2)]
        )
        assert classes.as_numpy("scores").tolist() == [[b"0.250000:0:black", b"0.250000:1:red"]]
        assert proxy.front.frontend.budget.used_bytes == 0

        request = service_pb2.ModelInferRequest(model_name=TASK.name)
        part = request.inputs.add(name="image", datatype="UINT8", shape=[1, 40, 40, 3])
        part.contents.uint_contents.extend([200] * 4800)
        request.parameters["binary_data_output"].bool_param = False
        with grpc.insecure_channel(f"127.0.0.1:{proxy.clients}") as channel:
            reply = GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert list(reply.outputs[0].contents.fp32_contents) == [0.25] * 4
        np.testing.assert_array_equal(proxy.front.ran[-1].inputs[0]["image"], 200)

    in_thread(test, knowledge, tmp_path)


def test_limits_and_deadlines_hold(knowledge: Knowledge, tmp_path: Path) -> None:
    def test(proxy: Proxied, client: triton.InferenceServerClient) -> None:
        best = client.infer(TASK.name, [image()], parameters={"min_accuracy": 79.0})
        assert best.get_response().parameters["accuracy"].double_param == 80.0
        by_metadata = client.infer(TASK.name, [image()], headers={"x-modelless-min-accuracy": "79"})
        assert by_metadata.get_response().parameters["accuracy"].double_param == 80.0
        for code, status, text, asked in (
            ("FAILED_PRECONDITION", 422, "99", {"parameters": {"min_accuracy": 99.0}}),
            ("FAILED_PRECONDITION", 422, "8", {"inputs": [image(9)]}),
            ("INVALID_ARGUMENT", 400, "latency_ms", {"parameters": {"latncy_ms": 5}}),
            ("INVALID_ARGUMENT", 400, "inputs[0].shape", {"inputs": [image(1, typed=True)]}),
            ("NOT_FOUND", 404, "task", {"model_name": "none"}),
            ("INVALID_ARGUMENT", 400, "", {"model_name": ""}),
        ):
            before = proxy.front.frontend.replies[status]
            with pytest.raises(InferenceServerException) as error:
                client.infer(**{"model_name": TASK.name, "inputs": [image()], **asked})
            assert failure(error)[0] == code
            assert text.partition("[")[0] in failure(error)[1]
            assert proxy.front.frontend.replies[status] == before + 1

        proxy.front.answers_at_once = False
        began_s = time.monotonic()
        with pytest.raises(InferenceServerException) as error:
            client.infer(TASK.name, [image()], client_timeout=0.3)
        assert failure(error)[0] == "DEADLINE_EXCEEDED"
        assert time.monotonic() - began_s < 5.0
        while proxy.front.has_open:  # it is cancelled
            assert time.monotonic() - began_s < 30.0

    in_thread(test, knowledge, tmp_path)


def test_an_error_has_its_code_field_and_ids_as_metadata(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    def test(proxy: Proxied, client: triton.InferenceServerClient) -> None:
        del client
        request = service_pb2.ModelInferRequest(model_name=TASK.name)
        with grpc.insecure_channel(f"127.0.0.1:{proxy.clients}") as channel:
            stub = GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as error:
                stub.ModelInfer(request, metadata=[("x-request-id", "mine")])
            told = dict(error.value.trailing_metadata())
            assert error.value.details().startswith("inputs: got [")
            assert told["modelless-code"] == "invalid-input"
            assert told["modelless-field"] == "inputs"
            assert told["x-request-id"] == "mine"
            request.inputs.add(name="image", datatype="UINT8", shape=[1, 2, 2, 3])
            request.raw_input_contents.append(bytes(12))
            request.parameters["min_accuracy"].double_param = 99.5
            with pytest.raises(grpc.RpcError) as error:
                stub.ModelInfer(request)
            told = dict(error.value.trailing_metadata())
            assert told["modelless-code"] == "infeasible"
            assert told["modelless-receipt-id"].startswith("g-")
            with pytest.raises(grpc.RpcError) as error:
                stub.ModelInfer(request, metadata=[("x-modelless-lat", "1")])
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    in_thread(test, knowledge, tmp_path)


def test_keys_are_needed_in_metadata_once_there_is_one(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    def test(proxy: Proxied, client: triton.InferenceServerClient) -> None:
        key, secret = make_key("shop", ("infer",), 3, 0.0, None)
        blind, blind_secret = make_key("shop", ("feedback",), 3, 0.0, None)
        proxy.front.ring = KeyRing([key, blind])

        def ask(secret: str, **more: Any) -> str:
            headers = {"authorization": f"Bearer {secret}"} if secret else {}
            try:
                client.infer(TASK.name, [image()], headers=headers, **more)
            except InferenceServerException as error:
                return str(error.status()).removeprefix("StatusCode.")
            return "OK"

        assert client.is_server_live()
        assert ask("") == ask("mk_wrong") == "UNAUTHENTICATED"
        assert ask(blind_secret) == "PERMISSION_DENIED"
        assert ask(secret) == ask(secret, parameters={"tenant": "shop"}) == "OK"
        assert ask(secret, parameters={"tenant": "other"}) == "PERMISSION_DENIED"
        with pytest.raises(InferenceServerException, match="got no key"):
            client.get_model_metadata(TASK.name)

        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        with suppress(InferenceServerException):  # it may have been refused before
            client.async_stream_infer(TASK.name, [image()])
        result, error = answers.get(timeout=30)
        assert result is None
        assert "UNAUTHENTICATED" in str(error.status())
        with suppress(InferenceServerException):
            client.stop_stream()

        proxy.front.ring = KeyRing([key.revoked(1.0)])
        assert ask(secret) == "UNAUTHENTICATED"
        assert proxy.front.frontend.replies[401] == 5

    in_thread(test, knowledge, tmp_path)


def test_a_stream_answers_in_order_and_says_what_is_wrong(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    def test(proxy: Proxied, client: triton.InferenceServerClient) -> None:
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(100):
            name = TASK.name if number % 10 else "none"
            client.async_stream_infer(name, [image(1, 40)], request_id=str(number))
        for number in range(100):
            result, error = answers.get(timeout=30)
            if number % 10:
                assert result.get_response().id == str(number)
                assert result.get_response().parameters["triton_final_response"].bool_param
            else:
                assert "none" in error.message()
        client.async_stream_infer(TASK.name, [image(1, 1200)])  # in many pieces
        assert answers.get(timeout=30)[1] is None
        client.stop_stream()
        assert proxy.front.frontend.replies == {200: 91, 404: 10}
        assert proxy.front.frontend.budget.used_bytes == 0
        assert client.is_server_live()

    in_thread(test, knowledge, tmp_path)


def test_what_a_stream_leaves_open_is_cancelled(knowledge: Knowledge, tmp_path: Path) -> None:
    async def ask(proxy: Proxied, count: int, most_open: int) -> None:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            for _ in range(count):
                yield {"model_name": TASK.name, "inputs": [image(1, 100)]}
            await asyncio.Event().wait()

        async with triton_aio.InferenceServerClient(f"127.0.0.1:{proxy.clients}") as client:
            answers = client.stream_infer(requests())

            async def read() -> None:
                async for _ in answers:
                    pass

            reading = asyncio.create_task(read())
            await until(lambda: len(proxy.front.frontend._open) == most_open)
            answers.cancel()
            if count > most_open:  # nothing is read: that the client is gone shows at an answer
                await until(lambda: reading.done())
                proxy.front.answers_at_once = True
                proxy.front.finish(proxy.front.ran[-1])
            await until(lambda: not proxy.front.has_open)
            with suppress(asyncio.CancelledError, InferenceServerException):
                await reading
            await until(lambda: proxy.front.frontend.budget.used_bytes == 0)

    async def test(proxy: Proxied) -> None:
        proxy.front.answers_at_once = False
        await ask(proxy, 8, 8)
        await ask(proxy, 40, 16)

    run(test, knowledge, tmp_path)


def test_many_calls_at_once_and_their_cancellation(knowledge: Knowledge, tmp_path: Path) -> None:
    async def test(proxy: Proxied) -> None:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{proxy.clients}") as client:
            results = await asyncio.gather(
                *(client.infer(TASK.name, [image()], request_id=str(n)) for n in range(64))
            )
            assert [each.get_response().id for each in results] == [str(n) for n in range(64)]
            proxy.front.answers_at_once = False
            call = asyncio.create_task(client.infer(TASK.name, [image()]))
            await until(lambda: proxy.front.has_open)
            call.cancel()
            await until(lambda: not proxy.front.has_open)
            with suppress(asyncio.CancelledError):
                await call

    run(test, knowledge, tmp_path)


def test_too_large_and_malformed_bodies_are_refused(knowledge: Knowledge, tmp_path: Path) -> None:
    def test(proxy: Proxied, client: triton.InferenceServerClient) -> None:
        with pytest.raises(InferenceServerException) as error:
            client.infer(TASK.name, [image(1, 1200)])
        assert failure(error) == (
            "RESOURCE_EXHAUSTED",
            "body: got 4320042 bytes; allowed: up to 4194304. Send fewer items a request.",
        )
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error))
        client.async_stream_infer(TASK.name, [image(1, 1200)])
        assert "RESOURCE_EXHAUSTED" in str(answers.get(timeout=30).status())
        end_s = time.monotonic() + 10.0  # the call ends after its last message
        while proxy.front.frontend.budget.used_bytes and time.monotonic() < end_s:
            os.sched_yield()
        assert proxy.front.frontend.budget.used_bytes == 0
        assert proxy.front.frontend.replies[413] == 2
        with grpc.insecure_channel(f"127.0.0.1:{proxy.clients}") as channel:
            for method in ("ModelInfer", "ModelReady", "ModelStreamInfer"):
                path = f"/inference.GRPCInferenceService/{method}"
                if method == "ModelStreamInfer":
                    (reply,) = channel.stream_stream(path)(iter([b"\x0a\xff"]))
                    told = service_pb2.ModelStreamInferResponse.FromString(reply)
                    assert "malformed protobuf" in told.error_message
                    continue
                with pytest.raises(grpc.RpcError, match="malformed protobuf"):
                    channel.unary_unary(path)(b"\x0a\xff")

    in_thread(test, knowledge, tmp_path, limits=Limits(max_body_bytes=4 << 20))


def test_requests_are_limited_by_address(knowledge: Knowledge, tmp_path: Path) -> None:
    async def test(proxy: Proxied) -> None:
        proxy.front.answers_at_once = False
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{proxy.clients}") as client:
            open_calls = [
                asyncio.create_task(client.infer(TASK.name, [image()])) for _ in range(10)
            ]
            await until(lambda: len(proxy.front.frontend._open) == 10)
            with pytest.raises(InferenceServerException) as error:
                await client.infer(TASK.name, [image()])
            assert failure(error) == (
                "RESOURCE_EXHAUSTED",
                "too many requests from this address; try again in a few seconds",
            )
            await until(lambda: proxy.counts.read().get("denied") == 1)
            for call in open_calls:
                call.cancel()
            await until(lambda: not proxy.front.has_open)

    run(test, knowledge, tmp_path, connections=10)


STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def test_queries_of_a_stream_are_paced(knowledge: Knowledge, tmp_path: Path) -> None:
    async def test(proxy: Proxied) -> None:
        """Empty messages cost the server more than the client."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{proxy.clients}") as channel:
            began_s = time.monotonic()
            stream = channel.stream_stream(STREAM)(iter([b""] * 200))
            async with asyncio.timeout(30):
                assert len([answer async for answer in stream]) == 200
            assert time.monotonic() - began_s > 0.9 * 200 / 1000
        assert proxy.front.frontend.replies == {400: 200}

    run(test, knowledge, tmp_path)


def test_streams_of_an_address_are_few(knowledge: Knowledge, tmp_path: Path) -> None:
    async def test(proxy: Proxied) -> None:
        waits = asyncio.Event()

        async def requests() -> AsyncIterator[bytes]:
            yield b""
            await waits.wait()

        async def no_request() -> AsyncIterator[bytes]:
            await waits.wait()  # a message sent while the call is denied is an error of its own
            yield b""

        async with grpc.aio.insecure_channel(f"127.0.0.1:{proxy.clients}") as channel:
            first = channel.stream_stream(STREAM)(requests())
            assert await first.read()
            with pytest.raises(grpc.aio.AioRpcError, match="too many requests"):
                async for _ in channel.stream_stream(STREAM)(no_request()):
                    pass
            waits.set()
            assert await first.read() is grpc.aio.EOF
        assert proxy.front.frontend.replies == {400: 1}
        await until(lambda: proxy.counts.read().get("denied") == 1)

    run(test, knowledge, tmp_path, connections=128)


def test_calls_are_encrypted_where_there_is_a_certificate(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=h", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "-", "-out", "-"],
        capture_output=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    certificate = tmp_path / "own.pem"
    certificate.write_bytes(made.stdout)

    def test(proxy: Proxied, client: triton.InferenceServerClient) -> None:
        with pytest.raises(InferenceServerException):
            client.is_server_live(client_timeout=5.0)
        trusted = triton.InferenceServerClient(
            f"127.0.0.1:{proxy.clients}", ssl=True, root_certificates=str(certificate)
        )
        with trusted:
            assert trusted.infer(TASK.name, [image()]).as_numpy("scores").shape == (1, 4)

    in_thread(test, knowledge, tmp_path, certificate=str(certificate))


def test_every_http_status_has_a_code() -> None:
    codes = {code.value[0] for code in grpc.StatusCode}
    assert set(STATUS_CODES.values()) <= codes
