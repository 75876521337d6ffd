"""How well a part of the measuring time predicts all of it, and what a device's own rates add.

Takes a home in which a full grid was profiled, hides it, lets the strategy of `modelless profile
--budget` choose points as if each were measured now (it takes as long as it took), and compares
what is predicted of the rest with what was measured. Each is done twice: the devices known by name
alone, and with the rates that ``modelless device`` measured of them (``rates``). ``zero_shot`` is
what is predicted of a device class before anything was measured, and ``sibling`` what is of one of
which nothing was when all of another was:

    modelless --home HOME profile --device-class cpu-1,cpu-2
    python benchmarks/profiling/few_points.py --home HOME

``regret_points`` is the accuracy that decisions lose against those by the full grid: for deadlines
from the quickest to the slowest variant, the most accurate variant whose predicted p90 is in time
is taken, and is worth its accuracy if it is in time. ``by`` says whether the points were chosen by
the loss of decisions, as ``--budget`` does, or by all errors alike, as ``--target-error`` does.
``prediction_tables.py`` shows the regret on devices of tables of profiles.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from modelless.profiler.cost_model.model_inputs import read_measurements
from modelless.profiler.cost_model.placement_facts import describe_measured
from modelless.profiler.cost_model.unmeasured.experiment_design import BayesianDesign
from modelless.profiler.cost_model.unmeasured.machine_predictor import MachinePredictor
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.device_records import DeviceRecords
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import PlacementFacts, TableRow
from modelless.profiler.measure.timing import MeasurementEffort
from modelless.variants.registry.registry import Registry, open_registry
from modelless.variants.vocabulary import (
    Accuracy,
    DeviceClass,
    Engine,
    Placement,
    Precision,
    Provenance,
    Variant,
)

SHARES = (0.05, 0.10, 0.15, 0.25)
BUDGETS_S = (10.0, 30.0, 60.0)
DEADLINES = 32
ALL_ALIKE = 0.0  # a target that is never reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True, help="with a profiled grid")
    home = parser.parse_args().home
    with closing(open_registry(home)) as registry:
        grid, subjects = of_registry(registry)
    devices = sorted({row.device_class for row in grid})
    found: dict[str, Any] = {"points": len(grid), "seconds": round(cost_s(grid), 1)}
    unrated = {placement: replace(one, rates=None) for placement, one in subjects.items()}
    for name, some in (("name_alone", unrated), ("rates", subjects)):
        found[name] = {
            "zero_shot": {each: unseen(grid, some, each, []) for each in devices},
            "sibling": {each: unseen(grid, some, each, others(grid, each)) for each in devices},
            "results": [
                {"budget_s": budget_s, "by": by, **replay(grid, some, budget_s, target)}
                for budget_s in (*BUDGETS_S, *(share * found["seconds"] for share in SHARES))
                for by, target in (("decisions", None), ("errors", ALL_ALIKE))
            ],
        }
    print(json.dumps(found, indent=1))


def of_registry(
    registry: Registry,
) -> tuple[list[Measurement], dict[Placement, PlacementFacts]]:
    """What this machine measured of the newest variants, and their facts."""
    facts = read_facts()
    devices = {device.name: device for device in default_device_classes(facts)}
    catalog = registry.catalog()
    newest = {variant.id: variant for variant in catalog.variants}
    measured = read_measurements(registry, devices.values(), facts)
    grid = [row for row in measured if row.variant_id in newest]
    rates = DeviceRecords(registry.store).current(devices.values(), facts)
    return grid, describe_measured(
        grid, newest, devices, catalog.models.values(), registry.graph_facts, rates
    )


def others(grid: Sequence[Measurement], device_class: str) -> list[Measurement]:
    return [row for row in grid if row.device_class != device_class]


def unseen(
    grid: Sequence[Measurement],
    subjects: Mapping[Placement, PlacementFacts],
    device_class: str,
    known: Sequence[Measurement],
) -> dict[str, float]:
    """Predictions for a device class of which nothing was measured."""
    model = MachinePredictor(shipped_prior(), subjects, sorted({row.batch for row in grid}))
    return judge(model, known, [row for row in grid if row.device_class == device_class])


def judge(
    model: MachinePredictor, known: Sequence[Measurement], rest: Sequence[Measurement]
) -> dict[str, float]:
    """Errors and bands of the rest, predicted from what is known."""
    rows = model.rows((row.placement, row.batch) for row in rest)
    expected = model.fit(known).predict(rows)
    seen_s = np.array([row.p50_s for row in rest])
    error = np.abs(expected.median_s / seen_s - 1.0)
    above = np.log(seen_s / expected.median_s) / expected.p90_log
    return {
        "predicted": len(rest),
        "median_error_percent": round(100.0 * float(np.median(error)), 2),
        "p90_error_percent": round(100.0 * float(np.quantile(error, 0.9)), 2),
        "within_10_percent": round(100.0 * float((error <= 0.1).mean()), 1),
        "below_p90_percent": round(100.0 * float((above <= 1.0).mean()), 1),
        "in_band_of_80_percent": round(100.0 * float((np.abs(above) <= 1.0).mean()), 1),
        "p90_over_median": round(float(np.exp(np.median(expected.p90_log))), 2),
    }


def cost_s(rows: Sequence[Measurement]) -> float:
    """What measuring the points took: their runs, and a load for each placement."""
    loads_s = {row.placement: row.load_s for row in rows}
    return sum(row.repeats * row.mean_s for row in rows) + sum(loads_s.values())


def regret(
    model: MachinePredictor,
    subjects: Mapping[Placement, PlacementFacts],
    known: Sequence[Measurement],
    grid: Sequence[Measurement],
) -> float:
    """Accuracy that a decision loses against those by the full grid, points."""
    expected = model.fit(known).predict(model.rows((row.placement, row.batch) for row in grid))
    supposed_s = expected.median_s * np.exp(expected.p90_log)
    measured = {(row.placement, row.batch) for row in known}
    groups: dict[tuple[str, str, int], list[tuple[float, float, float]]] = {}
    for row, value_s in zip(grid, supposed_s.tolist(), strict=True):
        variant = subjects[row.placement].variant
        is_known = (row.placement, row.batch) in measured
        groups.setdefault((variant.task, row.device_class, row.batch), []).append(
            (variant.accuracy.percent, row.p50_s, row.p50_s if is_known else value_s)
        )
    lost = []
    for rows in groups.values():
        true_s = [row[1] for row in rows]
        for deadline_s in np.geomspace(min(true_s) / 1.25, max(true_s) * 1.25, DEADLINES):
            best = max((row[0] for row in rows if row[1] <= deadline_s), default=0.0)
            taken = max((row for row in rows if row[2] <= deadline_s), default=(0.0, 0.0, 0.0))
            lost += [best - (taken[0] if taken[1] <= deadline_s else 0.0)] * len(rows)
    return float(np.mean(lost))


def of_rows(
    rows: Sequence[TableRow], count: int, seed: int
) -> tuple[list[Measurement], dict[Placement, PlacementFacts]]:
    """Some variants of a device of a table, as if they were measured on this machine."""
    rows = [row for row in rows if row.accuracy]
    items = list(dict.fromkeys(row.item for row in rows))
    kept = {items[at] for at in np.random.default_rng(seed).permutation(len(items))[:count]}
    rows = [row for row in rows if row.item in kept and 0.0 <= row.accuracy <= 100.0]
    where = DeviceClass("cpu-1", "cpu", 1, 1 << 40, 0.0, 0.0)
    grid, subjects = [], {}
    for row in {(row.item, row.batch): row for row in rows}.values():
        variant = Variant(
            row.task, model_name(row), f"v{row.resolution_px or 0}", 1, Precision.FP32,
            row.resolution_px, Engine.ONNXRUNTIME_CPU, "0" * 64, round(4e6 * (row.params_m or 5.0)),
            Accuracy(row.accuracy, row.accuracy_metric, Provenance.PUBLISHED, "a table"),
            row.params_m and round(row.params_m * 1e6), row.gmacs and round(row.gmacs * 1e9),
        )  # fmt: skip
        p50_s, effort = row.latency_ms / 1e3, MeasurementEffort()
        spent_s = max(
            effort.min_repeats * p50_s, min(effort.max_time_s, effort.tail_repeats * p50_s)
        )
        repeats = math.ceil(spent_s / p50_s)
        placement = Placement(variant.id, where.name)
        subjects[placement] = PlacementFacts(variant, where, row.device, "engine", row.family)
        grid.append(measurement(placement, row, repeats))
    return grid, subjects


def model_name(row: TableRow) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", row.model.lower()).strip("-._")[:64]


def measurement(
    placement: Placement,
    row: TableRow,
    repeats: int = 30,
    engine: str = "engine",
    fingerprint: str = "table",
) -> Measurement:
    """A row of a table as if it was measured on this machine."""
    p50_s = row.latency_ms / 1e3
    return Measurement(
        *placement, row.batch, 1, engine, row.device, repeats, p50_s, 1.05 * p50_s, 1.2 * p50_s,
        p50_s, row.batch / p50_s, 1 << 20, 0.3, True, 0.0, datetime(2025, 1, 1, tzinfo=UTC),
        fingerprint,
    )  # fmt: skip


def replay(
    grid: Sequence[Measurement],
    subjects: Mapping[Placement, PlacementFacts],
    budget_s: float,
    target_error: float | None = None,
) -> dict[str, float]:
    """Choose points until the time is spent, and judge what is predicted then."""
    known = choose(grid, subjects, budget_s, target_error)
    measured = {(row.placement, row.batch) for row in known}
    rest = [row for row in grid if (row.placement, row.batch) not in measured]
    model = MachinePredictor(shipped_prior(), subjects, sorted({row.batch for row in grid}))
    return {
        "share_of_time": round(cost_s(known) / cost_s(grid), 3),
        "measured": len(known),
        "regret_points": round(regret(model, subjects, known, grid), 3),
        **(judge(model, known, rest) if rest else {}),
    }


def choose(
    grid: Sequence[Measurement],
    subjects: Mapping[Placement, PlacementFacts],
    budget_s: float,
    target_error: float | None = None,
) -> list[Measurement]:
    """The points of the grid that ``profile --budget`` would have measured in that time."""
    points = {(row.placement, row.batch): row for row in grid}
    batches = sorted({row.batch for row in grid})
    strategy = BayesianDesign(shipped_prior(), subjects, batches, target_error)
    left: dict[Placement, list[int]] = {}
    for row in grid:
        left.setdefault(row.placement, []).append(row.batch)
    known: list[Measurement] = []
    while left:
        chosen = strategy.choose(left, known)
        if chosen is None:
            break
        more = [points[chosen.placement, batch] for batch in chosen.batches]
        if cost_s([*known, *more]) > budget_s:
            break
        known += more
        left[chosen.placement] = [b for b in left[chosen.placement] if b not in chosen.batches]
        if not left[chosen.placement]:
            del left[chosen.placement]
    return known


if __name__ == "__main__":
    main()
