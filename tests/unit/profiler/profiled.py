"""Profiles made by hand for the report's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.report.document import Report, report_of
from modelless.profiler.report.profiles import Profile, profiles_of
from modelless.variants.estimates import Load
from modelless.variants.registry.dominance import intervals_part
from modelless.variants.vocabulary import Accuracy, DeviceClass, Provenance, Variant

MIB = 1 << 20
CPU = DeviceClass("cpu-1", "cpu", 1, 1 << 30, 0.36, 8.0)
"""0.36 USD an hour: 0.0001 a second."""


def variant(make: Any, name: str, percent: float, model: str = "net-a", **changes: Any) -> Variant:
    """A variant with a measured accuracy, known to a point up or down."""
    accuracy = Accuracy(
        percent, "top-1", Provenance.MEASURED, "a set", percent - 1.0, percent + 1.0, 1000
    )
    return replace(make.variant(name, model), accuracy=accuracy, **changes)


def points(
    make: Any, variant: Variant, p50_ms: Mapping[int, float], memory_mib: float = 1.0, **more: Any
) -> list[Measurement]:
    """Measurements by batch; p90 and p99 a tenth and a fifth above the median."""
    return [
        make.measurement(
            variant_id=variant.id,
            batch=batch,
            p50_s=ms / 1e3,
            p90_s=1.1 * ms / 1e3,
            p99_s=1.2 * ms / 1e3,
            mean_s=ms / 1e3,
            throughput_per_s=batch / (ms / 1e3),
            memory_bytes=int(memory_mib * MIB),
            **more,
        )
        for batch, ms in p50_ms.items()
    ]


def profiles(
    make: Any, *told: tuple[Variant, Mapping[int, float]], memory_mib: float = 1.0, **more: Any
) -> tuple[Profile, ...]:
    """Profiles of variants by their medians."""
    rows = [row for one, p50_ms in told for row in points(make, one, p50_ms, memory_mib, **more)]
    return profiles_of(rows, [one for one, _ in told], {"cpu-1": CPU})


def by_other_batches(points: Sequence[Measurement]) -> list[float]:
    """A ``PredictWithout``: what a placement's other batches say."""
    models = {
        batch: ServingCostModel(point for point in points if point.batch != batch)
        for batch in {point.batch for point in points}
    }
    return [
        float(models[p.batch].estimate((p.placement,), p.batch, Load()).p50_s[0]) for p in points
    ]


def report(told: Sequence[Profile]) -> Report:
    """The report of profiles, with predictions by other batches."""
    return report_of(told, predict_without=by_other_batches, is_more_accurate=intervals_part)
