"""Trade-offs between variants: throughput with latency, accuracy with latency or money.

A frontier is what is left when everything is taken away that something else beats (Pareto).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from modelless.profiler.cost_model.dominated import standing_of
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.report.profiles import Profile
from modelless.variants.registry.dominance import IsMoreAccurate, find_dominated

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """A variant at one batch.

    Attributes:
        throughput_per_s: items a second.
        trusted: it was quiet enough while this was measured.
    """

    batch: int
    latency_ms: float
    throughput_per_s: float
    memory_bytes: int
    trusted: bool


@dataclass(frozen=True, slots=True)
class ThroughputCurve:
    """A variant over its batches.

    Attributes:
        variant, name, model, precision: what it is; ``name`` is short.
        accuracy_percent: 0 to 100.
        dominated_by: short name of what beats it, see ``variants.dominance``; None if nothing does.
        points: by ascending batch.
    """

    variant: str
    name: str
    model: str
    precision: str
    accuracy_percent: float
    dominated_by: str | None
    points: tuple[BatchPoint, ...]


@dataclass(frozen=True, slots=True)
class ThroughputFigure:
    """Throughput against latency of a task's variants on one device, the most accurate first."""

    task: str
    device: str
    curves: tuple[ThroughputCurve, ...]


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The throughput, accuracy and cost of a variant on a device.

    Attributes:
        variant, name, device: the placement; ``name`` is short.
        accuracy_percent, low_percent, high_percent: with its 95 % interval, None if unknown.
        latency_ms: median of one item alone; None if batch 1 was not measured.
        memory_bytes: resident growth at the smallest measured batch.
        usd_per_1000_items: at the batch that makes it cheapest; None without a price.
        on_latency_frontier, on_cost_frontier: no other of the same device is at least as accurate
            and quicker, or cheaper.
    """

    variant: str
    name: str
    device: str
    accuracy_percent: float
    low_percent: float | None
    high_percent: float | None
    provenance: str
    latency_ms: float | None
    memory_bytes: int
    usd_per_1000_items: float | None
    cheapest_batch: int
    on_latency_frontier: bool
    on_cost_frontier: bool


@dataclass(frozen=True, slots=True)
class FrontierFigure:
    """Accuracy against latency and against cost of a task's variants, by device."""

    task: str
    accuracy_metric: str
    devices: tuple[str, ...]
    points: tuple[FrontierPoint, ...]


def frontier(items: Iterable[_T], key: Callable[[_T], tuple[float, float]]) -> list[_T]:
    """Those that no other beats, by the first figure; of equal ones the one that comes first.

    Args:
        key: two figures of one: less is better of the first, more of the second.
    """
    kept: list[_T] = []
    for item in sorted(items, key=lambda each: (key(each)[0], -key(each)[1])):
        if not kept or key(item)[1] > key(kept[-1])[1]:
            kept.append(item)
    return kept


def throughput_figure(
    profiles: Sequence[Profile], is_more_accurate: IsMoreAccurate
) -> ThroughputFigure:
    """The figure of profiles of one task on one device; at least one."""
    ranked = sorted(profiles, key=lambda p: (-p.variant.accuracy.percent, p.points[0].p50_s))
    names = {profile.variant.id: profile.name for profile in profiles}
    standings = [standing_of(each.variant, each.points) for each in profiles]
    beaten = find_dominated(standings, is_more_accurate)
    return ThroughputFigure(
        ranked[0].variant.task,
        ranked[0].device.name,
        tuple(
            ThroughputCurve(
                profile.variant.id,
                profile.name,
                profile.variant.model,
                profile.variant.precision.value,
                profile.variant.accuracy.percent,
                names.get(beaten.get(profile.variant.id, "")),
                tuple(
                    BatchPoint(
                        point.batch,
                        point.p50_s * 1e3,
                        point.throughput_per_s,
                        point.memory_bytes,
                        point.trusted,
                    )
                    for point in profile.points
                ),
            )
            for profile in ranked
        ),
    )


def frontier_figure(profiles: Sequence[Profile]) -> FrontierFigure:
    """The figure of profiles of one task on any devices; at least one."""
    points = []
    for name in dict.fromkeys(profile.device.name for profile in profiles):
        mine = [profile for profile in profiles if profile.device.name == name]
        quickest = _ids_on_frontier(mine, _latency_ms)
        cheapest = _ids_on_frontier(mine, _usd_per_1000_items)
        for profile in sorted(mine, key=lambda p: (-p.variant.accuracy.percent, p.variant.id)):
            accuracy = profile.variant.accuracy
            points.append(
                FrontierPoint(
                    profile.variant.id,
                    profile.name,
                    name,
                    accuracy.percent,
                    accuracy.low_percent,
                    accuracy.high_percent,
                    accuracy.provenance.value,
                    _latency_ms(profile),
                    profile.points[0].memory_bytes,
                    _usd_per_1000_items(profile),
                    _cheapest(profile).batch,
                    profile.variant.id in quickest,
                    profile.variant.id in cheapest,
                )
            )
    return FrontierFigure(
        profiles[0].variant.task,
        profiles[0].variant.accuracy.metric,
        tuple(dict.fromkeys(profile.device.name for profile in profiles)),
        tuple(points),
    )


def _ids_on_frontier(
    profiles: Sequence[Profile], price: Callable[[Profile], float | None]
) -> set[str]:
    priced = [(p, price_) for p in profiles if (price_ := price(p)) is not None]
    kept = frontier(priced, lambda pair: (pair[1], pair[0].variant.accuracy.percent))
    return {profile.variant.id for profile, _ in kept}


def _latency_ms(profile: Profile) -> float | None:
    return next((point.p50_s * 1e3 for point in profile.points if point.batch == 1), None)


def _cheapest(profile: Profile) -> Measurement:
    return max(profile.points, key=lambda point: point.throughput_per_s)


def _usd_per_1000_items(profile: Profile) -> float | None:
    return profile.device.usd_per_1000_items(_cheapest(profile).throughput_per_s)
