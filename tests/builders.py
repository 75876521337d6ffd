"""Builders of test data: tiny ONNX models, variants, and views for policies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from modelless.policies.views import ClusterView, Demand, Instance, VariantFacts, WorkerState
from modelless.variants.runtimes.engines import engine_status
from modelless.variants.vocabulary import (
    Accuracy,
    DeviceClass,
    Engine,
    Model,
    Precision,
    Provenance,
    Task,
    TensorSpec,
    Variant,
)

TASK = Task(
    name="pixels",
    inputs=(TensorSpec("image", "UINT8", (-1, -1, -1, 3)),),
    outputs=(TensorSpec("scores", "FP32", (-1, 4)),),
    accuracy_metric="top-1",
    labels=("a", "b", "c", "d"),
)
MODEL = Model(task="pixels", name="mean", family="tiny", source="tests", licence="Apache-2.0")
ACCURACY = Accuracy(50.0, "top-1", Provenance.MEASURED, "made up", 45.0, 55.0, 100)


def need(engine: Engine) -> None:
    """Skip, saying why, without the engine. Importing OpenVINO to find out would be reported."""
    status = engine_status(engine)
    if not status.available:
        pytest.skip(status.missing, allow_module_level=True)


def tiny_model(scale: float = 1.0, opset: int = 17) -> ModelProto:
    """Mean colour times a matrix, uint8 [N, H, W, 3] to FP32 [N, 4]; ``scale`` tells them apart."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4) * np.float32(scale)
    nodes = [
        helper.make_node("Cast", ["image"], ["real"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["real"], ["mean"], name="mean", axes=[1, 2], keepdims=0),
        helper.make_node("MatMul", ["mean", "weight"], ["scores"], name="product"),
    ]
    return make_model(nodes, [numpy_helper.from_array(weight, "weight")], opset)


def expected_scores(images: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """What ``tiny_model(scale)`` gives for uint8 [N, H, W, 3], float32 [N, 4]."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4) * np.float32(scale)
    return images.astype(np.float32).mean(axis=(1, 2)) @ weight


def make_model(
    nodes: list[NodeProto], initializers: list[TensorProto], opset: int = 17
) -> ModelProto:
    """A model of ``TASK``'s signature."""
    graph: GraphProto = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", "H", "W", 3])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 4])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def tiny_bytes(scale: float = 1.0) -> bytes:
    """``tiny_model`` as a file."""
    return bytes(tiny_model(scale).SerializeToString())


def with_external_weight(location: str, **entries: str) -> ModelProto:
    """``tiny_model`` whose weight claims to lie in the file ``location``."""
    model = tiny_model()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=value)
    return model


def with_custom_operator(domain: str, operator: str = "Spy", *, nested: bool = False) -> ModelProto:
    """``tiny_model`` with one more node of ``domain``, inside an ``If`` if ``nested``."""
    model = tiny_model()
    spy = helper.make_node(operator, ["scores"], ["seen"], name="spy", domain=domain)
    if nested:
        value = helper.make_tensor_value_info("seen", TensorProto.FLOAT, None)
        branch = helper.make_graph([spy], "branch", [], [value])
        flag = helper.make_tensor("flag", TensorProto.BOOL, [], [True])
        model.graph.node.append(helper.make_node("Constant", [], ["flag"], name="c", value=flag))
        spy = helper.make_node("If", ["flag"], ["seen"], name="if")
        for name in ("then_branch", "else_branch"):
            attribute = AttributeProto(name=name, type=AttributeProto.GRAPH)
            attribute.g.CopyFrom(branch)
            spy.attribute.append(attribute)
    model.graph.node.append(spy)
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def variant_of(data: bytes, name: str = "fp32", version: int = 1) -> Variant:
    """A variant of ``MODEL`` whose artifact is ``data``."""
    return make_variant(
        f"{TASK.name}/{MODEL.name}/{name}@{version}",
        accuracy=ACCURACY,
        artifact_sha256=hashlib.sha256(data).hexdigest(),
        artifact_bytes=len(data),
    )


def make_variant(variant_id: str, **changes: Any) -> Variant:
    """The variant ``task/model/name@version``; ``changes`` are other fields."""
    path, _, version = variant_id.partition("@")
    task, model, name = path.split("/")
    values: dict[str, Any] = {
        "precision": Precision.FP32,
        "resolution_px": None,
        "engine": Engine.ONNXRUNTIME_CPU,
        "artifact_sha256": "0" * 64,
        "artifact_bytes": 1000,
        "accuracy": ACCURACY,
    }
    return Variant(
        task=task, model=model, name=name, version=int(version or 1), **(values | changes)
    )


# -- views for policies -----------------------------------------------------------------------


def make_facts(
    variant_id: str,
    accuracy: float,
    batch_s: Mapping[str, Sequence[float]],
    *,
    memory_bytes: float = 10.0,
    load_s: float = 1.0,
) -> VariantFacts:
    """Facts of a variant.

    Args:
        variant_id: its id; the task is its first part.
        accuracy: per cent.
        batch_s: by device class, the seconds that batches of 1, 2, ... items take.
    """
    return VariantFacts(
        variant_id,
        variant_id.partition("/")[0],
        accuracy,
        dict.fromkeys(batch_s, memory_bytes),
        dict.fromkeys(batch_s, load_s),
        {device: seconds[0] for device, seconds in batch_s.items()},
        {device: (0.0, *seconds) for device, seconds in batch_s.items()},
    )


def make_workers(
    counts: Mapping[str, int],
    *held: str,
    memory_bytes: int = 1000,
    instance_bytes: int = 10,
    load_s: float = 1.0,
) -> tuple[WorkerState, ...]:
    """Idle workers ``CLASS/0``, ``CLASS/1``, ...; the first ones hold one variant of ``held`` each.

    Args:
        counts: workers by device class.
        held: ids of variants.
    """
    names = [(name, f"{name}/{n}") for name, count in counts.items() for n in range(count)]
    return tuple(
        WorkerState(
            worker_id,
            name,
            memory_bytes,
            tuple(
                Instance(worker_id, variant_id, instance_bytes, load_s, 0.0, 0)
                for variant_id in held[number : number + 1]
            ),
        )
        for number, (name, worker_id) in enumerate(names)
    )


def make_cluster_view(
    device_classes: Mapping[str, DeviceClass],
    workers: Sequence[WorkerState],
    variants: Sequence[VariantFacts] = (),
    demands: Sequence[Demand] = (),
    *,
    now_s: float = 0.0,
    **fields: Any,
) -> ClusterView:
    """A view in which the arrivals of a scope are the sum of its demands' rates."""
    arrivals_per_s: dict[str, float] = {}
    for demand in demands:
        rate_per_s = arrivals_per_s.get(demand.scope, 0.0) + demand.rate_per_s
        arrivals_per_s[demand.scope] = rate_per_s
    values: dict[str, Any] = {"arrivals_per_s": arrivals_per_s, "unmet_per_s": {}} | fields
    return ClusterView(
        now_s=now_s,
        device_classes=device_classes,
        workers=tuple(workers),
        variants=tuple(variants),
        demands=tuple(demands),
        **values,
    )
