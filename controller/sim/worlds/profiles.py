"""From a world's tasks to what the cores need: variants, device classes, measurements, facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path

import numpy as np

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.sim.worlds.faults import LoadFails
from modelless.controller.sim.worlds.measurements import measurement
from modelless.controller.sim.worlds.table_variants import read_variants
from modelless.controller.sim.worlds.variants import (
    LadderVariants,
    StoreVariants,
    TableVariants,
    TaskSettings,
    WrittenVariants,
)
from modelless.controller.sim.worlds.world import MIB, World, WorldFile
from modelless.policies.views import VariantFacts
from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.variants.estimates import Load
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import (
    Accuracy,
    DeviceClass,
    Engine,
    Placement,
    Precision,
    Provenance,
    Variant,
    check_name,
)

MOST_POINTS = 1_000_000
"""Measured points of all variants; and figures by variant, device class and batch, tenfold."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What can be served, on what.

    Attributes:
        measurements: what both the devices and the cost model are made of.
        sized: the same at all sizes of items, where sizes differ; see ``SizeModel``.
        facts: for the planner; memory is that of a batch of ``limits.max_batch``.
        true_ratios: what a batch really takes over what was measured, by variant id and class;
            1 where there is none.
    """

    variants: Mapping[str, Variant]
    device_classes: Mapping[str, DeviceClass]
    measurements: Sequence[Measurement]
    facts: tuple[VariantFacts, ...]
    true_ratios: Mapping[tuple[str, str], float]
    sized: Sequence[Measurement] = ()


def build_fleet(file: WorldFile, home: Path | None = None) -> Fleet:
    """Read every task's variants and profiles.

    Args:
        home: of the store, for tasks that come from there.

    Raises:
        InvalidInputError: a table that cannot be read or does not fit, a task that nothing can
            serve, a device class without a profile; names the place in the world.
    """
    world = file.world
    classes = {
        device.name: DeviceClass(
            device.name,
            device.kind,
            device.threads,
            device.memory_bytes,
            device.price_usd_per_hour,
            device.power_w,
        )
        for device in world.devices
    }
    variants: dict[str, Variant] = {}
    measurements: list[Measurement] = []
    true_ratios: dict[tuple[str, str], float] = {}
    _check_made_up(world)
    for number, task in enumerate(world.tasks):
        for name in task.names:
            try:
                mine, points = _task(task, name, file, home)
            except InvalidInputError as error:
                raise InvalidInputError(f"tasks.{number}.variants: {error}") from None
            except NotFoundError as error:
                raise NotFoundError(f"tasks.{number}.variants: {error}") from None
            if not _is_measured(task):
                _check_accuracies(f"tasks.{number}.variants", mine)
            variants.update((variant.id, variant) for variant in mine)
            measurements += points
            if isinstance(task.variants, WrittenVariants):
                for variant, written in zip(mine, task.variants.variants, strict=True):
                    for device, ratio in written.true_ratios.items():
                        true_ratios[variant.id, device] = ratio
            _check_size(number, len(variants), len(measurements), world)
    sized = [point for point in measurements if point.elements > 0]
    measurements = [point for point in measurements if point.is_typical]
    facts = _facts(variants, list(classes), measurements, world.limits.max_batch)
    _check(world, facts, classes)
    _check_faults(world, variants)
    return Fleet(variants, classes, measurements, facts, true_ratios, sized)


def _task(
    task: TaskSettings, name: str, file: WorldFile, home: Path | None
) -> tuple[list[Variant], list[Measurement]]:
    settings = task.variants
    if isinstance(settings, WrittenVariants):
        return _written(settings, name, file.world)
    if isinstance(settings, LadderVariants):
        return _ladder(settings, name, file.world)
    if isinstance(settings, TableVariants):
        return read_variants(settings, name, file)
    return _stored(settings, name, file.world, home)


def plain_variant(task: str, model: str, name: str, accuracy: float) -> Variant:
    """A variant that has no artifact. Nothing here reads its precision or its engine."""
    known = Accuracy(accuracy, "accuracy", Provenance.PUBLISHED, "world file")
    return Variant(
        task, model, name, 1, Precision.FP32, None, Engine.ONNXRUNTIME_CPU, "0" * 64, 0, known
    )


def _written(
    settings: WrittenVariants, task: str, world: World
) -> tuple[list[Variant], list[Measurement]]:
    variants, points = [], []
    names = {device.name for device in world.devices}
    for number, written in enumerate(settings.variants):
        check_name(f"variants.{number}.model", written.model)
        variant = plain_variant(task, written.model, written.name, written.accuracy)
        variants.append(variant)
        sizes = sorted({point.size for point in written.points})
        if len(sizes) > 1 and sizes[0] == 0:
            raise InvalidInputError.of(
                f"variants.{number}.points: size", sizes, "of all or of none"
            )
        typical = sizes[len(sizes) // 2]
        measured: set[tuple[str, int, int]] = set()
        for place, point in enumerate(written.points):
            if (point.device, point.batch, point.size) in measured:
                raise InvalidInputError.of(
                    f"variants.{number}.points.{place}",
                    f"batch {point.batch} on {point.device} again",
                    "each batch once a device, and a size",
                )
            measured.add((point.device, point.batch, point.size))
            if point.device not in names:
                raise InvalidInputError.of(
                    f"variants.{number}.points.{place}.device", point.device, ", ".join(names)
                )
            p90_ms = point.p90_ms or min(
                point.p50_ms * settings.tail.p90_ratio, point.p99_ms or inf
            )
            p99_ms = point.p99_ms or max(p90_ms, point.p50_ms * settings.tail.p99_ratio)
            if not point.p50_ms <= p90_ms <= p99_ms:
                raise InvalidInputError.of(
                    f"variants.{number}.points.{place}",
                    (point.p50_ms, p90_ms, p99_ms),
                    "p50_ms, p90_ms, p99_ms in ascending order",
                )
            points.append(
                measurement(
                    variant.id,
                    point.device,
                    point.batch,
                    (point.p50_ms / 1e3, p90_ms / 1e3, p99_ms / 1e3),
                    written.memory_mib * MIB,
                    written.load_s,
                    point.size,
                    is_typical=point.size == typical,
                )
            )
        for device in written.true_ratios:
            if device not in {name for name, _, _ in measured}:
                raise InvalidInputError.of(
                    f"variants.{number}.true_ratios", device, "device classes of its points"
                )
    _refuse_twins(variants)
    return variants, points


def _ladder(
    settings: LadderVariants, task: str, world: World
) -> tuple[list[Variant], list[Measurement]]:
    names = [device.name for device in world.devices]
    for name in settings.speeds:
        if name not in names:
            raise InvalidInputError.of("speeds", name, ", ".join(names))
    speeds = settings.speeds or dict.fromkeys(names, 1.0)
    batches = sorted(set(settings.batches))
    variants, points = [], []
    last = max(settings.count - 1, 1)
    for rank in range(settings.count):
        step = rank / last
        low, high = settings.accuracy
        variant = plain_variant(task, f"rung-{rank:02d}", "v", low + (high - low) * step**0.5)
        variants.append(variant)
        latency_s = _between(settings.latency_ms, step) / 1e3
        for device, speed in speeds.items():
            for batch in batches:
                p50_s = latency_s / speed * (1.0 + settings.further_item * (batch - 1))
                points.append(
                    measurement(
                        variant.id,
                        device,
                        batch,
                        (p50_s, p50_s * settings.tail.p90_ratio, p50_s * settings.tail.p99_ratio),
                        _between(settings.memory_mib, step) * MIB,
                        _between(settings.load_s, step),
                    )
                )
    return variants, points


def _stored(
    settings: StoreVariants, task: str, world: World, home: Path | None
) -> tuple[list[Variant], list[Measurement]]:
    if home is None:
        raise InvalidInputError.of("kind", "store", "another kind", "No home was given.")
    with closing(open_registry(home)) as registry:
        scope = registry.catalog().resolve(task)
        rows = Records(registry.store).everything()
    ids = {variant.id for variant in scope.variants}
    names = {device.name for device in world.devices}
    rows = [
        row
        for row in rows
        if row.variant_id in ids
        and row.device_class in names
        and settings.device_name in (None, row.device_name)
    ]
    return list(scope.variants), rows


def _facts(
    variants: Mapping[str, Variant],
    classes: Sequence[str],
    measurements: Sequence[Measurement],
    max_batch: int,
) -> tuple[VariantFacts, ...]:
    model = ServingCostModel(measurements)
    columns = {}
    for name in classes:
        placements = tuple(Placement(variant_id, name) for variant_id in variants)
        by_batch = [model.estimate(placements, b, Load()) for b in range(1, max_batch + 1)]
        batch_s = np.stack([estimates.p50_s for estimates in by_batch], axis=1)
        columns[name] = (by_batch[0], by_batch[-1].memory_bytes, batch_s)
    facts = []
    for row, variant in enumerate(variants.values()):
        known = [name for name in classes if columns[name][0].p50_s[row] < float("inf")]
        facts.append(
            VariantFacts(
                variant.id,
                variant.task,
                variant.accuracy.percent,
                {name: float(columns[name][1][row]) for name in known},
                {name: float(columns[name][0].load_s[row]) for name in known},
                {name: float(columns[name][0].p50_s[row]) for name in known},
                {name: (0.0, *columns[name][2][row].tolist()) for name in known},
            )
        )
    return tuple(facts)


def _check(world: World, facts: Iterable[VariantFacts], classes: Mapping[str, DeviceClass]) -> None:
    """Every device class can run something, and every task runs and fits somewhere."""
    served: set[str] = set()
    runs: set[str] = set()
    known: set[str] = set()
    there = {device.name for device in world.devices if device.count or device.max_workers}
    for variant in facts:
        for name, needed_bytes in variant.memory_bytes.items():
            known.add(variant.task)
            runs.add(name)
            if name in there and needed_bytes <= classes[name].memory_bytes:
                served.add(variant.task)
    for number, device in enumerate(world.devices):
        if device.name not in runs:
            raise InvalidInputError(
                f"devices.{number}: no variant of any task has a profile for {device.name!r} "
                f"(profiled_as: {device.profiled_as or device.name!r})"
            )
    for number, task in enumerate(world.tasks):
        for name in task.names:
            if name not in served:
                why = (
                    "fits into the memory of any device that is there"
                    if name in known
                    else "has a profile for any of the devices"
                )
                raise InvalidInputError(f"tasks.{number}: no variant of {name!r} {why}")


def _is_measured(task: TaskSettings) -> bool:
    """Whether accuracies were measured here: then they are per cent, however low."""
    settings = task.variants
    return isinstance(settings, StoreVariants) or (
        isinstance(settings, WrittenVariants) and settings.measured
    )


def _check_accuracies(place: str, variants: Sequence[Variant]) -> None:
    """Accuracies are per cent: a task whose best variant is right once in a hundred is none."""
    best = max((variant.accuracy.percent for variant in variants), default=0.0)
    if 0.0 < best <= 1.0:
        raise InvalidInputError.of(
            f"{place}: accuracy", best, "per cent, 0 to 100", "These look like shares of 1."
        )


def _check_made_up(world: World) -> None:
    """Refuse ladders that would fill the memory before a rung is made."""
    variants = points = 0
    for number, task in enumerate(world.tasks):
        if isinstance(task.variants, LadderVariants):
            classes = len(task.variants.speeds) or len(world.devices)
            rungs = task.copies * task.variants.count
            variants += rungs
            points += rungs * classes * len(set(task.variants.batches))
            _check_size(number, variants, points, world)


def _check_size(number: int, variants: int, points: int, world: World) -> None:
    """Refuse what would fill the memory."""
    figures = variants * len(world.devices) * world.limits.max_batch
    for what, count, most in (
        ("measured points", points, MOST_POINTS),
        ("variants x device classes x limits.max_batch", figures, 10 * MOST_POINTS),
    ):
        if count > most:
            raise InvalidInputError.of(
                f"tasks, up to tasks.{number}", f"{count:,} {what}", f"at most {most:,}"
            )


def _check_faults(world: World, variants: Mapping[str, Variant]) -> None:
    for number, fault in enumerate(world.faults):
        if isinstance(fault, LoadFails) and not any(
            fnmatchcase(name, fault.variant) for name in variants
        ):
            some = ", ".join(list(variants)[:4])
            raise InvalidInputError.of(
                f"faults.{number}.variant", fault.variant, f"of the variants, such as {some}"
            )


def _refuse_twins(variants: Iterable[Variant]) -> None:
    seen: set[str] = set()
    for variant in variants:
        if variant.id in seen:
            raise InvalidInputError.of("variants", variant.id, "each model and name once")
        seen.add(variant.id)


def _between(ends: tuple[float, float], step: float) -> float:
    """Geometric from the first to the second as ``step`` goes from 0 to 1."""
    return float(ends[0] * (ends[1] / ends[0]) ** step)
