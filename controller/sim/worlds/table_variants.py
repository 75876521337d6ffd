"""Variants and measurements from a table of the profiles' schema, ours or anyone's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from modelless.common.errors import InvalidInputError
from modelless.controller.sim.worlds.measurements import measurement
from modelless.controller.sim.worlds.variants import TableVariants
from modelless.controller.sim.worlds.world import MIB, WorldFile
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import TableRow, read_table
from modelless.variants.vocabulary import Accuracy, Engine, Precision, Provenance, Variant

_Key = tuple[str, str, str, int | None]
_PRECISIONS = {
    "fp16": Precision.FP16,
    "amp": Precision.FP16,
    "bf16": Precision.BF16,
    "int8": Precision.INT8,
    "w8a8": Precision.INT8,
    "w8a16": Precision.INT8,
    "int4": Precision.INT4,
    "w4a16": Precision.INT4,
}


def read_variants(
    settings: TableVariants, task: str, file: WorldFile
) -> tuple[list[Variant], list[Measurement]]:
    """The variants of ``task`` that the table holds, and what it says of the world's devices.

    Raises:
        InvalidInputError: the table cannot be read, holds nothing that fits, does not tell the
            accuracy, or was measured only at batches beyond the world's.
    """
    paths = (settings.path,) if isinstance(settings.path, str) else settings.path
    rows = [
        row
        for path in paths
        for row in read_table(file.folder / path)
        if settings.task in (None, row.task)
        and _fits(row.model, settings.models)
        and _fits(row.engine, settings.engines)
        and _fits(row.precision, settings.precisions)
    ]
    classes: dict[str, list[str]] = {}
    for device in file.world.devices:
        classes.setdefault(device.profiled_as or device.name, []).append(device.name)
    groups: dict[_Key, list[TableRow]] = {}
    for row in rows:
        if row.device in classes:
            key = (row.model, row.precision, row.engine, row.resolution_px)
            groups.setdefault(key, []).append(row)
    if not groups:
        raise InvalidInputError(
            f"path {settings.path}: no row fits; {len(rows)} rows are of the task, models, engines "
            f"and precisions asked for, of the devices {_list({row.device for row in rows})}; "
            f"asked for: {_list(classes)}"
        )
    chosen = _spread(groups, settings)
    names: set[tuple[str, str]] = set()
    variants, points = [], []
    for key, accuracy in chosen:
        variant = _variant(key, task, accuracy, groups[key], names)
        variants.append(variant)
        points += _points(settings, variant.id, groups[key], classes, file)
    return variants, points


def _spread(
    groups: dict[_Key, list[TableRow]], settings: TableVariants
) -> list[tuple[_Key, float]]:
    """The variants to keep with their accuracies, ascending."""
    known = []
    best: dict[str, float] = {}
    for key, rows in groups.items():
        told = next((row.accuracy for row in rows if row.accuracy is not None), settings.accuracy)
        if told == "skip":
            continue
        if not isinstance(told, float | int) or not 0.0 <= told <= 100.0:
            raise InvalidInputError.of(
                f"{settings.path}: accuracy of {key[0]!r}",
                told,
                "0 to 100 (per cent)",
                "Set 'accuracy' for what the table does not tell." if told is None else "",
            )
        known.append((float(told), key))
        best[key[0]] = max(best.get(key[0], 0.0), float(told))
    if not known:
        raise InvalidInputError(f"{settings.path}: accuracy: every variant was skipped")
    models = sorted(best, key=lambda model: (best[model], model))
    count = len(models) if settings.most is None else min(settings.most, len(models))
    kept = {models[round(step * (len(models) - 1) / max(count - 1, 1))] for step in range(count)}
    known.sort(key=lambda entry: (entry[0], tuple(map(str, entry[1]))))
    return [(key, told) for told, key in known if key[0] in kept]


def _variant(
    key: _Key, task: str, accuracy: float, rows: Sequence[TableRow], taken: set[tuple[str, str]]
) -> Variant:
    model_text, precision, engine, resolution_px = key
    model = _slug(model_text)
    plain = _slug("-".join(str(part) for part in (precision, resolution_px, engine) if part) or "v")
    name, number = plain, 2
    while (model, name) in taken:
        name, number = f"{plain[:58]}-{number}", number + 1
    taken.add((model, name))
    row = rows[0]
    return Variant(
        task,
        model,
        name,
        1,
        _PRECISIONS.get(precision.lower(), Precision.FP32),
        resolution_px,
        Engine.ONNXRUNTIME_CPU,  # nothing here reads it
        "0" * 64,
        0,
        Accuracy(accuracy, row.accuracy_metric or "accuracy", Provenance.PUBLISHED, row.source),
        None if row.params_m is None else round(row.params_m * 1e6),
        None if row.gmacs is None else round(row.gmacs * 1e9),
    )


def _points(
    settings: TableVariants,
    variant_id: str,
    rows: Sequence[TableRow],
    classes: dict[str, list[str]],
    file: WorldFile,
) -> list[Measurement]:
    max_batch = file.world.limits.max_batch
    memory_bytes = _memory_bytes(settings, rows)
    load_s = settings.load.fixed_s + memory_bytes / MIB / settings.load.mib_per_s
    points = []
    for device in dict.fromkeys(row.device for row in rows):
        by_batch: dict[int, TableRow] = {}
        mine = [row for row in rows if row.device == device]
        for row in sorted(mine, key=lambda row: (row.batch, row.concurrency or 1, row.latency_ms)):
            by_batch.setdefault(row.batch, row)  # of several clients, the fewest: least queueing
        quantiles = {batch: _quantiles_s(settings, row) for batch, row in by_batch.items()}
        least = min(by_batch)
        if least > max_batch and settings.launch_ms is None:
            raise InvalidInputError.of(
                f"{settings.path}: batches of {variant_id} on {device!r}",
                sorted(by_batch),
                f"a batch of at most {max_batch} (limits.max_batch)",
                "Set 'launch_ms' to reckon smaller batches from larger ones.",
            )
        if settings.launch_ms is not None and least > 1:
            quantiles.update(_below(quantiles[least], least, settings.launch_ms / 1e3))
        for name in classes[device]:
            points += [
                measurement(variant_id, name, batch, told, memory_bytes, load_s)
                for batch, told in sorted(quantiles.items())
            ]
    return points


def _below(
    told: tuple[float, float, float], least: int, launch_s: float
) -> Iterable[tuple[int, tuple[float, float, float]]]:
    """Batches 1, 2, 4, ... below ``least``, reckoned: a launch, and each item's share."""
    batch = 1
    while batch < least:
        scale = (min(launch_s, told[0]) + max(told[0] - launch_s, 0.0) * batch / least) / told[0]
        yield batch, (told[0] * scale, told[1] * scale, told[2] * scale)
        batch *= 2


def _quantiles_s(settings: TableVariants, row: TableRow) -> tuple[float, float, float]:
    p50_s = row.latency_ms / 1e3
    if row.latency_p99_ms is None:
        return (p50_s, p50_s * settings.tail.p90_ratio, p50_s * settings.tail.p99_ratio)
    p99_s = max(row.latency_p99_ms / 1e3, p50_s)
    share = math.log(settings.tail.p90_ratio) / max(math.log(settings.tail.p99_ratio), 1e-9)
    return (p50_s, p50_s * (p99_s / p50_s) ** min(share, 1.0), p99_s)


def _memory_bytes(settings: TableVariants, rows: Sequence[TableRow]) -> float:
    told = [row.memory_mib for row in rows if row.memory_mib is not None]
    if told:
        return max(told) * MIB
    parameters = [row.params_m for row in rows if row.params_m is not None]
    if parameters:
        return max(parameters) * 1e6 * settings.bytes_per_parameter
    return settings.memory_mib * MIB


def _fits(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _slug(text: str) -> str:
    """``text`` as a name: 1 to 64 of a-z, 0-9, '.', '_', '-'."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower())
    return re.sub(r"\.{2,}", ".", plain).strip("._-")[:64].rstrip("._-") or "x"


def _list(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 8} more" if len(ordered) > 8 else ""
    return (", ".join(repr(name) for name in ordered[:8]) or "(none)") + more
