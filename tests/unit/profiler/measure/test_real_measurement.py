"""One real measurement, from the artifact to the cost model, with the engine that is installed."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.campaign import CampaignSettings, run_campaign
from modelless.profiler.measure.inputs import sample_inputs
from modelless.profiler.measure.jobs import MeasurementJob
from modelless.profiler.measure.timing import MeasurementEffort
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import TensorSpec

pytest.importorskip("modelless.variants.runtimes.onnxruntime_cpu", reason="needs modelless[cpu]")


def tiny_model(path: Path) -> None:
    """Bytes in, ten scores out: a cast and a matrix product."""
    weight = np.random.default_rng(0).random((16, 10), dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["x", "w"], ["scores"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", 16])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def test_a_tiny_model_is_measured_and_predicted(tmp_path: Path, make: Any, sink: Any) -> None:
    path = tmp_path / "tiny.onnx"
    tiny_model(path)
    content = path.read_bytes()
    variant = dataclasses.replace(
        make.variant(),
        artifact_sha256=hashlib.sha256(content).hexdigest(),
        artifact_bytes=len(content),
    )
    specs = [TensorSpec("image", "UINT8", (-1, 16))]
    job = MeasurementJob(variant, make.device(), path, lambda batch: sample_inputs(specs, batch))
    settings = CampaignSettings(
        batches=(1, 2),
        accept_noise=True,
        effort=MeasurementEffort(tail_repeats=20, max_repeats=50, max_time_s=0.5),
    )
    facts = read_facts(query_gpus=lambda: "")
    result = run_campaign([job], sink, facts, settings)
    assert result.failed == {}
    assert [row.batch for row in result.measured] == [1, 2]
    for row in result.measured:
        assert 0.0 < row.p50_s < 0.5
        assert row.load_s > 0.0
        assert row.memory_bytes >= len(content)
        assert row.fingerprint == facts.fingerprint
    estimates = ServingCostModel(result.measured).estimate([job.placement], 1, Load())
    assert estimates.p50_s[0] == result.measured[0].p50_s
