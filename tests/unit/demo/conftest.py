"""Profiles as a machine might have them, and a burst as it might have gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from modelless.controller.demo.asking import Photo, ask_about_photos, photos_document
from modelless.controller.demo.load import KindSpec, LoadSpec, StepSpec
from modelless.controller.demo.profiles import Profiles
from modelless.controller.demo.query_log import QueryLog, Row
from modelless.controller.demo.report import burst_document, document_of
from modelless.controller.demo.slos import NamedSlo
from modelless.controller.usecases.client import Client, EncodedQuery, InferReply
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.report.profiles import Device, Profile
from modelless.variants.vocabulary import (
    SLO,
    Accuracy,
    DeviceClass,
    Precision,
    Provenance,
    Task,
    TensorSpec,
)
from tests.builders import make_variant

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DEVICE = DeviceClass("cpu-1", "cpu", 1, 2**30, 0.05, 8.0)
PHOTOS = Task(
    "imagenet",
    (TensorSpec("image", "UINT8", (-1, -1, -1, 3)),),
    (TensorSpec("probabilities", "FP32", (-1, 4)),),
    "top-1",
    labels=("espresso", "tabby cat", "palace", "x:y"),
)
CLOTHES = Task(
    "fashion-mnist",
    (TensorSpec("image", "UINT8", (-1, 28, 28)),),
    (TensorSpec("probabilities", "FP32", (-1, 10)),),
    "top-1",
)


def make_profiled(
    name: str,
    accuracy_percent: float,
    p50_ms: float,
    p99_ms: float | None = None,
    *,
    task: str = "imagenet",
    model: str = "efficientnet-lite0",
    batches: Sequence[int] = (1, 8),
    trusted: bool = True,
) -> Profile:
    """A variant and its profile; the batch's latency grows in proportion."""
    precision, _, side = name.partition("-")
    variant = make_variant(
        f"{task}/{model}/{name}@1",
        precision=Precision(precision),
        resolution_px=int(side),
        accuracy=Accuracy(accuracy_percent, "top-1", Provenance.DERIVED, "a test"),
    )
    tail_ms = p99_ms if p99_ms is not None else 1.2 * p50_ms
    points = tuple(
        Measurement(
            variant_id=variant.id,
            device_class=DEVICE.name,
            batch=batch,
            threads=1,
            engine="onnxruntime-cpu",
            device_name="a processor",
            repeats=9,
            p50_s=p50_ms * batch / 1e3,
            p90_s=tail_ms * batch / 1e3,
            p99_s=tail_ms * batch / 1e3,
            mean_s=p50_ms * batch / 1e3,
            throughput_per_s=1e3 / p50_ms,
            memory_bytes=20 << 20,
            load_s=0.1,
            trusted=trusted,
            noise=0.5,
            measured_at=NOW,
            fingerprint="f",
        )
        for batch in batches
    )
    device = Device(DEVICE.name, DEVICE.name, "a processor", "f", DEVICE.price_usd_per_hour)
    return Profile(variant, name, device, points)


def a_family(speed: float = 1.0) -> list[Profile]:
    """Eighteen variants, latencies as measured on an idle machine, divided by ``speed``."""
    rows = [
        ("lite0", (("128", 66.0, 3.3, 1.6), ("160", 70.3, 4.8, 2.3), ("224", 75.1, 9.2, 3.9))),
        ("lite1", (("160", 71.8, 6.5, 3.0), ("192", 74.2, 8.8, 4.2), ("240", 76.7, 14.1, 5.9))),
        ("lite2", (("192", 74.9, 10.0, 4.6), ("224", 76.4, 13.5, 5.7), ("260", 77.6, 19.2, 7.9))),
    ]
    family = []
    for size, members in rows:
        for side, percent, fp32_ms, int8_ms in members:
            model = f"efficientnet-{size}"
            family += [
                make_profiled(f"fp32-{side}", percent, fp32_ms / speed, model=model),
                make_profiled(f"int8-{side}", percent - 0.7, int8_ms / speed, model=model),
            ]
    return family


def clothes_family() -> list[Profile]:
    """Four small variants."""
    rows = (("xs", 86.4, 0.01), ("s", 90.1, 0.02), ("m", 91.2, 0.05), ("xl", 92.2, 0.15))
    return [
        make_profiled("int8-28", percent, ms, task="fashion-mnist", model=f"cnn-{size}")
        for size, percent, ms in rows
    ]


@pytest.fixture
def profiles() -> Profiles:
    """Both tasks, profiled."""
    by_task = {"imagenet": tuple(a_family()), "fashion-mnist": tuple(clothes_family())}
    tasks = {"imagenet": PHOTOS, "fashion-mnist": CLOTHES}
    return Profiles(tasks, by_task, DEVICE, cores=2, cpu_model="a <processor>")


def kind_named(name: str, task: str = "imagenet", deadline_ms: float = 50.0) -> KindSpec:
    """A kind of queries."""
    return KindSpec(
        name=name,
        task=task,
        limits={"latency_ms": deadline_ms},
        weight=0.5,
        deadline_ms=deadline_ms,
        images=Path("none.npy"),
        labels=[],
        input_name="image",
        output_name="probabilities",
    )


@pytest.fixture
def spec() -> LoadSpec:
    """Two kinds, two steps of 5 s."""
    kinds = [kind_named("quick"), kind_named("clothes", "fashion-mnist", 20.0)]
    steps = [StepSpec(seconds=5.0, per_s=10.0), StepSpec(seconds=5.0, per_s=20.0)]
    return LoadSpec(url="http://127.0.0.1:1", kinds=kinds, steps=steps)


@pytest.fixture
def rows() -> list[Row]:
    """One query of every outcome, and some more."""
    variant, other = "imagenet/efficientnet-lite0/int8-224@1", "fashion-mnist/cnn-xl/int8-28@1"
    return [
        Row(0, 0.1, 200, 10.0, 0.2, 9.0, variant, 74.4, True),
        Row(0, 0.2, 200, 60.0, 0.2, 48.0, variant, 74.4, False),
        Row(1, 1.5, 200, 5.0, 0.1, 4.0, other, 92.2, None),
        Row(0, 2.5, 422, 1.0),
        Row(0, 2.6, 429, 1.0),
        Row(1, 7.0, 503, 1.0),
        Row(1, 7.1, 504, 25.0),
        Row(0, 9.0, 500, 1.0),
        Row(0, 9.9, 0, 12_000.0),
    ]


VARIANT = "imagenet/efficientnet-lite0/int8-224@1"
SAID = {
    "variant": VARIANT,
    "accuracy": 74.4,
    "accuracy_provenance": "derived",
    "predicted_latency_ms": 4.0,
    "observed_latency_ms": 5.0,
}
COFFEE = Photo("coffee & cup", np.zeros((4, 4, 3), np.uint8), frozenset({"espresso"}))
LOOSE = NamedSlo("loose", SLO(latency_ms=1000))
NEVER = NamedSlo("never", SLO(min_accuracy=99.0), is_feasible=False)


def client_of(replies: Sequence[InferReply]) -> Client:
    """A client whose server gives these replies, one after another."""

    class Scripted:
        def __init__(self) -> None:
            self._left = list(replies)

        def send(self, query: EncodedQuery) -> InferReply:
            assert query.body
            return self._left.pop(0)

    return cast(Client, Scripted())


def scored(*labels: tuple[float, int, str]) -> InferReply:
    return InferReply(200, SAID, classes={"probabilities": [list(labels)]}, latency_ms=6.0)


@pytest.fixture
def photos() -> dict[str, Any]:
    """One photo that was answered once and refused once, as the report has it."""
    replies = [scored((0.9, 0, "espresso")), InferReply(422, error="nothing <b>can</b>")]
    slos = [LOOSE, NEVER]
    answers = ask_about_photos(client_of(replies), PHOTOS, [COFFEE], slos, {VARIANT: 224})
    return photos_document([COFFEE], slos, answers)


@pytest.fixture
def findings(
    profiles: Profiles, spec: LoadSpec, rows: list[Row], photos: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of the document of a demo that ran to its end."""
    query_log = QueryLog(spec.kinds)
    query_log.add(rows)
    used = {"variant": "fashion-mnist/cnn-xl/int8-28@1", "short_name": "xl int8-28", "images": 100}
    clothes = {
        "slo": "loose",
        "limits": "latency_ms 1000",
        "images": 100,
        "right": 92,
        "refused": 0,
        "measured_percent": 92.0,
        "measured_low": 85.0,
        "measured_high": 96.0,
        "stated_percent": 92.2,
        "variants": [used],
    }
    return {
        "made_at": NOW,
        "stages": [("up", 12.3), ("all of it", 200.0)],
        "first_answer_s": 11.0,
        "photos": photos,
        "clothes": [clothes],
        "burst": burst_of(spec, query_log, profiles),
        "notes": ["a note & more"],
    }


def burst_of(spec: LoadSpec, query_log: QueryLog, profiles: Profiles) -> dict[str, Any]:
    return burst_document(
        spec, query_log, profiles, gateways=2, mean_service_s=0.05, client_cpu_s=0.3,
        memory_bytes=5 << 20,
    )  # fmt: skip


@pytest.fixture
def document(profiles: Profiles, findings: dict[str, Any]) -> dict[str, Any]:
    """The report of that demo."""
    return document_of(profiles, **findings)
