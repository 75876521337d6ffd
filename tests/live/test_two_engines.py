"""ONNX Runtime and OpenVINO side by side in one cluster: the zoo's recogniser of printed lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelless.controller.usecases.zoo import zoo_add
from modelless.variants.decoding import decode_texts
from modelless.variants.making.session import Session
from modelless.variants.vocabulary import Engine
from modelless.variants.zoo.printed_lines import PrintedLines
from tests.builders import need

from .clients import infer
from .running import cluster, modelless

need(Engine.OPENVINO)
LINES = 25


def test_both_engines_serve_the_texts_that_they_read_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = PrintedLines()
    published = list(entry.models())[-1:]
    monkeypatch.setattr(PrintedLines, "models", lambda self: iter(published))
    monkeypatch.setattr(PrintedLines, "items", 40)  # for speed
    (added,) = zoo_add("printed-lines", home=tmp_path)
    by_engine = {v.engine: v.id for v in added.variants if v.name.startswith("fp32-narrower")}
    assert set(by_engine) == {Engine.ONNXRUNTIME_CPU, Engine.OPENVINO}
