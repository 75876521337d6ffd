"""ONNX Runtime and OpenVINO side by side in one cluster: the zoo's recogniser of printed lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.usecases.client import Client
from modelless.controller.usecases.registry.zoo import zoo_add
from modelless.variants.decoding import decode_texts
from modelless.variants.making.session import Session
from modelless.variants.signature import check_inputs
from modelless.variants.vocabulary import Engine
from modelless.variants.zoo.printed_lines import PrintedLines
from tests.builders import need

from .running import cluster, modelless

need(Engine.OPENVINO)
LINES = 25


def test_both_engines_serve_the_texts_that_they_read_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = PrintedLines()
    try:
        published = list(entry.models())[-1:]  # narrow and small: the quickest
    except EnvironmentUnfitError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(PrintedLines, "models", lambda self: iter(published))
    monkeypatch.setattr(PrintedLines, "items", 40)  # for speed
    (added,) = zoo_add("printed-lines", home=tmp_path)
    by_engine = {variant.engine: variant for variant in added.variants}
    assert set(by_engine) == {Engine.ONNXRUNTIME_CPU, Engine.OPENVINO}
    ran = modelless(
        tmp_path, "profile", "printed-lines", "--accept-noise", "--batches", "1,2",
        "--shape", "image=48x512", "--budget", "30s",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    offline = Session(published[0][1])
    lines = [line for line, _ in entry.draw(np.random.default_rng(1), LINES)]
    padded = [check_inputs(entry.task, {"image": line[None]})[0] for line in lines]
    wanted = [text_of(entry, offline.run(inputs)["scores"]) for inputs in padded]
    with cluster(tmp_path, config="", marker="engines") as up, Client(up.url) as client:
        for engine, variant in by_engine.items():
            found = []
            for line in lines:
                reply = client.infer(variant.id, {"image": line[None]}, latency_ms=30_000)
                reply.raise_for_status()
                assert reply.parameters["variant"] == variant.id, engine
                found.append(text_of(entry, reply.tensors["scores"]))
            same = sum(one == other for one, other in zip(found, wanted, strict=True))
            assert same >= LINES - 1, (engine, found, wanted)  # sums differ in their last bit
        reply = client.infer("printed-lines", {"image": lines[0][None]}, latency_ms=30_000)
        assert reply.parameters["variant"] in {variant.id for variant in added.variants}


def text_of(entry: PrintedLines, scores: np.ndarray) -> str:
    """The text of the only item."""
    assert entry.task.decoding is not None
    (text,) = decode_texts(scores, entry.task.decoding, entry.task.labels)
    return text
