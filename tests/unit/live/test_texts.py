"""Tasks of texts: clients of every kind before a real HAProxy, gateway and ONNX Runtime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from modelless.controller.cli.app import app
from modelless.controller.config import Settings
from modelless.controller.live.front.interfaces import RunBatch
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from modelless.controller.live.worker.device_threads import _run_batch
from modelless.controller.usecases.client import Client
from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry
from modelless.variants.runtimes import LoadedVariant, find_runtime
from modelless.variants.vocabulary import (
    Accuracy,
    Engine,
    Model,
    Precision,
    Provenance,
    Task,
    TensorSpec,
)
from tests.unit.cli.tiny import measurement

from .proxied import Proxied, run

TASK = Task(
    name="shouts",
    inputs=(TensorSpec("text", "BYTES", (-1,)),),
    outputs=(TensorSpec("shout", "BYTES", (-1,)),),
    accuracy_metric="exact-match",
)
Served = tuple[Knowledge, LoadedVariant]
TEXTS = ["", "a", "déjà vu", "two\nlines", "a\0b", "字" * 3000, *["more"] * 2]
SHOUTS = [f"{text}!".encode() for text in TEXTS]


def shouting() -> bytes:
    """A graph that adds an exclamation mark to each text."""
    text, shout = (
        helper.make_tensor_value_info(name, TensorProto.STRING, ["N"]) for name in ("text", "shout")
    )
    mark = numpy_helper.from_array(np.array(["!"], np.object_), "mark")
    node = helper.make_node("StringConcat", ["text", "mark"], ["shout"])
    graph = helper.make_graph([node], "shouting", [text], [shout], [mark])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """What a gateway knows of the task, and its only variant, loaded."""
    home = tmp_path_factory.mktemp("home")
    accuracy = Accuracy(90.0, "exact-match", Provenance.PUBLISHED, "a page")
    with closing(open_registry(home)) as registry:
        variant = registry.register_variant(
            task=TASK,
            model=Model(TASK.name, "adder", "tiny"),
            name="fp32",
            precision=Precision.FP32,
            engine=Engine.ONNXRUNTIME_CPU,
            accuracy=accuracy,
            artifact=shouting(),
        )
        for batch in (1, 8):
            Records(registry.store).add(measurement(variant.id, batch, 1.0))
        artifact = registry.artifacts.fetch(variant.artifact_sha256)
        loaded = find_runtime(variant.engine).load(variant, artifact, threads=1)
    return read_knowledge(home, Settings()), loaded


def with_server(test: Callable[[Proxied], None], served: Served, folder: Path) -> None:
    """Run a test in a thread beside a server whose device runs the real session."""
    knowledge, loaded = served

    async def go(proxy: Proxied) -> None:
        front = proxy.front

        def finish(batch: RunBatch) -> None:
            outputs = _run_batch(loaded, batch.inputs)
            front.frontend.on_batch_done(batch.batch_id, 0.001, outputs, lost=False)

        front.finish = finish  # type: ignore[method-assign]
        await asyncio.to_thread(test, proxy)

    run(go, knowledge, folder)


def test_clients_get_texts_for_texts(served: Served, tmp_path: Path) -> None:
    def test(proxy: Proxied) -> None:
        address = f"127.0.0.1:{proxy.clients}"
        array = np.array(TEXTS, np.object_)
        with triton_http.InferenceServerClient(address) as http:
            for asked_binary in (True, False):
                for sent_binary in (True, False):
                    given = triton_http.InferInput("text", [len(TEXTS)], "BYTES")
                    given.set_data_from_numpy(array, binary_data=sent_binary)
                    wanted = triton_http.InferRequestedOutput("shout", binary_data=asked_binary)
                    for packed in (None, "gzip"):
                        reply = http.infer(
                            TASK.name,
                            [given],
                            outputs=[wanted],
                            request_compression_algorithm=packed,
                        )
                        found = reply.as_numpy("shout").tolist()
                        assert [as_bytes(each) for each in found] == SHOUTS
            assert http.get_model_metadata(TASK.name)["inputs"][0]["datatype"] == "BYTES"
        with triton_grpc.InferenceServerClient(address) as client:
            given = triton_grpc.InferInput("text", [len(TEXTS)], "BYTES")
            given.set_data_from_numpy(array)
            assert client.infer(TASK.name, [given]).as_numpy("shout").tolist() == SHOUTS
        request = service_pb2.ModelInferRequest(model_name=TASK.name)
        part = request.inputs.add(name="text", datatype="BYTES", shape=[len(TEXTS)])
        part.contents.bytes_contents.extend(text.encode() for text in TEXTS)
        request.parameters["binary_data_output"].bool_param = False
        with grpc.insecure_channel(address) as channel:
            typed = GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert list(typed.outputs[0].contents.bytes_contents) == SHOUTS
        with Client(f"http://{address}") as own:
            answer = own.infer(TASK.name, {"text": np.array(TEXTS)[:4]}).raise_for_status()
            assert answer.tensors["shout"].tolist() == SHOUTS[:4]
        assert proxy.front.frontend.budget.used_bytes == 0

    with_server(test, served, tmp_path)


def as_bytes(value: object) -> bytes:
    """Triton's client gives bytes of binary outputs, and text of JSON."""
    return value if isinstance(value, bytes) else str(value).encode()


def test_what_is_no_text_is_refused(served: Served, tmp_path: Path) -> None:
    def test(proxy: Proxied) -> None:
        address = f"127.0.0.1:{proxy.clients}"
        wrong = np.array([b"ok", b"\xff\xfe"], np.object_)
        given = triton_http.InferInput("text", [2], "BYTES").set_data_from_numpy(wrong)
        with triton_http.InferenceServerClient(address) as http:
            with pytest.raises(
                InferenceServerException, match=r"inputs\.text\[1\]: got .*xff"
            ) as error:
                http.infer(TASK.name, [given])
            assert error.value.status() == "400"
        asked = triton_grpc.InferInput("text", [2], "BYTES").set_data_from_numpy(wrong)
        says = pytest.raises(InferenceServerException, match="a text in UTF-8")
        with triton_grpc.InferenceServerClient(address) as client, says:
            client.infer(TASK.name, [asked])
        with Client(f"http://{address}") as own:
            reply = own.infer(TASK.name, {"text": np.zeros(1, np.float32)})
            assert (reply.status, "got 'FP32'; allowed: BYTES" in reply.error) == (400, True)

    with_server(test, served, tmp_path)


def test_infer_takes_a_file_of_texts(served: Served, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\n\nzwölf\n")

    def test(proxy: Proxied) -> None:
        words = ["infer", str(tmp_path / "lines.txt"), "--task", TASK.name, "--json"]
        ran = CliRunner().invoke(app, [*words, "--url", f"http://127.0.0.1:{proxy.clients}"])
        assert ran.exit_code == 0, ran.stderr
        assert json.loads(ran.stdout)["texts"] == ["one!", "zwölf!"]

    with_server(test, served, tmp_path)
