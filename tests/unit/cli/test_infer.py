"""``modelless infer``: what is sent, what is shown, and what refusals mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import (
    DeadlineExceededError,
    InfeasibleError,
    InvalidInputError,
    ModellessError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from modelless.variants.vocabulary import SLO

from .conftest import Run
from .servers import Server, as_reply, no_json, running

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def listening() -> Iterator[Server]:
    """One server for all tests of this file."""
    with running() as server:
        yield server


@pytest.fixture
def server(listening: Server) -> Server:
    """The server as it began."""
    listening.answers.clear()
    listening.asked.clear()
    listening.paths.clear()
    listening.error = None
    listening.outputs = None
    return listening


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A photo of 800 by 640 pixels."""
    Image.new("RGB", (800, 640), (1, 2, 3)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_a_photo_is_sent_and_the_answer_shown(run: Run, server: Server, photo: Path) -> None:
    words = ("--latency-ms", 40, "--min-accuracy", 74, "--max-cost-usd", 0.5)
    ran = run("infer", photo, "--task", "pixels/mean", *words, "--url", server.url)
    assert ran.code == 0, ran.err
    (asked,) = server.asked
    assert asked.slo == SLO(40.0, 74.0, 0.5)
    tensor = asked.tensors["image"]
    assert (tensor.shape, tensor.dtype.name) == ((1, 320, 400, 3), "uint8")
    assert tensor[0, 0, 0].tolist() == [1, 2, 3]
    assert server.paths == ["/v2/models/pixels/mean", "/v2/models/pixels/mean/infer"]
    rows = [line.split() for line in ran.out.splitlines() if "%" in line]
    assert rows[:2] == [["red", "50.0%"], ["blue", "37.5%"]]
    assert "served by pixels/mean/small@1 on cpu-1, accuracy 70.0 % published" in ran.out
    assert "4.5 ms (predicted 5.0)" in ran.out


def test_programs_get_json(run: Run, server: Server, tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.zeros((2, 8, 8, 3), np.uint8))
    ran = run("infer", "two.npy", "-t", "pixels", "--url", server.url, "--json")
    assert ran.code == 0, ran.err
    found = ran.document
    assert [item[0] for item in found["top"]] == [{"label": "red", "index": 1, "score": 0.5}] * 2
    assert [len(item) for item in found["top"]] == [4, 4]
    assert found["served_by"]["variant"] == "pixels/mean/small@1"
    assert found["round_trip_ms"] > 0
    assert server.asked[0].slo == SLO()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInputError("wrong"), 2),
        (NotFoundError("unknown"), 3),
        (InfeasibleError("nearest feasible: latency_ms 48"), 4),
        (OverloadedError("later"), 8),
        (UnavailableError("not loaded yet"), 8),
        (DeadlineExceededError("too late"), 9),
        (ModellessError("a fault"), 1),
    ],
)
def test_a_refusal_keeps_its_words_and_its_code(
    run: Run,
    server: Server,
    photo: Path,
    error: ModellessError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("modelless.controller.usecases.client.time.sleep", slept.append)
    server.error = error
    ran = run("infer", photo, "-t", "pixels", "--url", server.url)
    assert (ran.code, ran.out, ran.err) == (code, "", f"error: {error}\n")
    assert slept == [1.0] * (5 if code == 8 else 0)  # it is tried again when the server says so


def test_an_unknown_task_is_the_servers_to_refuse(run: Run, server: Server, photo: Path) -> None:
    words = "No task is called 'pixles'. Did you mean pixels?"
    server.answers["/v2/models/pixles"] = as_reply({"error": words}, 404)
    ran = run("infer", photo, "-t", "pixles", "--url", server.url)
    assert (ran.code, ran.err) == (3, f"error: {words}\n")


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        (2, [-1, 4], "an .npz file, as the task has 2 inputs"),
        (1, [-1, 4, 4], "not classes, texts or numbers"),
    ],
)
def test_a_task_of_another_form_is_not_for_this_command(
    run: Run, server: Server, photo: Path, inputs: int, outputs: list[int], said: str
) -> None:
    spec = {"name": "image", "datatype": "UINT8", "shape": [-1, -1, -1, 3]}
    server.answers["/v2/models/pixels"] = as_reply(
        {"inputs": [spec] * inputs, "outputs": [{**spec, "shape": outputs}]}, 200
    )
    ran = run("infer", photo, "-t", "pixels", "--url", server.url)
    assert (ran.code, said in ran.err) == (2, True)


def described(outputs: dict[str, list[int]], parameters: dict[str, Any] | None = None) -> Any:
    """What a server says of a task with these outputs."""
    specs = [{"name": n, "datatype": "FP32", "shape": shape} for n, shape in outputs.items()]
    image = {"name": "image", "datatype": "UINT8", "shape": [-1, 48, -1, 3]}
    return as_reply({"inputs": [image], "outputs": specs, "parameters": parameters or {}}, 200)


def test_a_text_is_printed(run: Run, server: Server, photo: Path) -> None:
    decoding = {"kind": "ctc", "output": "steps", "blank": 0, "labels": ["", "h", "é", " "]}
    server.answers["/v2/models/lines"] = described({"steps": [-1, -1, 4]}, {"decoding": decoding})
    best = np.array([[1, 1, 0, 2, 3, 3, 2, 0]])
    server.outputs = {"steps": np.eye(4, dtype=np.float32)[best]}
    ran = run("infer", photo, "-t", "lines", "--url", server.url)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("hé é\nserved by ")
    assert server.asked[0].tensors["image"].shape == (1, 48, 60, 3)
    ran = run("infer", photo, "-t", "lines", "--url", server.url, "--json")
    assert (ran.document["texts"], ran.document["top"]) == (["hé é"], [])


def test_numbers_are_printed(run: Run, server: Server, photo: Path) -> None:
    server.answers["/v2/models/ages"] = described({"age": [-1, 1]})
    server.outputs = {"age": np.array([[41.5]], np.float32)}
    ran = run("infer", photo, "-t", "ages", "--url", server.url)
    assert (ran.code, ran.out.startswith("41.5\nserved by ")) == (0, True)


def test_several_inputs_come_from_an_archive(run: Run, server: Server, tmp_path: Path) -> None:
    spec = {"datatype": "UINT8", "shape": [-1, 2]}
    inputs = [{"name": "image", **spec}, {"name": "mask", **spec}]
    output = {"name": "scores", "datatype": "FP32", "shape": [-1, 4]}
    server.answers["/v2/models/two"] = as_reply({"inputs": inputs, "outputs": [output]}, 200)
    np.savez(tmp_path / "two.npz", image=np.ones((1, 2), np.uint8), mask=np.ones(2, np.uint8))
    ran = run("infer", "two.npz", "-t", "two", "--url", server.url)
    assert ran.code == 0, ran.err
    assert {name: a.shape for name, a in server.asked[0].tensors.items()} == {
        "image": (1, 2), "mask": (1, 2)
    }  # fmt: skip
    np.savez(tmp_path / "one.npz", image=np.ones((1, 2), np.uint8))
    ran = run("infer", "one.npz", "-t", "two", "--url", server.url)
    assert (ran.code, "also mask" in ran.err) == (2, True)


def test_a_server_of_something_else_is_told_apart(run: Run, server: Server, photo: Path) -> None:
    server.answers["/v2/models/pixels"] = no_json()
    ran = run("infer", photo, "-t", "pixels", "--url", server.url)
    assert (ran.code, "is that modelless?" in ran.err) == (8, True)


def test_what_is_wrong_is_said_before_anything_is_sent(
    run: Run, server: Server, photo: Path
) -> None:
    for words in (
        ("none.png", "-t", "pixels"),
        (photo, "-t", "pixels", "--latency-ms", "nan"),
        (photo, "-t", "pixels", "--min-accuracy", "-1"),
        (photo, "-t", "/"),
    ):
        ran = run("infer", *words, "--url", server.url)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
    for url in ("ftp://x", "http://", "http://x:port", "https://"):
        assert run("infer", photo, "-t", "pixels", "--url", url).code == 2
    assert server.paths == []


def test_without_a_server_it_says_how_to_start_one(run: Run, photo: Path) -> None:
    ran = run("infer", photo, "-t", "pixels")
    assert (ran.code, "modelless up" in ran.err) == (1, True)
