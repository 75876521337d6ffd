"""The cluster's metrics: Prometheus can read them, and they say what the members reported."""

from __future__ import annotations

import json

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from modelless.controller.api.v2_metadata import model_statistics
from modelless.controller.control.messages import MemberReport
from modelless.controller.device.messages import ChangeKind, ResidencyChange
from modelless.controller.dispatch.counters import Meters
from modelless.controller.live.control import metrics as module
from modelless.controller.live.control.metrics import FAMILIES, ClusterMetrics
from modelless.policies.reasons import Reason
from modelless.policies.views import Instance, WorkerState
from modelless.profiler.cost_model.online.coverage import Coverage
from modelless.profiler.cost_model.serving_model import Drift
from modelless.variants.vocabulary import DeviceClass, Placement

CPU = DeviceClass("cpu-1", "cpu", 1, 1 << 30, 3.6, 8.0)
VARIANT = "pixels/mean/small@1"


def meters() -> Meters:
    """Two queries in one batch, one of them late, and one refused."""
    found = Meters()
    for query_id, (outcome, latency_s) in enumerate((("served", 0.02), ("served-late", 0.3))):
        found.count_end("pixels", outcome)
        found.count_latency("pixels", latency_s, query_id)
    found.count_cache_hit("pixels/mean")
    found.count_end("pixels/mean", "refused")
    found.count_refusal("pixels/mean", "too-slow")
    found.count_batch(VARIANT, "cpu-1", 2, 10.0)
    return found


def change(kind: str, variant_id: str, reason: Reason) -> ResidencyChange:
    return ResidencyChange(0.0, "g", kind, variant_id, reason)


def gateway(**more: object) -> MemberReport:
    instances = (
        Instance("g", VARIANT, 1000, 0.1, 0.0, 2, in_use=False),
        Instance("g", "pixels/mean/arriving@1", 0, 0.0, 0.0, 0, in_use=True),
    )
    fields = {
        "interval_s": 100.0,
        "queued": 3,
        "open_queries": {"pixels": 3, "pixels/mean": 1},
        "unmet": {"pixels": 2},
        "resident_bytes": 5000,
        "meters": meters(),
        "changes": (
            change(ChangeKind.LOADED, VARIANT, Reason.WANTED),
            change(ChangeKind.LOADED, VARIANT, Reason.WANTED),
            change(ChangeKind.UNLOADED, "pixels/x/y@1", Reason.ROOM_NEEDED),
        ),
        "coverage": (
            Coverage("cpu-1", 9, 9.0, 51.0, 92.0, 98.0, 7.0),
            Coverage("cpu-2", 0, 0.0, None, None, None, None),
        ),
        "drifts": (Drift(Placement(VARIANT, "cpu-1"), 1.5, 1, 12.0),),
    }
    state = WorkerState("g", "cpu-1", 4000, instances, 0.25)
    return MemberReport("g", True, state, **{**fields, **more})


@pytest.fixture
def samples() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a cluster of one gateway that reported twice, as Prometheus parses it."""
    report = gateway()
    metrics = ClusterMetrics({"cpu-1": CPU}, lambda: [report])
    metrics.add(report)
    metrics.add(gateway(changes=(change(ChangeKind.LOAD_FAILED, "pixels/x/y@1", Reason.WANTED),)))
    families = list(text_string_to_metric_families(metrics.render()[0].decode()))
    assert {family.name for family in families} == {
        name.removesuffix("_total") for name in FAMILIES
    }
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("modelless_up", {}, 1.0),
        ("modelless_queries_total", {"task": "pixels", "outcome": "served"}, 2.0),
        ("modelless_queries_total", {"task": "pixels", "outcome": "refused"}, 2.0),
        ("modelless_refusals_total", {"task": "pixels", "reason": "too-slow"}, 2.0),
        ("modelless_cache_hits_total", {"task": "pixels"}, 2.0),
        ("modelless_unmet_queries_total", {"task": "pixels"}, 4.0),
        ("modelless_query_latency_seconds_bucket", {"task": "pixels", "le": "0.025"}, 2.0),
        ("modelless_query_latency_seconds_bucket", {"task": "pixels", "le": "0.5"}, 4.0),
        ("modelless_query_latency_seconds_bucket", {"task": "pixels", "le": "+Inf"}, 4.0),
        ("modelless_query_latency_seconds_count", {"task": "pixels"}, 4.0),
        ("modelless_query_latency_seconds_sum", {"task": "pixels"}, 0.64),
        ("modelless_queries_open", {"task": "pixels"}, 4.0),
        ("modelless_queries_waiting", {"worker": "g"}, 3.0),
        ("modelless_batch_items_sum", {"variant": VARIANT, "device_class": "cpu-1"}, 4.0),
        ("modelless_batch_items_count", {"variant": VARIANT, "device_class": "cpu-1"}, 2.0),
        (
            "modelless_device_busy_seconds_total",
            {"variant": VARIANT, "device_class": "cpu-1"},
            20.0,
        ),
        ("modelless_query_cost_usd_total", {"task": "pixels", "device_class": "cpu-1"}, 0.02),
        ("modelless_device_cost_usd_total", {"device_class": "cpu-1"}, 0.2),
        ("modelless_workers", {"role": "gateway", "device_class": "cpu-1"}, 1.0),
        ("modelless_instances", {"variant": VARIANT, "device_class": "cpu-1"}, 1.0),
        ("modelless_loads_total", {"variant": VARIANT, "reason": "wanted"}, 2.0),
        ("modelless_load_failures_total", {"variant": "pixels/x/y@1"}, 1.0),
        ("modelless_evictions_total", {"variant": "pixels/x/y@1", "reason": "room-needed"}, 1.0),
        ("modelless_memory_used_bytes", {"worker": "g", "device_class": "cpu-1"}, 1000.0),
        ("modelless_memory_budget_bytes", {"worker": "g", "device_class": "cpu-1"}, 4000.0),
        ("modelless_process_resident_bytes", {"worker": "g"}, 5000.0),
        ("modelless_device_busy_ratio", {"worker": "g", "device_class": "cpu-1"}, 0.25),
        ("modelless_prediction_within_ratio", {"device_class": "cpu-1", "level": "0.9"}, 0.92),
        ("modelless_prediction_error_ratio", {"device_class": "cpu-1"}, 0.07),
        ("modelless_profile_drift_ratio", {"variant": VARIANT, "device_class": "cpu-1"}, 1.5),
    ],
)
def test_samples(
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float],
    name: str,
    labels: dict[str, str],
    value: float,
) -> None:
    assert samples[name, frozenset(labels.items())] == pytest.approx(value)


def test_what_is_not_known_or_not_loaded_is_left_out(
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float],
) -> None:
    predicted = [dict(labels) for name, labels in samples if "prediction" in name]
    assert {labels["device_class"] for labels in predicted} == {"cpu-1"}
    loaded = {dict(labels)["variant"] for name, labels in samples if name == "modelless_instances"}
    assert loaded == {VARIANT}


def test_a_worker_that_is_gone_leaves_its_sums_and_takes_its_state_along() -> None:
    there = [gateway()]
    metrics = ClusterMetrics({"cpu-1": CPU}, lambda: there)
    metrics.add(there[0])
    there.clear()
    scalars = metrics.scalars()
    assert scalars["modelless_queries_total"]["pixels", "served"] == 1
    assert scalars["modelless_workers"] == {}


def test_openmetrics_names_a_query_of_each_bucket_of_latency() -> None:
    metrics = ClusterMetrics({"cpu-1": CPU}, list)
    metrics.add(gateway())
    text, content_type = metrics.render("application/openmetrics-text; version=1.0.0, */*;q=0.1")
    assert content_type.startswith("application/openmetrics-text")
    exemplars = {
        sample.labels["le"]: (sample.exemplar.labels, sample.exemplar.value)
        for family in openmetrics(text.decode())
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert exemplars == {
        "0.025": ({"receipt_id": "g-0"}, 0.02),
        "0.5": ({"receipt_id": "g-1"}, 0.3),
    }
    assert b"receipt_id" not in metrics.render("text/plain")[0]


def test_of_too_many_tenants_those_seen_longest_ago_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_TENANTS", 3)
    metrics = ClusterMetrics({}, list)

    def count(*tenants: str) -> None:
        told = Meters()
        for tenant in tenants:
            told.count_end("pixels", "served", tenant)
        metrics.add(MemberReport("g", True, None, meters=told))

    count("shop")
    count("made-up-1", "made-up-2")
    count("shop")
    count("made-up-3", "made-up-4")
    assert metrics.by_tenant() == {
        "shop": {"served": 2}, "made-up-3": {"served": 1}, "made-up-4": {"served": 1}
    }  # fmt: skip


def test_names_follow_the_conventions() -> None:
    for name, family in FAMILIES.items():
        assert name.startswith("modelless_")
        assert family.help.endswith(".")
        assert name.endswith("_total") == (family.kind == "counter")
        base = name.removesuffix("_total")
        for unit in ("seconds", "bytes", "ratio", "usd"):
            assert f"_{unit}_" not in base, "a unit ends the name"


def test_statistics_say_what_was_asked_and_what_ran() -> None:
    metrics = ClusterMetrics({"cpu-1": CPU}, list)
    metrics.add(gateway())
    metrics.add(gateway())
    queries, batches = metrics.statistics()["queries"], metrics.statistics()["batches"]
    assert queries == {"pixels": [4, 0, pytest.approx(0.64)], "pixels/mean": [0, 2, 0.0]}
    assert batches == {VARIANT: [4.0, 2.0, 20.0]}
    assert metrics.statistics()["placements"] == {VARIANT: {"cpu-1": [4.0, 2.0, 20.0]}}
    (row,) = json.loads(model_statistics([("pixels", "1", "pixels")], metrics.statistics()).body)[
        "model_stats"
    ]
    assert (row["inference_count"], row["execution_count"]) == (4, 2)
    assert row["inference_stats"] == {
        "success": {"count": 4, "ns": 640_000_000},
        "fail": {"count": 2, "ns": 0},
        "compute_infer": {"count": 2, "ns": 20_000_000_000},
    }
