"""Everything that a report shows, as one value: the pictures' data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.report.prediction_errors import (
    PredictionFigure,
    PredictWithout,
    prediction_figure,
)
from modelless.profiler.report.profiles import Device, Profile
from modelless.profiler.report.tradeoffs import (
    FrontierFigure,
    ThroughputFigure,
    frontier_figure,
    throughput_figure,
)
from modelless.variants.estimates import CostModel, Load
from modelless.variants.registry.dominance import IsMoreAccurate
from modelless.variants.vocabulary import Placement

SCHEMA: Final = "modelless-profile-report/1"


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """A task's pictures: two for each device, and the frontiers over all of them."""

    task: str
    throughput: tuple[ThroughputFigure, ...]
    latency: tuple[BatchFigure, ...]
    frontier: FrontierFigure


@dataclass(frozen=True, slots=True)
class Report:
    """The profiles and predictions, as the data of pictures.

    Attributes:
        measured_from, measured_to: when the first and the last of them were measured, ISO 8601.
        untrusted: how many of them were measured while it was too noisy, or vary too much.
    """

    devices: tuple[Device, ...]
    points: int
    measured_from: str
    measured_to: str
    untrusted: int
    tasks: tuple[TaskFigures, ...]
    predictions: PredictionFigure

    def document(self) -> dict[str, Any]:
        """The same as plain data, finite numbers only."""
        return {"schema": SCHEMA, **asdict(self)}


def report_of(
    profiles: Sequence[Profile],
    *,
    predict_without: PredictWithout,
    is_more_accurate: IsMoreAccurate,
) -> Report:
    """The report of some profiles; at least one.

    Args:
        predict_without: predicts points that its model has not seen.
        is_more_accurate: tells accuracies apart, to find what is dominated.
    """
    models = {
        machine: ServingCostModel([point for p in mine for point in p.points])
        for machine, mine in _grouped(profiles, lambda p: p.device.fingerprint).items()
    }
    tasks = []
    for task, of_task in _grouped(profiles, lambda p: p.variant.task).items():
        by_device = _grouped(of_task, lambda p: p.device.name).values()
        tasks.append(
            TaskFigures(
                task,
                tuple(throughput_figure(each, is_more_accurate) for each in by_device),
                tuple(batch_figure(each, models[each[0].device.fingerprint]) for each in by_device),
                frontier_figure(of_task),
            )
        )
    points = [point for profile in profiles for point in profile.points]
    return Report(
        tuple(dict.fromkeys(profile.device for profile in profiles)),
        len(points),
        min(point.measured_at for point in points).isoformat(),
        max(point.measured_at for point in points).isoformat(),
        sum(not point.trusted for point in points),
        tuple(tasks),
        prediction_figure(profiles, predict_without),
    )


def _grouped(
    profiles: Sequence[Profile], key: Callable[[Profile], str]
) -> dict[str, list[Profile]]:
    groups: dict[str, list[Profile]] = {}
    for profile in profiles:
        groups.setdefault(key(profile), []).append(profile)
    return groups


_MOST_BATCHES: Final = 48
"""Of a predicted band: more would not be seen."""

_BEYOND: Final = 2
"""Predictions go so many times as far as the largest measured batch: how a model goes on from
there tells as much of it as how it joins points."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Latency of a whole batch, milliseconds; ``trusted`` as measured, or True if predicted."""

    batch: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    trusted: bool = True


@dataclass(frozen=True, slots=True)
class BatchCurve:
    """A variant over its batches.

    Attributes:
        variant, name, precision: what it is; ``name`` is short.
        measured: by ascending batch.
        predicted: by ascending batch, from 1 to twice the largest measured one; empty where the
            cost model knows nothing.
    """

    variant: str
    name: str
    precision: str
    measured: tuple[Quantiles, ...]
    predicted: tuple[Quantiles, ...]


@dataclass(frozen=True, slots=True)
class BatchPanel:
    """A model's variants, the slowest first."""

    model: str
    curves: tuple[BatchCurve, ...]


@dataclass(frozen=True, slots=True)
class BatchFigure:
    """Latency against batch of a task's variants on one device; the slowest model first."""

    task: str
    device: str
    panels: tuple[BatchPanel, ...]


def batch_figure(profiles: Sequence[Profile], cost_model: CostModel) -> BatchFigure:
    """The figure of profiles of one task on one device; at least one."""
    slowest_first = sorted(profiles, key=lambda profile: -profile.points[-1].p50_s)
    panels = []
    for model in dict.fromkeys(profile.variant.model for profile in slowest_first):
        mine = [profile for profile in slowest_first if profile.variant.model == model]
        panels.append(BatchPanel(model, tuple(_curve(p, cost_model) for p in mine)))
    return BatchFigure(profiles[0].variant.task, profiles[0].device.name, tuple(panels))


def batches_to_predict(largest_measured: int) -> tuple[int, ...]:
    """Whole batches from 1 to twice the largest measured one; in even ratios where many."""
    last = _BEYOND * largest_measured
    if last <= _MOST_BATCHES:
        return tuple(range(1, last + 1))
    return tuple(int(b) for b in np.unique(np.geomspace(1, last, _MOST_BATCHES).round()))


def _curve(profile: Profile, cost_model: CostModel) -> BatchCurve:
    placement = (Placement(profile.variant.id, profile.device.device_class),)
    predicted = []
    for batch in batches_to_predict(profile.points[-1].batch):
        found = cost_model.estimate(placement, batch, Load())
        p50_ms, p90_ms, p99_ms = (
            float(column[0]) * 1e3 for column in (found.p50_s, found.p90_s, found.p99_s)
        )
        if math.isfinite(p99_ms):
            predicted.append(Quantiles(batch, p50_ms, p90_ms, p99_ms))
    measured = tuple(
        Quantiles(p.batch, p.p50_s * 1e3, p.p90_s * 1e3, p.p99_s * 1e3, p.trusted)
        for p in profile.points
    )
    return BatchCurve(
        profile.variant.id,
        profile.name,
        profile.variant.precision.value,
        measured,
        tuple(predicted),
    )
