"""Latency against batch: what was measured, and what a cost model makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from modelless.profiler.report.profiles import Profile
from modelless.variants.estimates import CostModel, Load
from modelless.variants.vocabulary import Placement

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
