"""Two gateways with devices of their own, spoken to by real clients."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from modelless.variants.zoo.fashion_mnist import FashionMnist

from .running import Running, modelless


@pytest.fixture
def running(shared: Running) -> Running:
    return shared


@pytest.fixture
def client(running: Running) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(running.address) as client:
        yield client


def image_input(images: np.ndarray, datatype: str = "UINT8") -> triton.InferInput:
    tensor = triton.InferInput("image", list(images.shape), datatype)
    tensor.set_data_from_numpy(images)
    return tensor


@pytest.mark.parametrize("datatype", ["UINT8", "FP32"])
@pytest.mark.parametrize("batch", [1, 8])
def test_an_unmodified_client_gets_right_answers(
    client: triton.InferenceServerClient, datatype: str, batch: int
) -> None:
    images, labels = FashionMnist().test_split()
    right = 0
    for start in range(0, 160, batch):
        part = images[start : start + batch]
        part = part.astype(np.float32) if datatype == "FP32" else part
        parameters = {"latency_ms": 2000.0, "min_accuracy": 90.0}
        result = client.infer("fashion-mnist", [image_input(part, datatype)], parameters=parameters)
        scores = result.as_numpy("probabilities")
        assert scores.shape == (batch, 10)
        assert scores.dtype == np.float32
        right += int((scores.argmax(1) == labels[start : start + batch]).sum())
    assert right / 160 > 0.85  # the variants measure 90 % and more; 160 images leave 5 % of doubt


def test_a_photo_is_classified_within_limits(running: Running, tmp_path: Path) -> None:
    images, labels = FashionMnist().test_split()
    photo = tmp_path / "photo.npy"
    np.save(photo, images[0])
    limits = ("--latency-ms", "2000", "--min-accuracy", "90")
    command = ("infer", str(photo), "--task", "fashion-mnist", *limits, "--json")
    done = modelless(running.home, *command)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["top"][0][0]["index"] == labels[0]
    assert told["served_by"]["accuracy"] >= 90.0


def test_the_reply_says_what_served_it(client: triton.InferenceServerClient) -> None:
    images, _ = FashionMnist().test_split()
    result = client.infer(
        "fashion-mnist", [image_input(images[:1])], parameters={"min_accuracy": 92.0}
    )
    said = result.get_response()["parameters"]
    assert said["variant"].startswith("fashion-mnist/")
    assert said["accuracy"] >= 92.0
    assert said["accuracy_provenance"] == "measured"
    assert said["device"] == "cpu-1"
    assert said["observed_latency_ms"] > 0.0
    assert said["predicted_latency_ms"] > 0.0
    assert said["cost_usd"] > 0.0
    assert said["receipt_id"]


def test_a_name_narrows_the_choice(client: triton.InferenceServerClient) -> None:
    images, _ = FashionMnist().test_split()
    for name in ("fashion-mnist/cnn-xs", "fashion-mnist/cnn-xs/int8-28"):
        result = client.infer(name, [image_input(images[:1])])
        assert result.get_response()["parameters"]["variant"].startswith(name)
    result = client.infer("fashion-mnist/cnn-xs/int8-28", [image_input(images[:1])], "1")
    assert result.get_response()["parameters"]["variant"].endswith("@1")


@pytest.mark.parametrize(
    ("name", "parameters", "status", "says"),
    [
        ("fashion-mnst", {}, 404, "Did you mean fashion-mnist?"),
        ("fashion-mnist/cnn-zz", {}, 404, "cnn-xl"),
        ("fashion-mnist/cnn-xs/fp64", {}, 404, "fp32-28"),
        ("fashion-mnist", {"latency_ms": -1.0}, 400, "latency_ms"),
        ("fashion-mnist", {"min_accuracy": 101.0}, 400, "min_accuracy"),
        ("fashion-mnist", {"latencyms": 5.0}, 400, "latency_ms"),
        ("fashion-mnist", {"min_accuracy": 99.9}, 422, "nearest feasible"),
        ("fashion-mnist", {"latency_ms": 1e-6}, 422, "nearest feasible"),
    ],
)
def test_bad_queries_get_a_clear_error(
    client: triton.InferenceServerClient,
    name: str,
    parameters: dict[str, float],
    status: int,
    says: str,
) -> None:
    images, _ = FashionMnist().test_split()
    with pytest.raises(InferenceServerException) as caught:
        client.infer(name, [image_input(images[:1])], parameters=parameters)
    assert str(status) in caught.value.status()
    assert says in caught.value.message()


def test_bad_bodies_do_not_hang_or_kill_a_connection(running: Running) -> None:
    connection = HTTPConnection(running.address, timeout=10)
    path = "/v2/models/fashion-mnist/infer"
    huge = {"Inference-Header-Content-Length": "999999999"}
    for body, headers in ((b"{", {}), (b"", {}), (b"\xff\xfe", {}), (b"{}", huge), (b"[]", {})):
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        assert reply.status == 400, body
        assert "error" in json.loads(reply.read())
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().status == 200
    connection.close()


def test_many_clients_at_once_each_get_their_own_answer(running: Running) -> None:
    images, _ = FashionMnist().test_split()
    wrong: list[int] = []

    def ask(worker: int) -> None:
        with triton.InferenceServerClient(running.address) as client:
            model = "fashion-mnist/cnn-xl/fp32-28"
            for index in range(worker * 40, worker * 40 + 40):
                result = client.infer(
                    model, [image_input(images[index : index + 1])], request_id=f"q{index}"
                )
                if result.get_response()["id"] != f"q{index}":
                    wrong.append(index)
                answers[index] = int(result.as_numpy("probabilities").argmax())

    answers: dict[int, int] = {}
    threads = [threading.Thread(target=ask, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    with triton.InferenceServerClient(running.address) as client:
        for index in range(0, 320, 8):
            result = client.infer(
                "fashion-mnist/cnn-xl/fp32-28", [image_input(images[index : index + 8])]
            )
            alone = result.as_numpy("probabilities").argmax(1).tolist()
            assert [answers[i] for i in range(index, index + 8)] == alone


def test_a_client_that_goes_away_leaves_nothing_behind(running: Running) -> None:
    images, _ = FashionMnist().test_split()
    body, json_length = triton.InferenceServerClient.generate_request_body(
        [image_input(images[:8])]
    )
    for _ in range(20):
        connection = HTTPConnection(running.address, timeout=10)
        headers = {"Inference-Header-Content-Length": str(json_length)}
        connection.request("POST", "/v2/models/fashion-mnist/infer", body, headers)
        connection.close()
    deadline_s = time.monotonic() + 10.0
    while time.monotonic() < deadline_s:
        if sum(member["queued"] for member in running.get("/modelless/status")["members"]) == 0:
            return
        time.sleep(0.2)
    pytest.fail("queries of clients that went away are still queued")


def test_everything_listens_on_loopback_only(running: Running) -> None:
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening[fields[9]] = fields[1]
    loopback = (
        "0100007F:",
        "00000000000000000000000001000000:",
        "0000000000000000FFFF00000100007F:",
    )
    open_to_others = {}
    for process_id, command in running.processes().items():
        try:
            links = [link.readlink() for link in Path(f"/proc/{process_id}/fd").iterdir()]
        except OSError:
            continue
        for link in map(str, links):
            address = listening.get(link.removeprefix("socket:[").removesuffix("]"))
            if address is not None and not address.startswith(loopback):
                open_to_others[address] = command[:80]
    assert not open_to_others


def test_status_tells_members_and_memory(running: Running) -> None:
    done = modelless(running.home, "status", "--json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    gateways = [member for member in status["members"] if member["role"] == "gateway"]
    assert len(gateways) == 2
    assert all(gateway["loaded"] for gateway in gateways)
    assert all(0 < m["memory_bytes"] <= m["memory_budget_bytes"] for m in gateways)


def test_status_tells_how_good_predictions_are(
    running: Running, client: triton.InferenceServerClient
) -> None:
    images, _ = FashionMnist().test_split()
    client.infer("fashion-mnist", [image_input(images[:1])])
    deadline_s = time.monotonic() + 10.0
    while not (told := running.get("/modelless/status")["predictions"]):
        assert time.monotonic() < deadline_s, "no outcome was told of"
        time.sleep(0.2)
    (predictions,) = told
    assert predictions["device_class"] == "cpu-1"
    assert predictions["outcomes"] > 0


def test_up_again_says_that_it_is_up(running: Running) -> None:
    done = modelless(running.home, "up")
    assert done.returncode == 7
    assert "already up" in done.stderr
    assert "Traceback" not in done.stderr
