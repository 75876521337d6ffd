"""A tiny task, tiny models and made-up measurements for the command line's tests."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from modelless.profiler.devices.device import DeviceFacts, default_device_classes
from modelless.profiler.devices.device_records import DeviceRecords
from modelless.profiler.devices.host import read_facts
from modelless.profiler.devices.microbenchmark import DeviceRates
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import (
    Accuracy,
    Engine,
    Model,
    Precision,
    Provenance,
    Task,
    TensorSpec,
    Variant,
)
from modelless.variants.zoo.fashion_mnist import FashionMnist

TASK = Task(
    name="pixels",
    inputs=(TensorSpec("image", "UINT8", (-1, -1, -1, 3)),),
    outputs=(TensorSpec("scores", "FP32", (-1, 4)),),
    accuracy_metric="top-1",
    description="Mean colours.",
    labels=("black", "red", "green", "blue"),
)
MODEL = Model(task="pixels", name="mean", family="tiny", source="tests", licence="Apache-2.0")
PUBLISHED = Provenance.PUBLISHED

# Name, scale of the weights, accuracy, p50 of one item in ms: the better, the slower.
VARIANTS = (("small", 1.0, 70.0, 5.0), ("medium", 2.0, 75.0, 10.0), ("large", 3.0, 80.0, 40.0))


def tiny_bytes(
    scale: float = 1.0, *, output: str = "scores", operator: str = "MatMul", domain: str = ""
) -> bytes:
    """Mean colour times a matrix: UINT8 [N, H, W, 3] to FP32 [N, 4], as an ONNX file."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4) * np.float32(scale)
    nodes = [
        helper.make_node("Cast", ["image"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["real"], ["mean"], axes=[1, 2], keepdims=0),
        helper.make_node(operator, ["mean", "weight"], [output], domain=domain),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", "H", "W", 3])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(weight, "weight")],
    )
    opsets = [helper.make_opsetid("", 17)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


@cache
def host_facts() -> DeviceFacts:
    """The facts of this host, read once."""
    return read_facts()


def add_variants(home: Path) -> tuple[Variant, ...]:
    """Register the tiny task's variants in ``home``."""
    with closing(open_registry(home)) as registry:
        registry.add_task(TASK)
        registry.add_model(MODEL)
        return tuple(
            registry.register_variant(
                task=TASK.name,
                model=MODEL.name,
                name=name,
                precision=Precision.FP32,
                engine=Engine.ONNXRUNTIME_CPU,
                accuracy=Accuracy(percent, "top-1", PUBLISHED, "a page"),
                artifact=tiny_bytes(scale),
            )
            for name, scale, percent, _ in VARIANTS
        )


def measurement(variant_id: str, batch: int, p50_ms: float, **changes: Any) -> Measurement:
    """A measurement on this host's ``cpu-1``."""
    p50_s = p50_ms / 1e3
    values: dict[str, Any] = {
        "variant_id": variant_id,
        "device_class": "cpu-1",
        "batch": batch,
        "threads": 1,
        "engine": host_facts().engine_name("onnxruntime-cpu"),
        "device_name": "A Processor",
        "repeats": 30,
        "p50_s": p50_s,
        "p90_s": p50_s * 1.1,
        "p99_s": p50_s * 1.2,
        "mean_s": p50_s,
        "throughput_per_s": batch / p50_s,
        "memory_bytes": 3 << 20,
        "load_s": 0.05,
        "trusted": True,
        "noise": 0.1,
        "measured_at": datetime(2025, 1, 1, tzinfo=UTC),
        "fingerprint": host_facts().fingerprint,
    }
    return Measurement(**(values | changes))


def add_measurements(home: Path, batches: tuple[int, ...] = (1, 2, 4, 8)) -> None:
    """Measurements of every tiny variant, latency in proportion to the batch."""
    with closing(open_registry(home)) as registry:
        records = Records(registry.store)
        for name, _, _, p50_ms in VARIANTS:
            for batch in batches:
                records.add(measurement(f"pixels/mean/{name}@1", batch, p50_ms * batch))


def rates(threads: int = 1, **changes: Any) -> DeviceRates:
    """Rates of this host's ``cpu-1`` or ``cpu-2``."""
    values: dict[str, Any] = {
        "threads": threads,
        "engine": host_facts().engine_name("onnxruntime-cpu"),
        "copy_bytes_per_s": {"L2": 60e9, "memory": 10e9},
        "product_multiply_adds_per_s": {"fp32": 50e9 * threads},
        "operator_s": 1e-6,
        "run_s": 5e-6,
        "spread": {"copy L2": 0.02, "copy memory": 0.1, "product fp32": 0.03}
        | {"chain": 0.04, "run": 0.05},
        "elapsed_s": 2.0,
        "measured_at": "2025-01-01T00:00:00+00:00",
    }
    return DeviceRates(**(values | changes))


def add_rates(home: Path) -> None:
    """Rates of every device class of this host, so that no test waits for its benchmark."""
    with closing(open_registry(home)) as registry:
        records = DeviceRecords(registry.store)
        for device in default_device_classes(host_facts()):
            records.add(device, host_facts(), rates(device.threads))


def labelled_pictures(folder: Path, items: int) -> Path:
    """A file of the first of Fashion-MNIST's test pictures, with their labels."""
    images, labels = FashionMnist().test_split()
    path = folder / "set.npz"
    np.savez(path, image=images[:items], labels=labels[:items])
    return path
